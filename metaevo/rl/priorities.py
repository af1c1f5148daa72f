"""Prioritized sampling from a ring of `replay` (Schaul et al., 2016).

https://arxiv.org/abs/1511.05952, the proportional variant: a window of n steps is drawn
with a probability in proportion to its mass, p^α. Masses and counts of visits are kept
beside the ring, one of each a step and environment, in the place of the window's last
step. Exponents are traced: one program serves all of them.

A place has no mass before a whole window of the member's own steps ends there, and
while a part of its window is overwritten. So a member born late, whose ring is its own
from the start, samples what `Replay.draw` would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from metaevo.rl import replay, sum_tree

__all__ = [
    "LARGEST",
    "SMALLEST",
    "Drawn",
    "Priorities",
    "Prioritized",
    "make",
    "mass",
    "weights",
]

SMALLEST, LARGEST = 1e-6, 1e6  # masses


class Priorities(NamedTuple):
    """Masses and counts of the windows of a ring.

    Attributes:
        levels: of `sum_tree`; a leaf is row x E + environment of a window's last step.
        visits: [R x E] int32, how often each was drawn.
    """

    levels: sum_tree.Levels
    visits: jax.Array


class Drawn(NamedTuple):
    """Windows that were drawn; leaves [*shape].

    Attributes:
        indices: [n, *shape] as of `Replay.draw`, for `Replay.read`.
        mass: the probability is in proportion to it.
        age: steps since the window was complete, in shares of the ring.
        visits: how often it was drawn before.
    """

    indices: jax.Array
    mass: jax.Array
    age: jax.Array
    visits: jax.Array


class Prioritized(NamedTuple):
    """Priorities of a ring as pure functions.

    Attributes:
        first: `() -> indices` [n, W − n + 1, E] of the windows of the warm-up.
        start: `mass [W − n + 1, E] -> Priorities` of these windows.
        newest: `inserted -> indices` [n, T, E] of the windows that end in the T steps
            added after `inserted` ones.
        add: `(priorities, inserted, own, mass [T, E]) -> Priorities` after the T steps
            that follow `inserted` ones, with the masses of `newest`. `own` counts the
            member's own steps, these included.
        draw: `(key, priorities, inserted, own, shape) -> Drawn`, with replacement;
            `inserted` and `own` as for `Replay.draw`.
        update: `(priorities, indices [n, ...], mass [...]) -> Priorities` with new
            masses of windows that were drawn. Of several masses of one window the
            largest counts.
    """

    first: Callable[[], jax.Array]
    start: Callable[[jax.Array], Priorities]
    newest: Callable[[jax.Array], jax.Array]
    add: Callable[..., Priorities]
    draw: Callable[..., Drawn]
    update: Callable[[Priorities, jax.Array, jax.Array], Priorities]


def mass(priority: jax.Array, exponent: jax.Array | float) -> jax.Array:
    """p^α in [`SMALLEST`, `LARGEST`]; NaN stays NaN.

    Args:
        priority: p, less than 0 counts as 0.
        exponent: α >= 0; 0: all have the same mass.

    >>> mass(jnp.array([4.0, 0.25, 0.0]), 0.5).tolist()
    [2.0, 0.5, 9.999999974752427e-07]
    """
    return jnp.clip(jnp.maximum(priority, 0.0) ** exponent, SMALLEST, LARGEST)


def weights(mass: jax.Array, exponent: jax.Array | float) -> jax.Array:
    """Importance weights of minibatches: (N P)^−β, over the largest of a minibatch.

    The number of windows N and the sum of masses in P cancel.

    Args:
        mass: [..., B].
        exponent: β in [0, 1]; 1 corrects the sampling in full.

    Returns:
        [..., B] in (0, 1].

    >>> weights(jnp.array([1.0, 4.0]), 0.5).tolist()
    [1.0, 0.5]
    """
    return (mass.min(-1, keepdims=True) / mass) ** exponent


def make(
    num_rows: int, num_envs: int, num_warmup: int, num_steps: int = 1, window: int = 1
) -> Prioritized:
    """Priorities of the windows of a ring.

    Args:
        num_rows, num_envs, num_warmup, num_steps, window: as of `replay.make`.

    Raises:
        ValueError: sizes that do not fit each other.
    """
    replay.check_sizes(num_rows, num_warmup, num_steps, window)

    def windows(last):
        """Indices [n, m, E] of the windows that end in the rows `last` [m]."""
        before = jnp.arange(1 - window, 1)[:, None, None]
        row = (last[:, None] + before) % num_rows
        return row * num_envs + jnp.arange(num_envs)

    def first():
        return windows(jnp.arange(window - 1, num_warmup))

    def start(mass):
        leaves = jnp.zeros((num_rows, num_envs))
        leaves = leaves.at[window - 1 : num_warmup].set(mass)
        visits = jnp.zeros(num_rows * num_envs, jnp.int32)
        return Priorities(sum_tree.build(leaves.reshape(-1)), visits)

    def newest(inserted):
        return windows((num_warmup + inserted + jnp.arange(num_steps)) % num_rows)

    def add(priorities, inserted, own, mass):
        # Of the next rows' windows a part is overwritten now.
        rows = num_warmup + inserted + jnp.arange(num_steps + window - 1)
        leaves = windows(rows % num_rows)[-1].reshape(-1)
        there = jnp.minimum(own, num_rows) - num_steps + 1 + jnp.arange(num_steps)
        mass = jnp.where(there[:, None] >= window, mass, 0.0)
        mass = jnp.pad(mass, ((0, window - 1), (0, 0))).reshape(-1)
        if len(leaves) > num_rows * num_envs:
            levels = sum_tree.assign(priorities.levels, leaves, mass)
        else:
            levels = sum_tree.assign_run(
                priorities.levels, leaves, mass, num_rows * num_envs
            )
        return Priorities(levels, priorities.visits.at[leaves].set(0))

    def draw(key, priorities, inserted, own, shape):
        last, mass = sum_tree.draw(key, priorities.levels, shape)
        row, env = last // num_envs, last % num_envs
        before = jnp.arange(1 - window, 1).reshape(-1, *[1] * len(shape))
        age = (num_warmup + inserted - 1 - row) % num_rows
        # Steps of the warm-up precede all of the member's own.
        age = jnp.where(age < own, age, own + num_warmup - 1 - row)
        return Drawn(
            (row + before) % num_rows * num_envs + env,
            mass,
            age / num_rows,
            priorities.visits[last],
        )

    def update(priorities, indices, mass):
        last, mass = indices[-1].reshape(-1), mass.reshape(-1)
        levels = sum_tree.assign(priorities.levels, last, mass)
        return Priorities(levels, priorities.visits.at[last].add(1))

    return Prioritized(first, start, newest, add, draw, update)
