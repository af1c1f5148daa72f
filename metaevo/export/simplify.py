"""Simpler programs: what does not depend on inputs is computed, copies are dropped.

Variables are numbers, as `tracing` writes them, as text; `programs` gives them names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaevo.export import names
from metaevo.export.equations import (
    ELEMENTWISE,
    Atom,
    Constant,
    Equation,
    Loop,
    Program,
    Shape,
    kind_of,
    variables,
)
from metaevo.portable.numpy_operations import OPERATIONS

__all__ = ["Note", "Tables", "steps_of", "wide"]


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


class Tables(NamedTuple):
    """Facts about variables while a program is simplified.

    Attributes:
        known: variable -> itself, the one that it equals, or a constant.
        shapes: variable -> shape.
        notes: variable -> note, of results and of what a loop's step is given.
    """

    known: dict[str, Atom]
    shapes: dict[str, Shape]
    notes: dict[str, Note]

    def atom(self, x: Any) -> Atom:
        """An operand of the program that is read."""
        if isinstance(x, Mapping):
            return Constant(wide(x["value"]), "constant")
        return self.known[str(x)]

    def kind(self, x: Any) -> str:
        """The kind of an operand's numbers; those of inputs are floating."""
        if isinstance(x, Constant):
            return kind_of(x.value.dtype)
        return self.notes[str(x)].kind if str(x) in self.notes else "float"


def steps_of(
    described: Mapping[str, Any], tables: Tables
) -> tuple[list[Equation | Loop], list[Atom]]:
    """The equations of a program that matter, and its outputs.

    Args:
        described: a program of `tracing`, with notes.
        tables: what is known of its inputs; results are added.
    """
    known, notes = tables.known, tables.notes
    notes.update((str(number), note) for number, note in described["notes"].items())
    tables.shapes.update((x, note.shape) for x, note in notes.items())
    steps: list[Equation | Loop] = []
    made: dict[str, str] = {}
    sizes: dict[Any, Mapping[str, Any]] = {}
    for operation, operands, result, settings in described["equations"]:
        atoms = tuple(map(tables.atom, operands))
        if operation == "scan":
            steps.append(_loop(atoms, tuple(map(str, result)), settings, tables))
            known.update((x, x) for x in steps[-1].made())
            continue
        x = str(result)
        note = notes[x]
        if _copies(operation, note.kind, operands, tables):
            known[x] = atoms[0]
            continue
        if all(isinstance(x, Constant) for x in atoms) and not _open(settings):
            known[x] = _computed(operation, atoms, settings, note.origin.name)
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
            known[x] = same
            continue
        function = note.origin.function
        step = Equation(
            operation, atoms, x, settings, (), note.shape, note.kind, function
        )
        known[x] = made.setdefault(_key(step), x)
        if known[x] == x:
            steps.append(step)
    outputs = [tables.atom(x) for x in described["outputs"]]
    return _used(_without_broadcasts(steps, tables.shapes), outputs), outputs


def _loop(
    atoms: Sequence[Atom],
    results: tuple[str, ...],
    settings: Mapping[str, Any],
    tables: Tables,
) -> Loop:
    """A `scan`; what is constant in it is that of the program around."""
    program, num_carry = settings["program"], settings["num_carry"]
    num_consts, notes = settings["num_consts"], tables.notes
    constants, operands = atoms[:num_consts], tuple(atoms[num_consts:])
    numbers = list(map(str, program["inputs"]))
    tables.known.update(zip(numbers, constants, strict=False))
    inputs = dict(zip(numbers, map(tuple, program["shapes"]), strict=True))
    inputs = {x: inputs[x] for x in numbers[num_consts:]}
    for i, (x, shape) in enumerate(inputs.items()):
        # A carry is called after the loop's result, a step of an array after the array.
        named = results[i] if i < num_carry else operands[i]
        origin = names.Origin("", "x")
        if isinstance(named, str) and named in notes:
            origin = notes[named].origin
        tables.known[x] = x
        notes[x] = Note(origin, shape, tables.kind(operands[i]), False)
    steps, outputs = steps_of(program, tables)
    return Loop(
        "step",
        Program(inputs, tuple(steps), tuple(outputs)),
        operands,
        results,
        tuple(notes[x].shape for x in results),
        tuple(notes[x].kind for x in results),
        tuple(notes[x].kind for x in inputs),
        num_carry,
        settings["reverse"],
        notes[results[0]].origin.function,
    )


