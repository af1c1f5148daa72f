"""Environments whose rewards come at the end: `sparse/gymnax/CartPole-v1`.

The sum of an episode's rewards is paid with its last step, and nothing before, so that
returns of episodes stay what they are. That step terminates the episode, at a time
limit too: what was paid in full has no value behind it to bootstrap from. The sum so
far, divided by the time limit, is one more component of an observation: without it what
is to come cannot be told from what was. RLlib's CartPole for AlphaZero has the rewards,
not the component.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import envs
from metaevo.errors import ConfigError

__all__ = ["SparseState", "make", "names", "paid_at_end"]


class SparseState(NamedTuple):
    """The state of an environment, and what its episode has earned."""

    state: Any
    earned: jax.Array  # scalar


# Environments of gymnax that observe images or tables; to make all takes seconds.
_NO_VECTORS = (
    *(f"{x}-MinAtar" for x in ("Asterix", "Breakout", "Freeway", "Seaquest")),
    *("SpaceInvaders-MinAtar", "Pong-misc"),
    *(f"{x}-bsuite" for x in ("Catch", "DeepSea", "SimpleBandit")),
)


def names() -> list[str]:
    """Those of gymnax that observe vectors, as names of this suite; others work too."""
    every = envs.suite("gymnax").names()
    return [f"gymnax/{name}" for name in every if name not in _NO_VECTORS]


def make(name: str) -> envs.Env:
    """The environment of another suite, `SUITE/NAME`, with its rewards at the end.

    Raises:
        ConfigError: there is no such environment, or it has several players.
    """
    return paid_at_end(envs.inner("sparse", name, "gymnax/CartPole-v1"))


def paid_at_end(env: envs.Env) -> envs.Env:
    """`env` with an episode's rewards as one sum, given with its last step.

    Raises:
        ConfigError: `env` has several players, or its observations are no vectors.
    """
    shape = env.observation.shape
    if env.num_players > 1 or env.player is not None or len(shape) != 1:
        raise ConfigError(
            f"env='sparse/{env.name}': expected an environment of one player whose "
            f"observations are vectors; {env.num_players} players, shape {shape}"
        )
    at = env.at
    low, high = (jnp.broadcast_to(x, shape) for x in env.observation[1:3])

    def seen(obs, earned):
        return jnp.append(obs, earned / env.max_steps)

    def reset(key):
        state, obs = env.reset(key)
        return SparseState(state, jnp.float32(0.0)), seen(obs, 0.0)

    def step_raw(key, state, action):
        inner, out = env.step_raw(key, state.state, action)
        earned = state.earned + out.reward
        final_obs = seen(out.final_obs, earned)
        return SparseState(inner, earned), out._replace(
            obs=final_obs,
            final_obs=final_obs,
            reward=jnp.where(out.done, earned, 0.0),
            terminated=out.done,
            truncated=jnp.zeros_like(out.done),
        )

    return envs.around(
        env,
        reset,
        step_raw,
        observation=envs.Box(
            (shape[0] + 1,), jnp.append(low, -jnp.inf), jnp.append(high, jnp.inf)
        ),
        name=f"sparse/{env.name}",
        at=None if at is None else lambda params: paid_at_end(at(params)),
    )
