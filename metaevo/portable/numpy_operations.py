"""Elementary operations on arrays, by numpy: those of which programs are made.

`tracing` writes programs, `numpy_functions` carries them out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["OPERATIONS"]


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
