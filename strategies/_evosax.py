"""Adapter to evosax (Lange, 2022), the only module that imports it.

evosax minimizes, returns weak types, counts generations in its own way and archives the
best member of all generations. Here a higher fitness is better, states are finite and
keep their types so that nothing is compiled twice, and a strategy is a set of pure
functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from metaevo.types import Proposal, Space, Strategy
from strategies._trees import strong, zeros


class EvosaxAlgorithm(NamedTuple):
    """An evosax algorithm by the conventions of metaevo; higher fitness is better.

    Attributes:
        es: Object of evosax.
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
) -> EvosaxAlgorithm:
    """Return the algorithm `name` of `evosax.algorithms`.

    Args:
        name: Name of the class.
        space: Space whose params are evolved.
        population_size: P.
        tune: Changes evosax's default `Params`.
        elite_ratio: Fraction of the population that is used; None: evosax's default.
        **options: Arguments of the constructor.
    """
    # The import of evosax starts JAX's backend, and then the number of CPU devices
    # cannot be chosen any more. So it is imported where it is used.
    from evosax import algorithms

    es = getattr(algorithms, name)(population_size, zeros(space), **options)
    if elite_ratio is not None:
        es.elite_ratio = elite_ratio
    params = strong(tune(es.default_params))

    def init(key, *start):
        # Before the first generation the archive is NaN and infinite.
        return strong(jax.tree.map(jnp.nan_to_num, es.init(key, *start, params)))

    def ask(key, state):
        return strong(es.ask(key, state, params))

    def tell(key, population, fitness, state):
        return strong(es.tell(key, population, -fitness, state, params)[0])

    return EvosaxAlgorithm(es, init, ask, tell)


class State(NamedTuple):
    """evosax's state, and the length of the last step of the mean."""

    es: Any
    update_norm: jax.Array


def from_distribution(
    name: str,
    space: Space,
    *arguments: Any,
    mirrored: bool = False,
    recombines: bool = False,
    start_sigma: float | None = None,
    **options: Any,
) -> Strategy:
    """Return a strategy from an algorithm that adapts a mean and a spread.

    Args:
        name: Name of the algorithm.
        space: Space whose `init` gives the initial mean.
        *arguments: Further arguments of `algorithm`.
        mirrored: Member i + P/2 is the mirror image of member i, which is the order of
            evosax.
        recombines: The mean becomes a weighted mean of members, which moves even if
            all have the same fitness. Such generations are then ignored.
        start_sigma: Spread of generation 0; None: evosax's.
        **options: Further arguments of `algorithm`.
    """
    es = algorithm(name, space, *arguments, **options)

    def init(key):
        mean_key, key = jax.random.split(key)
        start = es.init(key, space.init(mean_key))
        if start_sigma is not None:
            start = start.replace(std=start_sigma)
        return State(strong(start), jnp.zeros(()))

    def tell(key, state, proposal, fitness):
        def learn():
            after = es.tell(key, proposal.params, fitness, state.es)
            return State(after, jnp.linalg.norm(after.mean - state.es.mean))

        return unless_equal(fitness, learn, state) if recombines else learn()

    def metrics(state):
        return {
            "sigma": jnp.mean(state.es.std),
            "mean_norm": jnp.linalg.norm(state.es.mean),
            "update_norm": state.update_norm,
        }

    def solution(state):
        return es.es.get_mean(state.es)

    return Strategy(init, asked_by(es), tell, solution, metrics, mirrored)


def annealed(sigma: float, decay: float) -> dict[str, Any]:
    """Return options of `from_distribution`: sigma times `decay` per generation.

    evosax reads its schedule before it counts the generation: the value that it reads
    at the end of generation g is that of generation g + 1. So the first one is set
    separately.
    """
    return {"start_sigma": sigma, "std_schedule": sigma_schedule(sigma, decay)}


def asked_by(algorithm: EvosaxAlgorithm) -> Callable:
    """Return the `ask` of a strategy whose state has evosax's in `es`."""

    def ask(key, state):
        population, es = algorithm.ask(key, state.es)
        return Proposal(population), state._replace(es=es)

    return ask


class PopulationState(NamedTuple):
    """evosax's state, the mean of the survivors, and the length of its last step."""

    es: Any
    mean: Any
    update_norm: jax.Array


def survivors(
    state: PopulationState, es: Any, algorithm: EvosaxAlgorithm
) -> PopulationState:
    """Return the state with evosax's next state `es` and the mean of its elites."""
    elites = jnp.argsort(es.fitness)[: algorithm.es.num_elites]
    mean = jax.vmap(algorithm.es._unravel_solution)(es.population[elites])
    mean = jax.tree.map(lambda x: x.mean(0), mean)
    step = optax.tree.norm(jax.tree.map(jnp.subtract, mean, state.mean))
    return PopulationState(es, mean, step)


def from_population(init: Callable, ask: Callable, tell: Callable) -> Strategy:
    """Return a strategy that keeps a population, with `PopulationState`s."""

    def metrics(state):
        return {
            "sigma": state.es.population.std(0).mean(),
            "mean_norm": optax.tree.norm(state.mean),
            "update_norm": state.update_norm,
        }

    return Strategy(init, ask, tell, lambda state: state.mean, metrics)


def unless_equal(fitness: jax.Array, learn: Callable[[], Any], state: Any) -> Any:
    """Return `learn()`, or `state` if all members have the same fitness."""
    return jax.lax.cond((fitness == fitness[0]).all(), lambda: state, learn)


def minimized(shaping: Callable) -> Callable:
    """Return a function of `_shaping` with the signature and the sign of evosax."""
    return lambda population, fitness, state, params: -shaping(-fitness)


def tied_weights(population, fitness, state, params) -> jax.Array:
    """Return recombination weights by rank, `params.weights` from best to worst.

    Tied members get the mean of their weights, so that the sum does not change. (In
    evosax each gets the weight of their mean rank, rounded down.)
    """
    del population, state
    rank = jax.scipy.stats.rankdata
    weights = params.weights[rank(fitness, "ordinal").astype(jnp.int32) - 1]
    first = rank(fitness, "min").astype(jnp.int32) - 1
    size = len(fitness)
    total = jax.ops.segment_sum(weights, first, size)[first]
    return total / jax.ops.segment_sum(jnp.ones(size), first, size)[first]


def sigma_schedule(sigma: float, decay: float) -> Callable:
    """Return the schedule of a sigma that is multiplied by `decay` per generation."""
    return lambda g: sigma * decay ** (g + 1)
