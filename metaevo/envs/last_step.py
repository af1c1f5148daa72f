"""The last action and the last reward, kept in an environment's state.

A recurrent agent may see both beside the observation (Kapturowski et al., 2019,
https://openreview.net/forum?id=r1lyTjAqYX). Observations stay what they are, so a
replay buffer can keep binary ones as bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo.envs import Discrete, Env, around
from metaevo.errors import ConfigError

__all__ = ["NO_ACTION", "LastStep", "with_last_step"]

NO_ACTION = -1
"""The last action where an episode begins."""


class LastStep(NamedTuple):
    """The state of an environment, and what led to it.

    Attributes:
        state: of the environment itself.
        action: int32, the last action; `NO_ACTION` where an episode begins.
        reward: float32, the last reward; 0 where an episode begins.
    """

    state: Any
    action: jax.Array
    reward: jax.Array


def with_last_step(env: Env) -> Env:
    """`env` with states that are `LastStep`s.

    Observations, rewards and ends stay the same. `at` gives the environment of a task
    as `env.at` does, without the last step.

    Raises:
        ConfigError: actions are continuous, or there are several players.
    """
    if not isinstance(env.action, Discrete) or env.num_players > 1:
        raise ConfigError(
            f"env={env.name!r}: the last action and reward are kept of discrete "
            "actions of one player"
        )

    def reset(key):
        state, obs = env.reset(key)
        return LastStep(state, jnp.int32(NO_ACTION), jnp.float32(0.0)), obs

    def step_raw(key, state, action):
        inner, out = env.step_raw(key, state.state, action)
        return LastStep(inner, jnp.asarray(action, jnp.int32), out.reward), out

    return around(env, reset, step_raw)
