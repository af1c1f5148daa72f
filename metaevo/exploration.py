"""Exploration.

Of discrete actions: values of the `exploration` slot, `(q, epsilon, context) ->
probabilities`, action values [..., A] to a distribution over actions [..., A]. Of
continuous ones: noise that is correlated in time.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from metaevo import slots

__all__ = ["correlated", "epsilon_greedy", "uniform"]


@slots.function
def epsilon_greedy(q, epsilon, context=None):
    """The best action, the first of equals, but with probability ε any one."""
    del context
    num_actions = q.shape[-1]
    greedy = jax.nn.one_hot(jnp.argmax(q, -1), num_actions)
    return (1 - epsilon) * greedy + epsilon / num_actions


def uniform(normal: jax.Array) -> jax.Array:
    """Standard normal noise as noise that is uniform in [−1, 1]."""
    return 2 * jax.scipy.stats.norm.cdf(normal) - 1


def correlated(white: jax.Array, last: jax.Array, rho: jax.Array | float) -> jax.Array:
    """Standard normal noise with correlation ρ between steps.

    nₜ = ρ nₜ₋₁ + √(1 − ρ²) wₜ, an Ornstein-Uhlenbeck process at steps of one, as in
    DDPG (Lillicrap et al., 2016). White noise does not get far from where it is
    (Eberhard et al., 2023, https://openreview.net/forum?id=hQ9V5QN27eS).

    Args:
        white: [T, ...] standard normal.
        last: [...] the noise before.
        rho: in [0, 1); 0 gives `white`.

    Returns:
        [T, ...].
    """

    def step(last, white):
        noise = rho * last + jnp.sqrt(1 - rho**2) * white
        return noise, noise

    return jax.lax.scan(step, last, white)[1]
