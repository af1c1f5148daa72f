"""The one adapter to evosax (Lange, 2022), and its only importer.

evosax minimises, returns weak types, and counts generations in its own way; here
fitness is higher-is-better, states keep their types so that nothing compiles twice,
and a strategy is a set of pure functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from metaevo.types import ConfigError, Proposal, Space, Strategy


class State(NamedTuple):
    """evosax's state, and the length of the last step of the mean."""

    es: Any
    update_norm: jax.Array


def even(population_size: int) -> int:
    """`population_size` if members can be paired.

    Raises:
        ConfigError: it is odd or below 2.
    """
    if population_size < 2 or population_size % 2:
        raise ConfigError(
            f"population_size={population_size}: members come in mirrored pairs, so it "
            f"must be even; use {max(2, population_size + 1)}"
        )
    return population_size


# evosax starts JAX's backend when imported, and then the number of CPU devices can no
# longer be chosen: it is imported where it is used.
SHAPINGS = ("centered_rank", "standardize")


def shaping(name: str) -> Callable:
    """evosax's fitness shaping of this name.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in SHAPINGS:
        raise ConfigError(f"shaping={name!r} must be one of {', '.join(SHAPINGS)}")
    from evosax.core import fitness_shaping

    return getattr(fitness_shaping, f"{name}_fitness_shaping_fn")


def from_distribution(
    algorithm: str,
    space: Space,
    population_size: int,
    mirrored: bool,
    prepare: Callable[[Any], Any] = lambda state: state,
    **options: Any,
) -> Strategy:
    """A strategy from a distribution-based evosax algorithm.

    Args:
        algorithm: its class in `evosax.algorithms`.
        space: its `init` gives the initial mean.
        mirrored: the algorithm samples mirrored pairs.
        prepare: mends evosax's initial state, where it needs it.
        **options: to the class.
    """
    from evosax import algorithms

    example = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype),
        jax.eval_shape(space.init, jax.random.key(0)),
    )
    es = getattr(algorithms, algorithm)(population_size, example, **options)
    hyperparameters = es.default_params

    def init(key):
        mean_key, key = jax.random.split(key)
        state = prepare(es.init(key, space.init(mean_key), hyperparameters))
        return State(_strong(state), jnp.zeros(()))

    def ask(key, state):
        population, inner = es.ask(key, state.es, hyperparameters)
        return Proposal(_strong(population)), state._replace(es=_strong(inner))

    def tell(key, state, proposal, fitness):
        inner, _ = es.tell(key, proposal.params, -fitness, state.es, hyperparameters)
        step = jnp.linalg.norm(inner.mean - state.es.mean)
        return State(_strong(inner), step)

    def metrics(state):
        return {
            "sigma": jnp.mean(state.es.std),
            "mean_norm": optax.tree.norm(es.get_mean(state.es)),
            "update_norm": state.update_norm,
        }

    return Strategy(
        init, ask, tell, lambda state: es.get_mean(state.es), metrics, mirrored
    )


def _strong(tree):
    """Strips weak types, with which the next generation would compile again."""

    def strong(x):
        x = jnp.asarray(x)
        return jax.lax.convert_element_type(x, x.dtype)

    return jax.tree.map(strong, tree)
