"""Parameters of the past: what an actor or a learner holds that is some updates behind.

Asynchrony as an integer. A worker whose delay is δ works with the parameters of δ
updates ago; the delay is traced, up to a static maximum. So runs repeat to the bit, and
a delay can be searched over.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from metaevo import slots
from metaevo.errors import ConfigError
from metaevo.rl import replay
from metaevo.slots import Context, Slot
from metaevo.types import PyTree

__all__ = ["bounded", "check_delay", "factors", "of_workers", "push", "read", "start"]


def start(params: PyTree, max_delay: int) -> PyTree:
    """The past of newborn params: as if they had always been what they are.

    Args:
        max_delay: D, static; 0 keeps nothing.

    Returns:
        leaves [D, ...]. The present is not in it.
    """
    if not max_delay:
        return ()
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (max_delay, *x.shape)), params)


def push(past: PyTree, update: jax.Array, params: PyTree) -> PyTree:
    """The past after update number `update`, before which `params` were the present.

    Args:
        update: of the clock: common to a population, so that one slice is written.
    """

    def write(past, x):
        return replay.write(past, x[None], update % past.shape[0])

    return jax.tree.map(write, past, params) if jax.tree.leaves(past) else past


def read(past: PyTree, update: jax.Array, params: PyTree, delay: jax.Array) -> PyTree:
    """The params `delay` updates ago.

    Args:
        update: updates done, of the clock.
        params: of the present.
        delay: int32 scalar in [0, D]; 0 gives `params`.

    >>> before, now = jnp.float32(1), jnp.float32(2)
    >>> past = push(start(before, 4), 0, before)
    >>> [float(read(past, 1, now, jnp.int32(delay))) for delay in (0, 1, 2)]
    [2.0, 1.0, 1.0]
    """

    def at(past, x):
        row = (update - delay) % past.shape[0]
        old = jax.lax.dynamic_index_in_dim(past, row, keepdims=False)
        return jnp.where(delay == 0, x, old)

    return jax.tree.map(at, past, params) if jax.tree.leaves(past) else params


def check_delay(slot: Slot | None, max_delay: int) -> None:
    """Check the delay that a number slot gives, where it is a plain number.

    Raises:
        ConfigError: it is outside of [0, D]: `bounded` would give another.
    """
    if isinstance(slot, int | float) and not 0 <= slot <= max_delay:
        raise ConfigError(
            f"the slot delay holds {slot}, expected 0 to inner.max_delay={max_delay}; "
            "set inner.max_delay to the largest delay"
        )


def bounded(slot: Slot | None, max_delay: int, context: Context) -> jax.Array:
    """The delay that a number slot gives, in whole updates: int32 in [0, D].

    Args:
        slot: None stands for `max_delay`.
    """
    if slot is None:
        return jnp.int32(max_delay)
    delay = jnp.round(jnp.asarray(slots.value(slot, context), jnp.float32))
    return jnp.clip(delay, 0, max_delay).astype(jnp.int32)


def of_workers(delay: jax.Array, num_workers: int) -> jax.Array:
    """The delay of each of W workers, [W] int32: evenly up to `delay`.

    >>> of_workers(jnp.int32(4), 4).tolist(), of_workers(jnp.int32(4), 1).tolist()
    ([1, 2, 3, 4], [4])
    """
    share = jnp.arange(1, num_workers + 1) * delay
    return (share // num_workers).astype(jnp.int32)


def factors(spread: Any, num_workers: int) -> jax.Array:
    """A factor for each of W workers, [W]: geometric, from 1 / `spread` to `spread`.

    >>> factors(4.0, 3).tolist(), factors(4.0, 1).tolist()
    ([0.25, 1.0, 4.0], [1.0])
    """
    place = jnp.linspace(-1.0, 1.0, num_workers) if num_workers > 1 else jnp.zeros(1)
    return jnp.asarray(spread, jnp.float32) ** place
