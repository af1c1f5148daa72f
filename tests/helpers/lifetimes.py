"""Lifetimes of single agents of the small loops, for tests of what they learned."""

import functools

import jax
import loops
import numpy as np
from loops import ALL


def same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def close(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


@functools.cache
def programs(name):
    loop = loops.alone(ALL[name].make())
    return jax.jit(loop.init), jax.jit(loop.train)


@functools.cache
def trained(name, **change):
    """The state and metrics after one lifetime; `change` holds slots."""
    init, train = programs(name)
    meta = ALL[name].meta._replace(**change)
    return train(jax.random.key(1), meta, init(jax.random.key(0), meta))
