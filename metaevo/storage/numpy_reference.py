"""Evolved functions in numpy alone: a second opinion, and for programs without JAX.

    from metaevo import reference  # an alias of this module
    loss = reference.load("runs/.../solution").value_loss
    loss(value, target, old_value)             # float64
    loss.gradient(value, target, old_value)    # a tuple, one array per input

Numbers that change over a lifetime are functions of `progress`, optimizers have `init`
and `update`.

An artifact's manifest holds each function as a list of elementary operations on arrays,
written when it was saved (`numpy_export`). Here they are carried out, those of a
closed list; nothing is compiled, imported or executed. Needs numpy and safetensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.errors import MetaevoError
from metaevo.storage import verified
from metaevo.storage.numpy_inputs import shaped
from metaevo.storage.numpy_operations import OPERATIONS

__all__ = [
    "Function",
    "Optimizer",
    "Reference",
    "check_program",
    "load",
    "result_size",
    "run",
]

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


class Reference:
    """Evolved slots by name: functions, and numbers as floats."""

    def __init__(self, slots: Mapping[str, Any]):
        self.slots = dict(slots)

    def __getattr__(self, name: str) -> Any:
        slots = self.__dict__.get("slots", {})
        if name not in slots:
            known = ", ".join(sorted(slots))
            raise AttributeError(f"no slot {name!r} with a reference, but {known}")
        return slots[name]


class Function:
    """A function of arrays [n] (or [n, ...]), elementwise over n.

    One whose inputs are all [n] also takes arrays of any common shape. A scalar stands
    for all elements.

    Attributes:
        inputs: their names, in order.
    """

    def __init__(self, described: Mapping[str, Any], params: Sequence[np.ndarray]):
        self.inputs = tuple(described["inputs"])
        self._value, self._gradient = described["value"], described["gradient"]
        self._params = params

    def __call__(self, *inputs: Any, dtype: Any = np.float64) -> np.ndarray:
        """The function's values [n, ...], or of the inputs' shape.

        Raises:
            ValueError: the inputs are of other shapes, or of several.
        """
        given, shape = self._shaped(inputs, dtype)
        found = run(self._value, [*self._params, *given], dtype)[0]
        return found if shape is None else found.reshape((*shape, *found.shape[1:]))

    def gradient(
        self, *inputs: Any, along: Any = None, dtype: Any = np.float64
    ) -> tuple[np.ndarray, ...]:
        """The gradient of the sum of all values with respect to each input.

        Args:
            along: weights of the values in that sum, of their shape; None: ones.

        Raises:
            ValueError: the function chooses an action and has no gradient, or the
                inputs are of other shapes, or of several.
        """
        if self._gradient is None:
            raise ValueError("this function has no gradient: it chooses")
        if along is None:
            along = np.ones_like(self(*inputs, dtype=dtype))
        given, shape = self._shaped(inputs, dtype)
        along = np.asarray(along, dtype)
        if shape is not None:
            along = along.reshape(-1, *along.shape[len(shape) :])
        found = run(self._gradient, [*self._params, *given, along], dtype)
        if shape is None:
            return tuple(
                slope if np.ndim(x) == np.ndim(slope) else np.asarray(slope.sum())
                for slope, x in zip(found, inputs, strict=True)
            )
        return tuple(
            slope.reshape(shape) if np.ndim(x) else np.asarray(slope.sum())
            for slope, x in zip(found, inputs, strict=True)
        )

    def _shaped(
        self, inputs: Sequence[Any], dtype: Any
    ) -> tuple[list[np.ndarray], tuple[int, ...] | None]:
        expected = self._value["shapes"][len(self._params) :]
        return shaped(self.inputs, expected, inputs, dtype)


class Optimizer:
    """A learned optimizer: a direction for each number, to be multiplied by `lr`.

        state = optimizer.init(params)
        direction, state = optimizer.update(gradient, state, params)

    Params, gradients and directions are nested dicts of arrays, or one array.

    Attributes:
        inputs: what its program takes for one array.
    """

    def __init__(self, described: Mapping[str, Any], params: Sequence[np.ndarray]):
        self.inputs = tuple(described["inputs"])
        self._kept, self._step = described["state"], described["step"]
        self._outputs, self._params = described["outputs"], params

    def init(self, params: Any, dtype: Any = np.float64) -> dict[tuple, dict]:
        """The state of each array: path -> name -> array."""

        def start(n, shape, type, start):
            size = [n if x == "n" else x for x in shape]
            return _as(np.full(size, start, np.dtype(type)), dtype)

        return {
            path: {name: start(np.size(x), **it) for name, it in self._kept.items()}
            for path, x in _arrays(params).items()
        }

    def update(
        self,
        gradient: Any,
        state: Mapping[tuple, dict],
        params: Any,
        progress: float | None = None,
        noise: Any = None,
        dtype: Any = np.float64,
    ) -> tuple[Any, dict[tuple, dict]]:
        """A direction, like `params`, and the state after it.

        Args:
            progress: share of the lifetime that is done; a temporal one needs it.
            noise: standard normal numbers like `params`, for an optimizer with noise;
                None leaves the noise out. (JAX draws its own, from a generator that
                numpy does not have.)

        Raises:
            TypeError: it is temporal, and `progress` is None.
        """
        if "progress" in self.inputs and progress is None:
            raise TypeError("this optimizer changes over a lifetime: give progress")
        agent, slope = _arrays(params), _arrays(gradient)
        drawn, layer = _arrays(noise), _layers(list(agent))
        directions, after = {}, {}
        for path, x in agent.items():
            known = {
                "gradient": slope[path],
                "params": x,
                "layer": layer[path],
                "noise": drawn.get(path, np.zeros(np.shape(x))),
                "progress": progress,
                **state[path],
            }
            inputs = [known[name] for name in self.inputs]
            flat = ("gradient", "params", "noise")
            inputs = [
                np.ravel(value) if name in flat else value
                for name, value in zip(self.inputs, inputs, strict=True)
            ]
            inputs = [
                v if np.issubdtype(np.asarray(v).dtype, np.integer) else _as(v, dtype)
                for v in inputs
            ]
            found = run(self._step, [*self._params, *inputs], dtype)
            after[path] = dict(zip(self._outputs, found, strict=True))
            directions[path] = after[path].pop("direction").reshape(np.shape(x))
        return _tree(directions), after


def _arrays(tree: Any, path: tuple = ()) -> dict[tuple, np.ndarray]:
    """The arrays of nested dicts by path, in the order of their names."""
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        return {path: np.asarray(tree)}
    found = {}
    for name in sorted(tree):
        found |= _arrays(tree[name], (*path, name))
    return found


def _tree(arrays: Mapping[tuple, np.ndarray]) -> Any:
    """The inverse of `_arrays`."""
    if () in arrays:
        return arrays[()]
    tree: dict = {}
    for (*path, name), x in arrays.items():
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[name] = x
    return tree


def _layers(paths: Sequence[tuple]) -> dict[tuple, float]:
    """The depth of each array's layer, as in `metaevo.learned.optimizers`."""

    def depth(path):
        beside = [p[:-1] for p in paths if p[:-2] == path[:-2] and len(p) == len(path)]
        order = list(dict.fromkeys(beside))
        return order.index(path[:-1]) / max(len(order) - 1, 1)

    return {path: depth(path) for path in paths}


