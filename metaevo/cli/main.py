"""The command line: `python -m searches.NAME key=value ...` and `metaevo ...`.

Keys are the parameters of the search's function, and the fields of those that are
structures: `inner.*` of an inner loop's `Config`, `meta.*` the number slots of its
`Meta`; and `run.*`, a `RunConfig`. Everything is checked before anything compiles.

Exit codes: 0 done, 2 wrong input, 3 directory in use, 4 checkpoint or artifact
refused, 5 numerical failure, 6 disk, 7 failed on every host, 75 interrupted (run again
to resume); see `metaevo.errors`.
"""

from __future__ import annotations

import dataclasses
import difflib
import errno
import inspect
import runpy
import signal
import sys
import threading
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.errors import ConfigError, InterruptedRunError, MetaevoError
from metaevo.types import Search

FLAGS = ("-h", "--help", "--cfg", "--cfg-diff", "--dry-run")
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)


def main(search: Callable[..., Search], argv: Sequence[str] | None = None) -> None:
    """Runs a search function from the command line, and exits.

    Args:
        search: its parameters, with types and defaults, are the keys.
        argv: `key=value` arguments; None: those of the process.
    """
    stop = on_signals()
    arguments = sys.argv[1:] if argv is None else argv
    sys.exit(_guard(lambda: _run(search, arguments, stop.is_set)))


def on_signals() -> threading.Event:
    """An event that SIGINT, SIGTERM and SIGUSR1 set; a second SIGINT cuts short."""
    stop = threading.Event()

    def handle(number, frame):
        del frame
        if number == signal.SIGINT and stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    # Only a process's main thread may; elsewhere signals are its owner's business.
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), handle)
    return stop


def _run(
    search: Callable[..., Search], argv: Sequence[str], should_stop: Callable[[], bool]
) -> None:
    flags = [arg for arg in argv if arg in FLAGS]
    if "-h" in flags or "--help" in flags:
        print(help_text(search))
        return
    config = parse(search, [arg for arg in argv if arg not in FLAGS])
    if "--cfg-diff" in flags:
        print("\n".join(changes(search, config)))
        return
    if "--cfg" in flags:
        print("\n".join(assignments(config)))
        return
    from metaevo.storage import run_directory

    if config["run"].directory:
        run_directory.check_writable("run.directory", config["run"].directory)
    from metaevo.engine import dry_run
    from metaevo.engine import loop as engine
    from metaevo.evaluators.devices import configure

    dry = "--dry-run" in flags
    if config["run"].distributed and not dry:
        from metaevo.evaluators import distributed

        distributed.join(config["run"])
    else:
        configure(driver=config["run"].evaluator == "ray" and not dry)
    name = Path(inspect.getfile(search)).stem
    arguments = {key: value for key, value in config.items() if key != "run"}
    if dry:
        print(dry_run.plan(search(**arguments), config["run"]))
        return
    engine.run(
        search(**arguments),
        config["run"],
        name,
        settings(arguments),
        changes(search, config),
        should_stop,
        inspect.getfile(search),
    )


def _guard(body: Callable[[], None]) -> int:
    """Runs `body` and turns what may go wrong into a line and an exit code."""
    from metaevo.engine.loggers.console import error as say

    try:
        body()
        return 0
    except (InterruptedRunError, KeyboardInterrupt) as error:
        say(f"{error or 'interrupted'}; run the same command again to continue")
        return InterruptedRunError.exit_code
    except MetaevoError as error:
        say(str(error))
        return error.exit_code
    except OSError as error:
        if error.errno not in _DISK:
            raise
        say(f"disk: {error}; the last checkpoint is intact")
        return 6


# --- from a signature to a configuration ----------------------------------------------


def parse(search: Callable[..., Search], argv: Sequence[str]) -> dict[str, Any]:
    """Checks `key=value` arguments against a search's signature.

    Returns:
        the search's arguments by name, and `run`, a RunConfig.

    Raises:
        ConfigError: an unknown key or a value of the wrong type.
    """
    return parse_into(search, _defaults(search), argv)


