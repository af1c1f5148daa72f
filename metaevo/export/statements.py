"""Statements of exported source: equations, loops, calls and weights."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from metaevo.errors import ConfigError
from metaevo.export import names
from metaevo.export.dialects import Dialect, expression, number, tuple_of
from metaevo.export.equations import Atom, Constant, Equation, Loop, Program

__all__ = ["WIDTH", "Arrays", "body", "call", "head", "indented", "text"]

WIDTH = 88
MOST_WRITTEN = 512
"""The numbers of a larger array are written in base 64."""


def body(dialect: Dialect, program: Program, arrays: Arrays) -> list[str]:
    """The statements of a program, under the functions that they come from.

    Raises:
        ConfigError: the framework lacks an operation.
    """
    like = next(iter(program.inputs))
    found = [*_sizes(program)]
    for constant in program.constants():
        moved = dialect.moved(constant, arrays.add(constant), like)
        found.append(f"{constant.name} = {moved}")
    return [*found, *_equations(dialect, program, like)]


def _equations(dialect: Dialect, program: Program, like: str) -> list[str]:
    found, before = [], ""
    for one in program.equations:
        if one.function != before:
            before = one.function
            found.append(f"# {before}")
        if isinstance(one, Loop):
            found += _loop(dialect, one, like)
        else:
            found += _assigned(dialect, one, like)
    return found


def _assigned(dialect: Dialect, one: Equation, like: str) -> list[str]:
    right = expression(dialect, one, like)
    if right is None:
        raise ConfigError(
            f"to={dialect.name}: {dialect.title} has no operation "
            f"{one.operation!r} here (of {one.function or 'an evolved function'}); "
            "to=stablehlo takes any"
        )
    if len(right) + len(one.result) + 7 > WIDTH and right.endswith(")"):
        name, _, inside = right[:-1].partition("(")
        return call(f"{one.result} = {name}", [inside])
    return [f"{one.result} = {right}"]


def _loop(dialect: Dialect, loop: Loop, like: str) -> list[str]:
    """The function of one step, and the call that goes over all."""
    carry, given = _split(loop, map(text, loop.step.outputs))
    step = [head(loop.name, list(loop.step.inputs))]
    step += _equations(dialect, loop.step, like)
    returned = [tuple_of(carry), tuple_of(given)]
    line = f"return {', '.join(returned)}"
    # Two functions deep.
    short = len(line) + 8 <= WIDTH
    step += [line] if short else ["return (", *_inside(returned), ")"]
    first, over = _split(loop, map(text, loop.operands))
    results = ", ".join(x or "_" for x in loop.results)
    results += "," * (len(loop.results) == 1)
    arguments = [loop.name, tuple_of(first), tuple_of(over), str(loop.reverse)]
    function = ["", *indented(step).splitlines(), ""]
    return [*function, *call(f"{results} = _scan", arguments)]


def _split(loop: Loop, texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split the operands or outputs of a loop into those of the carry and the rest."""
    found = list(texts)
    return found[: loop.num_carry], found[loop.num_carry :]


def _sizes(program: Program) -> Iterator[str]:
    """Statements that name the open sizes which a program mentions."""
    mentioned = {
        x
        for one in program.flat()
        if one.operation != "reshape"
        for key in ("shape", "size")
        for x in np.atleast_1d(np.asarray(one.settings.get(key, ()), object))
    }
    for symbol in ("n", "a"):
        if symbol in mentioned:
            name, axis = program.place_of(symbol)
            yield f"{symbol} = {name}.shape[{axis}]"


def head(name: str, arguments: Sequence[str]) -> str:
    """The head of a function, over several lines if it is long."""
    line = f"def {name}({', '.join(arguments)}):"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"def {name}(", *_inside(arguments), "):"])


def call(head: str, arguments: Sequence[str]) -> list[str]:
    """A call, `head` with its targets, over several lines if it is long."""
    line = f"{head}({', '.join(arguments)})"
    if len(line) + 4 <= WIDTH:
        return [line]
    targets, _, function = head.partition(" = ")
    lines = [f"{head}("]
    if len(head) + 5 > WIDTH:
        lines = ["(", *_inside(targets.split(", ")), f") = {function}("]
    return [*lines, *_inside(arguments), ")"]


def _inside(arguments: Sequence[str]) -> list[str]:
    """Arguments as indented lines."""
    lines = textwrap.wrap(", ".join(arguments), WIDTH - 12, break_long_words=False)
    return [f"    {x}" for x in lines]


def indented(lines: Sequence[str]) -> str:
    """A head, and the lines below it indented."""
    first, *rest = lines
    return "\n".join([first, *(f"    {line}".rstrip() for line in rest)]) + "\n"


def text(atom: Atom) -> str:
    """An operand in an expression."""
    if isinstance(atom, Constant):
        return atom.name if atom.value.ndim else number(atom.value)
    return atom


class Arrays:
    """The constant arrays of a module, written once each.

    Attributes:
        written: statements that define them.
        packed: True if one is in base 64.
    """

    def __init__(self, dialect: Dialect):
        self.dialect, self.packed = dialect, False
        self.written: list[str] = []
        self._names: dict[bytes, str] = {}

    def add(self, constant: Constant) -> str:
        """The name of an array; it is written down if it is new."""
        key = constant.bits()
        if key not in self._names:
            name = names.distinct(constant.name.upper(), self._names.values())
            self._names[key] = name
            self.written.append(self._statement(name, constant.value))
        return self._names[key]

    def _statement(self, name: str, value: np.ndarray) -> str:
        if value.size <= MOST_WRITTEN or value.dtype.kind != "f":
            return f"{name} = {self.dialect.array(_nested(value))}"
        self.packed = True
        packed = base64.b64encode(value.astype("<f4").tobytes()).decode()
        lines = "".join(f'    "{x}"\n' for x in textwrap.wrap(packed, WIDTH - 6))
        return f"{name} = _unpacked(\n{lines.rstrip()},\n    {value.shape},\n)"


def _nested(value: np.ndarray, depth: int = 0) -> str:
    """An array as nested lists, a few numbers a line."""
    if value.ndim == 1:
        line = f"[{', '.join(map(number, value))}]"
        if len(line) + 4 * depth + 44 <= WIDTH:
            return line
        wrapped = textwrap.wrap(line[1:-1], WIDTH - 4 * depth - 8)
        inner = "\n".join("    " * (depth + 1) + x for x in wrapped)
        return f"[\n{inner},\n{'    ' * depth}]"
    inner = "".join(f"{'    ' * (depth + 1)}{_nested(x, depth + 1)},\n" for x in value)
    return f"[\n{inner}{'    ' * depth}]"
