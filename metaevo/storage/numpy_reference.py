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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.errors import MetaevoError
from metaevo.storage import verified

__all__ = ["Function", "Optimizer", "Reference", "load", "run"]

MAX_EQUATIONS = 10_000
MAX_SIZE = 1 << 20  # numbers in an array of fixed shape
MAX_PER_ELEMENT = 1 << 16  # numbers for each element of the inputs
_TYPES = ("bool", "int8", "uint8", "int32", "uint32", "int64", "uint64")
_TYPES += ("float16", "float32", "float64")
_SETTINGS = {
    *("y", "shape", "axes", "low", "high", "size", "axis", "type", "to"),
    *("contract", "batch", "start", "stop", "step", "index"),
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

    Attributes:
        inputs: their names, in order.
    """

    def __init__(self, described: Mapping[str, Any], params: Sequence[np.ndarray]):
        self.inputs = tuple(described["inputs"])
        self._value, self._gradient = described["value"], described["gradient"]
        self._params = params

    def __call__(self, *inputs: Any, dtype: Any = np.float64) -> np.ndarray:
        """The function's values [n, ...]."""
        return run(self._value, [*self._params, *self._shaped(inputs, dtype)], dtype)[0]

    def gradient(
        self, *inputs: Any, along: Any = None, dtype: Any = np.float64
    ) -> tuple[np.ndarray, ...]:
        """The gradient of the sum of all values with respect to each input.

        Args:
            along: weights of the values in that sum, of their shape; None: ones.

        Raises:
            ValueError: the function chooses an action and has no gradient.
        """
        if self._gradient is None:
            raise ValueError("this function has no gradient: it chooses")
        if along is None:
            along = np.ones_like(self(*inputs, dtype=dtype))
        given = self._shaped(inputs, dtype)
        arrays = [*self._params, *given, np.asarray(along, dtype)]
        return tuple(run(self._gradient, arrays, dtype))

    def _shaped(self, inputs, dtype):
        if len(inputs) != len(self.inputs):
            raise TypeError(f"expected {len(self.inputs)} inputs: {self.inputs}")
        return [np.asarray(x, dtype) for x in inputs]


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
        path: the `solution` folder of a run, or the run's folder.

    Raises:
        ValueError: it is not one, was altered, or holds a program that numpy could not
            carry out in reasonable time and memory.
    """
    try:
        path = verified.artifact_folder(path)
        arrays, manifest = verified.read(path, verified.MAX_ARTIFACT)
        slots: dict[str, Any] = {
            name: float(op["value"])
            for name, op in manifest["slots"].items()
            if op["op"] == "number"
        }
        for name, described in manifest.get("reference", {}).items():
            for part in ("value", "gradient", "step"):
                if described.get(part) is not None:
                    _check_program(described[part])
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


def _check_program(program: Mapping[str, Any]) -> None:
    """Check what a program is made of, before it is carried out.

    Raises:
        ValueError, TypeError, KeyError: an operation, a setting or a type is unknown,
            or a size is absurd.
    """
    if len(program["equations"]) > MAX_EQUATIONS:
        raise ValueError(f"more than {MAX_EQUATIONS} operations")
    atoms = [*program["outputs"]]
    for name, operands, _, settings in program["equations"]:
        if name not in OPERATIONS:
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
    known: dict[int, np.ndarray] = {}
    sizes: dict[str, int] = {}
    for variable, shape, x in zip(
        program["inputs"], program["shapes"], inputs, strict=True
    ):
        for axis, size in enumerate(shape):
            if isinstance(size, str):
                sizes[size] = np.shape(x)[axis]
        known[variable] = _as(x, dtype)
    most = MAX_SIZE + MAX_PER_ELEMENT * math.prod(sizes.values())

    def value(atom):
        if isinstance(atom, int):
            return known[atom]
        return _as(np.asarray(atom["value"], np.dtype(atom["type"])), dtype)

    def concrete(x):
        if isinstance(x, list):
            return [concrete(y) for y in x]
        return sizes.get(x, x) if isinstance(x, str) else x

    for name, operands, result, settings in program["equations"]:
        if name not in OPERATIONS:
            raise ValueError(f"unknown operation {name!r}")
        settings = {key: concrete(x) for key, x in settings.items()}
        given = [value(x) for x in operands]
        if _size(given, settings) > most:
            raise ValueError(f"{name}: more than {most} numbers")
        with np.errstate(all="ignore"):
            found = OPERATIONS[name](*given, **settings)
        known[result] = _as(found, dtype)
    return [value(atom) for atom in program["outputs"]]


def _size(operands: Sequence[np.ndarray], settings: Mapping[str, Any]) -> int:
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


def _convert(x, to):
    return np.asarray(x).astype(to)


def _broadcast(x, shape, axes):
    expanded = [1] * len(shape)
    for axis, size in zip(axes, np.shape(x), strict=True):
        expanded[axis] = size
    return np.broadcast_to(np.reshape(x, expanded), shape)


def _dot(a, b, contract, batch):
    """Batch axes first, then those left of a, then those left of b."""
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left = [next(letters) for _ in range(a.ndim)]
    right = [next(letters) for _ in range(b.ndim)]
    for pairs in (contract, batch):
        for i, j in zip(*pairs, strict=True):
            right[j] = left[i]
    used = {left[i] for i in contract[0]} | {left[i] for i in batch[0]}
    out = [left[i] for i in batch[0]]
    out += [x for x in left if x not in used] + [x for x in right if x not in used]
    return np.einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", a, b)


def _iota(shape, axis, type):
    along = np.arange(shape[axis], dtype=np.dtype(type))
    return _broadcast(along, shape, [axis])


def _pad(x, value, low, high):
    around = list(zip(low, high, strict=True))
    return np.pad(x, around, constant_values=float(value))


def _logistic(x):
    return 0.5 * (np.tanh(0.5 * x) + 1)


OPERATIONS: dict[str, Callable] = {
    "abs": np.abs,
    "add": np.add,
    "add_any": np.add,
    "and": np.logical_and,
    "argmax": lambda x, axes: np.argmax(x, axes[0]),
    "broadcast_in_dim": _broadcast,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "concatenate": lambda *x, axis: np.concatenate(x, axis),
    "convert_element_type": _convert,
    "copy": np.asarray,
    "cos": np.cos,
    "dim_as_value": lambda size: np.asarray(size),
    "div": np.true_divide,
    "dot_general": _dot,
    "eq": np.equal,
    "exp": np.exp,
    "expm1": np.expm1,
    "floor": np.floor,
    "ge": np.greater_equal,
    "gt": np.greater,
    "integer_pow": lambda x, y: np.power(x, float(y)),
    "iota": _iota,
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "logistic": _logistic,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.logical_not,
    "or": np.logical_or,
    "pad": _pad,
    "pow": np.power,
    "reduce_max": lambda x, axes: np.max(x, tuple(axes)),
    "reduce_min": lambda x, axes: np.min(x, tuple(axes)),
    "reduce_sum": lambda x, axes: np.sum(x, tuple(axes)),
    "reshape": lambda x, shape: np.reshape(x, shape),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "select_n": lambda which, *x: np.choose(np.asarray(which, int), x),
    "sign": np.sign,
    "sin": np.sin,
    "slice": lambda x, start, stop, step: x[
        tuple(slice(*at) for at in zip(start, stop, step, strict=True))
    ],
    "sqrt": np.sqrt,
    "square": np.square,
    "squeeze": lambda x, axes: np.squeeze(x, tuple(axes)),
    "stack": lambda *x, axis: np.stack(x, axis),
    "stop_gradient": np.asarray,
    "sub": np.subtract,
    "take": lambda x, axis, index: np.take(x, index, axis),
    "tanh": np.tanh,
    "transpose": lambda x, axes: np.transpose(x, axes),
}
"""The closed list: operation -> how numpy does it."""
