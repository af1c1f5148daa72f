"""A policy that does not learn: the search evolves its parameters (policy search).

Evolution strategies as an alternative to RL, Salimans et al., 2017,
https://arxiv.org/abs/1703.03864. The search proposes the parameters in the slot
`actor`. A lifetime is rollouts, and their returns are the fitness. There is no loss.

Difference from the paper: observations are not normalized by running statistics. A
member's own statistics would make its return depend on more than its parameters, and
the exported policy would lack them; common statistics would couple all members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import envs, policies, slots
from metaevo.rl import config_checks, rollouts, training
from metaevo.types import InnerLoop, InnerState, Space, on_any_env


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and loop lengths.

    Attributes:
        total_timesteps: frames in a lifetime, rounded down to whole segments; None: one
            rollout per segment.
        num_envs: E, environments of one member.
        num_steps: T, steps of them in a rollout; None: the environment's time limit, so
            that each of them ends an episode at least.
        num_segments: K, points on the curve.
        features: units of each hidden layer of the policy.
        activation: function of these layers.
        num_eval_envs: episodes that `evaluate` averages over.
    """

    total_timesteps: int | None = None
    num_envs: int = 4
    num_steps: int | None = None
    num_segments: int = 1
    features: tuple[int, ...] = (32, 32)
    activation: str = "tanh"
    num_eval_envs: int = 16


class Meta(NamedTuple):
    """Slots of a policy that does not learn.

    Attributes:
        actor: the policy's parameters, see `policies`; None: random ones.
        action_noise: of a continuous action its standard deviation in units of half
            the range, >= 0; of a discrete one the share of random actions, in [0, 1].
            `evaluate` and `act` have none.
    """

    actor: Any = None
    action_noise: slots.NotNegative = 0.0


class Agent(NamedTuple):
    age: jax.Array  # int32, rollouts since birth
    actor: Any


def policy_space(env: envs.Env, config: Config = Config()) -> Space:
    """The space of policies on `env`: params {"actor": parameters}.

    Raises:
        ConfigError: layers or actions that `policies.policy` does not take.
    """
    return policies.space(env, config)


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """Rollouts of a policy on `env`, with discrete, or bounded continuous actions.

    Metrics of `train`: those of `rollouts.metrics`.

    Raises:
        ConfigError: sizes that do not fit each other, actions without bounds, or a
            slot of `meta` holds what cannot be used there.
    """
    config_checks.check_positive(config)
    num_steps = config.num_steps or env.max_steps
    total = num_steps * config.num_envs * config.num_segments
    total = config.total_timesteps or total
    config = replace(config, total_timesteps=total, num_steps=num_steps)
    lifetime = config_checks.lifetime(config, config.num_envs * num_steps)
    policy = policies.of(env, config)
    width, noisy = action_noise(env)

    def init(key, meta):
        actor_key, env_key = jax.random.split(key)
        params = policy.init(actor_key) if meta.actor is None else meta.actor
        experience = rollouts.start(env_key, env, config.num_envs)
        agent = Agent(jnp.int32(0), params)
        return InnerState(agent, experience, clock=training.start_clock())

    def update(key, meta, state):
        """A rollout of T steps."""
        agent, experience, clock = state.agent, state.experience, state.clock
        noise_key, act_key = jax.random.split(jax.random.fold_in(key, clock.update))
        context = training.context(agent.age, lifetime.num_updates)
        sigma = slots.value(meta.action_noise, context)
        noise = jax.random.normal(noise_key, (num_steps, config.num_envs, width))

        def choose(carry, obs, noise, state, mask):
            del state
            action = policy.apply(agent.actor, obs, mask=mask)
            return carry, noisy(action, noise, sigma, mask), ()

        experience, _, _, finished, _ = rollouts.collect(
            act_key, env, experience, noise, choose
        )
        agent = agent._replace(age=agent.age + 1)
        state = InnerState(agent, experience, (), training.tick(clock))
        return state, {"totals": rollouts.totals(finished)}

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        del key, meta, state
        return policy.apply(agent.actor, obs, mask=mask), carry

    return training.inner_loop(
        env,
        config,
        meta,
        lifetime,
        init,
        update,
        act,
        episodes=lambda experience: experience,
        masks=True,
    )


def action_noise(env: envs.Env) -> tuple[int, Callable[..., jax.Array]]:
    """Noise on actions, by their kind.

    Returns:
        the width of the standard normal noise, and `(action [E, ...], noise [E, width],
        sigma, mask [E, A] or None) -> action`.
    """
    action = env.action
    if isinstance(action, envs.Discrete):

        def sometimes_random(action_taken, noise, sigma, mask):
            chance, other = jax.scipy.stats.norm.cdf(noise).T
            if mask is None:
                other = jnp.minimum(other * action.num, action.num - 1)
            else:
                num = mask.sum(-1, dtype=jnp.float32)
                rank = jnp.floor(jnp.minimum(other * num, num - 1))
                is_rank = jnp.cumsum(mask, -1) - 1 == rank[:, None]
                other = jnp.argmax(mask & is_rank, -1)
            other = other.astype(action_taken.dtype)
            return jnp.where(chance < sigma, other, action_taken)

        return 2, sometimes_random
    low, high = np.float32(action.low), np.float32(action.high)

    def perturbed(action_taken, noise, sigma, mask):
        del mask
        return jnp.clip(action_taken + sigma * noise * (high - low) / 2, low, high)

    return action.shape[0], perturbed
