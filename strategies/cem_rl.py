"""CEM-RL: the cross-entropy method over actors, half of which learn between updates.

Pourchot and Sigaud, 2019, https://arxiv.org/abs/1810.01222.

    θᵢ ~ N(μ, diag v);  the first half of the members learns, then all are scored
    μ' = Σₖ wₖ θₖ,  wₖ ∝ log((K + 1) / k)          over the K best, k = 1 the best
    v' = Σₖ wₖ (θₖ − μ)² / K + ν,   ν ← τ ν + (1 − τ) ν_end

with the *old* mean in v'. The factor 1/K is not in the paper but in its authors' code
and in fastpbrl's. Learned parameters return through the space's Lamarckian
`inherit`; the shared critic is part of the inner loop.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from metaevo.errors import ConfigError
from metaevo.types import Proposal, Space, Strategy


class State(NamedTuple):
    mean: jax.Array  # μ, [D]
    variance: jax.Array  # v, [D]
    noise: jax.Array  # ν
    update_norm: jax.Array  # of the mean's last step
    learned: jax.Array  # weight of those that learned in the last mean


def cem_rl(
    space: Space,
    population_size: int,
    *,
    num_elites: int | None = None,
    num_learners: int | None = None,
    sigma: float = 0.1,
    noise: float = 0.1,
    final_noise: float = 0.003,
    noise_decay: float = 0.95,
    mirrored: bool = False,
) -> Strategy:
    """CEM-RL from the mean `space.init`.

    Args:
        space: its params are a dict with `learn`, which this strategy writes: 1 for
            members that learn, else 0. The distribution is over all the others.
        population_size: P, at least 2; even if `mirrored`.
        num_elites: K in [1, P]; None: half of P.
        num_learners: how many learn, in [0, P]; None: half of P.
        sigma: standard deviation of the first generation, > 0.
        noise: √ν at first, >= 0. It keeps the distribution from collapsing.
        final_noise: √ν in the end, >= 0.
        noise_decay: τ in [0, 1].
        mirrored: members i and i + P/2 are mirror images.

    Raises:
        ConfigError: an option is out of its range, or the space has no `learn`.
    """
    size = population_size
    num_elites = size // 2 if num_elites is None else num_elites
    num_learners = size // 2 if num_learners is None else num_learners
    for name, value, good, expected in (
        ("population_size", size, size >= 2, "2 or more"),
        ("population_size", size, not (mirrored and size % 2), "an even number"),
        ("num_elites", num_elites, 1 <= num_elites <= size, f"1 to {size}"),
        ("num_learners", num_learners, 0 <= num_learners <= size, f"0 to {size}"),
        ("sigma", sigma, sigma > 0, "more than 0"),
        ("noise", noise, noise >= 0, "0 or more"),
        ("final_noise", final_noise, final_noise >= 0, "0 or more"),
        ("noise_decay", noise_decay, 0 <= noise_decay <= 1, "0 to 1"),
    ):
        if not good:
            raise ConfigError(f"{name}={value}: expected {expected}")
    shapes = jax.eval_shape(space.init, jax.random.key(0))
    if not (isinstance(shapes, dict) and "learn" in shapes and len(shapes) > 1):
        raise ConfigError(
            "cem_rl needs a space with `learn` beside what evolves, as "
            "td3_shared.policy_space is"
        )
    rank_weights = np.zeros(size, np.float32)
    rank_weights[:num_elites] = np.log((num_elites + 1) / np.arange(1, num_elites + 1))
    rank_weights /= rank_weights.sum()
    learns = (np.arange(size) < num_learners).astype(np.float32)

    def flat(params):
        evolved = {k: v for k, v in params.items() if k != "learn"}
        return ravel_pytree(evolved)[0].astype(jnp.float32)

    def unflat(x):
        zeros = {k: v for k, v in shapes.items() if k != "learn"}
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), zeros)
        return ravel_pytree(zeros)[1](x)

    def init(key):
        mean = flat(space.init(key))
        variance = jnp.full_like(mean, sigma**2)
        zero = jnp.float32(0.0)
        return State(mean, variance, jnp.float32(noise**2), zero, zero)

    def ask(key, state):
        half = jax.random.normal(key, (size // (1 + mirrored), state.mean.size))
        drawn = jnp.concatenate([half, -half]) if mirrored else half
        members = state.mean[None] + jnp.sqrt(state.variance)[None] * drawn
        params = jax.vmap(unflat)(members) | {"learn": jnp.asarray(learns)}
        return Proposal(params), state

    def tell(key, state, proposal, fitness):
        del key
        members = jax.vmap(flat)(proposal.params)
        weights = _of_ranks(rank_weights, fitness)
        mean = weights @ members
        decayed = noise_decay * state.noise + (1 - noise_decay) * final_noise**2
        spread = weights @ (members - state.mean[None]) ** 2 / num_elites
        told = State(
            mean,
            variance=spread + decayed,
            noise=decayed,
            update_norm=jnp.linalg.norm(mean - state.mean),
            learned=weights @ proposal.params["learn"],
        )
        news = (fitness != fitness[0]).any()
        return jax.tree.map(lambda new, old: jnp.where(news, new, old), told, state)

    def metrics(state):
        return {
            "sigma": jnp.sqrt(state.variance.mean()),
            "mean_norm": jnp.linalg.norm(state.mean),
            "update_norm": state.update_norm,
            "learned": state.learned,
        }

    def solution(state):
        return unflat(state.mean) | {"learn": jnp.zeros(())}

    return Strategy(init, ask, tell, solution, metrics, mirrored)


def _of_ranks(rank_weights: np.ndarray, fitness: jax.Array) -> jax.Array:
    """Each member's weight [P] by its rank, the best first; equals share theirs."""
    better = (fitness[None] > fitness[:, None]).sum(1)
    equal = (fitness[None] == fitness[:, None]).sum(1)
    total = jnp.concatenate([jnp.zeros(1), jnp.cumsum(rank_weights)])
    return (total[better + equal] - total[better]) / equal.astype(jnp.float32)
