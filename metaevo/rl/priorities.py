"""Prioritized sampling from a ring of `replay` (Schaul et al., 2016).

https://arxiv.org/abs/1511.05952, the proportional variant: a window of n steps is drawn
with a probability in proportion to its mass, p^α. Masses and counts of visits are kept
beside the ring, one of each a window. Exponents are traced: one program serves all of
them.

Windows may start at each row or, with a `stride`, at each row that is a multiple of it:
so sequences overlap by a fixed part, and only their starts need what else is stored.

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
from metaevo.types import PyTree

__all__ = [
    "LARGEST",
    "SMALLEST",
    "Drawn",
    "Priorities",
    "Prioritized",
    "make",
    "map_windows",
    "mass",
    "weights",
]

SMALLEST, LARGEST = 1e-6, 1e6  # masses, and the smallest p


class Priorities(NamedTuple):
    """Masses and counts of the windows of a ring.

    Attributes:
        levels: of `sum_tree`; leaf i x E + environment is the window of that
            environment that ends at row s i + (n − 1) mod s, s the stride: without one
            the row of its last step.
        visits: [R / s x E] int32, how often each was drawn.
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
        first: `() -> indices` [n, ⌊(W − n) / s⌋ + 1, E] of the windows of the warm-up.
        start: `mass [⌊(W − n) / s⌋ + 1, E] -> Priorities` of these windows.
        newest: `inserted -> indices` [n, T / s, E] of the windows that end in the T
            steps added after `inserted` ones.
        add: `(priorities, inserted, own, mass [T / s, E]) -> Priorities` after the T
            steps that follow `inserted` ones, with the masses of `newest`. `own` counts
            the member's own steps, these included.
        draw: `(key, priorities, inserted, own, shape) -> Drawn`, with replacement;
            `inserted` and `own` as for `Replay.draw`.
        update: `(priorities, indices [n, ...], mass [...], chosen=None) -> Priorities`
            with new masses of windows that were drawn, of those where `chosen` [...] is
            True. Of several masses of one window the last counts.
    """

    first: Callable[[], jax.Array]
    start: Callable[[jax.Array], Priorities]
    newest: Callable[[jax.Array], jax.Array]
    add: Callable[..., Priorities]
    draw: Callable[..., Drawn]
    update: Callable[..., Priorities]


def mass(priority: jax.Array, exponent: jax.Array | float) -> jax.Array:
    """p^α in [`SMALLEST`, `LARGEST`]; NaN stays NaN.

    Args:
        priority: p, less than `SMALLEST` counts as that.
        exponent: α >= 0; 0: all have the same mass.

    >>> [f"{x:.3f}" for x in mass(jnp.array([4.0, 0.25, 0.0]), 0.5)]
    ['2.000', '0.500', '0.001']
    """
    return jnp.clip(jnp.maximum(priority, SMALLEST) ** exponent, SMALLEST, LARGEST)


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


def map_windows(
    function: Callable[[jax.Array], PyTree], indices: jax.Array, size: int
) -> PyTree:
    """Apply a function of windows to few of them at a time, to spare memory.

    Args:
        function: `indices [n, B] -> leaves [..., B]`, each window's on its own.
        indices: [n, R, E].
        size: of a part, at least E windows; a minibatch's has memory in any case.

    Returns:
        Leaves [..., R E].
    """
    length, num_rows, num_envs = indices.shape
    if num_rows * num_envs <= size:
        return function(indices.reshape(length, -1))
    rows = jnp.moveaxis(indices, 1, 0)
    found = jax.lax.map(function, rows, batch_size=max(size // num_envs, 1))

    def joined(x):
        return jnp.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], -1)

    return jax.tree.map(joined, found)


def make(
    num_rows: int,
    num_envs: int,
    num_warmup: int,
    num_steps: int = 1,
    window: int = 1,
    stride: int = 1,
) -> Prioritized:
    """Priorities of the windows of a ring.

    Args:
        num_rows, num_envs, num_warmup, num_steps, window: as of `replay.make`.
        stride: s, windows start at rows 0, s, 2 s ...; it divides `num_steps`.

    Raises:
        ValueError: sizes that do not fit each other.
    """
    replay.check_sizes(num_rows, num_warmup, num_steps, window)
    if num_steps % stride:
        raise ValueError(f"{num_steps} steps, not in {stride}s")
    offset = (window - 1) % stride  # of last rows
    size = num_rows // stride * num_envs

    def windows(last):
        """Indices [n, m, E] of the windows that end in the rows `last` [m]."""
        before = jnp.arange(1 - window, 1)[:, None, None]
        row = (last[:, None] + before) % num_rows
        return row * num_envs + jnp.arange(num_envs)

    def leaf(last):
        """Leaves of windows by the indices of their last steps."""
        row, env = last // num_envs, last % num_envs
        return (row - offset) // stride * num_envs + env

    def first():
        return windows(jnp.arange(window - 1, num_warmup, stride))

    def start(mass):
        leaves = jnp.zeros((num_rows // stride, num_envs))
        begin = (window - 1) // stride
        leaves = leaves.at[begin : begin + len(mass)].set(mass)
        return Priorities(
            sum_tree.build(leaves.reshape(-1)), jnp.zeros(size, jnp.int32)
        )

    def newest(inserted):
        last = num_warmup + inserted + jnp.arange(offset, num_steps, stride)
        return windows(last % num_rows)

    def add(priorities, inserted, own, mass):
        # Of the next rows' windows a part is overwritten now.
        written = jnp.arange(offset, num_steps + window - 1, stride)
        leaves = leaf(windows((num_warmup + inserted + written) % num_rows)[-1])
        leaves = leaves.reshape(-1)
        there = jnp.minimum(own, num_rows) - num_steps + 1 + written[: len(mass)]
        mass = jnp.where(there[:, None] >= window, mass, 0.0)
        mass = jnp.pad(mass, ((0, len(written) - len(mass)), (0, 0))).reshape(-1)
        if len(leaves) > size:
            levels = sum_tree.assign(priorities.levels, leaves, mass)
        else:
            levels = sum_tree.assign_run(priorities.levels, leaves, mass, size)
        return Priorities(levels, priorities.visits.at[leaves].set(0))

    def draw(key, priorities, inserted, own, shape):
        leaf, mass = sum_tree.draw(key, priorities.levels, shape)
        row, env = leaf // num_envs * stride + offset, leaf % num_envs
        before = jnp.arange(1 - window, 1).reshape(-1, *[1] * len(shape))
        age = (num_warmup + inserted - 1 - row) % num_rows
        # Steps of the warm-up precede all of the member's own.
        age = jnp.where(age < own, age, own + num_warmup - 1 - row)
        return Drawn(
            (row + before) % num_rows * num_envs + env,
            mass,
            age / num_rows,
            priorities.visits[leaf],
        )

    def update(priorities, indices, mass, chosen=None):
        leaves, mass = leaf(indices[-1]).reshape(-1), mass.reshape(-1)
        if chosen is not None:
            leaves = jnp.where(chosen.reshape(-1), leaves, sum_tree.NOWHERE)
        levels = sum_tree.assign(priorities.levels, leaves, mass)
        return Priorities(levels, priorities.visits.at[leaves].add(1))

    return Prioritized(first, start, newest, add, draw, update)
