"""Rewards that an agent learns from: values of the `reward` slot.

`(obs, action, reward, next_obs, terminated, context) -> scalar`, one transition;
`context.stats` holds `gamma`, the agent's discount. Fitness is always on the
environment's own reward.

A reward is a function of one transition: it has no memory. Bonuses that need one
(counts of visits, the error of a predictor that learns, an episode's past) do not fit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import envs, schedules, slots
from metaevo.errors import ConfigError
from metaevo.learned import functions
from metaevo.learned.functions import Learned, layers, network, positive, whole
from metaevo.learned.operations import operation
from metaevo.learned.portraits import LIFETIME, Curve, Portrait, Strongest

__all__ = ["free", "identity", "impact", "potential", "sizes", "units"]

LARGEST = 10.0  # largest component of an input, in its units

MAY_CHANGE = "may change optimum"
"""The label of rewards under which another policy may be best."""


@slots.function
def identity(obs, action, reward, next_obs, terminated, context=None):
    """The environment's own reward."""
    del obs, action, next_obs, terminated, context
    return reward


# --- learned --------------------------------------------------------------------------


def _shapes(op: Mapping[str, Any]) -> dict[str, tuple]:
    """Shapes of the inputs, by an operation's settings; n transitions."""
    ((kind, width),) = op.get("action", {"num": 0}).items()
    observation = ("n", len(op["units"]))
    action = ("n",) if kind == "num" else ("n", width)
    return {"obs": observation, "action": action, "next_obs": observation}


def units(env: envs.Env) -> list[float]:
    """The typical size of each component of an observation, flattened.

    Half the distance between its bounds; 1 where they are further than 2000 apart.
    """
    low, high = (
        np.broadcast_to(np.float64(x), env.observation.shape).ravel()
        for x in (env.observation.low, env.observation.high)
    )
    half = high / 2 - low / 2
    return np.where((half > 0) & (half <= 1000), half, 1.0).tolist()