def parse_into(
    function: Callable, defaults: dict[str, Any], argv: Sequence[str]
) -> dict[str, Any]:
    """`argv` against `defaults`, with the types of the function's signature."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    schema = OmegaConf.structured(_schema_of(function, defaults))
    for arg in argv:
        key, equals, value = arg.partition("=")
        if not equals or not key or arg.startswith("-"):
            raise ConfigError(f"{arg!r}: expected key=value; --help lists the keys")
        try:
            schema = OmegaConf.merge(schema, OmegaConf.from_dotlist([arg]))
            OmegaConf.to_container(schema, resolve=True)
        except OmegaConfBaseException as error:
            raise ConfigError(_explain(key, value, error)) from None
        except (YAMLError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{key}={value}: {str(error).splitlines()[0]}") from None
    resolved = OmegaConf.to_container(schema, resolve=True)
    return {key: _restore(default, resolved[key]) for key, default in defaults.items()}


def settings(arguments: dict[str, Any]) -> dict[str, Any]:
    """A search's arguments as plain data."""
    return {
        key: {name: getattr(value, name) for name in _fields(value)} or value
        for key, value in arguments.items()
    }


def assignments(config: dict[str, Any]) -> list[str]:
    """`key=value` of everything, as one would type it."""
    lines = []
    for name, value in config.items():
        if fields := _fields(value):
            lines += [f"{name}.{f}={_shown(getattr(value, f))}" for f in fields]
        else:
            lines.append(f"{name}={_shown(value)}")
    return lines


def changes(search: Callable[..., Search], config: dict[str, Any]) -> list[str]:
    """The assignments that differ from the defaults."""
    defaults = set(assignments(_defaults(search)))
    return [line for line in assignments(config) if line not in defaults]


def help_text(search: Callable[..., Search]) -> str:
    """The search's docstring and every key with its default."""
    return "\n".join(
        [
            inspect.getmodule(search).__doc__ or "",
            "keys (key=value):",
            *(f"  {line}" for line in assignments(_defaults(search))),
            "",
            "--cfg       prints the configuration and starts nothing",
            "--cfg-diff  prints what differs from the defaults",
            "--dry-run   compiles, times a generation, prints the plan, starts nothing",
        ]
    )


def _shown(value: Any) -> str:
    """A default as one would type it."""
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _defaults(search: Callable[..., Search]) -> dict[str, Any]:
    """Parameter name -> default, and `run`."""
    from metaevo.config import RunConfig

    parameters = inspect.signature(search).parameters.values()
    missing = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    if missing:
        raise TypeError(f"{search.__name__}: parameter {missing[0]!r} has no default")
    return {p.name: p.default for p in parameters} | {"run": RunConfig()}


def _fields(value: Any) -> dict[str, Any]:
    """The keys of a nested default, name -> type.

    All fields of a dataclass (`Config`, `RunConfig`); of a NamedTuple (`Meta`) the
    slots that hold a number.
    """
    if dataclasses.is_dataclass(value):
        return typing.get_type_hints(type(value))
    if not hasattr(value, "_fields"):
        return {}
    return {
        name: float
        for name in value._fields
        if isinstance(getattr(value, name), int | float)
    }


def _schema_of(search: Callable[..., Search], defaults: dict[str, Any]) -> type:
    """A dataclass of all keys, for OmegaConf to check against.

    Mutable twins stand in for frozen dataclasses: OmegaConf merges into no other.
    """
    hints = typing.get_type_hints(search)

    def field(name, hint, default):
        if nested := _fields(default):
            inner = [field(f, t, getattr(default, f)) for f, t in nested.items()]
            twin = dataclasses.make_dataclass(type(default).__name__, inner)
            return name, twin, dataclasses.field(default_factory=twin)
        if isinstance(default, tuple):
            values = dataclasses.field(default_factory=lambda: list(default))
            return name, list[_element(hint)], values
        return name, hint, float(default) if hint is float else default

    fields = [field(name, hints.get(name, Any), d) for name, d in defaults.items()]
    return dataclasses.make_dataclass("Keys", fields)


