"""Evolved functions as short programs of elementary operations, weights inside.

`tracing` writes a function down as JAX traces it. Here whatever does not depend on
the inputs is computed, copies and unused equations are dropped, and values get names.
Source code, ONNX and tests read the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from metaevo.export import inputs as of_users
from metaevo.export import names
from metaevo.export.equations import (
    Atom,
    Constant,
    EvolvedProgram,
    Loop,
    Program,
    kind_of,
    variables,
)
from metaevo.export.simplify import Note, Tables, steps_of, wide
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
    kind = kind_of(variable.aval.dtype)
    shape = tuple(x if isinstance(x, int) else str(x) for x in variable.aval.shape)
    relu = tracing.is_relu(equation, calls)
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
    numbers = list(map(str, described["inputs"]))
    tables = Tables({}, {}, {})
    for number, (name, x) in zip(numbers, arrays.items(), strict=False):
        tables.known[number] = Constant(wide(x), names.identifier(name))
    free = numbers[len(arrays) :]
    tables.known.update((number, number) for number in free)
    shapes = map(tuple, described["shapes"][len(arrays) :])
    tables.shapes.update(zip(free, shapes, strict=True))
    steps, outputs = steps_of(described, tables)
    given = {number: tables.shapes[number] for number in free}
    program = Program(given, tuple(steps), tuple(outputs))
    called = dict(zip(free, map(names.identifier, inputs), strict=True))
    return _named(program, called, tables)


# --- names ----------------------------------------------------------------------------

RESERVED = frozenset(("n", "a", "np", "numpy", "jnp", "jax", "torch", "shape", "given"))


def _named(program: Program, called: Mapping[str, str], tables: Tables) -> Program:
    """The program with a name for each value; a name is free after its last use.

    Args:
        called: names of its inputs.
    """
    taken = {*called.values(), *RESERVED}
    constants: dict[bytes, Constant] = {}
    for x in program.atoms():
        if isinstance(x, Constant) and x.value.ndim and x.bits() not in constants:
            name = names.distinct(x.name, taken)
            constants[x.bits()] = x._replace(name=name)
            taken.add(name)
    return _Names(tables.notes, constants).program(program, called, taken)


class _Names(NamedTuple):
    """Names for the values of a program.

    Attributes:
        notes: what is known of them.
        constants: the arrays by their bits.
    """

    notes: Mapping[str, Note]
    constants: Mapping[bytes, Constant]

    def program(
        self, program: Program, given: Mapping[str, str], taken: set[str]
    ) -> Program:
        """A program.

        Args:
            given: names of what it is given, by number.
            taken: names that it may not use again.
        """
        called, equations = dict(given), []
        last = {x: i for i, one in enumerate(program.equations) for x in one.used()}
        last |= dict.fromkeys(variables(program.outputs), len(program.equations))
        holder: dict[str, str] = {}
        for i, one in enumerate(program.equations):
            # A variable that a loop's step uses lives until the end of the loop.
            lives = i if isinstance(one, Loop) else i + 1
            alive = {name for name, x in holder.items() if last[x] >= lives}
            operands = self._atoms(one.operands, called)
            for x in one.made():
                if x in last:
                    name = self.notes[x].origin.name
                    called[x] = names.distinct(name, taken | alive)
                    alive.add(called[x])
                    holder[called[x]] = x
            if isinstance(one, Loop):
                named = self._loop(one, called, taken | alive)
            else:
                named = one._replace(result=called[one.result])
            equations.append(named._replace(operands=operands))
        return Program(
            {called[x]: shape for x, shape in program.inputs.items()},
            tuple(equations),
            self._atoms(program.outputs, called),
        )

    def _atoms(
        self, atoms: Sequence[Atom], called: Mapping[str, str]
    ) -> tuple[Atom, ...]:
        return tuple(
            called[x]
            if isinstance(x, str)
            else self.constants[x.bits()]
            if x.value.ndim
            else x
            for x in atoms
        )

    def _loop(self, loop: Loop, called: Mapping[str, str], taken: set[str]) -> Loop:
        name = names.distinct("step", taken)
        inner, taken = dict(called), {*taken, name}
        for x in loop.step.inputs:
            inner[x] = names.distinct(self.notes[x].origin.name, taken)
            taken.add(inner[x])
        step = self.program(loop.step, inner, taken)
        results = tuple(called.get(x) for x in loop.made())
        return loop._replace(name=name, step=step, results=results)
