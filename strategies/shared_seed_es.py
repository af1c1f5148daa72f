"""OpenAI-ES in the shared-seed form (Salimans et al., 2017, section 2.1).

    ε_p = N(0, I) from fold_in(key, p);   θ ± σ ε_p are members p and p + P/2
    g = 1/(P σ) Σ_p (u_p − u_{p+P/2}) ε_p;   θ ← θ + optimizer(g)

The noise is not kept: it is drawn again from a key where it is needed. `ask` and `tell`
need memory for a few vectors of D numbers, not for P; each round of training draws its
own members. The paper's workers use this to exchange scalars only; here it is for
populations that would not fit into memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from metaevo.errors import ConfigError
from metaevo.population import Rule
from metaevo.types import Proposal, Space, Strategy, keep, remakeable
from strategies import _gradient, _options, _shaping, _trees


class State(NamedTuple):
    """State for D flat parameters.

    Attributes:
        mean: [D].
        optimizer: of optax.
        generation: int32.
        update_norm: length of the last step of the mean.
    """

    mean: jax.Array
    optimizer: Any
    generation: jax.Array
    update_norm: jax.Array


class Seed(NamedTuple):
    """Arrays from which a population is computed."""

    key: jax.Array
    mean: jax.Array
    sigma: jax.Array


@remakeable
def shared_seed_es(
    space: Space,
    population_size: int,
    sigma: float,
    optimizer: optax.GradientTransformation,
    *,
    sigma_decay: float = 1.0,
    shaping: str = "centered_rank",
) -> Strategy:
    """OpenAI-ES from the mean `space.init`, in O(D) memory; options as in `open_es`.

    Args:
        population_size: P, even: members i and i + P/2 are mirror images.
        sigma: standard deviation of the noise in generation 0, > 0.
        optimizer: ascends the estimated gradient; a decay of the learning rate is its
            schedule, weight decay that of `optax.adamw`.
        sigma_decay: factor on sigma per generation, > 0.
        shaping: `centered_rank`, `standardize` or `pair_rank`.

    Raises:
        ConfigError: an odd population, an option out of its range, an unknown shaping,
            or a Lamarckian space, whose members are no longer where the noise put them.
    """
    _options.even(population_size)
    _options.positive(sigma=sigma, sigma_decay=sigma_decay)
    shape = _shaping.named(shaping)
    if space.inherit is not keep:
        raise ConfigError(
            "shared_seed_es: a Lamarckian space changes its members, which are not "
            "kept here; use open_es"
        )
    pairs = population_size // 2
    ravel, unravel, dim = _trees.flattening(space)

    def noise(key, pair):
        return jax.random.normal(jax.random.fold_in(key, pair), (dim,))

    def member(seed, i):
        sign = jnp.where(i < pairs, 1.0, -1.0)
        return unravel(seed.mean + sign * seed.sigma * noise(seed.key, i % pairs))

    def deviation(state):
        return _gradient.deviation(state, sigma, sigma_decay)

    def init(key):
        mean = ravel(space.init(key))
        return State(mean, optimizer.init(mean), jnp.int32(0), jnp.zeros(()))

    def ask(key, state):
        seed = Seed(key, state.mean, deviation(state))
        return Proposal(Rule(population_size, member, seed)), state

    def tell(key, state, proposal, fitness):
        del key
        first, second = jnp.split(shape(fitness), 2)
        seed = proposal.params.arrays

        def add(total, at):
            pair, pull = at
            return total + pull * noise(seed.key, pair), None

        pulls = jnp.arange(pairs, dtype=jnp.int32), first - second
        total, _ = jax.lax.scan(add, jnp.zeros(dim), pulls)
        gradient = total / (population_size * seed.sigma)
        return _gradient.ascend(state, gradient, optimizer)

    def metrics(state):
        return _gradient.metrics(state, deviation(state))

    return Strategy(
        init, ask, tell, lambda state: unravel(state.mean), metrics, mirrored=True
    )
