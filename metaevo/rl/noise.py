"""Exploration noise of continuous actions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from metaevo import slots
from metaevo.slots import Context
from metaevo.types import Key

__all__ = ["correlated", "draw", "gumbel", "uniform"]


def uniform(normal: jax.Array) -> jax.Array:
    """Map standard normal noise to noise that is uniform in [−1, 1].

    >>> uniform(jnp.array([0.0, -100.0, 100.0])).tolist()
    [0.0, -1.0, 1.0]
    """
    return 2 * jax.scipy.stats.norm.cdf(normal) - 1


def gumbel(normal: jax.Array) -> jax.Array:
    """Map standard normal noise to Gumbel noise: −log −log Φ(n).

    >>> [round(float(x), 3) for x in gumbel(jnp.array([0.0, -6.0, 6.0]))]
    [0.367, -3.032, 20.737]
    """
    return -jnp.log(-jax.scipy.special.log_ndtr(normal))


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


def draw(
    key: Key, meta: Any, context: Context, last: jax.Array, num_steps: int
) -> jax.Array:
    """Noise [T, *last.shape] that continues `last`, by the slot `noise_correlation`."""
    white = jax.random.normal(key, (num_steps, *last.shape))
    return correlated(white, last, slots.value(meta.noise_correlation, context))
