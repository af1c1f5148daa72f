"""Exploitation, shared by population-based strategies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from metaevo.errors import ConfigError
from metaevo.types import Proposal, Strategy
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


def newborn(population_size: int) -> jax.Array:
    """Return the parents [P] of generation 0, which has none."""
    return jnp.full(population_size, -1, jnp.int32)


def ask(key: jax.Array, state: Any) -> tuple[Proposal, Any]:
    """Return the proposal in a state with `params` and `parents`."""
    del key
    return Proposal(state.params, state.parents), state


def solution(state: Any) -> Any:
    """Return the fittest of the last generation; reports score the agents again."""
    return jax.tree.map(lambda x: x[jnp.argmax(state.fitness)], state.told)


def strategy(
    init: Callable[..., Any], tell: Callable[..., Any], metrics: Callable[..., Any]
) -> Strategy:
    """Return the strategy of agents that live on, with numbers drawn from ranges."""
    return Strategy(
        init,
        ask,
        tell,
        solution,
        metrics,
        persistent_agents=True,
        from_ranges=True,
    )


def num_exploited(state: Any) -> jax.Array:
    """Return the number of members that follow another one, 0 in generation 0."""
    moved = state.parents != jnp.arange(len(state.parents))
    return jnp.where(state.parents[0] < 0, 0, moved.sum())


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
