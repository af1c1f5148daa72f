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
from metaevo.cli import several, values
from metaevo.errors import ConfigError, printable
from metaevo.storage import run_directory

FLAG = "--multirun"
DIRECTORY = "run.directory"
MAX_NAME = 80  # of a folder


class Combination(NamedTuple):
    """One value of each key that has several.

    Attributes:
        values: by key.
        argv: all arguments of its run.
        directory: of its run, or of those of `run.seeds`.
    """

    values: Mapping[str, str]
    argv: Sequence[str]
    directory: Path


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


def combinations(argv: Sequence[str], name: str) -> list[Combination]:
    """Return the arguments of each combination.

    Its directory is below `run.directory`, by default `runs/NAME/multirun-DIGEST`, and
    named by its values.

    Args:
        argv: arguments, of which some keys have several values.
        name: of the search.

    Raises:
        ConfigError: no key has several values, or `run.directory` holds a run.
    """
    given = {key: split(text) for key, _, text in (x.partition("=") for x in argv)}
    names = [x for x in given if len(given[x]) > 1 and x != DIRECTORY]
    if not names:
        raise ConfigError(f"{FLAG}: no key has several values, as in run.seed=0,1,2")
    others = (FLAG, DIRECTORY, *names)
    fixed = [x for x in argv if x.partition("=")[0] not in others]
    # How it is run does not tell a run from others, but for its seed.
    told = [x for x in fixed if x[:4] != "run." or x.startswith("run.seed=")]
    usual = Path("runs") / name / f"multirun-{_digest(' '.join(told))}"
    root = Path(",".join(given.get(DIRECTORY, [str(usual)])))
    if run_directory.has_manifest(root):
        raise ConfigError(
            f"{DIRECTORY}={root} holds a run; {FLAG} needs a directory for several"
        )
    made = []
    for chosen in itertools.product(*(given[x] for x in names)):
        one = dict(zip(names, chosen, strict=True))
        words = [f"{key}={text}" for key, text in one.items()]
        place = root / _folder(",".join(words))
        made.append(Combination(one, [*fixed, *words, f"{DIRECTORY}={place}"], place))
    return made


def _folder(text: str) -> str:
    """Return the name of a folder; other texts have another."""
    name = re.sub(r"[^\w.=,+-]", "-", text)[:MAX_NAME]
    return name if name == text else f"{name}-{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def check_lists(combination: Combination, kinds: Mapping[str, Any]) -> None:
    """Check that lists have brackets.

    Args:
        combination: one of several.
        kinds: type of each key.

    Raises:
        ConfigError: a list has none, and may be meant as one value.
    """
    for key, text in combination.values.items():
        if values.is_list(kinds.get(key)) and text[:1] not in ("[", "("):
            raise ConfigError(
                f"{key}={text}: with {FLAG} a list has brackets, as in {key}=[{text}]"
            )


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
        words = " ".join(f"{key}={text}" for key, text in one.values.items())
        print(f"run {number} of {len(each)}: {printable(words)}", flush=True)
        codes.append(run_one(one.argv))
        if should_stop():
            break
    return max(codes)


def table(each: Sequence[Combination]) -> str:
    """Return all runs that were started as text, with what sets them apart."""
    places = [(one, x) for one in each for x in several.expanded(one.directory)]
    runs = [(one, x) for one, x in places if run_directory.has_manifest(x)]
    beside = {key: [one.values[key] for one, _ in runs] for key in each[0].values}
    rows = [overview.read(directory) for _, directory in runs]
    return printable(overview.table(rows, beside), "\n")