def load(path: str | Path) -> Reference:
    """Load the functions of an artifact; it is verified as by `metaevo.load`.

    Args:
        path: as of `metaevo.load`.

    Raises:
        ValueError: it is not one, was altered, or holds a program that numpy could not
            carry out in reasonable time and memory.
    """
    try:
        path = verified.artifact_folder(path)
        arrays, manifest = verified.read(path, verified.MAX_ARTIFACT)
        for name in [*manifest["slots"], *manifest.get("reference", {})]:
            verified.check_slot(name)
        slots: dict[str, Any] = {
            name: float(op["value"])
            for name, op in manifest["slots"].items()
            if op["op"] == "number"
        }
        for name, described in manifest.get("reference", {}).items():
            for part in ("value", "gradient", "step"):
                if described.get(part) is not None:
                    check_program(described[part])
            for kept in described.get("state", {}).values():
                _check_sizes("state", kept)
            params = [arrays[array] for array in described["params"]]
            kind = Optimizer if "step" in described else Function
            slots[name] = kind(described, params)
    except (
        MetaevoError,
        OSError,
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
    ) as error:
        raise ValueError(f"{path}: no artifact with a reference: {error}") from None
    return Reference(slots)


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
        elif name not in OPERATIONS:
            raise ValueError(f"unknown operation {name!r}")
        if not settings.keys() <= _SETTINGS:
            raise ValueError(f"{name}: unknown settings {sorted(settings)}")
        atoms += operands
        _check_sizes(name, settings)
    if any(isinstance(x, Mapping) and x["type"] not in _TYPES for x in atoms):
        raise ValueError("a constant of unknown type")


