"""Short programs of elementary operations: what exported functions are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaevo.portable.numpy_operations import einsum

__all__ = [
    "ELEMENTWISE",
    "Atom",
    "Constant",
    "Equation",
    "EvolvedProgram",
    "Loop",
    "Program",
    "Shape",
    "kind_of",
    "variables",
]

_ELEMENTWISE = """
abs add add_any and clamp cos div eq exp expm1 floor ge gt integer_pow is_finite le log
log1p logistic lt max min mul ne neg not or pow relu rsqrt select_n sign sin sqrt square
stop_gradient sub tanh
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
"""Operations that act number by number, with numpy's rules of broadcasting."""


class Constant(NamedTuple):
    """A number or an array that does not depend on the inputs.

    Attributes:
        value: float64, int64 or bool.
        name: a name for it, if it is an array.
    """

    value: np.ndarray
    name: str

    def bits(self) -> bytes:
        """Equal for equal values."""
        return (
            self.value.tobytes() + repr((self.value.shape, self.value.dtype)).encode()
        )


Atom = str | Constant
"""An operand: the name of a variable, or a constant. Before it has a name, a variable
is its number in the traced program, as text."""
Shape = tuple[int | str, ...]


def variables(atoms: Sequence[Atom]) -> list[str]:
    """The variables among operands."""
    return [x for x in atoms if isinstance(x, str)]


def kind_of(dtype: Any) -> str:
    """The kind of an array's numbers: "float", "int" or "bool"."""
    return {"f": "float", "b": "bool"}.get(dtype.kind, "int")


class Equation(NamedTuple):
    """One elementary operation.

    Attributes:
        operation: its name, a key of `numpy_operations.OPERATIONS`, or `relu`.
        operands: variables and constants.
        result: the variable that it defines.
        settings: as in `tracing`; sizes "n" and "a" are open.
        given: shapes of the operands.
        shape: of the result.
        kind: of the result's numbers: "float", "int" or "bool".
        function: the function of the source that it comes from; may be empty.
    """

    operation: str
    operands: tuple[Atom, ...]
    result: str
    settings: Mapping[str, Any]
    given: tuple[Shape, ...]
    shape: Shape
    kind: str
    function: str

    def made(self) -> list[str]:
        """The variable that it defines."""
        return [self.result]

    def used(self) -> list[str]:
        """The variables among its operands."""
        return variables(self.operands)

    def is_matmul(self) -> bool:
        """True for a product of matrices, or of vectors, as `a @ b` writes it."""
        (left, right), (rows, _) = self.settings["contract"], self.settings["batch"]
        last = len(self.given[0]) - 1
        return not rows and left == [last] and right == [0] and len(self.given[1]) <= 2

    def einsum(self) -> str:
        """A product in Einstein's notation."""
        ranks = list(map(len, self.given))
        return einsum(ranks, self.settings["contract"], self.settings["batch"])


class Loop(NamedTuple):
    """A program for each index of the first axis of some arrays, one after the other.

    Attributes:
        name: of the program of one step.
        step: its inputs are the carry and one index of each array, its outputs the next
            carry and what the step gives. It also uses variables of the program around.
        operands: the carry before the first step, then the arrays.
        results: variables: the carry after the last step, then what each step gave,
            stacked; None where it is not used.
        shapes: of the results.
        kinds: of the results' numbers, as in `Equation`.
        given: the same of the step's inputs.
        num_carry: how many operands, outputs and results are the carry's.
        reverse: True if it begins with the last index.
        function: the function of the source that it comes from; may be empty.
    """

    name: str
    step: Program
    operands: tuple[Atom, ...]
    results: tuple[str | None, ...]
    shapes: tuple[Shape, ...]
    kinds: tuple[str, ...]
    given: tuple[str, ...]
    num_carry: int
    reverse: bool
    function: str

    def made(self) -> list[str]:
        """The variables that it defines."""
        return [x for x in self.results if x is not None]

    def used(self) -> list[str]:
        """Variables of the program around, those that the steps use among them."""
        equations = self.step.equations
        inside = {*self.step.inputs, *(x for one in equations for x in one.made())}
        found = [x for one in equations for x in one.used()]
        found += variables(self.step.outputs)
        return [*variables(self.operands), *(x for x in found if x not in inside)]


class Program(NamedTuple):
    """Equations in order.

    Attributes:
        inputs: name -> shape.
        equations: each uses inputs, constants and earlier results.
        outputs: variables or constants, in order.
    """

    inputs: Mapping[str, Shape]
    equations: tuple[Equation | Loop, ...]
    outputs: tuple[Atom, ...]

    def flat(self) -> Iterator[Equation]:
        """The equations, those of the steps of loops among them."""
        for one in self.equations:
            if isinstance(one, Loop):
                yield from one.step.flat()
            else:
                yield one

    def constants(self) -> Iterator[Constant]:
        """The arrays among the operands, each once, in order of use."""
        seen = set()
        for atom in self.atoms():
            if isinstance(atom, Constant) and atom.value.ndim and atom.name not in seen:
                seen.add(atom.name)
                yield atom

    def reads(self, name: str) -> bool:
        """True if an input is among the operands or outputs."""
        return name in variables(list(self.atoms()))

    def place_of(self, size: str) -> tuple[str, int]:
        """An input with an open size, and the axis that has it."""
        return next(
            (name, shape.index(size))
            for name, shape in self.inputs.items()
            if size in shape
        )

    def type_of(self, atom: Atom, kind: str = "float") -> tuple[str, Shape]:
        """Kind and shape of an operand, of a result the last of its name.

        Args:
            kind: that of an input.
        """
        if isinstance(atom, Constant):
            return kind_of(atom.value.dtype), atom.value.shape
        for one in reversed(self.equations):
            if isinstance(one, Loop):
                if atom in one.results:
                    i = one.results.index(atom)
                    return one.kinds[i], one.shapes[i]
            elif one.result == atom:
                return one.kind, one.shape
        return kind, self.inputs[atom]

    def atoms(self) -> Iterator[Atom]:
        """All operands and outputs, those of the steps of loops among them."""
        for one in self.equations:
            yield from one.operands
            if isinstance(one, Loop):
                yield from one.step.atoms()
        yield from self.outputs


class EvolvedProgram(NamedTuple):
    """An evolved function or optimizer of an artifact.

    Attributes:
        slot: its name in the artifact.
        op: its operation with its settings.
        value: the function; of an optimizer one step for an array of n numbers.
        gradient: of the sum of values times `along`, an input more, with respect to
            each input; None of an optimizer or a function that chooses.
        given: names of the inputs; others of the program are scalars of a context.
        state: of an optimizer: name -> shape, type and start of what it keeps.
    """

    slot: str
    op: Mapping[str, Any]
    value: Program
    gradient: Program | None
    given: tuple[str, ...]
    state: Mapping[str, Mapping[str, Any]]
