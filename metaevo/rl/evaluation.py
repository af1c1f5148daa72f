"""Evaluation of one trained agent on fresh episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from metaevo import envs
from metaevo.envs import Env
from metaevo.types import InnerState, Key, Metrics, PyTree

__all__ = ["first_episodes", "of_agent"]


def first_episodes(
    key: Key,
    env: Env,
    act: Callable[..., tuple[jax.Array, PyTree]],
    carry: PyTree,
    num_envs: int,
) -> Metrics:
    """Mean return and length of the first episode of each of `num_envs` environments.

    Counting all episodes of a fixed window instead would favor short ones. Of several
    players, who all act by `act`, the return is the mean.

    Args:
        act: `(key, carry, obs, state, mask) -> (action, carry)` for one environment;
            see `InnerLoop.act`.
        carry: the agent's initial carry for one environment.

    Returns:
        scalars `return` and `length`.
    """
    reset_key, run_key = jax.random.split(key)
    env_state, obs = jax.vmap(env.reset)(jax.random.split(reset_key, num_envs))
    seats = () if env.num_players == 1 else (env.num_players,)
    carry = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (num_envs, *seats, *jnp.shape(x))), carry
    )
    everyone = envs.each_player(env, act)
    alive = jnp.ones(num_envs, bool)
    totals = jnp.zeros(num_envs), jnp.zeros(num_envs)

    def one(key, env_state, carry, obs):
        act_key, step_key = jax.random.split(key)
        mask = envs.legal_actions(env, env_state)
        action, carry = everyone(act_key, carry, obs, env_state, mask)
        env_state, step = env.step_raw(step_key, env_state, action)
        return env_state, carry, step

    def advance(state, key):
        env_state, carry, obs, alive, (returns, lengths) = state
        keys = jax.random.split(key, num_envs)
        env_state, carry, step = jax.vmap(one)(keys, env_state, carry, obs)
        reward = step.reward if env.num_players == 1 else step.reward.mean(-1)
        returns = returns + jnp.where(alive, reward, 0.0)
        lengths = lengths + alive
        alive = alive & ~step.done
        return (env_state, carry, step.obs, alive, (returns, lengths)), None

    start = (env_state, carry, obs, alive, totals)
    keys = jax.random.split(run_key, env.max_steps)
    (_, _, _, _, (returns, lengths)), _ = jax.lax.scan(advance, start, keys)
    return {"return": returns.mean(), "length": lengths.mean()}


def of_agent(
    env: Env,
    act: Callable,
    num_envs: int,
    initial_carry: Callable[[], PyTree] = tuple,
) -> Callable[[Key, Any, InnerState], Metrics]:
    """The `InnerLoop.evaluate` of a loop with this `act` and `initial_carry`."""

    def evaluate(key, meta, state):
        return first_episodes(
            key,
            env,
            lambda key, carry, *seen: act(key, meta, state.agent, carry, *seen),
            initial_carry(),
            num_envs,
        )

    return evaluate
