"""Elementary operations on arrays, by JAX: a stored program, carried out.

The counterpart of `numpy_operations` and of `numpy_functions.run`. What is carried out
can be jitted, vmapped and differentiated. Nothing that a program names is imported or
executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from metaevo.portable import numpy_operations, running

__all__ = ["OPERATIONS", "run"]


def _dot(a, b, contract, batch):
    def pairs(sides):
        left, right = sides
        return tuple(left), tuple(right)

    return lax.dot_general(a, b, (pairs(contract), pairs(batch)))


def _pad(x, value, low, high):
    around = [(a, b, 0) for a, b in zip(low, high, strict=True)]
    return lax.pad(x, jnp.asarray(value, x.dtype), around)


def _divide(x, y):
    integers = jnp.issubdtype(jnp.result_type(x, y), jnp.integer)
    return lax.div(x, y) if integers else jnp.true_divide(x, y)


def _select(which, *cases):
    return lax.select_n(which, *jnp.broadcast_arrays(*cases))


OPERATIONS: dict[str, Callable] = {
    **numpy_operations.shared(jnp),
    "broadcast_in_dim": lambda x, shape, axes: lax.broadcast_in_dim(x, shape, axes),
    "clamp": lambda low, x, high: lax.clamp(low, x, high),
    "convert_element_type": lambda x, to: jnp.asarray(x).astype(_type(to)),
    "div": _divide,
    "dot_general": _dot,
    "integer_pow": lambda x, y: lax.integer_pow(x, y),
    "iota": lambda shape, axis, type: lax.broadcasted_iota(_type(type), shape, axis),
    "logistic": lax.logistic,
    "pad": _pad,
    "rsqrt": lax.rsqrt,
    "select_n": _select,
    "slice": lambda x, start, stop, step: lax.slice(x, start, stop, step),
    "stop_gradient": lax.stop_gradient,
    "take": lambda x, axis, index: lax.index_in_dim(x, index, axis, keepdims=False),
}
"""The closed list of `numpy_operations.OPERATIONS`: operation -> how JAX does it."""


def run(program: Mapping[str, Any], inputs: Sequence[Any], dtype: Any) -> list:
    """Carry out a program by JAX; see `running.run`."""
    return running.run(program, inputs, dtype, _ARRAYS)


def _scan(step, carry, inputs, reverse: bool, most: int | None) -> tuple[list, list]:
    return lax.scan(step, carry, inputs, reverse=reverse)


def _cast(x: Any, dtype: Any) -> jax.Array:
    x = jnp.asarray(x)
    return x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _type(name: str) -> Any:
    """The type of a name, narrowed where JAX computes in 32 bits."""
    return jax.dtypes.canonicalize_dtype(np.dtype(name))


_ARRAYS = running.ArrayLibrary(OPERATIONS, _cast, _scan)
