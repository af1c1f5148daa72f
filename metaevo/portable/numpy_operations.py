"""Elementary operations on arrays, by numpy: those of which programs are made.

`tracing` writes programs, `numpy_functions` carries them out. What numpy and JAX have
alike is one table, `shared`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["NAMES", "OPERATIONS", "einsum", "shared"]

_SAME = ("abs", "add", "cos", "exp", "expm1", "floor", "log", "log1p", "sign", "sin")
_SAME += ("sqrt", "square", "tanh")
NAMES = {
    **dict(zip(_SAME, _SAME, strict=True)),
    "add_any": "add",
    "and": "logical_and",
    "copy": "asarray",
    "eq": "equal",
    "ge": "greater_equal",
    "gt": "greater",
    "is_finite": "isfinite",
    "le": "less_equal",
    "lt": "less",
    "max": "maximum",
    "min": "minimum",
    "mul": "multiply",
    "ne": "not_equal",
    "neg": "negative",
    "not": "logical_not",
    "or": "logical_or",
    "pow": "power",
    "sub": "subtract",
}
"""Operation -> the function that numpy and JAX have for it, by the same name."""


def shared(m: Any) -> dict[str, Callable]:
    """The operations that numpy and `jax.numpy` have alike.

    Args:
        m: one of the two modules.
    """
    return {
        **{operation: getattr(m, name) for operation, name in NAMES.items()},
        "argmax": lambda x, axes: m.argmax(x, axes[0]),
        "concatenate": lambda *x, axis: m.concatenate(x, axis),
        "dim_as_value": lambda size: m.asarray(size),
        "reduce_max": lambda x, axes: m.max(x, tuple(axes)),
        "reduce_min": lambda x, axes: m.min(x, tuple(axes)),
        "reduce_sum": lambda x, axes: m.sum(x, tuple(axes)),
        "reshape": lambda x, shape: m.reshape(x, shape),
        "squeeze": lambda x, axes: m.squeeze(x, tuple(axes)),
        "stack": lambda *x, axis: m.stack(x, axis),
        "transpose": lambda x, axes: m.transpose(x, axes),
    }


def _convert(x, to):
    return np.asarray(x).astype(to)


def _broadcast(x, shape, axes):
    expanded = [1] * len(shape)
    for axis, size in zip(axes, np.shape(x), strict=True):
        expanded[axis] = size
    return np.broadcast_to(np.reshape(x, expanded), shape)


def einsum(
    ranks: Sequence[int], contract: Sequence[Sequence], batch: Sequence[Sequence]
) -> str:
    """A product of two arrays in Einstein's notation, batch axes first.

    Args:
        ranks: number of axes of the two.
        contract: axes that are summed over, of the first and of the second.
        batch: axes that both have, of the first and of the second.

    >>> einsum((2, 2), [[1], [0]], [[], []])
    'ab,bd->ad'
    """
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    left, right = ([next(letters) for _ in range(rank)] for rank in ranks)
    for pairs in (contract, batch):
        for i, j in zip(*pairs, strict=True):
            right[j] = left[i]
    used = {left[i] for i in (*contract[0], *batch[0])}
    out = [left[i] for i in batch[0]]
    out += [x for x in (*left, *right) if x not in used]
    return f"{''.join(left)},{''.join(right)}->{''.join(out)}"


def _dot(a, b, contract, batch):
    return np.einsum(einsum((a.ndim, b.ndim), contract, batch), a, b)


def _iota(shape, axis, type):
    along = np.arange(shape[axis], dtype=np.dtype(type))
    return _broadcast(along, shape, [axis])


def _pad(x, value, low, high):
    around = list(zip(low, high, strict=True))
    return np.pad(x, around, constant_values=float(value))


def _logistic(x):
    return 0.5 * (np.tanh(0.5 * x) + 1)


OPERATIONS: dict[str, Callable] = {
    **shared(np),
    "broadcast_in_dim": _broadcast,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "convert_element_type": _convert,
    "div": np.true_divide,
    "dot_general": _dot,
    "integer_pow": lambda x, y: np.power(x, float(y)),
    "iota": _iota,
    "logistic": _logistic,
    "pad": _pad,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "select_n": lambda which, *x: np.choose(np.asarray(which, int), x),
    "slice": lambda x, start, stop, step: x[
        tuple(slice(*at) for at in zip(start, stop, step, strict=True))
    ],
    "stop_gradient": np.asarray,
    "take": lambda x, axis, index: np.take(x, index, axis),
}
"""The closed list: operation -> how numpy does it."""
