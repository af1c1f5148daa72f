"""Policy distributions: categorical, diagonal normal, tanh-normal.

A sample is a deterministic `transform` of `noise`, so a rollout may draw all its noise
at once. Leading axes are batch axes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from metaevo.types import Key

__all__ = ["Categorical", "Normal", "TanhNormal", "among_legal"]


class Categorical(NamedTuple):
    """Categorical distribution over `logits.shape[-1]` actions.

    With the logits of `among_legal`, illegal actions have the probability 0: they are
    never sampled, add 0 to the entropy, and their logits get no gradient.
    """

    logits: jax.Array  # [..., A], need not be normalized

    @staticmethod
    def noise(key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Gumbel noise for `transform`; `shape` is that of the logits."""
        return jax.random.gumbel(key, shape)

    def transform(self, noise: jax.Array) -> jax.Array:
        """A sample, [...] int32 (the Gumbel-max trick)."""
        return jnp.argmax(self.logits + noise, -1)

    def sample(self, key: Key) -> jax.Array:
        return self.transform(self.noise(key, self.logits.shape))

    def log_prob(self, action: jax.Array) -> jax.Array:
        """log π(action), [...]."""
        log_p = jax.nn.log_softmax(self.logits)
        # A one-hot product: the gradient of a gather is a scatter, slow on CPU.
        one_hot = jax.nn.one_hot(action, self.logits.shape[-1], dtype=log_p.dtype)
        return (log_p * one_hot).sum(-1)

    def entropy(self) -> jax.Array:
        """−Σ p log p, [...]."""
        log_p = jax.nn.log_softmax(self.logits)
        return -(jnp.exp(log_p) * log_p).sum(-1)

    def mode(self) -> jax.Array:
        return jnp.argmax(self.logits, -1)


def among_legal(logits: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Logits [..., A] of the distribution over legal actions.

    Args:
        mask: [..., A] bool, at least one True; None: all are legal.
    """
    # Finite: minus infinity times a probability of 0 would be NaN.
    return logits if mask is None else jnp.where(mask, logits, -1e30)


class Normal(NamedTuple):
    """Diagonal normal distribution over vectors of A dimensions."""

    mean: jax.Array  # [..., A]
    log_std: jax.Array  # [..., A] or [A]

    @staticmethod
    def noise(key: Key, shape: tuple[int, ...]) -> jax.Array:
        """Standard normal noise for `transform`; `shape` is that of the mean."""
        return jax.random.normal(key, shape)

    def transform(self, noise: jax.Array) -> jax.Array:
        """A reparametrized sample, [..., A]."""
        return self.mean + jnp.exp(self.log_std) * noise

    def sample(self, key: Key) -> jax.Array:
        return self.transform(self.noise(key, self.mean.shape))

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Joint log-density of all dimensions, [...]."""
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return (-0.5 * z**2 - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> jax.Array:
        """Σ log σ + ½ log 2πe, [...]."""
        log_std = jnp.broadcast_to(self.log_std, self.mean.shape)
        return (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def mode(self) -> jax.Array:
        return self.mean


class TanhNormal(NamedTuple):
    """tanh of a diagonal normal: actions in (−1, 1)^A.

    log π(tanh u) = Σ [log N(u) − 2 (log 2 − u − softplus(−2u))], finite for every u,
    where log(1 − tanh²u) is not (Haarnoja et al., 2018, appendix C).
    """

    mean: jax.Array  # [..., A], before the tanh
    log_std: jax.Array  # [..., A] or [A]

    def transform_and_log_prob(self, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A reparametrized sample [..., A] of standard normal noise [..., A], and its
        log-density [...]."""
        u = Normal(*self).transform(noise)
        return jnp.tanh(u), self.log_prob_before_tanh(u)

    def log_prob_before_tanh(self, u: jax.Array) -> jax.Array:
        """Log-density of the action tanh(u), [...]."""
        return Normal(*self).log_prob(u) - _log_slope(u).sum(-1)

    def entropy_by(self, noise: jax.Array) -> jax.Array:
        """An unbiased estimate of the entropy, [...], by one sample's standard normal
        noise [..., A]: H(N) + log|d tanh u/du|."""
        normal = Normal(*self)
        return normal.entropy() + _log_slope(normal.transform(noise)).sum(-1)

    def mode(self) -> jax.Array:
        return jnp.tanh(self.mean)


def _log_slope(u: jax.Array) -> jax.Array:
    """log(1 − tanh² u), finite for every u."""
    return 2 * (math.log(2) - u - jax.nn.softplus(-2 * u))
