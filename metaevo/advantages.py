"""Advantages over time, and weights of actions that another policy took.

Values of the slot `advantage`, `(reward, value, next_value, log_ratio, terminated,
done, context) -> [T, ...]`, of a rollout's arrays [T, ...]: what the gradient of the
policy is weighted by. The first axis is time, others are environments. The critic's
targets are not the slot's: a critic that learned from what it is measured by could run
away.

* `value` and `next_value` are the critic's, of the observation and of the true one that
  followed it, never of a reset's.
* `log_ratio` is log π(a|o) / μ(a|o), of the policy that learns to the one that acted.
* `terminated` cuts the bootstrap, `done` (terminated or truncated) cuts the trace.
* `context.stats` holds the algorithm's `gamma` and `gae_lambda`, and in IMPALA
  `rho_clip`, `c_clip`, `pg_clip` and `leak`; `context.return_std` is the deviation of
  the critic's targets.

Values of the slot `correction`, `(log_ratio, context) -> [...]`, elementwise: the
weight of an action of which the policy that learns has e^`log_ratio` times the
probability of the one that acted, where weights are truncated at 1. An algorithm that
truncates them at c takes c f(log_ratio − log c).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from metaevo import slots
from metaevo.learned import functions
from metaevo.learned.functions import (
    Learned,
    above_one,
    layers,
    name_of,
    softsign,
    whole,
)
from metaevo.learned.operations import operation
from metaevo.rl import returns
from metaevo.slots import Context

__all__ = [
    "clipped",
    "discounted_return",
    "generalized",
    "monotone_correction",
    "recurrent",
    "unweighted",
    "vtrace",
]


# --- hand-made ------------------------------------------------------------------------


@slots.function
def generalized(
    reward, value, next_value, log_ratio, terminated, done, context: Context
):
    """Generalized advantage estimation (Schulman et al., 2016); ignores `log_ratio`."""
    del log_ratio
    gamma, trace = _decays(context)
    return returns.generalized_advantage(
        reward, value, next_value, _flag(terminated), _flag(done), gamma, trace
    )


@slots.function
def vtrace(reward, value, next_value, log_ratio, terminated, done, context: Context):
    """Advantages of V-trace (Espeholt et al., 2018).

    Where `context.stats` has no clips, the weights are not truncated: where `log_ratio`
    is 0 as well, these are generalized advantages. As in IMPALA the weight of the trace
    is truncated at `rho_clip` too. The slot `correction` has no part in them.
    """
    gamma, trace = _decays(context)
    rho_clip, c_clip, pg_clip = (context.stats.get(x, jnp.inf) for x in _CLIPS)
    clips = rho_clip, jnp.minimum(c_clip, rho_clip), pg_clip
    leak = context.stats.get("leak", 0.0)
    ratio = returns.importance_ratio(log_ratio)
    weights = [returns.vtrace_weight(ratio, clip, leak) for clip in clips]
    return returns.vtrace(
        *(reward, value, next_value, _flag(terminated), _flag(done)),
        *(gamma, trace, *weights),
    ).advantage


@slots.function
def discounted_return(
    reward, value, next_value, log_ratio, terminated, done, context: Context
):
    """The return itself, without a baseline: the plain policy gradient.

    Gₜ = rₜ + γ Gₜ₊₁, with the critic's value where a time limit or the rollout's end
    cuts it (Williams, 1992, REINFORCE, with whole episodes).
    """
    del value, log_ratio
    gamma, _ = _decays(context)
    return returns.lambda_return(
        reward, next_value, _flag(terminated), _flag(done), gamma, 1.0
    )


_CLIPS = ("rho_clip", "c_clip", "pg_clip")
HAND_MADE: Mapping[str, Partial] = {"generalized": generalized, "vtrace": vtrace}
"""Advantages that a learned one may start as."""


def _decays(context: Context | None) -> tuple[Any, Any]:
    """γ and λ of the algorithm.

    Raises:
        ValueError: the context has none.
    """
    try:
        return context.stats["gamma"], context.stats["gae_lambda"]  # pyright: ignore
    except (AttributeError, KeyError):
        raise ValueError(
            "an advantage needs the discount and the trace decay of its algorithm: "
            "call it with context=metaevo.Context(stats={'gamma': ..., 'gae_lambda': "
            "...})"
        ) from None


def _flag(x: Any) -> jax.Array:
    """A flag, which a program outside of JAX may hold as a number."""
    return jnp.asarray(x) != 0


# --- learned --------------------------------------------------------------------------

LIMIT = 3.0  # of the network's outputs


def _reads(op: Mapping[str, Any]) -> tuple[str, ...]:
    numbers = ("gamma", "gae_lambda")
    if op["base"] == "vtrace":
        numbers += (*_CLIPS, "leak")
    return ("return_std", *numbers)


@operation(
    "recurrent_advantage",
    slot="advantage",
    hand_made=HAND_MADE,
    reads=_reads,
    examples=({}, {"base": "vtrace", "hidden": 4, "features": (8,)}),
)
def recurrent(
    base: Partial | str = "generalized",
    hidden: int = 8,
    features: tuple[int, ...] = (16,),
    temporal: bool = False,
) -> Learned:
    """A small GRU that goes backward in time over a hand-made advantage.

    Aₜ = bₜ eᵘ + s w, with the hand-made advantage b, s = `context.return_std` held
    constant, and (u, w) within ±3 from a tanh network on the GRU's memory. The network
    starts at zero, which is b. The memory comes from the steps after t of the same
    episode, and is 0 behind its end. The GRU sees b / s, the one-step error δ / s and
    `log_ratio`, each as x / (1 + |x|), and `terminated` and `done`. So A scales with
    rewards as b does.

    Args:
        base: `generalized` or `vtrace`, or its name.
        hidden: units of the GRU.
        features: hidden layer sizes of the network on its memory.
        temporal: True if the GRU also sees `context.progress`.

    Raises:
        ValueError: a setting has a wrong type or value. The function raises it where
            the context lacks what it reads.

    References:
        Oh et al., 2020, https://arxiv.org/abs/2007.08794 (LPG), whose backward network
        gives the policy's targets without a hand-made advantage in them.
    """
    base = name_of(base, HAND_MADE)
    layers([hidden], "hidden")
    given = HAND_MADE[base]
    cell = functions.gru(5 + bool(temporal), hidden)
    head = functions.network(hidden, features, 2)

    def init(key):
        head_key, *keys = jax.random.split(key, 5)
        return {"gru": cell.init(keys), "head": head.init(head_key)}

    def apply(
        params, reward, value, next_value, log_ratio, terminated, done,
        context: Context | None = None,
    ):  # fmt: skip
        if temporal:
            functions.progress(context)  # without a context its error is the first
        std, (gamma, _) = functions.return_std(context), _decays(context)
        terminated, done = _flag(terminated), _flag(done)
        advantage = given(
            reward, value, next_value, log_ratio, terminated, done, context
        )
        error = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
        seen = [softsign(x) for x in (advantage / std, error / std, log_ratio)]
        seen += [jnp.asarray(x, advantage.dtype) for x in (terminated, done)]
        x = functions.inputs(seen, temporal, context)

        def step(memory, at):
            x, done = at
            memory = jnp.where(jnp.expand_dims(done, -1), 0.0, memory)
            memory = cell.apply(params["gru"], x, memory)
            return memory, memory

        first = jnp.zeros((*x.shape[1:-1], hidden), x.dtype)
        memories = jax.lax.scan(step, first, (x, done), reverse=True)[1]
        out = LIMIT * jnp.tanh(head.apply(params["head"], memories) / LIMIT)
        gain, added = jnp.unstack(out, axis=-1)
        return advantage * jnp.exp(gain) + std * added

    return Learned(init, apply, {"base": base}, starts_hand_made=True)


# --- importance weights ---------------------------------------------------------------

FAR = 1e3  # beyond it every weight is 0 or 1


@slots.function
def clipped(log_ratio, context=None):
    """min(1, ratio): V-trace (Espeholt et al., 2018)."""
    del context
    return jnp.exp(jnp.minimum(log_ratio, 0.0))


@slots.function
def unweighted(log_ratio, context=None):
    """1: as if the policy that learns had acted; the control of a correction."""
    del context
    return jnp.ones_like(log_ratio)


@operation(
    "monotone_correction",
    slot="correction",
    hand_made=clipped,
    guarantees=lambda op: ("between",),
    examples=({}, {"num_cells": 2, "largest": 4.0}),
)
def monotone_correction(num_cells: int = 6, largest: float = 8.0) -> Learned:
    """A weight eᵍ of x = `log_ratio`, g piecewise linear, that starts as `clipped`.

    g(0) = 0, and its slope is one number in [0, 1] in each of `num_cells` cells on both
    sides of 0, up to ± log `largest`. Below, the last slope goes on; above, g is
    constant. At the start slopes are 1 below 0 and 0 above it. So the weight never
    falls with the ratio, lies between 1 and the ratio, is 1 where both policies agree,
    and is at most `largest`; a smaller clip gives a smaller weight.

    Args:
        num_cells: cells on each side, 1 to 64.
        largest: > 1.

    Raises:
        ValueError: a setting has a wrong type or value.
    """
    above_one(largest=largest)
    num_cells = whole(1, 64, num_cells=num_cells)
    width = math.log(largest) / num_cells
    edges = width * np.arange(num_cells)
    above = np.full(num_cells, width)
    below = np.append(above[1:], FAR)

    def init(_):
        return {"above": jnp.zeros(num_cells), "below": jnp.zeros(num_cells)}

    def covered(distance, widths):
        """The part of each cell within a distance, [..., num_cells]."""
        inside = jnp.expand_dims(distance, -1) - jnp.asarray(edges, distance.dtype)
        return jnp.clip(inside, 0.0, jnp.asarray(widths, distance.dtype))

    def apply(params, log_ratio, context=None):
        del context
        x = jnp.asarray(log_ratio, jnp.result_type(float))
        rise = (jnp.clip(params["above"], 0.0, 1.0) * covered(x, above)).sum(-1)
        fall = (jnp.clip(1 + params["below"], 0.0, 1.0) * covered(-x, below)).sum(-1)
        return jnp.exp(rise - fall)

    return Learned(init, apply, starts_hand_made=True)
