"""Losses: hand-made ones, and networks that learn one.

Values of the slots `value_loss`, `(value, target, old_value, context) -> [...]`,
`policy_loss`, `(log_prob, log_ratio, advantage, entropy, context) -> [...]`,
`td_loss`, `(td_error, q, target, context) -> [...]`, and `actor_loss`, `(q, action,
context) -> [...]`, elementwise. Plain jnp, so that an artifact loads without flax or
optax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from metaevo import slots
from metaevo.learned import functions
from metaevo.learned.functions import Learned, name_of, positive, softsign
from metaevo.learned.operations import operation
from metaevo.slots import Context
from metaevo.types import Key, Params

__all__ = [
    "Learned",
    "clipped_square",
    "least_q",
    "minus_q",
    "policy_network",
    "residual_network",
    "square",
    "td_cross_entropy",
    "td_huber",
    "td_network",
    "td_reluctant",
    "td_square",
    "zero",
]


# --- value losses ---------------------------------------------------------------------


@slots.function
def square(value, target, old_value, context=None):
    """½ (v − g)²."""
    del old_value, context
    return 0.5 * (value - target) ** 2


@slots.function
def clipped_square(value, target, old_value, context=None):
    """½ max((v − g)², (v_old + clip(v − v_old, ±ε) − g)²), PPO's value loss.

    ε is the policy's own, `context.stats["clip_eps"]`; 0.2 if the context has none.
    """
    eps = 0.2 if context is None else context.stats.get("clip_eps", 0.2)
    clipped = old_value + jnp.clip(value - old_value, -eps, eps)
    return 0.5 * jnp.maximum((value - target) ** 2, (clipped - target) ** 2)


@slots.function
def zero(value, target, old_value, context=None):
    """No value loss at all."""
    del target, old_value, context
    return jnp.zeros_like(value)


# --- losses of a temporal difference --------------------------------------------------


@slots.function
def td_square(td_error, q, target, context=None):
    """½ δ²,  δ = target − Q."""
    del q, target, context
    return 0.5 * td_error**2


@slots.function
def td_huber(td_error, q, target, context=None):
    """½ δ² for |δ| ≤ 1, |δ| − ½ beyond (Mnih et al., 2015)."""
    del q, target, context
    size = jnp.abs(td_error)
    return jnp.where(size <= 1, 0.5 * td_error**2, size - 0.5)


@slots.function
def td_reluctant(td_error, q, target, context=None):
    """½ w δ², w = 1 where Q moves towards zero, 0.1 where it moves away from it.

    Positive values rise slowly, and negative ones fall slowly. Q moves away from zero
    where δ and the target have the same sign. `experiments/reluctant` measures it; it
    is from no paper.
    """
    del q, context
    return 0.5 * jnp.where(td_error * target < 0, 1.0, 0.1) * td_error**2


@slots.function
def td_cross_entropy(td_error, q, target, context=None):
    """−y log Q − (1 − y) log(1 − Q), target y and value Q in [0, 1].

    Kalashnikov et al., 2018, https://arxiv.org/abs/1806.10293. Both are kept 1e-6 away
    from 0 and 1.
    """
    del td_error, context
    q, target = (jnp.clip(x, 1e-6, 1 - 1e-6) for x in (q, target))
    return -target * jnp.log(q) - (1 - target) * jnp.log1p(-q)


# --- losses of an actor ---------------------------------------------------------------


@slots.function
def minus_q(q, action, context=None):
    """−Q(o, π(o)), the deterministic policy gradient (Silver et al., 2014)."""
    del action, context
    return -q


@slots.function
def least_q(q, context=None):
    """min(Q₁, Q₂), clipped double Q-learning: [2, ...] -> [...]."""
    del context
    return q.min(0)


# --- learned --------------------------------------------------------------------------

HAND_MADE = {
    "square": square,
    "clipped_square": clipped_square,
    "zero": zero,
}
HAND_MADE_TD = {"td_square": td_square, "td_huber": td_huber}


class _Curve(NamedTuple):
    """A learned function of one number.

    Attributes:
        init: `key -> params`.
        apply: `(params, x [...], context) -> [...]`.
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, jax.Array, Context | None], jax.Array]


def _curve(
    features: Sequence[int], scale: float, limit: float, temporal: bool
) -> _Curve:
    """A learned function of one number, scale · n(x / scale), that starts at zero.

    n is a tanh network for |x| ≤ limit · scale and a straight line outside, so the
    gradient at a far-off value is bounded.
    """
    n = functions.network(1 + bool(temporal), features)

    def apply(params, x, context):
        def at(x):
            return n.apply(params, functions.inputs([x], temporal, context)).squeeze(-1)

        x = x / scale
        inside = jnp.clip(x, -limit, limit)
        y, slope = jax.jvp(at, (inside,), (jnp.ones_like(inside),))
        # With the slope held constant every derivative of the whole is right: inside
        # that of the network, outside that of the line.
        return scale * (y + jax.lax.stop_gradient(slope) * (x - inside))

    return _Curve(n.init, apply)


