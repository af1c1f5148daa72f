"""Entry point of the command `metaevo`."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from metaevo.cli import commands
from metaevo.cli.program import guard
from metaevo.engine.loggers import streams
from metaevo.errors import ConfigError
from metaevo.storage import obeyed

ALIASES = {"distil": "distill"}


def command() -> None:
    """Run the `metaevo` command with the arguments of the process, and exit."""
    arguments = sys.argv[1:]
    streams.protect(own=arguments[:1] in (["run"], ["train"]))
    if not arguments:
        print(commands.usage())
        sys.exit(2)
    sys.exit(guard(lambda: _dispatch(arguments)))


def _dispatch(arguments: Sequence[str]) -> None:
    """Run the command that the first argument names.

    Raises:
        ConfigError: There is no such command, or its arguments are wrong.
        CheckpointError: The working directory is a run's and would steer matplotlib.
    """
    obeyed.check_here()
    word, *rest = arguments
    name = ALIASES.get(word, word)
    if word in ("-h", "--help"):
        print(commands.usage())
    elif word == "--version":
        print(f"metaevo {metadata.version('metaevo')}")
    elif name not in commands.COMMANDS:
        known = [*commands.COMMANDS, "--help", "--version"]
        flag = f"--{word.lower().lstrip('-')}"
        near = difflib.get_close_matches(flag, known[-2:], 1, 0.8)
        near = near or difflib.get_close_matches(word.lower(), known, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown command {word!r}.{hint} metaevo --help")
    elif rest in (["-h"], ["--help"]):
        print(commands.command_help(name))
    else:
        if os.environ.get("XLA_FLAGS"):
            # Whatever starts JAX would end inside XLA.
            from metaevo.evaluators import surroundings

            surroundings.check_flags()
        commands.execute(name, rest)