def _element(hint: Any) -> Any:
    """`int` of `tuple[int, ...]`."""
    arguments = [a for a in typing.get_args(hint) if a is not Ellipsis]
    return arguments[0] if arguments else Any


def _restore(default: Any, value: Any) -> Any:
    """Plain data back to the type of `default`."""
    if fields := _fields(default):
        given = {f: _restore(getattr(default, f), value[f]) for f in fields}
        if dataclasses.is_dataclass(default):
            return type(default)(**given)
        return default._replace(**given)
    return tuple(value) if isinstance(default, tuple) else value


def _explain(key: str, value: str, error: Exception) -> str:
    """One line: the key, the value, what was expected, the nearest key."""
    message = str(error).splitlines()[0]
    if "not in" in message and "Key" in message:
        _, _, hint = message.partition("Did you mean")
        hint = f" Did you mean{hint.rstrip('?')}?" if hint else ""
        return f"unknown key {key!r}.{hint} --help lists the keys"
    return f"{key}={value}: {message}"


# --- the `metaevo` command ------------------------------------------------------------


class Command(NamedTuple):
    """A word of the `metaevo` command.

    Attributes:
        arguments: what follows it, for the usage line.
        does: one line.
        details: more lines, `""` if there is no more to say.
        example: as one would type it.
    """

    arguments: str
    does: str
    details: str
    example: str


COMMANDS = {
    "list": Command(
        "[KIND]",
        "what there is to search with",
        "KIND: searches, algorithms (with their slots), strategies, spaces or\n"
        "environments. Whatever file lies in the folder is found.",
        "metaevo list algorithms",
    ),
    "run": Command(
        "NAME key=value ...",
        "runs a search",
        "`metaevo run NAME --help` lists its keys; --cfg, --cfg-diff and --dry-run\n"
        "start nothing.",
        "metaevo run ppo_value_loss num_generations=20 run.seed=1",
    ),
    "resume": Command(
        "RUN key=value ...",
        "continues a run, RUN its directory",
        "With the settings it was started with; a larger num_generations extends it.",
        "metaevo resume runs/demo num_generations=40",
    ),
    "report": Command(
        "RUN",
        "makes its report anew",
        "From the run's files alone, to RUN/report/index.html.",
        "metaevo report runs/demo",
    ),
    "play": Command(
        "RUN key=value ...",
        "plays a trained agent, as a GIF",
        "agent=solution|hand-made|best, seed=N (which of the held-out seeds' agents),\n"
        "out=FILE.gif (default: RUN/play/AGENT-SEED.gif).",
        "metaevo play runs/demo agent=hand-made seed=3",
    ),
    "compare": Command(
        "RUN ... key=value ...",
        "learned, hand-made, tuned and random on fresh seeds",
        "Runs that differ in their seed alone count as one candidate. seeds=N,\n"
        "tuned=false, controls=N random searches, control_seeds=N, on='KEY=VALUE'\n"
        "another setting (as often as you like; several keys joined by ;), seed=N,\n"
        "optimum=X, out=FOLDER (default: RUN/compare). What stopped is continued.",
        "metaevo compare runs/a runs/b on=env=gymnax/Acrobot-v1",
    ),
    "distill": Command(
        "RUN key=value ...",
        "what a run found as a formula, if agents do as well with it",
        "seeds=N fresh seeds (32), seed=N of them. Trains 2 N agents: with what was\n"
        "found and with its closed form, which is kept in RUN/closed_form if the mean\n"
        "stays within the original's 95 % interval.",
        "metaevo distill runs/demo",
    ),
    "verify": Command(
        "RUN|ARTIFACT",
        "whether its files are whole",
        "Reads and checks all of them, changes nothing. Exit code 4 if something is\n"
        "lost; an older checkpoint's loss is none.",
        "metaevo verify runs/demo",
    ),
    "doctor": Command(
        "[DIRECTORY]",
        "whether this machine can run searches",
        "Devices, memory, disk, locks, renames, cache, wandb; for runs in DIRECTORY.\n"
        "Exit code 2 if something is wrong.",
        "metaevo doctor runs",
    ),
    "wandb-push": Command(
        "RUN [online|offline]",
        "sends a run to wandb again, from its files",
        "From the first generation, as a new wandb run.",
        "metaevo wandb-push runs/demo",
    ),
}


