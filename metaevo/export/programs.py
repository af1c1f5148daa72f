"""Evolved functions as short programs of elementary operations, weights inside.

`numpy_export` writes a function down as JAX traces it. Here whatever does not depend on
the inputs is computed, copies and unused equations are dropped, and values get names.
Source code, ONNX and tests read the result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from metaevo.export import names
from metaevo.learned import operations
from metaevo.learned.optimizers import LearnedOptimizer
from metaevo.storage import numpy_export
from metaevo.storage.numpy_operations import OPERATIONS

__all__ = ["Atom", "Constant", "Equation", "Evolved", "Program", "evolved"]

_ELEMENTWISE = """
abs add add_any and clamp cos div eq exp expm1 floor ge gt integer_pow is_finite le log
log1p logistic lt max min mul ne neg not or pow relu rsqrt select_n sign sin sqrt square
stop_gradient sub tanh
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
"""Operations that act number by number, with numpy's rules of broadcasting."""

SYMBOLS = ("n", "a")


class Constant(NamedTuple):
    """A number or an array that does not depend on the inputs.

    Attributes:
        value: float64, int64 or bool.
        name: a name for it, if it is an array.
    """

    value: np.ndarray
    name: str


Atom = str | Constant
"""An operand: the name of a variable, or a constant."""
Shape = tuple[int | str, ...]


class Equation(NamedTuple):
    """One elementary operation.

    Attributes:
        operation: its name, a key of `numpy_operations.OPERATIONS`, or `relu`.
        operands: variables and constants.
        result: the variable that it defines.
        settings: as in `numpy_export`; sizes "n" and "a" are open.
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

    def is_matmul(self) -> bool:
        """True for a product of matrices, or of vectors, as `a @ b` writes it."""
        (left, right), (rows, _) = self.settings["contract"], self.settings["batch"]
        last = len(self.given[0]) - 1
        return not rows and left == [last] and right == [0] and len(self.given[1]) <= 2

    def einsum(self) -> str:
        """A product in Einstein's notation."""
        (left, right), (rows, columns) = (
            self.settings["contract"],
            self.settings["batch"],
        )
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        first, second = ([next(letters) for _ in shape] for shape in self.given)
        for pairs in ((left, right), (rows, columns)):
            for i, j in zip(*pairs, strict=True):
                second[j] = first[i]
        gone = {first[i] for i in (*left, *rows)}
        out = [first[i] for i in rows]
        out += [x for x in (*first, *second) if x not in gone]
        return f"{''.join(first)},{''.join(second)}->{''.join(out)}"


class Program(NamedTuple):
    """Equations in order.

    Attributes:
        inputs: name -> shape.
        equations: each uses inputs, constants and earlier results.
        outputs: variables or constants, in order.
    """

    inputs: Mapping[str, Shape]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]

    def constants(self) -> Iterator[Constant]:
        """The arrays among the operands, each once, in order of use."""
        seen = set()
        atoms = [x for one in self.equations for x in one.operands]
        for atom in (*atoms, *self.outputs):
            if isinstance(atom, Constant) and atom.value.ndim and atom.name not in seen:
                seen.add(atom.name)
                yield atom


class Evolved(NamedTuple):
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


def evolved(slot: str, op: Mapping[str, Any], params: Any) -> Evolved:
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
    found = numpy_export.describe(slot, op, learned, params, _note)
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
        else tuple(numpy_export.signature(op).given)
    )
    return Evolved(
        slot,
        op,
        _simplified(found["step" if optimizer else "value"], inputs, arrays),
        None if gradient is None else _simplified(gradient, [*inputs, "along"], arrays),
        given,
        found.get("state", {}),
    )


class _Note(NamedTuple):
    origin: names.Origin
    shape: Shape
    kind: str
    relu: bool


def _note(equation: Any, variable: Any, calls: tuple) -> _Note:
    kind = {"f": "float", "b": "bool"}.get(variable.aval.dtype.kind, "int")
    shape = tuple(x if isinstance(x, int) else str(x) for x in variable.aval.shape)
    # Its derivative at 0 is 0, unlike that of a maximum.
    inside = [one.params.get("name") for one in calls]
    relu = equation.primitive.name == "max" and "relu" in inside
    return _Note(names.origin(equation, calls), shape, kind, relu)


# --- simplification -------------------------------------------------------------------

_Found = int | Constant


class _Step(NamedTuple):
    """An equation before its values have names."""

    operation: str
    operands: tuple[_Found, ...]
    result: int
    settings: Mapping[str, Any]


def _simplified(
    described: Mapping[str, Any],
    inputs: Sequence[str],
    arrays: Mapping[str, np.ndarray],
) -> Program:
    """A program of `numpy_export`, with the weights put in.

    Args:
        inputs: names of the inputs after the parameters.
        arrays: parameters by name, the program's first inputs.
    """
    numbers = described["inputs"]
    shapes = [tuple(x) for x in described["shapes"]]
    notes = dict(described["notes"])
    known: dict[int, _Found] = {
        number: Constant(_wide(x), names.identifier(name))
        for number, (name, x) in zip(numbers, arrays.items(), strict=False)
    }
    free = numbers[len(arrays) :]
    known |= {number: number for number in free}
    shape_of = dict(zip(free, shapes[len(arrays) :], strict=True))
    shape_of |= {number: one.shape for number, one in notes.items()}
    steps: list[_Step] = []
    made: dict[str, int] = {}
    sizes: dict[Any, Mapping[str, Any]] = {}
    for operation, operands, result, settings in described["equations"]:
        if operation == "scan":
            raise NotImplementedError("a loop over time")
        atoms: tuple[_Found, ...] = tuple(
            known[x] if isinstance(x, int) else Constant(_wide(x["value"]), "constant")
            for x in operands
        )
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
        step = _Step(operation, atoms, result, settings)
        known[result] = made.setdefault(_key(step, note.kind), result)
        if known[result] == result:
            steps.append(step)
    outputs = [known[x] if isinstance(x, int) else x for x in described["outputs"]]
    outputs = [
        Constant(_wide(x["value"]), "constant") if isinstance(x, Mapping) else x
        for x in outputs
    ]
    steps = _without_broadcasts(steps, shape_of)
    steps = _used(steps, outputs)
    return _named(steps, outputs, dict(zip(free, inputs, strict=True)), shape_of, notes)


