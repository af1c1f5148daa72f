"""Simpler programs: what does not depend on inputs is computed, copies are dropped.

Variables are numbers, as `tracing` writes them; `programs` gives them names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaevo.export import names
from metaevo.export.equations import ELEMENTWISE, Constant, Shape
from metaevo.portable.numpy_operations import OPERATIONS

__all__ = [
    "Found",
    "Note",
    "Repeated",
    "Tables",
    "UnnamedEquation",
    "shape_of",
    "steps_of",
    "variables",
    "wide",
]

Found = int | Constant
"""An operand: the number of a variable, or a constant."""


class Note(NamedTuple):
    """Facts about a result.

    Attributes:
        origin: the place in the source that it comes from.
        shape: its shape; sizes "n" and "a" are open.
        kind: of its numbers, as in `Equation`.
        relu: True for the maximum of a `relu`.
    """

    origin: names.Origin
    shape: Shape
    kind: str
    relu: bool


class UnnamedEquation(NamedTuple):
    """An equation before its values have names."""

    operation: str
    operands: tuple[Found, ...]
    result: int
    settings: Mapping[str, Any]

    def made(self) -> list[int]:
        return [self.result]

    def used(self) -> list[int]:
        return variables(self.operands)


class Repeated(NamedTuple):
    """A loop before its values have names; its attributes are those of a `Loop`."""

    inputs: tuple[int, ...]
    steps: Sequence[UnnamedEquation | Repeated]
    outputs: Sequence[Found]
    operands: tuple[Found, ...]
    results: tuple[int, ...]
    num_carry: int
    reverse: bool

    def made(self) -> list[int]:
        return list(self.results)

    def used(self) -> list[int]:
        """Variables of the program around, those that the steps use among them."""
        inside = {*self.inputs, *(x for step in self.steps for x in step.made())}
        steps = [x for step in self.steps for x in step.used()]
        found = [*steps, *variables(self.outputs)]
        return [*variables(self.operands), *(x for x in found if x not in inside)]


class Tables(NamedTuple):
    """Facts about variables while a program is simplified.

    Attributes:
        known: variable -> itself, the one that it equals, or a constant.
        shapes: variable -> shape.
        notes: variable -> note, of results and of what a loop's step is given.
    """

    known: dict[int, Found]
    shapes: dict[int, Shape]
    notes: dict[int, Note]

    def atom(self, x: Any) -> Found:
        """An operand of the program that is read."""
        if isinstance(x, Mapping):
            return Constant(wide(x["value"]), "constant")
        return self.known[x]


def steps_of(described: Mapping[str, Any], tables: Tables) -> tuple[list, list]:
    """The steps of a program that matter, and its outputs.

    Args:
        described: a program of `tracing`, with notes.
        tables: what is known of its inputs; results are added.
    """
    known, notes = tables.known, tables.notes
    notes.update(described["notes"])
    tables.shapes.update((number, one.shape) for number, one in notes.items())
    steps: list[UnnamedEquation | Repeated] = []
    made: dict[str, int] = {}
    sizes: dict[Any, Mapping[str, Any]] = {}
    for operation, operands, result, settings in described["equations"]:
        atoms = tuple(map(tables.atom, operands))
        if operation == "scan":
            steps.append(_loop(atoms, result, settings, tables))
            known.update((number, number) for number in result)
            continue
        note = notes[result]
        if _copies(operation, note.kind, operands, notes):
            known[result] = atoms[0]
            continue
        if all(isinstance(x, Constant) for x in atoms) and not _open(settings):
            known[result] = _computed(operation, atoms, settings, note.origin.name)
            continue
        if operation == "convert_element_type" and operands[0] in sizes:
            # A size is a number of the type that it is used as.
            operation, atoms, settings = "dim_as_value", (), sizes[operands[0]]
        elif operation == "dim_as_value":
            sizes[result] = settings
        if note.relu and any(_is_zero(x) for x in atoms):
            operation = "relu"
            atoms = tuple(x for x in atoms if not _is_zero(x))
        same = _times_one(operation, atoms)
        if same is not None:
            known[result] = same
            continue
        step = UnnamedEquation(operation, atoms, result, settings)
        known[result] = made.setdefault(_key(step, note.kind), result)
        if known[result] == result:
            steps.append(step)
    outputs = [tables.atom(x) for x in described["outputs"]]
    return _used(_without_broadcasts(steps, tables.shapes), outputs), outputs


def _loop(atoms, results, settings: Mapping[str, Any], tables: Tables) -> Repeated:
    """A `scan`; what is constant in it is that of the program around."""
    program, num_carry = settings["program"], settings["num_carry"]
    num_consts = settings["num_consts"]
    constants, operands = atoms[:num_consts], atoms[num_consts:]
    tables.known.update(zip(program["inputs"], constants, strict=False))
    inputs = tuple(program["inputs"][num_consts:])
    shapes = program["shapes"][num_consts:]
    for i, (number, shape) in enumerate(zip(inputs, shapes, strict=True)):
        # A carry is called after the loop's result, a step of an array after the array.
        origin = names.Origin("", "x")
        if i < num_carry:
            origin = tables.notes[results[i]].origin
        elif operands[i] in tables.notes:
            origin = tables.notes[operands[i]].origin
        note = Note(origin, tuple(shape), _kind(operands[i], tables.notes), False)
        tables.known[number], tables.notes[number] = number, note
    steps, outputs = steps_of(program, tables)
    reverse = settings["reverse"]
    return Repeated(
        inputs, steps, outputs, operands, tuple(results), num_carry, reverse
    )


def _kind(x: Found, notes: Mapping[int, Note]) -> str:
    """The kind of an operand's numbers; those of inputs are floating."""
    if isinstance(x, Constant):
        return {"f": "float", "b": "bool"}.get(x.value.dtype.kind, "int")
    return notes[x].kind if x in notes else "float"


