"""Exploitation, shared by population-based strategies."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from metaevo.errors import ConfigError
from strategies import _options

EXPLOITS = ("truncation", "tournament", "winner")


def check(population_size: int, exploit: str, fraction: float) -> None:
    """Check the options of exploitation.

    Raises:
        ConfigError: An option is out of its range.
    """
    _options.at_least(2, population_size=population_size)
    _options.one_of(EXPLOITS, exploit=exploit)
    if not 0 <= fraction <= 0.5:
        raise ConfigError(f"fraction={fraction} must be in [0, 0.5]")


def donors(
    key: jax.Array, fitness: jax.Array, exploit: str, fraction: float
) -> jax.Array:
    """Return the member whom each member follows, [P] int32; itself if it stays.

    Members of equal fitness are ordered at random, so they exploit each other too.

    Args:
        key: PRNG key.
        fitness: [P], finite.
        exploit: `truncation`: the worst `fraction` follow one of the best `fraction`
            each. `tournament`: each is compared with a random other and follows it if
            that is better. `winner`: all follow the best.
        fraction: for `truncation`; at least one member unless it is 0.
    """
    size = len(fitness)
    tie_key, draw_key = jax.random.split(key)
    shuffled = jax.random.permutation(tie_key, size)
    order = shuffled[jnp.argsort(fitness[shuffled])]  # worst first
    rank = jnp.zeros(size, jnp.int32).at[order].set(jnp.arange(size))
    own = jnp.arange(size)
    if exploit == "winner":
        return jnp.full(size, order[-1])
    if exploit == "tournament":
        other = (own + jax.random.randint(draw_key, (size,), 1, size)) % size
        return jnp.where(rank[other] > rank[own], other, own)
    count = max(1, round(fraction * size)) if fraction else 0
    best = order[size - 1 - jax.random.randint(draw_key, (size,), 0, max(count, 1))]
    return jnp.where(rank < count, best, own)
