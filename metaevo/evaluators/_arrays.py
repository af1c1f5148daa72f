"""What the local evaluator does with arrays on devices, on hosts and in between."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from metaevo.types import PyTree


def identity(tree: PyTree) -> PyTree:
    return tree


def _is_key(x: Any) -> bool:
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def on_host(x: jax.Array) -> Any:
    if _is_key(x):
        data = np.asarray(jax.random.key_data(x))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    return np.asarray(x)


def spread(sharding: NamedSharding, x: Any) -> jax.Array:
    """`x`, which every process has, as one array over the devices of all."""
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return jax.device_put(x, sharding)
    if _is_key(x):
        data = spread(sharding, jax.random.key_data(x))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    x = np.asarray(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def take(tree: PyTree, ids: np.ndarray, axis: int) -> PyTree:
    def take(x):
        if isinstance(x, np.ndarray):
            return np.take(x, ids, axis)
        return jnp.take(x, ids, axis)

    return jax.tree.map(take, tree)


def where(lives: jax.Array, old: PyTree, new: PyTree) -> PyTree:
    """Selects per member; leaves are [S, P, ...]."""

    def select(old, new):
        mask = lives.reshape((1, -1) + (1,) * (old.ndim - 2))
        return jnp.where(mask, old, new)

    return jax.tree.map(select, old, new)


def healthy(tree: PyTree, size: int) -> np.ndarray:
    """Which members hold only finite numbers, [P]; leaves are [S, P, ...]."""
    healthy = np.ones(size, bool)
    for x in jax.tree.leaves(tree):
        if jnp.issubdtype(x.dtype, jnp.inexact):
            axes = (0, *range(2, x.ndim))
            healthy &= np.asarray(jnp.isfinite(x).all(axes))
    return healthy


def join(rounds: list[PyTree], size: int) -> PyTree:
    """Rounds of [S, width, ...] leaves to [S, P, ...], padding cut off."""

    def join(*x):
        on_host = isinstance(x[0], np.ndarray)
        return (np if on_host else jnp).concatenate(x, 1)[:, :size]

    return jax.tree.map(join, *rounds)


def largest_divisor(size: int, limit: int) -> int:
    return max(d for d in range(1, limit + 1) if size % d == 0)
