"""A policy that does not learn: its parameters are what evolves (policy search).

Evolution strategies as an alternative to RL, Salimans et al., 2017,
https://arxiv.org/abs/1703.03864: the search proposes the parameters in the slot
`actor`, a lifetime is rollouts, its returns are the fitness. Action noise is theirs.

Their observation statistics are not here: a member's own would make its return depend
on more than its parameters, and what the search exports would lack them; common ones
would couple all members. Inputs of a like size are the environment's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import envs, policies, slots
from metaevo.rl import config_checks, evaluation, rollouts
from metaevo.slots import Context, Slot
from metaevo.types import InnerLoop, InnerState, Space


@dataclass(frozen=True)
class Config:
    """What is static: shapes and loop lengths.

    Attributes:
        total_timesteps: frames in a lifetime, rounded down to whole segments.
        num_envs: E, environments of one member.
        num_steps: T, steps of them in a rollout. If it is the environment's time limit,
            each of them ends an episode at least.
        num_segments: K, points on the curve.
        features, activation: hidden layers of the policy.
        num_eval_envs: episodes that `evaluate` averages over.
    """

    total_timesteps: int = 2_000
    num_envs: int = 4
    num_steps: int = 500
    num_segments: int = 1
    features: tuple[int, ...] = (32, 32)
    activation: str = "tanh"
    num_eval_envs: int = 16


class Meta(NamedTuple):
    """What may evolve.

    Attributes:
        actor: the policy's parameters, see `policies`; None: random ones.
        action_noise: of a continuous action its standard deviation in units of half
            the range, >= 0; of a discrete one the share of random actions, in [0, 1].
            `evaluate` and `act` have none.
    """

    actor: Any = None
    action_noise: Slot = 0.0


class Agent(NamedTuple):
    age: jax.Array  # int32, rollouts since birth
    actor: Any


class Clock(NamedTuple):
    update: jax.Array  # int32, rollouts done


def policy_space(env: envs.Env, config: Config = Config()) -> Space:
    """The space of policies on `env`: params {"actor": parameters}.

    Raises:
        ConfigError: layers or actions of another kind than `actors.policy` takes.
    """
    return policies.space(env, config)


def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """Rollouts of a policy on `env`, with discrete, or bounded continuous actions.

    Metrics of `train`: those of `episodes.metrics`.

    Raises:
        ConfigError: sizes that do not fit each other, or actions without bounds.
    """
    config_checks.positive(config)
    frames = config.num_envs * config.num_steps
    num_updates, updates_per_segment = config_checks.lifetime(config, frames)
    policy = policies.of(env, config)

    def init(key, meta):
        actor_key, env_key = jax.random.split(key)
        params = policy.init(actor_key) if meta.actor is None else meta.actor
        experience = rollouts.start(env_key, env, config.num_envs)
        agent = Agent(jnp.int32(0), params)
        return InnerState(agent, experience, clock=Clock(jnp.int32(0)))

    def noisy(action, noise, sigma):
        """Actions [E, ...] off those of the policy; `noise` is [E, A] or [E, 2]."""
        if isinstance(env.action, envs.Discrete):
            chance, other = jax.scipy.stats.norm.cdf(noise).T
            other = jnp.minimum(other * env.action.num, env.action.num - 1)
            return jnp.where(chance < sigma, other.astype(action.dtype), action)
        low, high = np.float32(env.action.low), np.float32(env.action.high)
        return jnp.clip(action + sigma * noise * (high - low) / 2, low, high)

    def update(key, meta, state):
        """A rollout of T steps."""
        agent, experience, clock = state.agent, state.experience, state.clock
        noise_key, act_key = jax.random.split(jax.random.fold_in(key, clock.update))
        context = Context(progress=jnp.minimum(agent.age / num_updates, 1.0))
        sigma = slots.value(meta.action_noise, context)
        width = 2 if isinstance(env.action, envs.Discrete) else env.action.shape[0]
        noise = jax.random.normal(noise_key, (config.num_steps, config.num_envs, width))
        experience, _, finished = rollouts.collect(
            act_key,
            env,
            experience,
            noise,
            lambda obs, noise: noisy(policy.apply(agent.actor, obs), noise, sigma),
        )
        agent = agent._replace(age=agent.age + 1)
        state = InnerState(agent, experience, (), Clock(clock.update + 1))
        return state, rollouts.totals(finished)

    def train(key, meta, state):
        def step(state, _):
            return update(key, meta, state)

        state, totals = jax.lax.scan(step, state, None, length=updates_per_segment)
        return state, dict(rollouts.metrics(state.experience, totals))

    def act(key, meta, agent, carry, obs):
        del key, meta
        return policy.apply(agent.actor, obs), carry

    return InnerLoop(
        meta=meta,
        init=init,
        train=train,
        evaluate=evaluation.of_agent(env, act, config.num_eval_envs),
        num_segments=config.num_segments,
        act=act,
        frames_per_segment=updates_per_segment * frames,
        env=env,
    )
