"""Shared by the tests of strategies: params, functions to climb, and generations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import population
from metaevo.types import Space, Strategy


def compiled(strategy: Strategy) -> Strategy:
    """The strategy with programs for its three steps, traced again for each call."""
    steps = {x: getattr(strategy, x) for x in ("init", "ask", "tell")}
    return strategy._replace(
        **{name: jax.jit(functools.partial(step)) for name, step in steps.items()}
    )


def space(dim=4) -> Space:
    """Params that are a nested pytree, starting at 2."""
    return Space(
        init=lambda key: {
            "a": jnp.full((dim,), 2.0),
            "b": {"c": jnp.full((2, 2), 2.0)},
        },
        bind=lambda params, meta: meta,
    )


def members(params):
    """All of a population, [P, ...], computed if it is a rule."""
    return population.take(params, np.arange(population.size(params)))


@jax.jit
def flat(params):
    """All numbers of each member, [P, D]."""
    leaves = jax.tree.leaves(members(params))
    return jnp.concatenate([x.reshape(x.shape[0], -1) for x in leaves], 1)


@jax.jit
def sphere(population):
    return -(flat(population) ** 2).sum(1)


@jax.jit
def ellipsoid(population):
    x = flat(population)
    rotation = jnp.linalg.qr(jax.random.normal(jax.random.key(5), (8, 8)))[0]
    return -((x @ rotation) ** 2 * jnp.logspace(0, 1, 8)[None]).sum(1)


def one(params):
    """A population of one."""
    return jax.tree.map(lambda x: x[None], params)


def after(strategy, function, num_generations):
    """The state after some generations."""
    state = strategy.init(jax.random.key(1))
    for i in range(num_generations):
        key = jax.random.fold_in(jax.random.key(1), i)
        proposal, state = strategy.ask(key, state)
        state = strategy.tell(key, state, proposal, function(proposal.params))
    return state


def climb(strategy, function, num_generations, key=0):
    """The last state, and the mean fitness of each generation.

    Args:
        strategy: with `compiled` programs, since they run one after the other.
    """
    key = jax.random.key(key)
    state, means = strategy.init(key), []
    for ask_key, tell_key in jax.random.split(key, (num_generations, 2)):
        proposal, state = strategy.ask(ask_key, state)
        fitness = function(proposal.params)
        state = strategy.tell(tell_key, state, proposal, fitness)
        means.append(fitness)
    return state, np.mean(means, axis=1)


def assert_equal(a, b):
    def plain(x):
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(x) if is_key else x

    for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        np.testing.assert_array_equal(plain(x), plain(y))


def assert_finite(tree):
    for x in jax.tree.leaves(tree):
        if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            assert np.isfinite(x).all()
