"""Policies that evolve and are exported.

    space = policies.space(env, config)                       # params {"actor": ...}
    action = metaevo.load("runs/.../solution").actor(obs)

A policy is a multilayer perceptron in plain jnp with the parameter tree of
`networks.mlp`: an artifact holds a policy as TD3 trained it. A shaper chooses policies
of a matrix game.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import envs, slots
from metaevo.errors import ConfigError
from metaevo.learned.functions import Learned, layers, network, positive, whole
from metaevo.learned.initializers import orthogonal
from metaevo.learned.operations import operation
from metaevo.learned.portraits import Axis, Curve, Portrait, Strongest
from metaevo.types import Space

__all__ = ["ACTIVATIONS", "of", "policy", "shaper", "space"]

ACTIVATIONS = (
    *("celu", "elu", "gelu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh"),
    *("leaky_relu", "log_sigmoid", "relu", "relu6", "selu", "sigmoid", "silu"),
    *("soft_sign", "softplus", "swish", "tanh"),
)
"""Functions of `jax.nn`, and of `flax.linen`, for hidden layers, by name."""


def _policy_portrait(op: Mapping[str, Any]) -> Portrait:
    shape = tuple(op["observation"])

    def actions(act, obs, context):
        return act(obs.reshape(-1, *shape), context)

    inputs = {str(i): 1.0 for i in range(math.prod(shape))}
    return Portrait(
        (Strongest("component", inputs, "action", actions),),
        "Its actions over the two components of the observation that move them most. "
        "Last: how much they change when one component, drawn within ±1, is replaced "
        "by another's.",
    )


@operation(
    "policy",
    slot="actor",
    portrait=_policy_portrait,
    shapes=lambda op: {"obs": ("n", *op["observation"])},
    for_env=lambda env: {
        "observation": env.observation.shape,
        "action": _actions(env),
        "features": (8,),
        "activation": "tanh",
    },
    as_params=True,
    examples=(
        {
            "observation": (2, 3),
            "action": {"low": [-2.0, 0.0], "high": [2.0, 1.0]},
            "features": (8, 4),
            "activation": "tanh",
        },
    ),
)
def policy(
    observation: Sequence[int],
    action: Mapping[str, Any],
    features: Sequence[int],
    activation: str,
) -> Learned:
    """A deterministic policy, `(params, obs [..., *observation]) -> action`.

    Discrete actions are those of the largest output, [...] int32; of a box the
    middle of its bounds + half their distance · tanh(outputs), [..., A].

    Args:
        observation: shape of one observation.
        action: `{"num": N}`, or `{"low": [A], "high": [A]}`, finite, low < high.
        features: sizes of the hidden layers, at most 8.
        activation: one of `ACTIVATIONS`.

    Returns:
        a function for artifacts. Its `init` is orthogonal, with a gain of √2 and of
        0.01 in the last layer. It ignores its `context`. A last argument, `mask`
        [..., num_actions] bool, has the legal ones of discrete actions.

    Raises:
        ValueError, TypeError: a setting has a wrong type or value.
    """
    observation, features = tuple(map(operator.index, observation)), layers(features)
    if len(observation) > 8 or not all(1 <= n <= 2**20 for n in observation):
        raise ConfigError(f"observation={observation} is not the shape of an array")
    if activation not in ACTIVATIONS:
        raise ConfigError(f"activation={activation!r}: one of {', '.join(ACTIVATIONS)}")
    num_outputs, choose = _head(action)
    sizes = (math.prod(observation), *features, num_outputs)
    nonlinear = getattr(jax.nn, activation)

    def init(key):
        params = {}
        for i, shape in enumerate(itertools.pairwise(sizes)):
            gain = 0.01 if i == len(features) else math.sqrt(2)
            kernel = orthogonal(gain)(jax.random.fold_in(key, i), shape)
            params[f"Dense_{i}"] = {"kernel": kernel, "bias": jnp.zeros(shape[1])}
        return {"params": params}

    def apply(params, obs, context=None, mask=None):
        del context
        x = jnp.asarray(obs, jnp.result_type(float))
        x = x.reshape(*x.shape[: x.ndim - len(observation)], sizes[0])
        for i in range(len(sizes) - 1):
            layer = params["params"][f"Dense_{i}"]
            x = x @ layer["kernel"] + layer["bias"]
            x = nonlinear(x) if i < len(features) else x
        return choose(x, mask)

    numbers = {name: np.asarray(x).tolist() for name, x in action.items()}
    return Learned(init, apply, {"action": numbers})


def _head(action: Mapping[str, Any]):
    """Number of outputs of a network, and the map from them and a mask to actions."""

    def largest(x, mask):
        return jnp.argmax(x if mask is None else jnp.where(mask, x, -jnp.inf), -1)

    if set(action) == {"num"}:
        num = operator.index(action["num"])
        if not 1 <= num <= 2**20:
            raise ConfigError(f"action={action}: no number of actions")
        return num, largest
    if set(action) != {"low", "high"}:
        raise ConfigError(f"action={action}: expected num, or low and high")
    low, high = (np.asarray(action[x], np.float32) for x in ("low", "high"))
    if low.shape != high.shape or low.ndim != 1 or not 1 <= len(low) <= 4096:
        raise ConfigError(f"action={action}: bounds are no vectors of one length")
    if not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
        raise ConfigError(f"action={action}: bounds must be finite, low < high")
    to_env, _ = envs.unit_box(envs.Box(low.shape, low, high))
    return len(low), lambda x, mask: to_env(jnp.tanh(x))


def _actions(env: envs.Env) -> dict[str, Any]:
    """The setting `action` of `policy` for an environment."""
    if isinstance(env.action, envs.Discrete):
        return {"num": env.action.num}
    low, high = (
        np.broadcast_to(np.float32(x), env.action.shape)
        for x in (env.action.low, env.action.high)
    )
    return {"low": low, "high": high}


def of(env: envs.Env, config: Any) -> Learned:
    """The policy of an algorithm's Config on `env`, by its `features`, `activation`.

    Raises:
        ConfigError: such a policy does not fit them.
    """
    action = _actions(env)
    try:
        return policy(env.observation.shape, action, config.features, config.activation)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a policy for env={env.name!r}, inner.{error}") from None


def space(env: envs.Env, config: Any) -> Space:
    """Policies for the slot `actor`: params {"actor": parameters of `of`}.

    Raises:
        ConfigError: as `of`.
    """
    actor = of(env, config)
    return Space(
        init=lambda key: {"actor": actor.init(key)},
        bind=lambda params, meta: slots.replace(meta, **params),
        spec={"actor": dict(actor.spec)},
    )


# --- the meta-policy of a matrix game -------------------------------------------------


def _shaper_portrait(op: Mapping[str, Any]) -> Portrait:
    size = op["num_situations"]
    situations = "start", "CC", "CD", "DC", "DD"
    names = situations if size == 5 else [str(i) for i in range(size)]

    def panel(whose: str) -> Curve:
        def of(play, p, context):
            moved = jnp.repeat(jnp.log(p / (1 - p))[:, None], size, 1)
            both = moved, jnp.zeros_like(moved)
            own, other = both if whose == "own" else both[::-1]
            return jax.nn.sigmoid(play(own, other, context))

        axis = Axis(f"{whose} probability of the first move", 0.01, 0.99, num=41)
        return Curve(axis, "next probability", of, names, (-0.02, 1.02))

    return Portrait(
        (panel("other's"), panel("own")),
        "The probabilities of the first move that it plays next in each situation, by "
        "one player's last policy. That player has the same probability in all "
        "situations, and the other 0.5.",
    )


@operation(
    "shaper",
    slot="shaper",
    portrait=_shaper_portrait,
    shapes=lambda op: dict.fromkeys(("own", "other"), ("n", op["num_situations"])),
    for_env=lambda game: {"num_situations": game.num_situations},
    examples=(
        {"num_situations": 5, "features": (8,), "scale": 4.0},
        {"num_situations": 1, "features": (8,), "scale": 2.0, "uncentered": True},
    ),
)
def shaper(
    num_situations: int = 5,
    features: Sequence[int] = (16,),
    scale: float = 4.0,
    uncentered: bool = False,
) -> Learned:
    """A player that chooses its next policy by the two policies just played.

    The meta-policy of M-FOS (Lu et al., 2022, https://arxiv.org/abs/2205.01447),
    `(params, own [..., n], other [..., n], context) -> [..., n]`: logits to logits. Its
    input is 2 p - 1 of all 2 n probabilities p, or p itself, its output `scale` times
    that of a tanh network with a linear last layer. It starts at even odds.

    Args:
        num_situations: n, logits of a policy, at least 1.
        features: sizes of the hidden layers, at most 8.
        scale: factor of the outputs, > 0. Logits of 4 are probabilities of 0.98.
        uncentered: True for inputs p, as in the authors' code.

    Raises:
        ValueError, TypeError: a setting has a wrong type or value.
    """
    size = whole(1, 4096, num_situations=num_situations)
    positive(scale=scale)
    net = network(2 * size, features, size)

    def apply(params, own, other, context=None):
        del context
        both = jnp.concatenate([own, other], -1)
        seen = jax.nn.sigmoid(both) if uncentered else jnp.tanh(both / 2)
        return scale * net.apply(params, seen)  # tanh(x / 2) is 2 sigmoid(x) - 1

    return Learned(net.init, apply, {"scale": float(scale)})
