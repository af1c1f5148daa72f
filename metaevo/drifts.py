"""Drifts: penalties that keep a policy near the one that collected its data.

Values of PPO's `drift` slot, `(log_ratio, advantage, clip_eps, context) -> [...]`,
elementwise; the policy's objective is E[r A − D(r, A)]. All are, whatever their
numbers, drifts in the sense of mirror learning (Kuba et al., 2022,
https://arxiv.org/abs/2201.02373):

    D(r, A) ≥ 0,   D(1, A) = 0,   ∂D/∂r (1, A) = 0.

Plain jnp, so that an artifact loads without flax or optax.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from metaevo import slots
from metaevo.learned import functions
from metaevo.learned.functions import Learned, name_of, positive
from metaevo.learned.operations import operation
from metaevo.slots import Context

__all__ = ["dpo", "dpo_constants", "drift_network", "lpo_network", "ppo_clip", "zero"]

FARTHEST = 20.0  # |log r| as networks see it: e^40 still fits into float32


@slots.function
def ppo_clip(log_ratio, advantage, clip_eps, context=None):
    """ReLU((r − clip(r, 1 ± ε)) A): r A − drift is PPO's clipped objective.

    References:
        Lu et al., 2022, https://arxiv.org/abs/2210.05639, section 3.
    """
    del context
    ratio = jnp.exp(log_ratio)
    return jax.nn.relu(
        (ratio - jnp.clip(ratio, 1 - clip_eps, 1 + clip_eps)) * advantage
    )


@slots.function
def zero(log_ratio, advantage, clip_eps, context=None):
    """No drift: the plain policy gradient of r A."""
    del clip_eps, context
    return jnp.zeros_like(log_ratio * advantage)


def _excess(x, scale):
    """x − scale · tanh(x / scale) where x > 0, else 0.

    The sign of x decides. The sign of the difference is rounding error near r = 1: XLA
    computes the difference again for each term of the gradient, with other roundings,
    and a ReLU of it would let one term through and not the other.
    """
    x = jax.nn.relu(x)
    excess = x - scale * jnp.tanh(x / scale)
    # Rounding may take it below 0.
    return excess + jax.lax.stop_gradient(jax.nn.relu(excess) - excess)


def _dpo(log_ratio, advantage, alpha, beta):
    gains = advantage >= 0
    # r − 1 only where it is used: where r overflows the other branch has a gradient.
    gain = jnp.expm1(jnp.where(gains, log_ratio, 0.0)) * advantage
    loss = log_ratio * advantage
    return jnp.where(gains, _excess(gain, alpha), _excess(loss, beta))


@slots.function
def dpo(log_ratio, advantage, clip_eps, context=None):
    """Discovered policy optimization's drift, with α = 2 and β = 0.6.

    ReLU((r − 1) A − α tanh((r − 1) A / α)) for A ≥ 0, and for A < 0
    ReLU(A log r − β tanh(A log r / β)).

    References:
        Lu et al., 2022, https://arxiv.org/abs/2210.05639.
    """
    del clip_eps, context
    return _dpo(log_ratio, advantage, 2.0, 0.6)


HAND_MADE = {"ppo_clip": ppo_clip, "dpo": dpo, "zero": zero}


# --- learned --------------------------------------------------------------------------


@operation(
    "dpo_constants",
    slot="drift",
    hand_made=dpo,
    closed_form="metaevo.analysis.curve_fits:drift",
    guarantees=lambda op: ("drift",),
)
def dpo_constants(
    alpha: float = 2.0, beta: float = 0.6, temporal: bool = False
) -> Learned:
    """DPO's drift with its two constants evolved: `alpha` eᵃ and `beta` eᵇ.

    a and b start at 0, the published drift, and act within ±7. There is no start at
    PPO in this family: as α and β fall to 0 the drift becomes ReLU((r − 1) A) and
    ReLU(A log r), which leaves a policy nothing to gain.

    Args:
        temporal: True gives a and b a first and a last value each, and a straight
            line between them over a lifetime.

    Raises:
        ValueError: a constant is not positive.
    """
    positive(alpha=alpha, beta=beta)

    def init(key):
        del key
        return {x: jnp.zeros(2 if temporal else ()) for x in ("alpha", "beta")}

    def apply(params, log_ratio, advantage, clip_eps, context: Context | None = None):
        del clip_eps
        if temporal:
            done = functions.progress(context)
            params = {key: x[0] + (x[1] - x[0]) * done for key, x in params.items()}
        a, b = (jnp.exp(jnp.clip(params[x], -7.0, 7.0)) for x in ("alpha", "beta"))
        return _dpo(log_ratio, advantage, alpha * a, beta * b)

    return Learned(init, apply, starts_hand_made=(alpha, beta) == (2.0, 0.6))


@operation(
    "lpo_network",
    slot="drift",
    hand_made={"zero": zero},
    closed_form="metaevo.analysis.curve_fits:drift",
    guarantees=lambda op: ("drift",),
    examples=({}, {"base": "zero"}),
)
def lpo_network(
    base: Partial | str = "ppo_clip",
    features: Sequence[int] = (128,),
    temporal: bool = False,
) -> Learned:
    """Learned policy optimization's drift, ReLU(base(r, A) + n(x) − 10⁻⁴).

    n is a tanh network without biases of x = (d, d², e, e², A d, A d², A e, A e²),
    with d = log r and e = 1 − r: at r = 1 it is 0, and the dead zone of 10⁻⁴ makes a
    drift of it. It starts at zero: with `base` zero at the plain policy gradient, else
    at `base` less the dead zone, which is why it is not called its identity.

    Args:
        base: a hand-made drift or its name, `zero`, `ppo_clip` or `dpo`.
        features: hidden layer sizes.
        temporal: True if n also sees `context.progress` · d.

    Raises:
        ValueError: a setting is not of its type.

    References:
        Lu et al., 2022, https://arxiv.org/abs/2210.05639, where hidden weights start
        at zero as well.
    """
    name = name_of(base, HAND_MADE)
    hand_made = HAND_MADE[name]
    network = functions.network(8 + bool(temporal), features, bias=False)

    def apply(params, log_ratio, advantage, clip_eps, context: Context | None = None):
        d = jnp.clip(log_ratio, -FARTHEST, FARTHEST)
        e = -jnp.expm1(d)
        x = [d, d**2, e, e**2]
        x += [advantage * u for u in x]
        if temporal:
            x.append(functions.progress(context) * d)
        n = network.apply(params, functions.inputs(x, False, None)).squeeze(-1)
        return jax.nn.relu(hand_made(log_ratio, advantage, clip_eps) + n - 1e-4)

    return Learned(network.init, apply, {"base": name})


@operation(
    "drift_network",
    slot="drift",
    hand_made=HAND_MADE,
    closed_form="metaevo.analysis.curve_fits:drift",
    guarantees=lambda op: ("drift",),
    examples=({}, {"base": "dpo"}),
)
def drift_network(
    base: Partial | str = "ppo_clip",
    features: Sequence[int] = (16, 16),
    scale: float = 0.2,
    temporal: bool = False,
) -> Learned:
    """A drift without a dead zone, ReLU(base(r, A) + κ n(u, A)), that starts at base.

    n is a tanh network of u = log r / `scale` and A, and κ = u² / (1 + u²), which is
    0 with slope 0 at r = 1: that makes a drift of any n. Unlike a sum of drifts it can
    also be less than `base`.

    Args:
        base: a hand-made drift or its name, `ppo_clip`, `dpo` or `zero`.
        features: hidden layer sizes.
        scale: the |log r| at which κ is a half.
        temporal: True if n also sees `context.progress`.

    Raises:
        ValueError: a setting has a wrong type, or is not positive.
    """
    name = name_of(base, HAND_MADE)
    hand_made = HAND_MADE[name]
    positive(scale=scale)
    network = functions.network(2 + bool(temporal), features)

    def apply(params, log_ratio, advantage, clip_eps, context: Context | None = None):
        u = jnp.clip(log_ratio, -FARTHEST, FARTHEST) / scale
        x = functions.inputs([u, advantage], temporal, context)
        n = network.apply(params, x).squeeze(-1)
        kappa = u**2 / (1 + u**2)
        return jax.nn.relu(hand_made(log_ratio, advantage, clip_eps) + kappa * n)

    return Learned(network.init, apply, {"base": name}, starts_hand_made=name != "zero")
