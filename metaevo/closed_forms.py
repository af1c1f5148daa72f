"""Closed forms: functions of slots that are formulas, with constants as their params.

`metaevo.analysis.distill` replaces an evolved network by one of these, if one fits.
They can evolve as well. Plain jnp, so that an artifact loads without flax.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax.tree_util import Partial

from metaevo import drifts, losses
from metaevo.learned import functions
from metaevo.learned.functions import Learned, name_of, positive
from metaevo.learned.operations import operation
from metaevo.slots import Context

__all__ = [
    "clip_constant",
    "error_loss",
    "rational",
    "scaled_error_loss",
    "scaled_td_error_loss",
    "td_error_loss",
]


def _of_error(params, x):
    """a x² + b |x| + c Huber_k(x) + d w² log cosh(x / w) + t x."""
    size = jnp.abs(x)
    knee, width = (jnp.maximum(jnp.abs(params[k]), 1e-3) for k in ("knee", "width"))
    huber = jnp.where(size <= knee, 0.5 * x**2, knee * (size - 0.5 * knee))
    y = size / width
    log_cosh = y + jnp.log1p(jnp.exp(-2 * y)) - math.log(2.0)
    return (
        params["square"] * x**2
        + params["abs"] * size
        + params["huber"] * huber
        + params["log_cosh"] * width**2 * log_cosh
        + params["tilt"] * x
    )


_COEFFICIENTS = ("square", "abs", "huber", "log_cosh", "tilt")


def _start(_):
    zeros = {name: jnp.zeros(()) for name in _COEFFICIENTS}
    return zeros | {"knee": jnp.ones(()), "width": jnp.ones(())}


@operation(
    "error_loss",
    slot="value_loss",
    hand_made=losses.HAND_MADE,
    closed_form="metaevo.analysis.curve_fits:value_loss",
)
def error_loss(
    base: Partial | str = "clipped_square", clip_eps: float = 0.2
) -> Learned:
    """A value loss: `base` + a x² + b |x| + c Huber_k(x) + d w² log cosh(x / w) + t x.

    x = v − g. All coefficients start at zero, k and w at 1. Huber_k is x²/2 for
    |x| ≤ k and k |x| − k²/2 beyond.

    Args:
        base: `clipped_square`, `square` or `zero`.
        clip_eps: as in `losses.residual_network`.

    Raises:
        ValueError: a setting has a wrong type, or is not positive.
    """
    name = name_of(base, losses.HAND_MADE)
    hand_made = losses.HAND_MADE[name]
    positive(clip_eps=clip_eps)

    def apply(params, value, target, old_value, context: Context | None = None):
        evolved_in = losses.with_clip(context, clip_eps)
        usual = hand_made(value, target, old_value, evolved_in)
        return usual + _of_error(params, value - target)

    return Learned(_start, apply, {"base": name}, starts_hand_made=name != "zero")


@operation(
    "td_error_loss",
    slot="td_loss",
    hand_made=losses.HAND_MADE_TD,
    closed_form="metaevo.analysis.curve_fits:td_loss",
)
def td_error_loss(base: Partial | str = "td_square") -> Learned:
    """As `error_loss`, of x = Q − y = −δ, and + q Q, which starts at zero too.

    Args:
        base: `td_square` or `td_huber`.

    Raises:
        ValueError: a setting has a wrong type.
    """
    name = name_of(base, losses.HAND_MADE_TD)
    hand_made = losses.HAND_MADE_TD[name]

    def init(key):
        return _start(key) | {"q": jnp.zeros(())}

    def apply(params, td_error, q, target, context: Context | None = None):
        usual = hand_made(td_error, q, target, context)
        return usual + _of_error(params, -td_error) + params["q"] * q

    return Learned(init, apply, {"base": name}, starts_hand_made=True)


@operation(
    "scaled_error_loss",
    slot="value_loss",
    hand_made=losses.square,
    closed_form="metaevo.analysis.curve_fits:value_loss",
    reads=lambda op: ("return_std",),
    guarantees=lambda op: ("scale-equivariant",),
)
def scaled_error_loss() -> Learned:
    """A value loss that scales as the squared error, s² (½ x² + h(x)).

    h(x) = a x² + b |x| + c Huber_k(x) + d w² log cosh(x / w) + t x, x = (v − g) / s,
    with s = `context.return_std`. All coefficients start at zero, k and w at 1.
    """

    def apply(params, value, target, old_value, context: Context | None = None):
        del old_value
        return _scaled(params, value - target, context)

    return Learned(_start, apply, starts_hand_made=True)


@operation(
    "scaled_td_error_loss",
    slot="td_loss",
    hand_made=losses.td_square,
    closed_form="metaevo.analysis.curve_fits:td_loss",
    reads=lambda op: ("return_std",),
    guarantees=lambda op: ("scale-equivariant",),
)
def scaled_td_error_loss() -> Learned:
    """As `scaled_error_loss`, of x = (Q − y) / s = −δ / s."""

    def apply(params, td_error, q, target, context: Context | None = None):
        del q, target
        return _scaled(params, -td_error, context)

    return Learned(_start, apply, starts_hand_made=True)


def _scaled(params, error, context):
    std = functions.return_std(context)
    return 0.5 * error**2 + std**2 * _of_error(params, error / std)


@operation(
    "clip_constant",
    slot="drift",
    hand_made=drifts.ppo_clip,
    closed_form="metaevo.analysis.curve_fits:drift",
    guarantees=lambda op: ("drift",),
)
def clip_constant(eps: float = 0.2) -> Learned:
    """PPO's clip as a drift, its width `eps` eˣ kept in [1e-3, 10]; x starts at 0.

    It is the drift's own: the slot `clip_eps` does not move it.

    Raises:
        ValueError: not positive.
    """
    positive(eps=eps)

    def apply(params, log_ratio, advantage, clip_eps, context: Context | None = None):
        del clip_eps
        width = jnp.clip(eps * jnp.exp(jnp.clip(params["eps"], -20, 20)), 1e-3, 10.0)
        return drifts.ppo_clip(log_ratio, advantage, width, context)

    return Learned(lambda _: {"eps": jnp.zeros(())}, apply, starts_hand_made=True)


ORDER = 5, 4
# Padé's approximation of tanh.
TANH = (0.0, 1.0, 0.0, 1 / 9, 0.0, 1 / 945), (0.0, 4 / 9, 0.0, 1 / 63)


@operation(
    "rational",
    slot="activation",
    closed_form="metaevo.analysis.curve_fits:activation",
)
def rational() -> Learned:
    """An activation, σ(x) = P(x) / (1 + |Q(x)|): degrees 5 and 4, Q without a constant.

    No poles, whatever its params, {"p": [6], "q": [4]}, by ascending powers. They start
    at Padé's approximation of tanh, good to 0.003 on ±4. Outside
    ± 100 it goes on as a constant.

    References:
        Molina, Schramowski and Kersting, 2020, https://arxiv.org/abs/1907.06732 (Padé
        activation units).
    """

    def init(_):
        return {"p": jnp.array(TANH[0]), "q": jnp.array(TANH[1])}

    def apply(params, x):
        at = jnp.clip(x, -100.0, 100.0)
        top = sum(params["p"][i] * at**i for i in range(ORDER[0] + 1))
        below = sum(params["q"][i - 1] * at**i for i in range(1, ORDER[1] + 1))
        return top / (1 + jnp.abs(below))

    return Learned(init, apply)
