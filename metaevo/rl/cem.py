"""The cross-entropy method over continuous actions: the best action by action values.

De Boer et al., 2005, https://doi.org/10.1007/s10479-005-5724-z, as QT-Opt uses it in
place of an actor (Kalashnikov et al., 2018, https://arxiv.org/abs/1806.10293).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["Fitted", "Numbers", "maximize", "weights"]


class Numbers(NamedTuple):
    """Numbers of the method, which may be traced.

    Attributes:
        num_elites: k, in [1, M]. The candidates of the k largest values are fitted. If
            k is not whole, the last of them counts with the fraction.
        sharpness: β. An elite weighs exp(β z), z = (q − best) / (best − worst elite) in
            [−1, 0]. At 0 all weigh the same, as published.
        start_std: standard deviation of the first candidates, > 0.
        least_std: smallest standard deviation of a fit, >= 0.
    """

    num_elites: jax.Array | float
    sharpness: jax.Array | float
    start_std: jax.Array | float
    least_std: jax.Array | float


class Fitted(NamedTuple):
    """A normal distribution over actions, with independent components.

    Attributes:
        mean, std: [..., A].
    """

    mean: jax.Array
    std: jax.Array


def weights(q: jax.Array, settings: Numbers) -> jax.Array:
    """Weights of candidates in a fit, [..., M] to [..., M] of sum 1.

    Candidates of equal values share the places that they have among the k best.

    >>> numbers = Numbers(2.0, 0.0, 1.0, 0.0)
    >>> weights(jnp.array([3.0, 1.0, 2.0, 0.0]), numbers).tolist()
    [0.5, 0.0, 0.5, 0.0]
    """
    # Comparing all pairs takes less time than sorting, for the tens of candidates here.
    better = (q[..., None, :] > q[..., :, None]).sum(-1)
    equal = (q[..., None, :] == q[..., :, None]).sum(-1)
    k = jnp.clip(settings.num_elites, 1.0, q.shape[-1])
    share = jnp.clip((k - better) / jnp.maximum(equal, 1), 0.0, 1.0)
    best = q.max(-1, keepdims=True)
    worst = jnp.where(share > 0, q, best).min(-1, keepdims=True)
    z = jnp.maximum((q - best) / jnp.maximum(best - worst, 1e-30), -1.0)
    x = settings.sharpness * z
    share = share * jnp.exp(x - x.max(-1, keepdims=True))
    return share / share.sum(-1, keepdims=True)


def maximize(
    values: Callable[[jax.Array], jax.Array], noise: jax.Array, settings: Numbers
) -> Fitted:
    """Fit a normal distribution to the actions of large values, again and again.

    The first candidates are drawn from N(0, start_std²), the others from the fit
    before. Candidates are clipped to [−1, 1] before they are valued.

    Args:
        values: `actions [..., M, A] -> [..., M]`.
        noise: [..., I, M, A] standard normal, of I iterations with M candidates each.

    Returns:
        the last fit. Its mean is the best action found, in [−1, 1].
    """

    def iterate(fit, noise):
        mean, std = fit.mean[..., None, :], fit.std[..., None, :]
        actions = jnp.clip(mean + std * noise, -1.0, 1.0)
        weight = weights(values(actions), settings)[..., None]
        mean = (weight * actions).sum(-2)
        variance = (weight * (actions - mean[..., None, :]) ** 2).sum(-2)
        std = jnp.maximum(jnp.sqrt(variance), settings.least_std)
        return Fitted(mean, std), None

    noise = jnp.moveaxis(noise, -3, 0)
    zeros = jnp.zeros_like(noise[0, ..., 0, :])
    start = Fitted(zeros, zeros + settings.start_std)
    return jax.lax.scan(iterate, start, noise)[0]
