"""Potentials of MountainCar that a person would write, and observations in [-1, 1].

Agents that do not scale observations hardly see MountainCar's speeds, which are below
0.07. `benchmarks.strangers` trains them in `in_units`, with rewards by `of_units`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from metaevo import envs, slots
from metaevo.envs import Env


def height(obs, action, reward, next_obs, terminated, context):
    """The reward with the car's height as a potential, as large as the evolved ones."""
    del action

    def potential(obs):
        return 30.0 * jnp.sin(3 * obs[0])

    after = jnp.where(terminated, 0.0, potential(next_obs))
    return reward + context.stats["gamma"] * after - potential(obs)


class InUnits(NamedTuple):
    """The state of an environment whose observations are scaled."""

    state: Any


def _units(env: Env) -> tuple[np.ndarray, np.ndarray]:
    """Middle of each component of an observation, and half its range."""
    low, high = (np.asarray(x, np.float32) for x in env.observation[1:3])
    return (low + high) / 2, (high - low) / 2


def in_units(env: Env) -> Env:
    """`env` with observations in [-1, 1]."""
    middle, unit = _units(env)

    def reset(key):
        state, obs = env.reset(key)
        return InUnits(state), (obs - middle) / unit

    def step_raw(key, state, action):
        inner, out = env.step_raw(key, state.state, action)
        obs, final_obs = ((x - middle) / unit for x in (out.obs, out.final_obs))
        return InUnits(inner), out._replace(obs=obs, final_obs=final_obs)

    ends = np.full_like(unit, -1.0), np.full_like(unit, 1.0)
    box = env.observation._replace(low=ends[0], high=ends[1])
    return envs.around(env, reset, step_raw, observation=box)


def of_units(env: Env, reward: slots.Slot) -> slots.Slot:
    """A reward of `in_units(env)` by one of raw observations."""
    middle, unit = _units(env)

    @slots.function
    def scaled(obs, action, reward_of_env, next_obs, terminated, context):
        raw, raw_next = (x * unit + middle for x in (obs, next_obs))
        return reward(raw, action, reward_of_env, raw_next, terminated, context)

    return scaled
