"""The help screen of a search or an inner loop: `--help`.

Keys stand in groups, each as one would type it, with its default. Descriptions come
from docstrings: of the search function, of the classes of its structures, and of
`RunConfig`.
"""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.cli import config, docstrings, presets, ranges, values
from metaevo.cli.docstrings import document, wrapped
from metaevo.config import flat
from metaevo.types import Search

COMMON = {
    "env": "environment, SUITE/NAME as `metaevo list environments` shows them, or "
    "package.module:function",
    "envs": "environments, in each of which every member trains",
    "game": "matrix game that is played",
    "population_size": "members of a generation",
    "num_generations": "generations of the search",
    "num_seeds": "lifetimes, each in a world of its own, that a member is judged by",
    "sigma": "standard deviation of the members around the solution",
    "learning_rate": "step size of the strategy's optimizer",
    "copies": "what a member takes over: agent and numbers, or one of them",
    "exploit": "who follows whom: the worst `fraction` the best, each a random other "
    "that is better, or all the best one",
    "factors": "a number that is continued is multiplied by one of them",
    "fraction": "share of members that continue the agent of a better one",
    "resample": "probability that a continued number is drawn from the prior again",
    "mirrored": "whether members come in mirrored pairs",
    "hidden": "hidden units of the function that evolves",
    "features": "hidden layers of the function that evolves",
    "convex": "only convex functions",
    "max_weight": "largest weight of the squared error, and 1 over the smallest",
    "max_bias": "bound of the loss's minimum, in standard deviations of the targets",
    "num_annealed": "generations until no opponent is a naive learner",
    "num_knots": "knots of each curve, evenly spaced over a lifetime",
}
"""Descriptions of keys of searches; those of a search's own docstring precede."""

_RANGES = (
    "Numbers of `meta` that evolve in place of the search's own space: "
    + ", ".join(ranges.FORMS)
)

FLAGS = {
    "--dry-run": "compile, time a generation, print the plan, start nothing",
    "--pilot": "the same, and what one generation can tell, evaluated twice",
    "--cfg": "print the configuration, start nothing",
    "--cfg-diff": "print what differs from the defaults, start nothing",
    "--multirun": "run each combination of KEY=A,B,... in turn; a list has brackets",
    "--help": "print this",
    "preset=FILE": "take the key=value lines of a file, or of a preset by its name",
}
NUMBERS: dict[Any, str] = {int: "integer", float: "number"}
MAX_WIDTH = 120
MIN_WIDTH = 60
MAX_LINES = 3  # of a description
INDENT = 6  # of the description of a slot, in a line of its own


class Key(NamedTuple):
    """One key of a search.

    Attributes:
        name: with dots.
        default: as it is typed; None if no text stands for it.
        description: one sentence; empty if there is none.
        values: what it takes, in words, where the default does not show it.
    """

    name: str
    default: str | None
    description: str
    values: str


class KeyGroup(NamedTuple):
    """Keys under one heading.

    Attributes:
        heading: one line.
        keys: plain ones, that always have a value.
        slots: those that take a function.
    """

    heading: str
    keys: list[Key]
    slots: list[Key]


