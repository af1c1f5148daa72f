"""A simple genetic algorithm (Such et al., 2017, https://arxiv.org/abs/1712.06567).

    parents = the elites of the last generation
    childᵢ = crossover(two parents, drawn with replacement) + σ N(0, I)

On evosax. No member survives: each is scored once, on the environment seeds of its
generation, so no member is kept for a lucky score. The paper re-evaluates its elite and
keeps the best.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from metaevo.types import Space, Strategy, remakeable
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

    So generation 0 is `space.init` plus noise, computed by the same program as all
    others. The solution is the mean of the elites, because the best member of a noisy
    generation is often only lucky, and a mean of many is not.

    Args:
        population_size: P, at least 2.
        sigma: standard deviation of the mutation in generation 0, > 0.
        elite_ratio: fraction of the population that are parents, in [0, 1]; at least
            one member is.
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

    def tell(key, state, proposal, fitness):
        def learn():
            es = ga.tell(key, proposal.params, fitness, state.es)
            return _evosax.survivors(state, es, ga)

        # Members of equal fitness would become parents by their index.
        return _evosax.unless_equal(fitness, learn, state)

    return _evosax.from_population(init, _evosax.asked_by(ga), tell)
