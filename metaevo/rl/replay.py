"""A replay buffer for populations.

A ring of rows, each one step of E environments, packed into at most two arrays
(`packing`): so many writes and gathers, whatever a transition holds.

All members insert at the same row, which follows from the `clock`, so that under vmap
an insertion stays one slice, written in place; with an index per member it would be a
scatter. What may differ is how much of the ring is a member's own: a member born into a
population that lives on has its warm-up at the ring's start and its own steps behind
the common cursor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo.rl import packing
from metaevo.rl.packing import Packed
from metaevo.types import PyTree

__all__ = ["Replay", "check_sizes", "least_warmup", "make", "write"]


class Replay(NamedTuple):
    """A ring as pure functions.

    Attributes:
        start: `warmup -> rows`: leaves [W, E, ...] to a ring that begins with them.
        add: `(rows, inserted, steps) -> rows`, leaves of `steps` [T, E, ...];
            `inserted` counts the steps added before, by any member.
        draw: `(key, inserted, own, shape) -> indices` [n, *shape] int32 of n
            consecutive steps of one environment, oldest first; windows are uniform
            with replacement over the warm-up and the `own` last of the `inserted`
            steps that are still there. An index is row x E + environment.
        read: `(rows, indices) -> steps`, leaves [*indices.shape, ...].
        sample: `(key, rows, inserted, own, shape) -> (windows, indices)`: `draw` and
            `read`, leaves [n, *shape, ...].
    """

    start: Callable[[PyTree], Packed]
    add: Callable[[Packed, jax.Array, PyTree], Packed]
    draw: Callable[..., jax.Array]
    read: Callable[[Packed, jax.Array], Any]
    sample: Callable[..., tuple[Any, jax.Array]]


def least_warmup(window: int) -> int:
    """Steps of warm-up in which a member always has a whole window of its own."""
    return 3 * window - 2


def check_sizes(num_rows: int, num_warmup: int, num_steps: int, window: int) -> None:
    """Check the sizes of a ring; see `make`.

    Raises:
        ValueError: they do not fit each other.
    """
    if num_rows % num_steps or num_warmup % num_steps or not num_steps:
        raise ValueError(f"{num_rows} rows, {num_warmup} first, not in {num_steps}s")
    if not max(least_warmup(window), 1) <= num_warmup <= num_rows:
        raise ValueError(f"warm-up of {num_warmup} in {num_rows} rows, window {window}")


def make(
    template: PyTree,
    num_rows: int,
    num_envs: int,
    num_warmup: int,
    num_steps: int = 1,
    window: int = 1,
) -> Replay:
    """Make a ring for steps like `template`.

    Args:
        template: one step of one environment, any pytree of arrays or
            `jax.ShapeDtypeStruct`s, of types that `packing.of` takes. Leaves given to
            `start` and `add` are cast to these types.
        num_rows: capacity in steps of E environments, a multiple of `num_steps`.
        num_envs: E.
        num_warmup: W, steps that `start` is given, a multiple of `num_steps`, at most
            `num_rows`.
        num_steps: T, steps that `add` is given.
        window: n, at most (W + 2) / 3, so that there is a whole one even where the
            first own steps of a member cut its warm-up in two.

    Raises:
        ValueError: sizes that do not fit each other.
        TypeError: a leaf of `template` cannot be packed.
    """
    check_sizes(num_rows, num_warmup, num_steps, window)
    pack, unpack = packing.of(template)

    def start(warmup):
        def begin(packed):
            rows = jnp.zeros((num_rows, *packed.shape[1:]), packed.dtype)
            return rows.at[:num_warmup].set(packed)

        return jax.tree.map(begin, pack(warmup))

    def add(rows, inserted, steps):
        at = (num_warmup + inserted) % num_rows
        return jax.tree.map(lambda x, new: write(x, new, at), rows, pack(steps))

    def draw(key, inserted, own, shape):
        # Own steps are the rows from `oldest` on, around the ring's end. Of the
        # warm-up, rows 0 to W, what they do not cover is left: one part before them,
        # and one behind, where a member was born when the common cursor stood inside.
        own = jnp.minimum(own, num_rows)
        oldest = (num_warmup + inserted - own) % num_rows
        oldest = jnp.where(own > 0, oldest, num_warmup)
        begin = jnp.maximum(oldest + own - num_rows, 0)
        before = jnp.maximum(jnp.minimum(oldest, num_warmup) - begin, 0)
        behind = jnp.maximum(num_warmup - (oldest + own), 0)
        # Windows of each part, counted back from its newest.
        ends = num_warmup + inserted, begin + before, num_warmup
        counts = [jnp.maximum(n - (window - 1), 0) for n in (own, before, behind)]
        # The modulo favors low numbers by less than one in 2^32 / capacity.
        number = jnp.uint32(sum(counts) * num_envs)
        drawn = (jax.random.bits(key, shape) % number).astype(jnp.int32)
        back, env = drawn // num_envs, drawn % num_envs
        first, second = counts[0], counts[0] + counts[1]
        newest = jnp.where(
            back < first,
            ends[0],
            jnp.where(back < second, ends[1] + first, ends[2] + second),
        )
        row = newest - window - back
        step = jnp.arange(window).reshape(-1, *[1] * len(shape))
        return (row + step) % num_rows * num_envs + env

    def read(rows, indices):
        return unpack(jax.tree.map(lambda x: _gather(x, indices), rows))

    def sample(key, rows, inserted, own, shape):
        indices = draw(key, inserted, own, shape)
        return read(rows, indices), indices

    return Replay(start, add, draw, read, sample)


def _gather(rows: jax.Array, indices: jax.Array) -> jax.Array:
    """Steps [*indices.shape, width] of rows [R, E, width]."""
    return rows.reshape(-1, rows.shape[-1])[indices]


def write(rows: jax.Array, steps: jax.Array, at: jax.Array, axis: int = 0) -> jax.Array:
    """Write `steps` into `rows` from index `at` of `axis` on.

    JAX batches such a write into a scatter even if all write at one index, which on CPU
    costs several times as much.
    """

    def plain(rows, steps, at):
        return jax.lax.dynamic_update_slice_in_dim(rows, steps, at, axis)

    put = jax.custom_batching.custom_vmap(plain)

    @put.def_vmap
    def rule(axis_size, in_batched, rows, steps, at):
        if in_batched[2]:
            axes = [0 if batched else None for batched in in_batched]
            return jax.vmap(plain, axes)(rows, steps, at), True
        rows, steps = (
            x if batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            for x, batched in zip((rows, steps), in_batched, strict=False)
        )
        return write(rows, steps, at, axis + 1), True

    return put(rows, steps, at)
