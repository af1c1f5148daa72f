"""Draw from many elements in proportion to their masses, which change a few at a time.

A tree of sums with 8 children a node, one flat array a level.
`benchmarks/priorities.py` measures it against other forms.

The sums are a function of the leaves alone: they are computed again, never corrected,
so they do not drift. Each level is drawn by a random number of its own. One number for
all of them would have too few bits for a leaf in a million.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from metaevo.types import Key

__all__ = ["CHILDREN", "Levels", "assign", "build", "draw"]

CHILDREN = 8  # of a node
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


def draw(key: Key, levels: Levels, shape: tuple[int, ...]) -> jax.Array:
    """Leaves [*shape] int32 with probabilities in proportion to their masses.

    With replacement. A leaf of mass 0 is never drawn, unless all are 0.
    """
    uniform = jax.random.uniform(key, (len(levels), *shape))
    found = jnp.zeros(shape, jnp.int32)
    for u, level in zip(uniform, reversed(levels), strict=True):
        upto = jnp.cumsum(level.reshape(-1, CHILDREN)[found], -1)
        # u < 1 by so much that the product rounds to less than the sum.
        child = (upto <= u[..., None] * upto[..., -1:]).sum(-1, dtype=jnp.int32)
        found = found * CHILDREN + jnp.minimum(child, CHILDREN - 1)
    return found


def assign(levels: Levels, indices: jax.Array, masses: jax.Array) -> Levels:
    """The tree after leaves `indices` [m] got `masses` [m].

    Of a leaf's several masses the largest counts: the result does not depend on the
    order in which a device writes.
    """
    changed = [levels[0].at[indices].set(0.0).at[indices].max(masses)]
    for level in levels[1:]:
        indices = indices // CHILDREN
        # Writes to one node are of the same bits: additions in a fixed order.
        total = _sum(changed[-1].reshape(-1, CHILDREN)[indices])
        changed.append(level.at[indices].set(total))
    return tuple(changed)


def _sum(nodes: jax.Array) -> jax.Array:
    """[..., CHILDREN] to [...], the same additions wherever a node stands."""
    while nodes.shape[-1] > 1:
        nodes = nodes[..., 0::2] + nodes[..., 1::2]
    return nodes[..., 0]


def _padded(x: jax.Array) -> jax.Array:
    return jnp.pad(x, (0, -len(x) % CHILDREN))