def _components(op: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The components of an observation by name, and their units."""
    return {f"{prefix}{i}": unit for i, unit in enumerate(op["units"])}


def _potential_portrait(op: Mapping[str, Any]) -> Portrait:
    def phi(reward, obs, context):
        def end(o):  # the rest of a step into the end of an episode
            return -reward(o, jnp.zeros(()), 0.0, o, jnp.bool(True), context)

        return jax.vmap(end)(obs)

    return Portrait(
        (Strongest("component", _components(op), "potential", phi),),
        "An agent is paid for climbing the potential, and pays when it falls. At the "
        "start it is 0 everywhere. Last: how much it changes when one component, drawn "
        "within ±1 unit, is replaced by another's.",
    )


@operation(
    "potential",
    slot="reward",
    hand_made=identity,
    portrait=_potential_portrait,
    shapes=_shapes,
    for_env=lambda env: {"units": units(env)},
    guarantees=lambda op: ("potential", "bounded"),
    facts=lambda op, params: {
        "bound": 2 * _largest_potential(op, params),
        "largest_potential": _largest_potential(op, params),
    },
    examples=({"units": [1.0, 0.5]}, {"units": [1.0, 0.5], "limit": 2.0}),
)
def potential(
    units: Sequence[float],
    features: Sequence[int] = (32, 32),
    scale: float = 1.0,
    gamma: float = 0.99,
    limit: float | None = None,
) -> Learned:
    """r' = r + γ (1 − terminated) Φ(o') − Φ(o): the best policies stay the best.

    Φ(o) = scale · n(o / units), n a small tanh network that starts at zero. After an
    episode's end there is nothing, Φ = 0; a time limit is not one, and has the
    potential of the true last observation. |Φ| is at most scale times the sum of the
    last layer's |weights|, `functions.largest`, whatever the observation.

    Args:
        units: typical sizes of the components of an observation, flattened; `units`.
        features: hidden layer sizes.
        scale: typical size of a return.
        gamma: γ if the context has none; an artifact has that of the algorithm in which
            it evolved.
        limit: of |Φ|: n is divided by what its weights allow above limit / scale. An
            agent that normalizes advantages does not feel the size of Φ, so there it
            grows; others do. None: there is no limit.

    Raises:
        ValueError, TypeError: a setting has a wrong type or value.

    References:
        Ng, Harada and Russell, 1999, "Policy invariance under reward transformations".
    """
    size = sizes(units)
    positive(scale=scale)
    if limit is not None:
        positive(limit=limit)
    if not isinstance(gamma, int | float) or not 0 <= gamma <= 1:
        raise ConfigError(f"gamma={gamma!r} is not in [0, 1]")
    net, last = network(len(size), features), len(layers(features))

    def phi(params, obs):
        value = scale * net.apply(params, _scaled(obs, size))[0]
        if limit is None:
            return value
        weights = params[f"w{last}"], params[f"b{last}"]
        largest = scale * sum(jnp.abs(x).sum() for x in weights)
        return value / jnp.maximum(largest / limit, 1.0)

    def apply(params, obs, action, reward, next_obs, terminated, context=None):
        del action
        discount = (context.stats if context else {}).get("gamma", gamma)
        after = jnp.where(terminated, 0.0, phi(params, next_obs))
        return reward + discount * after - phi(params, obs)

    return Learned(net.init, apply, {"units": size.tolist()}, True)


def _largest_potential(op: Mapping[str, Any], params: Any) -> float:
    """Return the bound of |Φ| of a member."""
    return min(op["scale"] * functions.largest(params), op.get("limit", math.inf))


def _free_portrait(op: Mapping[str, Any]) -> Portrait:
    ((kind, width),) = op["action"].items()
    size, did = len(op["units"]), ["a"]
    if kind == "size":
        did = [f"a{i}" for i in range(width)]

    def paid(reward, x, context):
        def one(x):
            obs, after, own, action = jnp.split(x, (size, 2 * size, 2 * size + 1))
            if kind == "num":
                action = jnp.int32((action[0] + 1) / 2 * width).clip(0, width - 1)
            return reward(obs, action, own[0], after, jnp.bool(False), context)

        return jax.vmap(one)(x)

    inputs = _components(op, "o") | _components(op, "o'")
    return Portrait(
        (Strongest("input", inputs | dict.fromkeys(["r", *did], 1.0), "pay", paid),),
        "What a transition pays, and how much that changes when one component of the "
        "observation before (o) or after it (o'), the action (a), or the environment's "
        "reward (r), drawn within ±1 unit, is replaced by another's. In the middle of "
        "a lifetime. It may change the optimum.",
    )


@operation(
    "free_reward",
    slot="reward",
    hand_made=identity,
    portrait=_free_portrait,
    shapes=_shapes,
    for_env=lambda env: {"units": units(env), "action": kind_of(env)},
    guarantees=lambda op: ("bounded",),
    facts=lambda op, params: {
        "bound": op["scale"] * functions.largest(params["network"])
    },
    examples=(
        {"units": [1.0, 0.5], "action": {"num": 3}},
        {"units": [1.0, 0.5], "action": {"size": 2}},
    ),
)
def free(
    units: Sequence[float],
    action: Mapping[str, int],
    features: Sequence[int] = (32, 32),
    scale: float = 1.0,
    temporal: bool = False,
) -> Learned:
    """r' = eˢ r + scale · n(o / units, a, o' / units): may change the optimum.

    n is a small tanh network that starts at zero, and so does s.

    Args:
        units, features: as in `potential`.
        action: `{"num": N}` if discrete, `{"size": A}` if continuous; `kind_of`.
        scale: typical size of a reward.
        temporal: True if n also sees `context.progress`.

    Raises:
        ValueError, TypeError: a setting has a wrong type or value.
    """
    size = sizes(units)
    positive(scale=scale)
    (kind, width), *more = action.items()
    width = operator.index(width)
    if more or kind not in ("num", "size") or not 1 <= width <= 2**16:
        raise ConfigError(f"action={action}: expected num or size, in [1, {2**16}]")
    net = network(2 * len(size) + width + bool(temporal), features)

    def init(key):
        return {"network": net.init(key), "log_scale": jnp.zeros(())}

    def apply(params, obs, action, reward, next_obs, terminated, context=None):
        del terminated
        did = jax.nn.one_hot(action, width) if kind == "num" else jnp.ravel(action)
        x = [_scaled(obs, size), jnp.clip(did, -LARGEST, LARGEST)]
        x += [_scaled(next_obs, size)]
        x += [functions.progress(context)[None]] if temporal else []
        added = net.apply(params["network"], jnp.concatenate(x))[0]
        return jnp.exp(jnp.clip(params["log_scale"], -10, 10)) * reward + scale * added

    return Learned(init, apply, {"units": size.tolist(), "label": MAY_CHANGE}, True)


def kind_of(env: envs.Env) -> dict[str, int]:
    """The kind and the size of an environment's actions, for `free`."""
    if isinstance(env.action, envs.Discrete):
        return {"num": env.action.num}
    return {"size": math.prod(env.action.shape)}


