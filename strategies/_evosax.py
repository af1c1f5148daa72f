"""The one adapter to evosax (Lange, 2022), and its only importer.

evosax minimizes, returns weak types, counts generations in its own way and archives the
best member it ever saw; here fitness is higher-is-better, states are finite and keep
their types so that nothing compiles twice, and a strategy is a set of pure functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from metaevo.types import Proposal, Space, Strategy
from strategies._trees import strong, zeros


class Algorithm(NamedTuple):
    """An evosax algorithm with this house's manners; `fitness` is higher-is-better.

    Attributes:
        es: evosax's own object.
        init: `(key, *start) -> state`; start is the mean, or a population [P, ...] and
            its fitness [P].
        ask: `(key, state) -> (population [P, ...], state)`.
        tell: `(key, population, fitness, state) -> state`.
    """

    es: Any
    init: Callable
    ask: Callable
    tell: Callable


def algorithm(
    name: str,
    space: Space,
    population_size: int,
    tune: Callable[[Any], Any] = lambda params: params,
    elite_ratio: float | None = None,
    **options: Any,
) -> Algorithm:
    """The algorithm `name` of `evosax.algorithms`.

    Args:
        tune: changes evosax's default `Params`.
        elite_ratio: share of the population that counts; None: the algorithm's own.
        **options: to its constructor.
    """
    # evosax starts JAX's backend when imported, and then the number of CPU devices can
    # no longer be chosen: it is imported where it is used.
    from evosax import algorithms

    es = getattr(algorithms, name)(population_size, zeros(space), **options)
    if elite_ratio is not None:
        es.elite_ratio = elite_ratio
    params = strong(tune(es.default_params))

    def init(key, *start):
        # Nothing was seen yet: the archive is NaN and infinite.
        return strong(jax.tree.map(jnp.nan_to_num, es.init(key, *start, params)))

    def ask(key, state):
        return strong(es.ask(key, state, params))

    def tell(key, population, fitness, state):
        return strong(es.tell(key, population, -fitness, state, params)[0])

    return Algorithm(es, init, ask, tell)


class State(NamedTuple):
    """evosax's state, and the length of the last step of the mean."""

    es: Any
    update_norm: jax.Array


def from_distribution(
    algorithm: Algorithm,
    space: Space,
    *,
    mirrored: bool = False,
    recombines: bool = False,
    prepare: Callable[[Any], Any] = lambda state: state,
) -> Strategy:
    """A strategy from an algorithm that adapts a mean and a spread.

    Args:
        space: its `init` gives the initial mean.
        mirrored: member i + P/2 is the mirror image of member i. evosax never
            interleaves pairs.
        recombines: the mean becomes a weighted mean of members, which moves even if all
            are equal: then nothing is told.
        prepare: mends evosax's initial state, where it needs it.
    """

    def init(key):
        mean_key, key = jax.random.split(key)
        es = prepare(algorithm.init(key, space.init(mean_key)))
        return State(strong(es), jnp.zeros(()))

    def ask(key, state):
        population, es = algorithm.ask(key, state.es)
        return Proposal(population), state._replace(es=es)

    def tell(key, state, proposal, fitness):
        def learn():
            es = algorithm.tell(key, proposal.params, fitness, state.es)
            return State(es, jnp.linalg.norm(es.mean - state.es.mean))

        return unless_equal(fitness, learn, state) if recombines else learn()

    def metrics(state):
        return {
            "sigma": jnp.mean(state.es.std),
            "mean_norm": jnp.linalg.norm(state.es.mean),
            "update_norm": state.update_norm,
        }

    def solution(state):
        return algorithm.es.get_mean(state.es)

    return Strategy(init, ask, tell, solution, metrics, mirrored)


class PopulationState(NamedTuple):
    """evosax's state, the mean of who survived, and the length of its last step."""

    es: Any
    mean: Any
    update_norm: jax.Array


def survivors(state: PopulationState, es: Any, algorithm: Algorithm) -> PopulationState:
    """The state with evosax's next one `es`, and the mean of its elites."""
    elites = jnp.argsort(es.fitness)[: algorithm.es.num_elites]
    mean = jax.vmap(algorithm.es._unravel_solution)(es.population[elites])
    mean = jax.tree.map(lambda x: x.mean(0), mean)
    step = optax.tree.norm(jax.tree.map(jnp.subtract, mean, state.mean))
    return PopulationState(es, mean, step)


def population_metrics(state: PopulationState) -> dict[str, jax.Array]:
    return {
        "sigma": state.es.population.std(0).mean(),
        "mean_norm": optax.tree.norm(state.mean),
        "update_norm": state.update_norm,
    }


def unless_equal(fitness: jax.Array, learn: Callable[[], Any], state: Any) -> Any:
    """`learn()`, or `state` if all members are equal: there is nothing to learn."""
    return jax.lax.cond((fitness == fitness[0]).all(), lambda: state, learn)


def minimized(shaping: Callable) -> Callable:
    """One of `_shaping` as evosax wants it."""
    return lambda population, fitness, state, params: -shaping(-fitness)


def tied_weights(population, fitness, state, params) -> jax.Array:
    """Recombination weights by rank, `params.weights` from best to worst.

    Tied members share the mean of their weights, so that the sum stays. (evosax gives
    each the weight of their mean rank, rounded down.)
    """
    del population, state
    rank = jax.scipy.stats.rankdata
    weights = params.weights[rank(fitness, "ordinal").astype(jnp.int32) - 1]
    first = rank(fitness, "min").astype(jnp.int32) - 1
    size = len(fitness)
    total = jax.ops.segment_sum(weights, first, size)[first]
    return total / jax.ops.segment_sum(jnp.ones(size), first, size)[first]


def sigma_schedule(sigma: float, decay: float) -> Callable:
    """sigma times `decay` per generation.

    evosax reads the schedule before it counts the generation: what it sets at the end
    of generation g is for generation g + 1. Its first value has to be set apart.
    """
    return lambda g: sigma * decay ** (g + 1)
