"""Arrays on devices, on hosts and in between, as the local evaluator uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from metaevo import keys
from metaevo.types import PyTree


def identity(tree: PyTree) -> PyTree:
    return tree


def on_host(x: jax.Array, consume: bool = False) -> Any:
    """Return `x` as a numpy array; PRNG keys stay keys, from data on the host.

    Args:
        x: Array on devices.
        consume: Delete `x` if what is returned is a copy.
    """
    host = keys.from_data(np.asarray(keys.to_data(x)), like=x)
    if consume and isinstance(host, np.ndarray) and host.flags.owndata:
        x.delete()
    return host


def spread(sharding: NamedSharding, x: Any) -> jax.Array:
    """Return `x`, which every process has, as one array over the devices of all."""
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return jax.device_put(x, sharding)
    if keys.is_key(x):
        return keys.from_data(spread(sharding, keys.to_data(x)), like=x)
    x = np.asarray(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def take(tree: PyTree, ids: np.ndarray, axis: int) -> PyTree:
    """Return the entries `ids` along an axis of every leaf.

    Neighbors in an array on the host are a view of it.
    """
    neighbors = bool((np.diff(ids) == 1).all())

    def take(x):
        if not isinstance(x, np.ndarray):
            return jnp.take(x, ids, axis)
        if neighbors:
            place = (slice(None),) * axis + (slice(ids[0], ids[-1] + 1),)
            return x[place]
        return np.take(x, ids, axis)

    return jax.tree.map(take, tree)


def where(mask: jax.Array, old: PyTree, new: PyTree) -> PyTree:
    """Return `old` for the members in `mask` [P], else `new`; leaves are [S, P, ...].

    >>> mask = jnp.array([True, False])
    >>> where(mask, jnp.zeros((1, 2)), jnp.ones((1, 2))).tolist()
    [[0.0, 1.0]]
    """

    def select(old, new):
        if old is new:  # nothing to choose, and perhaps a replay buffer
            return old
        return jnp.where(mask.reshape((1, -1) + (1,) * (old.ndim - 2)), old, new)

    return jax.tree.map(select, old, new)


def healthy(tree: PyTree, size: int) -> np.ndarray:
    """Return True for members whose numbers are all finite, [P].

    Args:
        tree: Leaves [S, P, ...].
        size: P.

    >>> healthy({"w": jnp.array([[1.0, jnp.nan]])}, 2).tolist()
    [True, False]
    """
    healthy = np.ones(size, bool)
    for x in jax.tree.leaves(tree):
        if jnp.issubdtype(x.dtype, jnp.inexact):
            axes = (0, *range(2, x.ndim))
            where = np if isinstance(x, np.ndarray) else jnp  # no copy on a device
            healthy &= np.asarray(where.isfinite(x).all(axes))
    return healthy


def join(rounds: Sequence[PyTree], real: Sequence[np.ndarray]) -> PyTree:
    """Join rounds of [S, width, ...] leaves to [S, P, ...], without the padding.

    Args:
        rounds: The rounds, in order.
        real: [width] of each round, False where it is padding.
    """
    kept = np.flatnonzero(np.concatenate(real))

    def join(*x):
        on_host = isinstance(x[0], np.ndarray)
        whole = (np if on_host else jnp).concatenate(x, 1)
        return whole if len(kept) == whole.shape[1] else take(whole, kept, 1)

    return jax.tree.map(join, *rounds)


def folded(tree: PyTree, num_groups: int, num_seeds: int, axis: int = 0) -> PyTree:
    """Return leaves [S, P, ...] of those of lanes, [seeds of a group, G * P, ...].

    Args:
        tree: Leaves, group by group; the last seeds of the last group may be padding.
        num_groups: G.
        num_seeds: S.
        axis: That of the seeds; the lanes follow.

    >>> folded(np.array([[0, 0, 2, 2], [1, 1, 2, 2]]), 2, 3).tolist()
    [[0, 0], [1, 1], [2, 2]]
    """
    if num_groups == 1:
        return tree

    def fold(x):
        seeds, lanes = x.shape[axis : axis + 2]
        before, after = x.shape[:axis], x.shape[axis + 2 :]
        x = x.reshape(*before, seeds, num_groups, lanes // num_groups, *after)
        x = x.swapaxes(axis, axis + 1)
        x = x.reshape(*before, num_groups * seeds, lanes // num_groups, *after)
        return x[(slice(None),) * axis + (slice(num_seeds),)]

    return jax.tree.map(fold, tree)


def scatter(tree: PyTree, ids: np.ndarray, size: int) -> PyTree:
    """Return leaves [S, P, ...] that hold the first of [S, N, ...] at `ids`.

    Elsewhere numbers are NaN, and the rest is 0.

    Args:
        ids: [M], M <= N.
        size: P.

    >>> scatter({"x": np.ones((1, 2))}, np.array([2]), 3)["x"].tolist()
    [[nan, nan, 1.0]]
    """

    def scatter(x):
        fill = np.nan if np.issubdtype(x.dtype, np.inexact) else 0
        whole = np.full((x.shape[0], size, *x.shape[2:]), fill, x.dtype)
        whole[:, ids] = x[:, : len(ids)]
        return whole

    return jax.tree.map(scatter, tree)


def extend(whole: PyTree | None, part: PyTree, first: int, size: int) -> PyTree:
    """Put a round's leaves [S, width, ...] into those of all members [S, P, ...].

    Unlike `join`, this function needs no second copy of arrays on the host.

    Args:
        whole: Leaves of the rounds before, which are written to; None before the first.
        part: Leaves of the round; those beyond P are padding.
        first: Place of the round's first member.
        size: P.

    >>> whole = extend(None, {"w": np.ones((1, 2))}, 0, 3)
    >>> extend(whole, {"w": np.zeros((1, 2))}, 2, 3)["w"].tolist()
    [[1.0, 1.0, 0.0]]
    """

    def extend(part, whole=None):
        if not isinstance(part, np.ndarray):
            joined = part if whole is None else jnp.concatenate((whole, part), 1)
            return joined if joined.shape[1] <= size else joined[:, :size]
        if whole is None and part.shape[1] == size:
            return part
        if whole is None:
            shape = (part.shape[0], size, *part.shape[2:])
            whole = np.empty(shape, part.dtype)
        whole[:, first : first + part.shape[1]] = part[:, : size - first]
        return whole

    return jax.tree.map(extend, part, *() if whole is None else (whole,))


def num_bytes(tree: PyTree) -> int:
    """Return the bytes of all leaves, which may be shapes.

    >>> num_bytes({"w": jax.ShapeDtypeStruct((2, 3), jnp.float32)})
    24
    """
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def largest_divisor(size: int, limit: int) -> int:
    """Return the largest divisor of `size` that is at most `limit`.

    >>> largest_divisor(12, 5)
    4
    """
    return max(d for d in range(1, limit + 1) if size % d == 0)
