"""Stored programs, checked and carried out by any library of arrays.

A program is what `tracing` writes: a list of elementary operations. `numpy_operations`
and `jax_operations` are tables of the operations; nothing that a program names is
imported or executed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaevo.portable import numpy_operations

__all__ = ["ArrayLibrary", "check_program", "run"]

MAX_EQUATIONS = 10_000
MAX_SIZE = 1 << 20  # numbers in an array of fixed shape
MAX_PER_ELEMENT = 1 << 16  # numbers for each element of the inputs
_TYPES = ("bool", "int8", "uint8", "int32", "uint32", "int64", "uint64")
_TYPES += ("float16", "float32", "float64")
_SETTINGS = {
    *("y", "shape", "axes", "low", "high", "size", "axis", "type", "to"),
    *("contract", "batch", "start", "stop", "step", "index"),
    *("program", "num_consts", "num_carry", "reverse"),
}


class ArrayLibrary(NamedTuple):
    """A library of arrays.

    Attributes:
        operations: operation -> a function of its operands and settings.
        cast: (x, dtype) -> x as an array, with floating numbers of that dtype.
        scan: (step, carry, inputs, reverse, most) -> the last carry and the stacked
            outputs, as lists. `step(carry, inputs)` returns a carry and outputs. `most`
            is the largest total size of the outputs, or None.
    """

    operations: Mapping[str, Callable]
    cast: Callable[[Any, Any], Any]
    scan: Callable[..., tuple[list, list]]


def check_program(program: Mapping[str, Any], nested: bool = False) -> None:
    """Check what a program is made of, before it is carried out.

    Args:
        nested: True for that of one step of a `scan`.

    Raises:
        ValueError, TypeError, KeyError: an operation, a setting or a type is unknown,
            or a size is absurd.
    """
    if len(program["equations"]) > MAX_EQUATIONS:
        raise ValueError(f"more than {MAX_EQUATIONS} operations")
    atoms = [*program["outputs"]]
    for name, operands, _, settings in program["equations"]:
        if name == "scan" and not nested:
            check_program(settings["program"], nested=True)
        elif name not in numpy_operations.OPERATIONS:
            raise ValueError(f"unknown operation {name!r}")
        if not settings.keys() <= _SETTINGS:
            raise ValueError(f"{name}: unknown settings {sorted(settings)}")
        atoms += operands
        check_sizes(name, settings)
    if any(isinstance(x, Mapping) and x["type"] not in _TYPES for x in atoms):
        raise ValueError("a constant of unknown type")


def check_sizes(name: str, settings: Mapping[str, Any]) -> None:
    """Check the types and sizes in the settings of an operation or of a state."""
    if not {settings.get("type"), settings.get("to")} <= {None, *_TYPES}:
        raise ValueError(f"{name}: unknown type")
    for key in ("shape", "low", "high"):
        sizes = [x for x in settings.get(key, ()) if isinstance(x, int)]
        if math.prod(sizes) > MAX_SIZE:
            raise ValueError(f"{name}: an array of {key} {settings[key]}")


def run(
    program: Mapping[str, Any], inputs: Sequence[Any], dtype: Any, arrays: ArrayLibrary
) -> list:
    """Carry out a program of `metaevo.portable.tracing`.

    Args:
        program: one that `check_program` accepts.
        inputs: arrays of the shapes of the program.
        dtype: of all floating numbers.
        arrays: the library that does it.

    Raises:
        ValueError: an operation that is not in the list, or an absurdly large result.
    """
    sizes = {
        size: np.shape(x)[axis]
        for shape, x in zip(program["shapes"], inputs, strict=True)
        for axis, size in enumerate(shape)
        if isinstance(size, str)
    }
    return _run(program, inputs, dtype, arrays, sizes)


def _run(
    program, inputs, dtype, arrays: ArrayLibrary, sizes: Mapping[str, Any]
) -> list:
    """`run`, with the open sizes."""
    # Sizes stay open in `jax.export`, where nothing is computed.
    most = None
    if all(isinstance(size, int) for size in sizes.values()):
        most = MAX_SIZE + MAX_PER_ELEMENT * math.prod(sizes.values())
    pairs = zip(program["inputs"], inputs, strict=True)
    values = {variable: arrays.cast(x, dtype) for variable, x in pairs}

    def value(atom):
        if isinstance(atom, int):
            return values[atom]
        return arrays.cast(np.asarray(atom["value"], np.dtype(atom["type"])), dtype)

    def concrete(x):
        if isinstance(x, list):
            return [concrete(y) for y in x]
        return sizes.get(x, x) if isinstance(x, str) else x

    for name, atoms, result, settings in program["equations"]:
        operands = [value(x) for x in atoms]
        if name == "scan":
            results = _scan(operands, settings, dtype, arrays, sizes, most)
            values |= zip(result, results, strict=True)
            continue
        if name not in arrays.operations:
            raise ValueError(f"unknown operation {name!r}")
        settings = {key: concrete(x) for key, x in settings.items()}
        if most is not None and _result_size(operands, settings) > most:
            raise ValueError(f"{name}: more than {most} numbers")
        values[result] = arrays.cast(
            arrays.operations[name](*operands, **settings), dtype
        )
    return [value(atom) for atom in program["outputs"]]


def _scan(
    operands, settings, dtype, arrays: ArrayLibrary, sizes, most: int | None
) -> list:
    """A program for each index of the first axis of some operands.

    Operands are constants, the carry that a step gives to the next, and what is gone
    over; results are the last carry, and each step's other results, stacked.
    """
    num_consts, num_carry = settings["num_consts"], settings["num_carry"]
    constants, operands = operands[:num_consts], operands[num_consts:]
    carry, over = operands[:num_carry], operands[num_carry:]
    steps = min(np.shape(x)[0] for x in over)
    if most is not None and steps > max(sizes.values(), default=0):
        raise ValueError(f"scan: more than {max(sizes.values(), default=0)} steps")

    def step(carry, inputs):
        inputs = [*constants, *carry, *inputs]
        results = _run(settings["program"], inputs, dtype, arrays, sizes)
        return results[:num_carry], results[num_carry:]

    last, stacked = arrays.scan(step, carry, over, settings["reverse"], most)
    return [*last, *stacked]


def _result_size(operands: Sequence[Any], settings: Mapping[str, Any]) -> int:
    """At least the number of elements of an operation's result."""
    if "shape" in settings:
        return math.prod(settings["shape"])
    shapes = [np.shape(x) for x in operands]
    if "low" in settings:
        around = zip(shapes[0], settings["low"], settings["high"], strict=True)
        return math.prod(map(sum, around))
    if "contract" in settings:
        (left, right), sizes = settings["contract"], shapes
        lost = [sizes[0][i] for i in left] + [sizes[1][i] for i in right]
        lost += [sizes[0][i] for i in settings["batch"][0]]
        return math.prod([*sizes[0], *sizes[1]]) // max(math.prod(lost), 1)
    try:
        return math.prod(np.broadcast_shapes(*shapes))
    except ValueError:  # put together or refused, as it may be
        return sum(map(math.prod, shapes))
