"""Stored functions and optimizers, carried out by numpy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metaevo.portable import numpy_operations, running
from metaevo.portable.numpy_inputs import shaped

__all__ = ["Function", "NumpyOptimizer", "run"]


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
        if shape is not None:
            found = [slope.reshape(shape) if slope.ndim else slope for slope in found]
        return tuple(
            slope if slope.ndim == np.ndim(x) else np.asarray(slope.sum())
            for slope, x in zip(found, inputs, strict=True)
        )

    def _shaped(
        self, inputs: Sequence[Any], dtype: Any
    ) -> tuple[list[np.ndarray], tuple[int, ...] | None]:
        expected = self._value["shapes"][len(self._params) :]
        return shaped(self.inputs, expected, inputs, dtype)


class NumpyOptimizer:
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
            return _cast(np.full(size, start, np.dtype(type)), dtype)

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
                "gradient": np.ravel(slope[path]),
                "params": np.ravel(x),
                "layer": layer[path],
                "noise": np.ravel(drawn.get(path, np.zeros(np.shape(x)))),
                "progress": progress,
                **state[path],
            }
            inputs = [_cast(known[name], dtype) for name in self.inputs]
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


def run(program: Mapping[str, Any], inputs: Sequence[Any], dtype: Any) -> list:
    """Carry out a program by numpy; see `running.run`."""
    with np.errstate(all="ignore"):
        return running.run(program, inputs, dtype, _ARRAYS)


def _scan(step, carry, inputs, reverse: bool, most: int | None) -> tuple[list, list]:
    """One step after the other; see `running.ArrayLibrary`."""
    steps = range(min(len(x) for x in inputs))
    outputs: list[list] = []
    for i in reversed(steps) if reverse else steps:
        carry, output = step(carry, [x[i] for x in inputs])
        outputs.append(output)
        if most is not None and len(steps) * sum(x.size for x in output) > most:
            raise ValueError(f"scan: more than {most} numbers")
    if not outputs:  # a step of zeros says how large its outputs would be
        _, like = step(carry, [np.zeros(x.shape[1:], x.dtype) for x in inputs])
        return carry, [np.zeros((0, *x.shape), x.dtype) for x in like]
    stacked = [np.stack(x) for x in zip(*outputs, strict=True)]
    return carry, [x[::-1] for x in stacked] if reverse else stacked


def _cast(x: Any, dtype: Any) -> np.ndarray:
    x = np.asarray(x)
    return x.astype(dtype) if np.issubdtype(x.dtype, np.floating) else x


_ARRAYS = running.ArrayLibrary(numpy_operations.OPERATIONS, _cast, _scan)