def wide(x: Any) -> np.ndarray:
    """A constant in the widest type of its kind."""
    x = np.asarray(x)
    wide = {"f": np.float64, "b": np.bool_}.get(x.dtype.kind, np.int64)
    return x.astype(wide)


def _copies(operation: str, kind: str, operands: Sequence, tables: Tables) -> bool:
    """True for an equation that changes nothing but the number of bits."""
    if operation == "copy":
        return True
    if operation != "convert_element_type" or not isinstance(operands[0], int):
        return False
    return kind == tables.kind(operands[0])


def _open(settings: Mapping[str, Any]) -> bool:
    return any(symbol in json.dumps(settings) for symbol in ('"n"', '"a"'))


def _is_zero(x: Any) -> bool:
    return isinstance(x, Constant) and not x.value.any()


def _times_one(operation: str, atoms: Sequence[Atom]) -> Atom | None:
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


def _key(step: Equation) -> str:
    """Equal for equations of equal results."""
    operands = [
        [x.value.tolist(), str(x.value.dtype)] if isinstance(x, Constant) else x
        for x in step.operands
    ]
    return json.dumps([step.operation, operands, step.settings, step.kind])


def _without_broadcasts(
    steps: Sequence[Equation | Loop], shapes: Mapping[str, Shape]
) -> list[Equation | Loop]:
    """Leave to elementwise operations the broadcasting that numpy's rules do."""
    single = [x for x in steps if isinstance(x, Equation)]
    wider = {x.result: x for x in single if x.operation == "broadcast_in_dim"}

    def source(atom, shape):
        """The array that `atom` is a broadcast of, if the rules give it that shape."""
        step = wider.get(atom) if isinstance(atom, str) else None
        if step is None:
            return atom
        inner, axes = step.operands[0], step.settings["axes"]
        return (
            inner
            if axes == list(range(len(shape)))[-len(axes) or len(shape) :]
            else atom
        )

    def shape_of(x):
        return tuple(x.value.shape if isinstance(x, Constant) else shapes[x])

    found = []
    for step in steps:
        if isinstance(step, Equation):
            operands = list(step.operands)
            for i, atom in enumerate(operands):
                narrow = source(atom, step.shape)
                rest = [shape_of(x) for j, x in enumerate(operands) if j != i]
                # One of the others must have the result's shape.
                if step.operation in ELEMENTWISE and step.shape in rest:
                    operands[i] = narrow
            given = tuple(map(shape_of, operands))
            step = step._replace(operands=tuple(operands), given=given)
        found.append(step)
    return found


def _used(
    steps: Sequence[Equation | Loop], outputs: Sequence[Atom]
) -> list[Equation | Loop]:
    needed = set(variables(outputs))
    found = []
    for step in reversed(steps):
        if needed.intersection(step.made()):
            if isinstance(step, Loop):
                step = _without_unused(step, needed)
            found.append(step)
            needed |= set(step.used())
    return found[::-1]


def _without_unused(loop: Loop, needed: set[str]) -> Loop:
    """A loop without what its steps give that nothing needs."""
    results = enumerate(loop.made())
    kept = [i for i, x in results if i < loop.num_carry or x in needed]

    def pick(each: Sequence) -> tuple:
        return tuple(each[i] for i in kept)

    outputs = pick(loop.step.outputs)
    steps = tuple(_used(loop.step.equations, outputs))
    return loop._replace(
        step=loop.step._replace(equations=steps, outputs=outputs),
        results=pick(loop.results),
        shapes=pick(loop.shapes),
        kinds=pick(loop.kinds),
    )
