"""A simple genetic algorithm (Such et al., 2017, https://arxiv.org/abs/1712.06567).

    parents = the elites of the last generation
    childᵢ = crossover(two parents, drawn with replacement) + σ N(0, I)

On evosax. No member survives: each is scored once, in the worlds of its generation, so
none lives on for a lucky score. The paper re-evaluates its elite and keeps the best.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from metaevo.types import Proposal, Space, Strategy, remakeable
from strategies import _evosax, _options, _trees


@remakeable
def simple_ga(
    space: Space,
    population_size: int,
    sigma: float,
    *,
    elite_ratio: float = 0.5,
    crossover_rate: float = 0.0,
    sigma_decay: float = 1.0,
) -> Strategy:
    """A genetic algorithm whose first parents are P copies of `space.init`.

    Generation 0 is thus `space.init` plus noise, through the program of all others. The
    solution is the mean of the elites: the best of a noisy generation is the luckiest,
    and the luck of many averages out.

    Args:
        population_size: P, at least 2.
        sigma: standard deviation of the mutation in generation 0, > 0.
        elite_ratio: share of the population that are parents, in [0, 1]; at least one
            member is.
        crossover_rate: probability that a parameter comes from the second parent, in
            [0, 1].
        sigma_decay: factor on sigma per generation, > 0.

    Raises:
        ConfigError: a population below 2, or an option out of its range.
    """
    _options.at_least(2, population_size=population_size)
    _options.positive(sigma=sigma, sigma_decay=sigma_decay)
    _options.fraction(elite_ratio=elite_ratio, crossover_rate=crossover_rate)
    ga = _evosax.algorithm(
        "SimpleGA",
        space,
        population_size,
        lambda params: params.replace(crossover_rate=crossover_rate),
        elite_ratio,
        std_schedule=_evosax.sigma_schedule(sigma, sigma_decay),
    )

    def init(key):
        mean_key, key = jax.random.split(key)
        mean = _trees.strong(space.init(mean_key))
        copies = jax.tree.map(lambda x: jnp.stack([x] * population_size), mean)
        es = ga.init(key, copies, jnp.zeros(population_size))
        es = es.replace(std=jnp.float32(sigma))
        return _evosax.PopulationState(es, mean, jnp.zeros(()))

    def ask(key, state):
        population, es = ga.ask(key, state.es)
        return Proposal(population), state._replace(es=es)

    def tell(key, state, proposal, fitness):
        def learn():
            es = ga.tell(key, proposal.params, fitness, state.es)
            return _evosax.survivors(state, es, ga)

        # Equal members would be parents by their place.
        return _evosax.unless_equal(fitness, learn, state)

    return Strategy(
        init, ask, tell, lambda state: state.mean, _evosax.population_metrics
    )