@operation(
    "residual_network",
    slot="value_loss",
    hand_made=HAND_MADE,
    closed_form="metaevo.analysis.curve_fits:value_loss",
    examples=({}, {"base": "square", "features": (8, 4)}, {"base": "zero"}),
)
def residual_network(
    base: Partial | str = "clipped_square",
    features: Sequence[int] = (16,),
    scale: float = 10.0,
    limit: float = 3.0,
    clip_eps: float = 0.2,
    temporal: bool = False,
) -> Learned:
    """A value loss f(v, g) = base(v, g, v_old) + scale · n((v − g) / scale).

    n is a small tanh network that starts at zero; see `_curve`.

    Args:
        base: a hand-made value loss or its name: `clipped_square` starts the search
            at PPO, `zero` from scratch.
        features: hidden layer sizes.
        scale: typical size of v − g, in units of return.
        limit: where the network's straight tails begin, in units of `scale`.
        clip_eps: ε of `clipped_square` if the context has none; an artifact has that
            of the algorithm in which it evolved.
        temporal: True if n also sees `context.progress`.

    Raises:
        ValueError: a setting has a wrong type, or is not positive.

    References:
        The value-loss search of PureJaxRL (Lu et al., 2022), from scratch.
    """
    name = name_of(base, HAND_MADE)
    hand_made = HAND_MADE[name]
    positive(scale=scale, limit=limit, clip_eps=clip_eps)
    network = _curve(features, scale, limit, temporal)

    def apply(params, value, target, old_value, context: Context | None = None):
        residual = network.apply(params, value - target, context)
        evolved_in = with_clip(context, clip_eps)
        return hand_made(value, target, old_value, evolved_in) + residual

    return Learned(network.init, apply, {"base": name}, starts_hand_made=name != "zero")


def with_clip(context: Context | None, clip_eps: float) -> Context:
    """The context, with an ε for `clipped_square` if it has none."""
    context = Context() if context is None else context
    if "clip_eps" in context.stats:
        return context
    return context._replace(stats={"clip_eps": clip_eps})


@operation(
    "td_network",
    slot="td_loss",
    hand_made=HAND_MADE_TD,
    closed_form="metaevo.analysis.curve_fits:td_loss",
    examples=({}, {"base": "td_huber"}),
)
def td_network(
    base: Partial | str = "td_square",
    features: Sequence[int] = (16,),
    scale: float = 10.0,
    limit: float = 3.0,
    temporal: bool = False,
) -> Learned:
    """A loss of a temporal difference, ℓ(δ, Q) = base(δ) + scale · n(−δ / scale) + w Q.

    n is a small tanh network that starts at zero, see `_curve`, and so does w: the
    start is `base`. DQNReg, δ² + 0.1 Q, is a member of the family (n = 0, w = 0.05, up
    to a factor of 2).

    Args:
        base: a hand-made loss or its name, `td_square` or `td_huber`.
        features: hidden layer sizes.
        scale: typical size of δ, in units of return.
        limit: where the network's straight tails begin, in units of `scale`.
        temporal: True if n also sees `context.progress`.

    Raises:
        ValueError: a setting has a wrong type, or is not positive.

    References:
        Co-Reyes et al., 2021, https://arxiv.org/abs/2101.03958 (DQNReg).
    """
    name = name_of(base, HAND_MADE_TD)
    hand_made = HAND_MADE_TD[name]
    positive(scale=scale, limit=limit)
    network = _curve(features, scale, limit, temporal)

    def init(key):
        return {"network": network.init(key), "tilt": jnp.zeros(())}

    def apply(params, td_error, q, target, context: Context | None = None):
        residual = network.apply(params["network"], -td_error, context)
        return hand_made(td_error, q, target, context) + residual + params["tilt"] * q

    return Learned(init, apply, {"base": name}, starts_hand_made=True)


@operation(
    "policy_network",
    slot="policy_loss",
    guarantees=lambda op: ("bounded",),
    facts=lambda op, params: {"bound": op["limit"]},
)
def policy_network(
    features: Sequence[int] = (16,), limit: float = 10.0, temporal: bool = False
) -> Learned:
    """A term of the policy's loss, ℓ = limit · tanh(n(x) / limit), that starts at zero.

    x = (log π, log r / 0.2, A, |A|, H), each u as u / (1 + |u|): whatever the scale of
    rewards, whose advantages PPO standardizes, and of densities. n is a small tanh
    network that starts at zero. The policy learns through log π, r and H; the
    advantage is held. No sum over time or environments: permuting them changes nothing.

    Args:
        features: hidden layer sizes.
        limit: |ℓ| stays below it.
        temporal: True if n also sees `context.progress`.

    Raises:
        ValueError: a setting has a wrong type, or is not positive.

    References:
        Houthooft et al., 2018, https://arxiv.org/abs/1802.04821, which evolves the
        whole loss of a policy, over its history; here it is what a sample allows.
    """
    positive(limit=limit)
    network = functions.network(5 + bool(temporal), features)

    def apply(
        params, log_prob, log_ratio, advantage, entropy, context: Context | None = None
    ):
        advantage = softsign(jax.lax.stop_gradient(advantage))
        x = [
            softsign(log_prob),
            softsign(log_ratio, 0.2),
            advantage,
            jnp.abs(advantage),
            softsign(entropy),
        ]
        n = network.apply(params, functions.inputs(x, temporal, context)).squeeze(-1)
        return limit * jnp.tanh(n / limit)

    return Learned(network.init, apply, starts_hand_made=True)
