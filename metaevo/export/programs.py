"""Evolved functions as short programs of elementary operations, weights inside.

`tracing` writes a function down as JAX traces it. Here whatever does not depend on
the inputs is computed, copies and unused equations are dropped, and values get names.
Source code, ONNX and tests read the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from metaevo.export import inputs as of_users
from metaevo.export import names
from metaevo.export.equations import (
    Atom,
    Constant,
    Equation,
    EvolvedProgram,
    Loop,
    Program,
)
from metaevo.export.simplify import (
    Found,
    Note,
    Repeated,
    Tables,
    UnnamedEquation,
    shape_of,
    steps_of,
    variables,
    wide,
)
from metaevo.learned import operations
from metaevo.learned.optimizers import LearnedOptimizer
from metaevo.portable import tracing

__all__ = ["evolved"]


def evolved(slot: str, op: Mapping[str, Any], params: Any) -> EvolvedProgram:
    """The program of one slot of an artifact.

    Args:
        slot: its name.
        op: its operation with its settings; not a number's.
        params: nested dicts of arrays, or one array.

    Raises:
        ArtifactError: there is no such operation.
        NotImplementedError: it uses an elementary operation without a translation.
    """
    learned = operations.get(op["op"]).rebuild(op)
    found = tracing.describe(slot, op, learned, params, _note, of_users.signature)
    arrays = {
        "/".join(str(key.key) for key in path) or slot: np.asarray(x)
        for path, x in jax.tree_util.tree_leaves_with_path(params)
    }
    optimizer = isinstance(learned, LearnedOptimizer)
    inputs = found["inputs"]
    gradient = found.get("gradient")
    given = (
        tuple(inputs[: 2 + len(found["state"])])
        if optimizer
        else tuple(of_users.signature(op).given)
    )
    return EvolvedProgram(
        slot,
        op,
        _simplified(found["step" if optimizer else "value"], inputs, arrays),
        None if gradient is None else _simplified(gradient, [*inputs, "along"], arrays),
        given,
        found.get("state", {}),
    )


def _note(equation: Any, variable: Any, calls: tuple) -> Note:
    kind = {"f": "float", "b": "bool"}.get(variable.aval.dtype.kind, "int")
    shape = tuple(x if isinstance(x, int) else str(x) for x in variable.aval.shape)
    # Its derivative at 0 is 0, unlike that of a maximum.
    inside = [one.params.get("name") for one in calls]
    relu = equation.primitive.name == "max" and "relu" in inside
    return Note(names.origin(equation, calls), shape, kind, relu)


def _simplified(
    described: Mapping[str, Any],
    inputs: Sequence[str],
    arrays: Mapping[str, np.ndarray],
) -> Program:
    """A program of `tracing`, with the weights put in.

    Args:
        inputs: names of the inputs after the parameters.
        arrays: parameters by name, the program's first inputs.
    """
    numbers = described["inputs"]
    tables = Tables({}, {}, {})
    for number, (name, x) in zip(numbers, arrays.items(), strict=False):
        tables.known[number] = Constant(wide(x), names.identifier(name))
    free = numbers[len(arrays) :]
    tables.known.update((number, number) for number in free)
    shapes = map(tuple, described["shapes"][len(arrays) :])
    tables.shapes.update(zip(free, shapes, strict=True))
    steps, outputs = steps_of(described, tables)
    return _named(steps, outputs, dict(zip(free, inputs, strict=True)), tables)


# --- names ----------------------------------------------------------------------------

RESERVED = frozenset(("n", "a", "np", "numpy", "jnp", "jax", "torch", "shape", "given"))


def _named(steps, outputs, inputs: Mapping[int, str], tables: Tables) -> Program:
    """The program with a name for each value; a name is free after its last use."""
    called = {number: names.identifier(name) for number, name in inputs.items()}
    taken = {*called.values(), *RESERVED}
    constants = _distinct_arrays(steps, outputs, taken)
    given = {called[number]: tables.shapes[number] for number in inputs}
    return _Names(tables, constants).program(steps, outputs, called, taken, given)


class _Names(NamedTuple):
    """Names for the values of a program.

    Attributes:
        tables: what is known of them.
        constants: the arrays by their bits.
    """

    tables: Tables
    constants: Mapping[bytes, Constant]

    def program(self, steps, outputs, called, taken, given) -> Program:
        """A program.

        Args:
            called: names of what it is given, by number.
            taken: names that it may not use again.
            given: its inputs with their shapes.
        """
        called = dict(called)
        last = {x: i for i, step in enumerate(steps) for x in step.used()}
        last |= dict.fromkeys(variables(outputs), len(steps))
        holder: dict[str, int] = {}
        equations = []
        for i, step in enumerate(steps):
            # A variable that a loop's step uses lives until the end of the loop.
            lives = i if isinstance(step, Repeated) else i + 1
            alive = {x for x, number in holder.items() if last[number] >= lives}
            operands = tuple(self._atom(x, called) for x in step.operands)
            for number in step.made():
                if number in last:
                    name = self.tables.notes[number].origin.name
                    called[number] = names.distinct(name, taken | alive)
                    alive.add(called[number])
                    holder[called[number]] = number
            if isinstance(step, Repeated):
                equations.append(self._loop(step, operands, called, taken | alive))
            else:
                equations.append(self._equation(step, operands, called))
        outputs = tuple(self._atom(x, called) for x in outputs)
        return Program(given, tuple(equations), outputs)

    def _atom(self, x: Found, called: Mapping[int, str]) -> Atom:
        if isinstance(x, Constant):
            return self.constants[_bits(x)] if x.value.ndim else x
        return called[x]

    def _equation(self, step: UnnamedEquation, operands, called) -> Equation:
        note = self.tables.notes[step.result]
        return Equation(
            step.operation,
            operands,
            called[step.result],
            step.settings,
            tuple(shape_of(x, self.tables.shapes) for x in step.operands),
            note.shape,
            note.kind,
            note.origin.function,
        )

    def _loop(self, loop: Repeated, operands, called, taken: set[str]) -> Loop:
        notes = self.tables.notes
        name = names.distinct("step", taken)
        inner, taken = dict(called), {*taken, name}
        for number in loop.inputs:
            inner[number] = names.distinct(notes[number].origin.name, taken)
            taken.add(inner[number])
        given = {inner[x]: notes[x].shape for x in loop.inputs}
        return Loop(
            name,
            self.program(loop.steps, loop.outputs, inner, taken, given),
            operands,
            tuple(called.get(x) for x in loop.results),
            tuple(notes[x].shape for x in loop.results),
            tuple(notes[x].kind for x in loop.results),
            tuple(notes[x].kind for x in loop.inputs),
            loop.num_carry,
            loop.reverse,
            notes[loop.results[0]].origin.function,
        )


def _bits(x: Constant) -> bytes:
    return x.value.tobytes() + repr((x.value.shape, x.value.dtype)).encode()


def _distinct_arrays(steps, outputs, taken: set[str]) -> dict[bytes, Constant]:
    """The arrays among the operands by their bits, under names that are not taken."""
    found: dict[bytes, Constant] = {}
    for x in _all_atoms(steps, outputs):
        if isinstance(x, Constant) and x.value.ndim and _bits(x) not in found:
            found[_bits(x)] = x._replace(name=names.distinct(x.name, taken))
            taken.add(found[_bits(x)].name)
    return found


def _all_atoms(steps, outputs) -> Iterator[Found]:
    for step in steps:
        yield from step.operands
        if isinstance(step, Repeated):
            yield from _all_atoms(step.steps, step.outputs)
    yield from outputs
