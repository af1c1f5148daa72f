"""Diversity of a population of policies (Parker-Holder et al., 2020, DvD)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

__all__ = ["log_volume"]


def log_volume(
    embeddings: jax.Array, length_scale: float = 1.0, jitter: float = 1e-6
) -> jax.Array:
    """log det (K + jitter · I),  K_ij = exp(−‖bᵢ − bⱼ‖² / 2ℓ D).

    >>> bool(log_volume(jnp.eye(2)) > log_volume(jnp.ones((2, 2))))
    True

    0 where all members are far apart, and lower the more alike they are. Finite for
    equal members, for which fastpbrl's runs end in NaN.

    Args:
        embeddings: [P, D], each member's actions in the same states; the distance is
            per dimension, so that it does not grow with the number of states.
        length_scale: ℓ > 0.

    References:
        https://arxiv.org/abs/2002.00632, equation 4.
    """
    size, dim = embeddings.shape
    difference = embeddings[:, None] - embeddings[None]
    kernel = jnp.exp(-(difference**2).sum(-1) / (2 * length_scale * dim))
    return jnp.linalg.slogdet(kernel + jitter * jnp.eye(size))[1]