def _largest_impact(op: Mapping[str, Any], params: Any) -> float:
    """The largest bonus: of the largest knot, and all components changed by ±10."""
    weights = np.exp(np.clip(np.float64(params["log_weights"]), -10, 10))
    change = float(np.sqrt(((LARGEST * weights) ** 2).mean()))
    return op["scale"] * float(np.abs(np.float64(params["strength"])).max()) * change


def _impact_portrait(op: Mapping[str, Any]) -> Portrait:
    unit = jnp.asarray(op["units"])

    def paid(reward, change, context):
        nothing = jnp.zeros_like(change)
        return reward(nothing, nothing, 0.0, change, jnp.bool(False), context)

    def over_life(reward, progress, context):
        def at(t):
            return paid(reward, unit, context._replace(progress=t))

        return jax.vmap(at)(progress)

    def each(reward, changes, context):
        return jax.vmap(lambda change: paid(reward, change, context))(changes)

    return Portrait(
        (
            Curve(LIFETIME, "pay for a change of one unit", over_life),
            Strongest("component", _components(op), "pay", each),
        ),
        "What an agent is paid for changing what it observes, in units, beside the "
        "environment's reward; a pay of 0 hands the task back unchanged. Left: for a "
        "change of one unit in each component. Right: in the middle of a lifetime.",
    )


@operation(
    "impact",
    slot="reward",
    hand_made=identity,
    portrait=_impact_portrait,
    shapes=_shapes,
    reads=lambda op: ("progress",),
    for_env=lambda env: {"units": units(env)},
    guarantees=lambda op: ("bounded",),
    facts=lambda op, params: {"bound": _largest_impact(op, params)},
    examples=({"units": [1.0, 0.5], "num_knots": 3},),
)
def impact(units: Sequence[float], num_knots: int = 2, scale: float = 1.0) -> Learned:
    """r' = r + β(τ) |w ⊙ (o' − o) / units|: a bonus for changes of the observation.

    |·| is the root of the mean square over components, β piecewise linear in the
    progress τ with knots that start at zero, and log w starts at zero. It may change
    the optimum while β is not zero; a last knot of zero gives the task back its own.

    Args:
        units: as in `potential`.
        num_knots: of β, at least 2.
        scale: typical size of a reward.

    Raises:
        ValueError, TypeError: a setting has a wrong type or value.

    References:
        Raileanu and Rocktäschel, 2020, https://arxiv.org/abs/2002.12292 (RIDE), whose
        bonus is taken between learned features and divided by counts of an episode's
        states. Neither is a function of one transition.
    """
    size = sizes(units)
    positive(scale=scale)
    num_knots = whole(2, 1000, num_knots=num_knots)

    def init(key):
        del key
        return {"strength": jnp.zeros(num_knots), "log_weights": jnp.zeros(len(size))}

    def apply(params, obs, action, reward, next_obs, terminated, context):
        del action, terminated
        beta = schedules.basis(context.progress, num_knots, 1) @ params["strength"]
        change = _scaled(next_obs - obs, size)
        change = jnp.exp(jnp.clip(params["log_weights"], -10, 10)) * change
        return reward + scale * beta * jnp.sqrt((change**2).mean())

    return Learned(init, apply, {"units": size.tolist(), "label": MAY_CHANGE}, True)


def _scaled(obs: jax.Array, units: np.ndarray) -> jax.Array:
    """An observation flattened, in its units, clipped to ±10."""
    return jnp.clip(jnp.ravel(obs) / units, -LARGEST, LARGEST)


def sizes(units: Sequence[float]) -> np.ndarray:
    """The setting `units` of a function, checked: [n], float32.

    Raises:
        ValueError: it is no sequence of positive numbers.
    """
    found = np.asarray(units, np.float32)
    if (
        found.ndim != 1
        or not len(found)
        or not (np.isfinite(found) & (found > 0)).all()
    ):
        raise ConfigError(
            f"units={units!r}: expected positive numbers, one a component"
        )
    return found