def _check_sizes(name: str, settings: Mapping[str, Any]) -> None:
    """Check the types and sizes in the settings of an operation or of a state."""
    if not {settings.get("type"), settings.get("to")} <= {None, *_TYPES}:
        raise ValueError(f"{name}: unknown type")
    for key in ("shape", "low", "high"):
        sizes = [x for x in settings.get(key, ()) if isinstance(x, int)]
        if math.prod(sizes) > MAX_SIZE:
            raise ValueError(f"{name}: an array of {key} {settings[key]}")


def run(program: Mapping[str, Any], inputs: Sequence[np.ndarray], dtype: Any) -> list:
    """Carries out a program of `metaevo.storage.numpy_export`.

    Args:
        dtype: of all floating numbers.

    Raises:
        ValueError: an operation that is not in the list, or an absurdly large result.
    """
    sizes: dict[str, int] = {}
    for shape, x in zip(program["shapes"], inputs, strict=True):
        for axis, size in enumerate(shape):
            if isinstance(size, str):
                sizes[size] = np.shape(x)[axis]
    most = MAX_SIZE + MAX_PER_ELEMENT * math.prod(sizes.values())
    return _run(program, inputs, dtype, sizes, most)


def _run(program, inputs, dtype, sizes: Mapping[str, int], most: int) -> list:
    """`run`, with the open sizes and the most numbers that a result may have."""
    pairs = zip(program["inputs"], inputs, strict=True)
    known = {variable: _as(x, dtype) for variable, x in pairs}

    def value(atom):
        if isinstance(atom, int):
            return known[atom]
        return _as(np.asarray(atom["value"], np.dtype(atom["type"])), dtype)

    def concrete(x):
        if isinstance(x, list):
            return [concrete(y) for y in x]
        return sizes.get(x, x) if isinstance(x, str) else x

    for name, operands, result, settings in program["equations"]:
        given = [value(x) for x in operands]
        if name == "scan":
            found = _scan(given, settings, dtype, sizes, most)
            known |= zip(result, found, strict=True)
            continue
        if name not in OPERATIONS:
            raise ValueError(f"unknown operation {name!r}")
        settings = {key: concrete(x) for key, x in settings.items()}
        if result_size(given, settings) > most:
            raise ValueError(f"{name}: more than {most} numbers")
        with np.errstate(all="ignore"):
            found = OPERATIONS[name](*given, **settings)
        known[result] = _as(found, dtype)
    return [value(atom) for atom in program["outputs"]]


def _scan(operands, settings, dtype, sizes: Mapping[str, int], most: int) -> list:
    """A program for each index of the first axis of some operands, one by one.

    Operands are constants, the carry that a step gives to the next, and what is gone
    over; results the last carry, and each step's other results, stacked.
    """
    num_consts, num_carry = settings["num_consts"], settings["num_carry"]
    constants, operands = operands[:num_consts], operands[num_consts:]
    carry, over = operands[:num_carry], operands[num_carry:]
    steps = range(min(len(x) for x in over))
    if len(steps) > max(sizes.values(), default=0):
        raise ValueError(f"scan: more than {max(sizes.values(), default=0)} steps")
    kept: list[list] = []
    for i in reversed(steps) if settings["reverse"] else steps:
        inputs = [*constants, *carry, *(x[i] for x in over)]
        found = _run(settings["program"], inputs, dtype, sizes, most)
        carry = found[:num_carry]
        kept.append(found[num_carry:])
        if len(steps) * sum(x.size for x in kept[0]) > most:
            raise ValueError(f"scan: more than {most} numbers")
    if settings["reverse"]:
        kept.reverse()
    if not kept:  # no step: one of zeros says how large its results would be
        blank = [np.zeros(x.shape[1:], x.dtype) for x in over]
        found = _run(
            settings["program"], [*constants, *carry, *blank], dtype, sizes, most
        )
        made = (np.zeros((0, *x.shape), x.dtype) for x in found[num_carry:])
        return [*carry, *made]
    return [*carry, *(np.stack(x) for x in zip(*kept, strict=True))]


def result_size(operands: Sequence[Any], settings: Mapping[str, Any]) -> int:
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


def _as(x: Any, dtype: Any) -> np.ndarray:
    x = np.asarray(x)
    return x.astype(dtype) if np.issubdtype(x.dtype, np.floating) else x