def wide(x: Any) -> np.ndarray:
    """A constant in the widest type of its kind."""
    x = np.asarray(x)
    wide = {"f": np.float64, "b": np.bool_}.get(x.dtype.kind, np.int64)
    return x.astype(wide)


def _copies(operation: str, kind: str, operands: Sequence, notes: Mapping) -> bool:
    """True for an equation that changes nothing but the number of bits."""
    if operation == "copy":
        return True
    if operation != "convert_element_type" or not isinstance(operands[0], int):
        return False
    return kind == _kind(operands[0], notes)


def _open(settings: Mapping[str, Any]) -> bool:
    return any(symbol in json.dumps(settings) for symbol in ('"n"', '"a"'))


def _is_zero(x: Any) -> bool:
    return isinstance(x, Constant) and not x.value.any()


def _times_one(operation: str, atoms: Sequence[Found]) -> Found | None:
    """The operand that an equation multiplies by 1, or divides; None if it does not."""

    def is_one(x):
        return isinstance(x, Constant) and not x.value.ndim and x.value == 1

    if operation in ("mul", "div") and is_one(atoms[1]):
        return atoms[0]
    if operation == "mul" and is_one(atoms[0]):
        return atoms[1]
    return None


def _computed(operation, atoms, settings, name) -> Constant:
    """The result of an equation of constants, called like an array that it reshapes."""
    with np.errstate(all="ignore"):
        value = OPERATIONS[operation](*(x.value for x in atoms), **settings)
    moved = operation in ("reshape", "transpose", "squeeze", "broadcast_in_dim")
    return Constant(wide(value), atoms[0].name if moved else name)


def _key(step: UnnamedEquation, kind: str) -> str:
    """Equal for equations of equal results."""
    operands = [
        [x.value.tolist(), str(x.value.dtype)] if isinstance(x, Constant) else x
        for x in step.operands
    ]
    return json.dumps([step.operation, operands, step.settings, kind])


def _without_broadcasts(
    steps: Sequence[UnnamedEquation | Repeated], shapes: Mapping[int, Shape]
) -> list[UnnamedEquation | Repeated]:
    """Leave to elementwise operations the broadcasting that numpy's rules do."""
    single = [x for x in steps if isinstance(x, UnnamedEquation)]
    wider = {x.result: x for x in single if x.operation == "broadcast_in_dim"}

    def source(atom, shape):
        """The array that `atom` is a broadcast of, if the rules give it that shape."""
        step = wider.get(atom) if isinstance(atom, int) else None
        if step is None:
            return atom
        inner, axes = step.operands[0], step.settings["axes"]
        return (
            inner
            if axes == list(range(len(shape)))[-len(axes) or len(shape) :]
            else atom
        )

    found = []
    for step in steps:
        operands = list(step.operands)
        if isinstance(step, UnnamedEquation) and step.operation in ELEMENTWISE:
            shape = shapes[step.result]
            for i, atom in enumerate(operands):
                narrow = source(atom, shape)
                rest = [x for j, x in enumerate(operands) if j != i]
                if narrow is not atom and _reaches(rest, shape, shapes):
                    operands[i] = narrow
        found.append(step._replace(operands=tuple(operands)))
    return found


def _reaches(atoms: Sequence[Found], shape: Shape, shapes: Mapping) -> bool:
    """True if one of the operands has the result's shape."""
    return shape in [shape_of(x, shapes) for x in atoms]


def shape_of(x: Found, shapes: Mapping[int, Shape]) -> Shape:
    """The shape of an operand."""
    return tuple(x.value.shape if isinstance(x, Constant) else shapes[x])


def _used(
    steps: Sequence[UnnamedEquation | Repeated], outputs: Sequence[Found]
) -> list:
    needed = set(variables(outputs))
    found = []
    for step in reversed(steps):
        if needed.intersection(step.made()):
            if isinstance(step, Repeated):
                step = _without_unused(step, needed)
            found.append(step)
            needed |= set(step.used())
    return found[::-1]


def _without_unused(loop: Repeated, needed: set[int]) -> Repeated:
    """A loop without what its steps give that nothing needs."""
    pairs = list(zip(loop.outputs, loop.results, strict=True))
    pairs = [
        pair for i, pair in enumerate(pairs) if i < loop.num_carry or pair[1] in needed
    ]
    outputs, results = zip(*pairs, strict=True)
    steps = _used(loop.steps, outputs)
    return loop._replace(steps=steps, outputs=outputs, results=results)


def variables(atoms: Sequence[Found]) -> list[int]:
    """The variables among operands."""
    return [x for x in atoms if isinstance(x, int)]