def _wide(x: Any) -> np.ndarray:
    x = np.asarray(x)
    wide = {"f": np.float64, "b": np.bool_}.get(x.dtype.kind, np.int64)
    return x.astype(wide)


def _copies(operation: str, kind: str, operands: Sequence, notes: Mapping) -> bool:
    """True for an equation that changes nothing but the number of bits."""
    if operation == "copy":
        return True
    if operation != "convert_element_type" or not isinstance(operands[0], int):
        return False
    before = notes[operands[0]].kind if operands[0] in notes else "float"
    return kind == before


def _open(settings: Mapping[str, Any]) -> bool:
    return any(symbol in json.dumps(settings) for symbol in ('"n"', '"a"'))


def _is_zero(x: Any) -> bool:
    return isinstance(x, Constant) and not x.value.any()


def _times_one(operation: str, atoms: Sequence[_Found]) -> _Found | None:
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
    return Constant(_wide(value), atoms[0].name if moved else name)


def _key(step: _Step, kind: str) -> str:
    """Equal for equations of equal results."""
    operands = [
        [x.value.tolist(), str(x.value.dtype)] if isinstance(x, Constant) else x
        for x in step.operands
    ]
    return json.dumps([step.operation, operands, step.settings, kind])


def _without_broadcasts(
    steps: Sequence[_Step], shape_of: Mapping[int, Shape]
) -> list[_Step]:
    """Leave to elementwise operations the broadcasting that numpy's rules do."""
    wider = {x.result: x for x in steps if x.operation == "broadcast_in_dim"}

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
        if step.operation in ELEMENTWISE:
            shape = shape_of[step.result]
            for i, atom in enumerate(operands):
                narrow = source(atom, shape)
                rest = [x for j, x in enumerate(operands) if j != i]
                if narrow is not atom and _reaches(rest, shape, shape_of):
                    operands[i] = narrow
        found.append(step._replace(operands=tuple(operands)))
    return found


def _reaches(atoms: Sequence[_Found], shape: Shape, shape_of: Mapping) -> bool:
    """True if one of the operands has the result's shape."""
    return shape in [_shape_of(x, shape_of) for x in atoms]


def _shape_of(x: _Found, shape_of: Mapping[int, Shape]) -> Shape:
    return tuple(x.value.shape if isinstance(x, Constant) else shape_of[x])


def _used(steps: Sequence[_Step], outputs: Sequence[_Found]) -> list[_Step]:
    needed = set(_variables(outputs))
    found = []
    for step in reversed(steps):
        if step.result in needed:
            found.append(step)
            needed |= set(_variables(step.operands))
    return found[::-1]


# --- names ----------------------------------------------------------------------------

RESERVED = frozenset(("n", "a", "np", "jnp", "jax", "torch", "shape"))


def _named(steps, outputs, inputs, shape_of, notes) -> Program:
    """The program with a name for each value; a name is free after its last use."""
    called = {number: names.identifier(name) for number, name in inputs.items()}
    taken = {*called.values(), *RESERVED}
    constants = _distinct_arrays(steps, outputs, taken)
    last = {x: i for i, step in enumerate(steps) for x in _variables(step.operands)}
    last |= dict.fromkeys(_variables(outputs), len(steps))
    holder: dict[str, int] = {}

    def atom(x):
        if isinstance(x, Constant):
            return constants[_bits(x)] if x.value.ndim else x
        return called[x]

    equations = []
    for i, step in enumerate(steps):
        note = notes[step.result]
        operands = tuple(atom(x) for x in step.operands)
        alive = {name for name, number in holder.items() if last[number] > i}
        name = names.distinct(note.origin.name, taken | alive)
        holder[name] = step.result
        called[step.result] = name
        equations.append(
            Equation(
                step.operation,
                operands,
                name,
                step.settings,
                tuple(_shape_of(x, shape_of) for x in step.operands),
                note.shape,
                note.kind,
                note.origin.function,
            )
        )
    given = {called[number]: shape_of[number] for number in inputs}
    return Program(given, tuple(equations), tuple(atom(x) for x in outputs))


def _variables(atoms: Sequence[_Found]) -> list[int]:
    return [x for x in atoms if isinstance(x, int)]


def _bits(x: Constant) -> bytes:
    return x.value.tobytes() + repr((x.value.shape, x.value.dtype)).encode()


def _distinct_arrays(steps, outputs, taken: set[str]) -> dict[bytes, Constant]:
    """The arrays among the operands by their bits, under names that are not taken."""
    found: dict[bytes, Constant] = {}
    for x in (*(x for step in steps for x in step.operands), *outputs):
        if isinstance(x, Constant) and x.value.ndim and _bits(x) not in found:
            found[_bits(x)] = x._replace(name=names.distinct(x.name, taken))
            taken.add(found[_bits(x)].name)
    return found
