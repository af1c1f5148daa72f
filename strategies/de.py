"""Differential evolution (Storn & Price, 1997, doi:10.1023/A:1008202821328).

    trialᵢ = crossover(xᵢ, base + F (x_b − x_c)),  b, c drawn for each i
    xᵢ ← trialᵢ if it is not worse

with base the best of the last generation (DE/best/1/bin) or a random one
(DE/rand/1/bin). On evosax. Unlike the paper's, xᵢ is *evaluated again* beside its
trial: a population of P is P/2 of each. Returns in reinforcement learning are noisy and
each generation has its own environment seeds; a score kept from an earlier generation
would let a lucky member survive forever. Without noise the second evaluation costs half
of the trials. With noise that the members of a generation share, the paper's version
hardly moves at all (docs/log/strategies.md).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from metaevo.errors import ConfigError
from metaevo.types import Proposal, Space, Strategy, remakeable
from strategies import _evosax, _options, _trees


@remakeable
def de(
    space: Space,
    population_size: int,
    sigma: float,
    *,
    weight: float = 0.8,
    crossover_rate: float = 0.9,
    base: str = "best",
) -> Strategy:
    """Differential evolution from `space.init` plus noise.

    The solution is the mean of the survivors, because the best one is often only lucky.

    Args:
        population_size: P, even and at least 8: P/2 trials, then the members that they
            challenge.
        sigma: standard deviation of the initial population, > 0.
        weight: F, of the difference of two members, in [0, 2].
        crossover_rate: probability that a parameter comes from the mutant, in [0, 1].
        base: `best` or `random`.

    Raises:
        ConfigError: an odd or small population, or an option out of its range.
    """
    _options.even(population_size, "each trial is evaluated beside whom it challenges")
    _options.at_least(8, population_size=population_size)
    _options.positive(sigma=sigma)
    _options.fraction(crossover_rate=crossover_rate)
    _options.one_of(("best", "random"), base=base)
    if not 0 <= weight <= 2:
        raise ConfigError(f"weight={weight} must be in [0, 2]")
    size = population_size // 2
    algorithm = _evosax.algorithm(
        "DifferentialEvolution",
        space,
        size,
        lambda params: params.replace(
            elitism=base == "best",
            crossover_rate=crossover_rate,
            differential_weight=weight,
        ),
    )

    def init(key):
        mean_key, noise_key, key = jax.random.split(key, 3)
        mean = _trees.strong(space.init(mean_key))
        noise = sigma * jax.random.normal(noise_key, (size, algorithm.es.num_dims))
        unravel = algorithm.es._unravel_solution
        population = jax.vmap(lambda z: jax.tree.map(jnp.add, mean, unravel(z)))(noise)
        # Without scores the base of generation 0 is the first member.
        es = algorithm.init(key, population, jnp.zeros(size))
        return _evosax.PopulationState(es, mean, jnp.zeros(()))

    def ask(key, state):
        trials, es = algorithm.ask(key, state.es)
        both = jax.tree.map(
            lambda *x: jnp.concatenate(x), trials, algorithm.es.get_population(es)
        )
        return Proposal(both), state._replace(es=es)

    def tell(key, state, proposal, fitness):
        trials, challenged = (
            jax.tree.map(lambda x: x[half], proposal.params)
            for half in (slice(size), slice(size, None))
        )

        def learn():
            es = state.es.replace(
                population=jax.vmap(algorithm.es._ravel_solution)(challenged),
                fitness=-fitness[size:],
            )
            es = algorithm.tell(key, trials, fitness[:size], es)
            return _evosax.survivors(state, es, algorithm)

        return _evosax.unless_equal(fitness, learn, state)

    return _evosax.from_population(init, ask, tell)
