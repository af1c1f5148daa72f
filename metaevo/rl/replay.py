"""A replay buffer for populations.

A ring of rows, each one step of E environments, packed into float32 (exact for actions
below 2^24): one write and one gather whatever a transition holds. All members insert at
the same row, which follows from the `clock`, so that under vmap an insertion stays one
slice, written in place; with an index per member it would be a scatter. What may differ
is how much of the ring is a member's own: a member born into a population that lives on
has its warm-up at the ring's start and its own steps behind the common cursor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo.envs import Discrete, Env
from metaevo.rl.rollouts import Transition
from metaevo.types import PyTree

__all__ = ["Replay", "least_warmup", "make"]


class Replay(NamedTuple):
    """A ring as pure functions.

    Attributes:
        start: `warmup -> rows`: leaves [W, E, ...] to a ring that begins with them.
        add: `(rows, inserted, steps) -> rows`, leaves of `steps` [T, E, ...];
            `inserted` counts the steps added before, by any member.
        sample: `(key, rows, inserted, own, shape) -> windows`, leaves
            [n, *shape, ...], n consecutive steps, oldest first; uniform with
            replacement over the warm-up and the `own` last of the `inserted` steps
            that are still there.
    """

    start: Callable[[PyTree], jax.Array]
    add: Callable[[jax.Array, jax.Array, PyTree], jax.Array]
    sample: Callable[..., PyTree]


def least_warmup(window: int) -> int:
    """Steps of warm-up in which a member always has a whole window of its own."""
    return 3 * window - 2


def make(
    env: Env,
    num_rows: int,
    num_envs: int,
    num_warmup: int,
    num_steps: int = 1,
    window: int = 1,
) -> Replay:
    """Make a ring for transitions of `env`.

    Args:
        num_rows: capacity in steps of E environments, a multiple of `num_steps`.
        num_envs: E.
        num_warmup: W, steps that `start` is given, a multiple of `num_steps`, at most
            `num_rows`.
        num_steps: T, steps that `add` is given.
        window: n, at most (W + 2) / 3, so that there is a whole one even where the
            first own steps of a member cut its warm-up in two.

    Raises:
        ValueError: sizes that do not fit each other.
    """
    if num_rows % num_steps or num_warmup % num_steps or not num_steps:
        raise ValueError(f"{num_rows} rows, {num_warmup} first, not in {num_steps}s")
    if not max(least_warmup(window), 1) <= num_warmup <= num_rows:
        raise ValueError(f"warm-up of {num_warmup} in {num_rows} rows, window {window}")
    obs = jax.ShapeDtypeStruct(env.observation.shape, jnp.float32)
    flag = jax.ShapeDtypeStruct((), bool)
    if isinstance(env.action, Discrete):
        action = jax.ShapeDtypeStruct((), jnp.int32)
    else:
        action = jax.ShapeDtypeStruct(env.action.shape, jnp.float32)
    reward = jax.ShapeDtypeStruct((), jnp.float32)
    shapes_of: Any = (obs, action, reward, obs, flag, flag)
    transition = Transition(*shapes_of)
    leaves, treedef = jax.tree.flatten(transition)
    shapes = [(x.shape, x.dtype) for x in leaves]
    sizes = [math.prod(shape) for shape, _ in shapes]
    width = sum(sizes)

    def pack(steps):
        flat = [
            x.astype(jnp.float32).reshape(*x.shape[:2], size)
            for x, size in zip(jax.tree.leaves(steps), sizes, strict=True)
        ]
        return jnp.concatenate(flat, -1)

    def unpack(packed: jax.Array) -> Any:
        leaves, first = [], 0
        for (shape, dtype), size in zip(shapes, sizes, strict=True):
            x = packed[..., first : first + size].reshape(*packed.shape[:-1], *shape)
            leaves.append(x.astype(dtype))
            first += size
        return treedef.unflatten(leaves)

    def start(warmup):
        rows = jnp.zeros((num_rows, num_envs, width))
        return rows.at[:num_warmup].set(pack(warmup))

    def add(rows, inserted, steps):
        at = (num_warmup + inserted) % num_rows
        return _write(rows, pack(steps), at)

    def sample(key, rows, inserted, own, shape):
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

        def at(i):
            index = (row + i) % num_rows * num_envs + env
            return rows.reshape(-1, width)[index]

        return unpack(jnp.stack([at(i) for i in range(window)]))

    return Replay(start, add, sample)


def _write(rows: jax.Array, steps: jax.Array, at: jax.Array, axis: int = 0):
    """Write `steps` into `rows` from index `at` of `axis` on.

    JAX batches such a write into a scatter even if all write at one index, which on CPU
    costs several times as much.
    """

    def plain(rows, steps, at):
        return jax.lax.dynamic_update_slice_in_dim(rows, steps, at, axis)

    write = jax.custom_batching.custom_vmap(plain)

    @write.def_vmap
    def rule(axis_size, in_batched, rows, steps, at):
        if in_batched[2]:
            axes = [0 if batched else None for batched in in_batched]
            return jax.vmap(plain, axes)(rows, steps, at), True
        rows, steps = (
            x if batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            for x, batched in zip((rows, steps), in_batched, strict=False)
        )
        return _write(rows, steps, at, axis + 1), True

    return write(rows, steps, at)
