"""Draw from many elements in proportion to their masses, which change a few at a time.

A tree of sums with 8 children a node, one flat array a level.
`experiments/priorities` measures it against other forms.

The sums are a function of the leaves alone: they are computed again, never corrected,
so they do not drift. Each level is drawn by a random number of its own. One number for
all of them would have too few bits for a leaf in a million.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from metaevo.types import Key

__all__ = ["CHILDREN", "NOWHERE", "Levels", "assign", "assign_run", "build", "draw"]

CHILDREN = 8  # of a node
NOWHERE = 2**31 - 1
"""A leaf that no tree has: what `assign` gives it changes nothing."""
Levels = tuple[jax.Array, ...]
"""Leaves and sums above them, each flat and padded by zeros to whole nodes."""


def build(leaves: jax.Array) -> Levels:
    """The tree of masses [n] >= 0.

    >>> [x.shape for x in build(jnp.ones(20))], build(jnp.ones(20))[-1].tolist()
    ([(24,), (8,)], [8.0, 8.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    """
    levels = [_padded(leaves)]
    while len(levels[-1]) > CHILDREN:
        levels.append(_padded(_sum(levels[-1].reshape(-1, CHILDREN))))
    return tuple(levels)


def draw(
    key: Key, levels: Levels, shape: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
    """Leaves [*shape] int32 with probabilities in proportion to their masses.

    With replacement. A leaf of mass 0 is never drawn, unless all are 0.

    Returns:
        leaves and their masses.
    """
    uniform = jax.random.uniform(key, (len(levels), *shape))
    found, mass = jnp.zeros(shape, jnp.int32), jnp.zeros(shape)
    for u, level in zip(uniform, reversed(levels), strict=True):
        masses = level.reshape(-1, CHILDREN)[found]
        upto = jnp.cumsum(masses, -1)
        # u < 1 by so much that the product rounds to less than the sum.
        child = (upto <= u[..., None] * upto[..., -1:]).sum(-1, dtype=jnp.int32)
        child = jnp.minimum(child, CHILDREN - 1)
        # From what was read already: a second reading may be delayed until leaves are
        # written again, and XLA would copy them all.
        mass = jnp.where(child[..., None] == jnp.arange(CHILDREN), masses, 0.0).sum(-1)
        found = found * CHILDREN + child
    return found, mass


def assign(levels: Levels, indices: jax.Array, masses: jax.Array) -> Levels:
    """The tree after leaves `indices` [m], or `NOWHERE`, got `masses` [m].

    Of a leaf's several masses the last counts, in whatever order a device writes: each
    leaf takes the greatest place in `indices` first, then the mass at that place.
    """
    # JAX drops what is written outside of an array.
    place = jnp.arange(len(indices), dtype=levels[0].dtype)
    placed = levels[0].at[indices].set(-1.0).at[indices].max(place)
    last = placed.at[indices].get(mode="fill", fill_value=-1.0) == place
    changed = placed.at[jnp.where(last, indices, NOWHERE)].set(masses)
    return _summed(changed, levels, indices)


def assign_run(
    levels: Levels, indices: jax.Array, masses: jax.Array, size: int
) -> Levels:
    """`assign` of leaves that follow each other, which costs less.

    Args:
        indices: [m], each one more than that before it, modulo `size`; m <= `size`.
        size: leaves in use.
    """
    leaves = levels[0].at[indices].set(masses)
    # One in each node, also in that before the jump to 0, which may be half empty.
    ends = jnp.array([size - 1], indices.dtype)
    some = jnp.concatenate([indices[::CHILDREN], indices[-1:], ends])
    return _summed(leaves, levels, some)


def _summed(leaves: jax.Array, levels: Levels, indices: jax.Array) -> Levels:
    """The tree with these leaves, where those below the nodes of `indices` changed."""
    changed = [leaves]
    for level in levels[1:]:
        nodes = changed[-1].reshape(-1, CHILDREN)
        if len(nodes) <= CHILDREN * len(indices):
            # As fast as a scatter of some.
            changed.append(_padded(_sum(nodes)))
            continue
        indices = indices // CHILDREN
        # Writes to one node are of the same bits: additions in a fixed order.
        changed.append(level.at[indices].set(_sum(nodes[indices])))
    return tuple(changed)


def _sum(nodes: jax.Array) -> jax.Array:
    """[..., CHILDREN] to [...], the same additions wherever a node stands."""
    while nodes.shape[-1] > 1:
        nodes = nodes[..., 0::2] + nodes[..., 1::2]
    return nodes[..., 0]


def _padded(x: jax.Array) -> jax.Array:
    return jnp.pad(x, (0, -len(x) % CHILDREN))
