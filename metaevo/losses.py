"""Losses: hand-made ones, and networks that learn one.

Values of the slots `value_loss`, `(value, target, old_value, context) -> [...]`,
`drift`, `(log_ratio, advantage, clip_eps, context) -> [...]`, and `td_loss`,
`(td_error, q, target, context) -> [...]`, `actor_loss`, `(q, action, context) ->
[...]`, elementwise. Plain jnp, so that an artefact
loads without flax or optax.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from metaevo import slots
from metaevo.slots import Context
from metaevo.types import Key, Params

__all__ = [
    "Learned",
    "clipped_square",
    "least_q",
    "minus_q",
    "ppo_clip_drift",
    "residual_network",
    "square",
    "td_huber",
    "td_network",
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

    ε is the policy's own, `context.stats["clip_eps"]`; 0.2 where nobody says.
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


# --- drifts ---------------------------------------------------------------------------


@slots.function
def ppo_clip_drift(log_ratio, advantage, clip_eps, context=None):
    """ReLU((r − clip(r, 1 ± ε)) A): r A − drift is PPO's clipped objective.

    References:
        Lu et al., 2022, https://arxiv.org/abs/2210.05639, section 3.
    """
    del context
    ratio = jnp.exp(log_ratio)
    return jax.nn.relu(
        (ratio - jnp.clip(ratio, 1 - clip_eps, 1 + clip_eps)) * advantage
    )


# --- learned --------------------------------------------------------------------------


class Learned(NamedTuple):
    """A function with parameters, to be put into a slot by `spaces.replace`.

    Attributes:
        init: `key -> params`.
        apply: `(params, *inputs, context) -> output`.
        spec: plain data from which `metaevo.artifacts` rebuilds it.
        identity: whether it starts as its hand-made counterpart.
    """

    init: Callable[[Key], Params]
    apply: Callable
    spec: Mapping[str, Any]
    identity: bool = False

    def bind(self, params: Params) -> Partial:
        """The slot value for these parameters."""
        return Partial(self.apply, params)


HAND_MADE = {
    "square": square,
    "clipped_square": clipped_square,
    "zero": zero,
}
HAND_MADE_TD = {"td_square": td_square, "td_huber": td_huber}


class _Network(NamedTuple):
    """A learned function of one number, scale · n(x / scale), that starts at zero."""

    init: Callable[[Key], Params]
    apply: Callable[[Params, jax.Array], jax.Array]


def _network(features: tuple[int, ...], scale: float, limit: float) -> _Network:
    """n is a tanh network 1-features-1 for |x| ≤ limit · scale, and goes on as a
    straight line outside, so that a far-off value still feels a pull of bounded size.

    Hidden weights start random and the last layer at zero: the start is exactly zero,
    and members mirrored about it differ (an all-zero tanh network is an even function
    of its parameters: mirrored members would be equal and ES see no gradient).
    """
    if not 1 <= len(features) <= 8 or not all(1 <= n <= 4096 for n in features):
        raise ValueError(f"features={features}: 1 to 8 layers of 1 to 4096 units")
    sizes = (1, *features, 1)

    def init(key):
        keys = jax.random.split(key, len(sizes) - 1)
        params = {}
        for i, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            last = i == len(sizes) - 2
            weight = jax.random.normal(keys[i], (fan_in, fan_out)) / math.sqrt(fan_in)
            params[f"w{i}"] = jnp.zeros_like(weight) if last else weight
            params[f"b{i}"] = jnp.zeros(fan_out)
        return params

    def network(params, x):
        h = x[..., None]
        for i in range(len(features)):
            h = jnp.tanh(h @ params[f"w{i}"] + params[f"b{i}"])
        i = len(features)
        return (h @ params[f"w{i}"] + params[f"b{i}"]).squeeze(-1)

    def apply(params, x):
        x = x / scale
        inside = jnp.clip(x, -limit, limit)
        y, slope = jax.jvp(
            lambda x: network(params, x), (inside,), (jnp.ones_like(inside),)
        )
        # With the slope held constant every derivative of the whole is right: inside
        # that of the network, outside that of the line.
        return scale * (y + jax.lax.stop_gradient(slope) * (x - inside))

    return _Network(init, apply)


def _check_positive(**settings: float) -> None:
    for name, value in settings.items():
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(f"{name}={value!r} is not a positive number")


def residual_network(
    base: Partial | str = "clipped_square",
    features: Sequence[int] = (16,),
    scale: float = 10.0,
    limit: float = 3.0,
    clip_eps: float = 0.2,
) -> Learned:
    """A value loss f(v, g) = base(v, g, v_old) + scale · n((v − g) / scale).

    n is a small tanh network that starts at zero; see `_network`.

    Args:
        base: a hand-made value loss or its name: `clipped_square` starts the search
            at PPO, `zero` from scratch.
        features: hidden layer sizes.
        scale: typical size of v − g, in units of return.
        limit: where the network's straight tails begin, in units of `scale`.
        clip_eps: ε of `clipped_square` where the context does not say; an artefact
            has that of the algorithm in which it evolved.

    Raises:
        ValueError: a setting is not of its type, or not positive.

    References:
        The value-loss search of PureJaxRL (Lu et al., 2022), from scratch.
    """
    name = base if isinstance(base, str) else _name_of(base, HAND_MADE)
    hand_made = HAND_MADE[name]
    _check_positive(scale=scale, limit=limit, clip_eps=clip_eps)
    features = tuple(operator.index(n) for n in features)
    network = _network(features, scale, limit)
    evolved_in = Context(stats={"clip_eps": clip_eps})

    def apply(params, value, target, old_value, context: Context | None = None):
        if context is None or "clip_eps" not in context.stats:
            context = evolved_in
        residual = network.apply(params, value - target)
        return hand_made(value, target, old_value, context) + residual

    return Learned(
        network.init,
        apply,
        {
            "op": "residual_network",
            "base": name,
            "features": list(features),
            "scale": scale,
            "limit": limit,
            "clip_eps": clip_eps,
        },
        identity=name != "zero",
    )


def td_network(
    base: Partial | str = "td_square",
    features: Sequence[int] = (16,),
    scale: float = 10.0,
    limit: float = 3.0,
) -> Learned:
    """A loss of a temporal difference, ℓ(δ, Q) = base(δ) + scale · n(−δ / scale) + w Q.

    n is a small tanh network that starts at zero, see `_network`, and so does w: the
    start is `base`. DQNReg, δ² + 0.1 Q, is a member of the family (n = 0, w = 0.05, up
    to a factor of 2).

    Args:
        base: a hand-made loss or its name, `td_square` or `td_huber`.
        features: hidden layer sizes.
        scale: typical size of δ, in units of return.
        limit: where the network's straight tails begin, in units of `scale`.

    Raises:
        ValueError: a setting is not of its type, or not positive.

    References:
        Co-Reyes et al., 2021, https://arxiv.org/abs/2101.03958 (DQNReg).
    """
    name = base if isinstance(base, str) else _name_of(base, HAND_MADE_TD)
    hand_made = HAND_MADE_TD[name]
    _check_positive(scale=scale, limit=limit)
    features = tuple(operator.index(n) for n in features)
    network = _network(features, scale, limit)

    def init(key):
        return {"network": network.init(key), "tilt": jnp.zeros(())}

    def apply(params, td_error, q, target, context: Context | None = None):
        residual = network.apply(params["network"], -td_error)
        return hand_made(td_error, q, target, context) + residual + params["tilt"] * q

    return Learned(
        init,
        apply,
        {
            "op": "td_network",
            "base": name,
            "features": list(features),
            "scale": scale,
            "limit": limit,
        },
        identity=True,
    )


def _name_of(loss: Partial, hand_made: Mapping[str, Partial]) -> str:
    for name, known in hand_made.items():
        if loss.func is known.func:
            return name
    raise ValueError(f"not a hand-made loss: {loss}; one of {list(hand_made)}")