def help_text(search: Callable[..., Search], command: str | None = None) -> str:
    """Return the help of a search, for the width of the terminal.

    Args:
        search: Search function.
        command: Words that start it; None: as this process was started.
    """
    command = command or started_as()
    columns = shutil.get_terminal_size().columns
    width = min(max(columns, MIN_WIDTH), MAX_WIDTH) - 1
    groups = list(grouped(search))
    longest = max(len(_typed(key)) for group in groups for key in group.keys)
    column = min(longest + 4, width * 2 // 5)
    lines = [f"usage: {command} [KEY=VALUE ...]"]
    module = inspect.getmodule(search)
    doc = docstrings.prose(module) or docstrings.prose(search)
    lines += ["", *document(doc, width)] if doc else []
    for group in groups:
        lines += ["", *wrapped(group.heading, width)]
        lines += [line for key in group.keys for line in _row(key, column, width)]
        if group.slots:
            lines += ["", *wrapped(_slots_heading(group.slots), width)]
            lines += [line for key in group.slots for line in _row(key, INDENT, width)]
    lines += ["", "Flags"]
    lines += _table(FLAGS, width)
    if known := {x: presets.about(path) for x, path in presets.named(search).items()}:
        lines += ["", "Presets", *_table(known, width)]
    return "\n".join([*lines, "", f"example: {command} {_example(search)}"])


def grouped(search: Callable[..., Search]) -> Iterator[KeyGroup]:
    """Yield the keys of a search in groups: its own, and those of each structure."""
    given = config.defaults(search)
    hints = typing.get_type_hints(search)
    further = getattr(search, "further_keys", {})  # see `strategies.in_search`
    described = COMMON | docstrings.descriptions(search)
    described |= {name.rpartition(".")[2]: x.description for name, x in further.items()}
    keys = [
        _key(name, value, hints.get(name, Any), described)
        for name, value in given.items()
        if not config.fields_of(value)
    ]
    if own := [key for key in keys if "." not in key.name]:
        yield KeyGroup("Search", own, [])
    others = [key for key in keys if "." in key.name]
    if of_strategy := [key for key in others if key.name.startswith("strategy.")]:
        about = docstrings.summary(getattr(search, "strategy", None))
        yield KeyGroup(f"strategy.*  {about}", of_strategy, [])
    if further and "meta" in given:
        of_space = [key for key in others if key.name.startswith(f"{ranges.KEY}.")]
        yield KeyGroup(f"{ranges.KEY}.NUMBER=RANGE  {_RANGES}", of_space, [])
    for name, structure in given.items():
        kinds = config.fields_of(structure)
        if not kinds:
            continue
        documented = docstrings.descriptions(type(structure))
        plain, in_meta = config.plain_in(structure), hasattr(structure, "_fields")
        keys, others = [], []
        for field, kind in kinds.items():
            value = getattr(structure, field)
            key = _key(f"{name}.{field}", value, kind, documented, in_meta)
            (keys if field in plain else others).append(key)
        about = docstrings.summary(type(structure))
        yield KeyGroup(f"{name}.*  {about}".rstrip(), keys, others)


def started_as() -> str:
    """Return the words that started this process, without its keys."""
    program = Path(sys.argv[0])
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    module = getattr(main, "name", "")
    if program.stem == "metaevo" or module == "metaevo.__main__":
        begin = "python -m metaevo" if module == "metaevo.__main__" else "metaevo"
        return " ".join([begin, *sys.argv[1:3]])
    if module:
        return f"python -m {module.removesuffix('.__main__')}"
    return f"python {program}"


# --- keys -----------------------------------------------------------------------------


def _key(
    name: str,
    default: Any,
    kind: Any,
    described: dict[str, str],
    in_meta: bool = False,
) -> Key:
    text = docstrings.sentence(described.get(name.rpartition(".")[2], ""))
    # On the command line these are written so.
    for word, typed in {"None": "null", "True": "true", "False": "false"}.items():
        text = re.sub(rf"\b{word}\b", typed, text)
    made = callable(default) or hasattr(default, "_fields") or hasattr(default, "shape")
    shown = _import_path(default) if made else config.as_typed(default)
    return Key(name, shown, text, _values(name, default, kind, in_meta))


def _values(name: str, default: Any, kind: Any, in_meta: bool) -> str:
    """Return what a key takes, where its default does not show it."""
    if in_meta and kind is not float:
        number = kind is Any
        if default is None:
            return "a number, a function or null" if number else "a function or null"
        return "a number or a function" if number else ""
    if default is None or isinstance(default, tuple) or values.has_choices(kind):
        # The default of a list is an example of one.
        words = values.expected(kind)
        return words.partition(", ")[0] if isinstance(default, tuple) else words
    if not in_meta and name.endswith(".activation"):
        from metaevo.policies import ACTIVATIONS

        return f"one of {', '.join(ACTIVATIONS)}"
    return NUMBERS.get(kind, "")


def _import_path(function: Any) -> str | None:
    """Return `package.module:name` of a function; None if no import gives it."""
    for place in config.VOCABULARY:
        # An optimizer has no name of its own.
        module = importlib.import_module(f"metaevo.{place}")
        for name, found in vars(module).items():
            if found is function and getattr(found, "__name__", name) == name:
                return f"metaevo.{place}:{name}"
    return config.import_path(function)


def _example(search: Callable[..., Search]) -> str:
    """Return keys that one may want to set first."""
    defaults = config.defaults(search).items()
    numbers = flat({key: config.plain_in(x) or x for key, x in defaults})
    for key in ("num_generations", "inner.total_timesteps"):
        if isinstance(numbers.get(key), int):
            return f"{key}={2 * numbers[key]} run.seed=1"
    return "run.seed=1"


# --- lines ----------------------------------------------------------------------------


def _table(described: Mapping[str, str], width: int) -> list[str]:
    column = max(map(len, described)) + 4
    lines: list[str] = []
    for name, text in described.items():
        first, *rest = wrapped(text, width - column)
        lines += [f"  {name}".ljust(column) + first]
        lines += [" " * column + line for line in rest]
    return lines


def _typed(key: Key) -> str:
    return f"{key.name}={'...' if key.default is None else key.default}"


def _row(key: Key, column: int, width: int) -> list[str]:
    """Return the lines of one key; its description stands at `column`.

    A key that reaches over the column has it in the lines below.
    """
    typed = f"  {_typed(key)}"
    room = width - column
    lines = wrapped(key.description, room, max_lines=MAX_LINES, placeholder=" ...")
    if key.values:
        words = f"({key.values})"
        if lines and len(lines[-1]) + 1 + len(words) <= room:
            lines[-1] += f" {words}"
        else:
            lines += wrapped(words, room)
    lines = [" " * column + line for line in lines]
    if lines and len(typed) + 2 <= column:
        return [typed + lines[0][len(typed) :], *lines[1:]]
    return [typed, *lines]


def _slots_heading(keys: list[Key]) -> str:
    """Return the words about keys that take a function."""
    group = keys[0].name.partition(".")[0]
    return (
        f"{group}.SLOT=PATH puts the function of an artifact, or of a finished run, "
        f"in the place of the default, {group}.SLOT=package.module:function any other:"
    )
