"""`--multirun`: a run for each combination of several values, one after another.

    metaevo run ppo_value_loss --multirun sigma=0.1,0.3 num_seeds=2,4

A comma between values stands outside of all brackets, so that a list has brackets:
`inner.features=[32,32],[64,64]` are two values. Runs that are finished are not run
again: the same command goes on where it was stopped, and more values add runs.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.analysis import overview
from metaevo.cli import values
from metaevo.errors import ConfigError, printable
from metaevo.storage import run_directory
from metaevo.text import columns, duration

FLAG = "--multirun"
DIRECTORY = "run.directory"
MAX_NAME = 80  # of a folder


class Combination(NamedTuple):
    """One value of each key that has several.

    Attributes:
        values: by key.
        argv: all arguments of its runs.
        directories: of its runs.
    """

    values: Mapping[str, str]
    argv: Sequence[str]
    directories: Sequence[Path] = ()


def split(text: str) -> list[str]:
    """Return the values between the commas that stand outside of brackets.

    >>> split("0.1,0.3"), split("[32,32],[64,64]"), split("uniform(0,1)")
    (['0.1', '0.3'], ['[32,32]', '[64,64]'], ['uniform(0,1)'])
    """
    depth, found = 0, [""]
    for x in text:
        depth += (x in "([{") - (x in ")]}")
        if x == "," and not depth:
            found.append("")
        else:
            found[-1] += x
    return [x.strip() for x in found]


def combinations(argv: Sequence[str]) -> list[Combination]:
    """Return the arguments of each combination.

    The directory of each is below `run.directory` if that is given, and named by its
    values.

    Args:
        argv: arguments, of which some keys have several values.

    Raises:
        ConfigError: no key has several values, or one of them is empty; or
            `run.directory` holds a run.
    """
    given = {key: text for key, _, text in (arg.partition("=") for arg in argv)}
    several = {
        key: split(text)
        for key, text in given.items()
        if key != DIRECTORY and len(split(text)) > 1
    }
    if not several:
        raise ConfigError(f"{FLAG}: no key has several values, as in run.seed=0,1,2")
    for key, found in several.items():
        if "" in found:
            raise ConfigError(f"{key}={given[key]}: a value between commas is empty")
    root = given.get(DIRECTORY)
    if root and run_directory.has_manifest(root):
        raise ConfigError(
            f"{DIRECTORY}={root} holds a run; {FLAG} needs a directory for several"
        )
    fixed = [x for x in argv if x != FLAG and x.partition("=")[0] not in several]
    made = []
    for chosen in itertools.product(*several.values()):
        words = [f"{key}={x}" for key, x in zip(several, chosen, strict=True)]
        own = [f"{DIRECTORY}={Path(root) / _folder(words)}"] if root else []
        one = dict(zip(several, chosen, strict=True))
        made.append(Combination(one, [*fixed, *words, *own]))
    return made


def _folder(words: Sequence[str]) -> str:
    """Return the name of a folder; other words have another."""
    text = ",".join(words)
    name = re.sub(r"[^\w.=,+-]", "-", text)[:MAX_NAME]
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]
    return name if name == text else f"{name}-{digest}"


def check_lists(combination: Combination, kinds: Mapping[str, Any]) -> None:
    """Check that lists have brackets.

    Args:
        combination: one of several.
        kinds: type of each key.

    Raises:
        ConfigError: a list has none, and may be meant as one value.
    """
    for key, text in combination.values.items():
        if values.is_list(kinds.get(key)) and text[0] not in "[(":
            raise ConfigError(
                f"{key}={text}: with {FLAG} a list has brackets, as in {key}=[{text}]"
            )


def check_apart(each: Sequence[Combination]) -> None:
    """Check that runs of different combinations have different directories.

    Raises:
        ConfigError: two share one, as where they differ in `run.*` alone.
    """
    owners: dict[Path, Combination] = {}
    for one in each:
        for directory in one.directories:
            if directory in owners:
                first = _words(owners[directory])
                raise ConfigError(
                    f"{first} and {_words(one)} would share {directory}; give "
                    f"{DIRECTORY}=..., below which each has its own"
                )
            owners[directory] = one


def run(
    each: Sequence[Combination],
    run_one: Callable[[Sequence[str]], int],
    should_stop: Callable[[], bool],
) -> int:
    """Run or resume each combination; one that fails keeps no other from running.

    Args:
        each: the combinations.
        run_one: runs a search with its arguments; returns the exit code.
        should_stop: asked after each; True leaves out the rest.

    Returns:
        the largest exit code.
    """
    codes = []
    for number, one in enumerate(each, 1):
        print(f"run {number} of {len(each)}: {printable(_words(one))}", flush=True)
        codes.append(run_one(one.argv))
        if should_stop():
            break
    return max(codes)


def table(each: Sequence[Combination]) -> str:
    """Return values, state and scores of all runs as text."""
    head = (*each[0].values, "state", "generation", "time", "mean", "run")
    cells, verdicts = [], []
    for one in each:
        for directory in one.directories:
            row = overview.RunRow(str(directory), state="not started")
            if run_directory.has_manifest(directory):
                row = overview.read(directory)
            mean = "?" if row.fitness is None else f"{row.fitness:.4g}"
            facts = row.state, overview.done(row), duration(row.seconds), mean
            cells.append((*one.values.values(), *facts, row.name))
            verdicts.append(row.verdict)
    first, *lines = columns([head, *cells])
    told = [first]
    for line, verdict in zip(lines, verdicts, strict=True):
        told += [line, *([f"    {verdict}"] if verdict else [])]
    return printable("\n".join(told), "\n")


def _words(one: Combination) -> str:
    return " ".join(f"{key}={text}" for key, text in one.values.items())