def usage() -> str:
    """All commands, a line each."""
    width = max(len(f"{name} {c.arguments}") for name, c in COMMANDS.items())
    lines = [
        f"  metaevo {name + ' ' + c.arguments:{width}}  {c.does}"
        for name, c in COMMANDS.items()
    ]
    lines += ["", "`metaevo COMMAND --help` says more. Examples:"]
    lines += [f"  {c.example}" for c in COMMANDS.values()]
    return "\n".join(["usage:", *lines])


def command_help(name: str) -> str:
    """One command, with an example."""
    it = COMMANDS[name]
    usage = f"usage: metaevo {name} {it.arguments}"
    return f"{usage}\n\n{it.does}\n{it.details}\n\nexample: {it.example}"


def command() -> None:
    """The `metaevo` command; see `usage`."""
    arguments = sys.argv[1:]
    if arguments in ([], ["-h"], ["--help"]):
        print(usage())
        sys.exit(0 if arguments else 2)
    sys.exit(_guard(lambda: _command(arguments)))


def _command(arguments: Sequence[str]) -> None:
    from metaevo.cli import commands
    from metaevo.storage import run_directory

    match arguments:
        case [name, "-h" | "--help"] if name in COMMANDS:
            print(command_help(name))
        case ["list", *kind] if len(kind) < 2:
            from metaevo.cli import listing

            _work_here()
            print(listing.text(*kind))
        case ["run", name, *rest]:
            _run_search(name, rest)
        case ["resume", directory, *rest]:
            manifest = run_directory.read_manifest(directory)
            given = [*manifest["changes"], f"run.directory={directory}", *rest]
            _run_search(manifest["identity"]["search"], given)
        case ["report", directory]:
            run_directory.require_finished(directory)
            from metaevo.analysis import report

            print(report.write(directory))
        case ["play", directory, *rest]:
            commands.play(directory, rest)
        case ["compare", directory, *rest]:
            commands.compare([directory, *rest])
        case ["distill", directory, *rest]:
            commands.distill(directory, rest)
        case ["verify", path]:
            commands.verify(path)
        case ["doctor", *directory] if len(directory) < 2:
            commands.doctor(*directory)
        case ["wandb-push", directory, *mode] if mode in ([], ["online"], ["offline"]):
            run_directory.read_manifest(directory)
            from metaevo.engine.loggers import wandb

            sent = wandb.push(Path(directory), *mode)
            print(f"{sent} generations sent")
        case [name, *_] if name in COMMANDS:
            raise ConfigError(
                f"{' '.join(arguments)!r}: expected {name} {COMMANDS[name].arguments}; "
                f"metaevo {name} --help"
            )
        case _:
            near = difflib.get_close_matches(arguments[0], COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{arguments[0]!r} is no command.{hint} metaevo --help")


def _run_search(name: str, arguments: Sequence[str]) -> None:
    sys.argv = [known(name), *arguments]
    runpy.run_module(f"searches.{name}", run_name="__main__", alter_sys=True)


def known(name: str) -> str:
    """`name`, if there is such a search."""
    names = _searches()
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"no search {name!r}.{hint} Try: metaevo list searches")
    return name


def _searches() -> list[str]:
    """Names of the searches."""
    from metaevo.cli import listing

    _work_here()
    return [path.stem for path in listing.files("searches")]


def _work_here() -> None:
    """Packages of the folder one works in come first, as with `python -m`."""
    if "" not in sys.path:
        sys.path.insert(0, "")
