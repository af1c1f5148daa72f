"""Persistent evolution strategies (Vicol et al., 2021, https://arxiv.org/abs/2112.13835).

Members persist: a generation is a part of a lifetime, after which θ moves. Each part
has its own perturbation, and a member's fitness is credited to all perturbations since
its birth:

    εᵢ ~ N(0, σ² I), mirrored;   ξᵢ ← ξᵢ + εᵢ/σ²;   g = 1/P Σᵢ uᵢ ξᵢ
    θ ← θ + optimizer(g)

ξ is set to 0 when a pair is reborn, at the horizon. Without accumulation, ξᵢ = εᵢ/σ²,
these are online (truncated) evolution strategies, which credit a perturbation with its
own generation alone: less variance, but effects on later generations are ignored.

Pairs are born at different times, so that each step of θ uses all ages. Mirror images
have the same age, so the effect of age on returns cancels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from metaevo.types import Proposal, Space, Strategy, remakeable
from strategies import _gradient, _options, _shaping, _trees


class State(NamedTuple):
    """State for D flat parameters and P/2 pairs.

    Attributes:
        mean: [D].
        optimizer: of optax.
        since_birth: [P/2, D] Σ ε/σ² of the first of each pair.
        age: [P/2] int32, generations lived, in [0, horizon); 0 is a newborn. In
            generation 0 all are newborn; a larger age makes the first life shorter.
        generation: int32.
        update_norm: length of the last step of the mean.
    """

    mean: jax.Array
    optimizer: Any
    since_birth: jax.Array
    age: jax.Array
    generation: jax.Array
    update_norm: jax.Array


@remakeable
def pes(
    space: Space,
    population_size: int,
    sigma: float,
    optimizer: optax.GradientTransformation,
    horizon: int,
    *,
    accumulate: bool = True,
    staggered: bool = True,
    sigma_decay: float = 1.0,
    shaping: str = "standardize",
) -> Strategy:
    """PES from the mean `space.init`; the search needs `segments_per_generation`.

    The fitness of a generation is that of its segments alone: for the paper's estimate
    of the gradient of their sum use `fitness.area_under_curve`.

    Args:
        population_size: P, even: members i and i + P/2 are mirror images.
        sigma: standard deviation of the noise in generation 0, > 0.
        optimizer: ascends the estimated gradient, such as `optax.adam(0.03)`; a decay
            of the learning rate is its schedule, weight decay that of `optax.adamw`.
        horizon: generations in a life, at least 1: `num_segments` of the inner loop
            over `segments_per_generation`. 1 is OpenAI-ES.
        accumulate: False for online ES.
        staggered: births are spread evenly over the horizon (first lives are cut short
            for it); False: all pairs are born together.
        sigma_decay: factor on sigma per generation, > 0.
        shaping: `standardize` keeps the gradient's direction, as differences within
            pairs keep their relative sizes. `pair_rank` (the better of a pair) and
            `centered_rank` (of all members, of any age) resist outliers but lose these
            sizes: all generations count the same.

    Raises:
        ConfigError: an odd population, an option out of its range, or an unknown
            shaping.
    """
    _options.even(population_size)
    _options.positive(sigma=sigma, sigma_decay=sigma_decay)
    _options.at_least(1, horizon=horizon)
    shape = _shaping.named(shaping)
    pairs = population_size // 2
    ravel, unravel, dim = _trees.flattening(space)

    first_age = [i * horizon // pairs if staggered else 0 for i in range(pairs)]

    def deviation(state):
        return _gradient.deviation(state, sigma, sigma_decay)

    def init(key):
        mean = ravel(space.init(key))
        return State(
            mean=mean,
            optimizer=optimizer.init(mean),
            since_birth=jnp.zeros((pairs, dim)),
            age=jnp.asarray(first_age, jnp.int32),
            generation=jnp.int32(0),
            update_norm=jnp.zeros(()),
        )

    def ask(key, state):
        noise = deviation(state) * jax.random.normal(key, (pairs, dim))
        flat = state.mean[None] + jnp.concatenate([noise, -noise])
        alive = jnp.tile((state.age > 0) & (state.generation > 0), 2)
        members = jnp.arange(population_size, dtype=jnp.int32)
        parents = jnp.where(alive, members, -1)
        return Proposal(jax.vmap(unravel)(flat), parents), state

    def tell(key, state, proposal, fitness):
        del key
        flat = jax.vmap(ravel)(proposal.params)
        # Perturbations are added here, not in `ask`: a generation in which all failed
        # is lived again.
        noise = (flat[:pairs] - state.mean[None]) / deviation(state) ** 2
        since_birth = noise + (state.since_birth if accumulate else 0.0)
        first, second = jnp.split(shape(fitness), 2)
        gradient = (first - second) @ since_birth / population_size
        over = state.age + 1 == horizon
        return _gradient.ascend(state, gradient, optimizer)._replace(
            since_birth=jnp.where(over[:, None], 0.0, since_birth),
            age=jnp.where(over, 0, state.age + 1),
        )

    def metrics(state):
        common = _gradient.metrics(state, deviation(state))
        return common | {"age": state.age.mean(dtype=jnp.float32)}

    return Strategy(
        init, ask, tell, lambda state: unravel(state.mean), metrics, mirrored=True
    )
