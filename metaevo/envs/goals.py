"""Goals: rewards for being somewhere, in an environment whose agents know of none.

They are what a sender of messages is scored by that steers a trained agent
(Lu et al., 2023, https://arxiv.org/abs/2211.11030, "test-time" control).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo.envs import Env, around, rendering
from metaevo.errors import ConfigError
from metaevo.types import Key

__all__ = ["GOALS", "Goal", "GoalState", "of", "with_goal"]


class Goal(NamedTuple):
    """A distribution of goals.

    Attributes:
        draw: `key -> goal`, [G] float32.
        reward: `(obs, goal) -> scalar` in [0, 1], 1 at the goal.
        units: typical sizes of a goal's components, [G].
        place: `goal -> (x, y)` in pictures, see `rendering.mark`.
    """

    draw: Callable[[Key], jax.Array]
    reward: Callable[[jax.Array, jax.Array], jax.Array]
    units: tuple[float, ...]
    place: Callable[[Any], tuple[float, float]]


class GoalState(NamedTuple):
    """The state of an environment with a goal, which stays for an episode."""

    state: Any
    goal: jax.Array  # [G]


def _near(obs: jax.Array, goal: jax.Array) -> jax.Array:
    """exp(−|o − g|²) of an observation's first components, as many as a goal has."""
    return jnp.exp(-((obs[: len(goal)] - goal) ** 2).sum())


def _direction(key: Key) -> jax.Array:
    """Cosine and sine of an angle that is uniform on the circle."""
    angle = jax.random.uniform(key, (), minval=-math.pi, maxval=math.pi)
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)])


_TRACK = 2.4  # half the length of CartPole's track, beyond which an episode ends

GOALS: dict[str, Goal] = {
    # The cart's position.
    "gymnax/CartPole-v1": Goal(
        lambda key: jax.random.uniform(key, (1,), minval=-_TRACK, maxval=_TRACK),
        _near,
        (_TRACK,),
        lambda goal: (1.4 * float(goal[0]) / _TRACK, -0.62),
    ),
    # Cosine and sine of the pendulum's angle, as it observes them.
    "gymnax/Pendulum-v1": Goal(
        _direction,
        _near,
        (1.0, 1.0),
        lambda goal: (-0.8 * float(goal[1]), 0.8 * float(goal[0])),
    ),
}
"""Goals by the name of an environment."""


def of(env: Env) -> Goal:
    """The goals in `env`.

    Raises:
        ConfigError: there are none for it.
    """
    name = env.name.partition("?")[0]  # without the parameters of its tasks
    if name not in GOALS:
        raise ConfigError(
            f"env={env.name!r}: no goals are known there; expected one of "
            f"{', '.join(GOALS)}"
        )
    return GOALS[name]


def with_goal(env: Env, goal: Goal) -> Env:
    """`env` with a goal in its state and the goal's reward in place of its own.

    Observations, transitions and ends stay the same: who acts does not see the goal.
    Pictures show it. `at` gives the environment of a task as `env.at` does, without the
    goal.
    """
    draw = env.render

    def reset(key):
        env_key, goal_key = jax.random.split(key)
        state, obs = env.reset(env_key)
        return GoalState(state, goal.draw(goal_key)), obs

    def step_raw(key, state, action):
        inner, out = env.step_raw(key, state.state, action)
        out = out._replace(reward=goal.reward(out.final_obs, state.goal))
        return GoalState(inner, state.goal), out

    def render(states):
        assert draw is not None
        frames = draw([x.state for x in states])
        return [
            rendering.mark(frame, goal.place(x.goal))
            for frame, x in zip(frames, states, strict=True)
        ]

    return around(
        env,
        reset,
        step_raw,
        name=f"{env.name} with a goal",
        render=None if draw is None else render,
    )
