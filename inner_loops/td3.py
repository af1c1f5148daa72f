"""Twin delayed deep deterministic policy gradient (TD3).

Fujimoto et al., 2018, https://arxiv.org/abs/1802.09477. Differences from the paper:

* The critics take `policy_delay` steps for each of the actor's in a loop of that
  length: no gradient is computed to be thrown away, and Adam counts real steps.
* Time limits are bootstrapped from the true last observation.
* Exploration noise may be correlated in time, as in DDPG.

The losses and the gradient steps are in `_td3`, common with `td3_shared`, where all
members of a population train one critic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

import metaevo
from inner_loops import _td3
from inner_loops._off_policy import CHOICES, Experience
from inner_loops._td3 import TargetTrainState
from metaevo import envs, population, slots, spaces
from metaevo.rl import (
    noise,
    normalization,
    off_policy,
    rollouts,
    training,
)
from metaevo.types import InnerLoop, InnerState, on_any_env


@dataclass(frozen=True)
class Config(_td3.Config):
    """Static settings: shapes and loop lengths."""


@slots.extended
class Meta(_td3.Meta):
    """Slots of TD3. Noise is in units of half the range of actions.

    Attributes:
        policy_delay: steps of the critics for each of the actor's, at least 1, need not
            be whole. None: `Config.policy_delay`, which costs less on accelerators,
            where a step that is not due is computed and dropped.
    """

    policy_delay: slots.AtLeastOne | None = None


class Agent(NamedTuple):
    age: jax.Array  # int32, updates since birth
    actor: TargetTrainState
    critic: TargetTrainState
    obs_stats: normalization.RunningStats


TUNABLE = spaces.tune(
    actor_lr=spaces.log(),
    critic_lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    tau=spaces.log(),
    exploration_noise=spaces.log(),
    smoothing_noise=spaces.log(),
    noise_clip=spaces.log(),
)
"""The space that a baseline is tuned in."""


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """TD3 on `env`, whose actions are continuous and bounded.

    Metrics of `train`: those of `rollouts.metrics`, and on the minibatches the mean
    `q`, and mean and root mean square of q − target, `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other, other actions, or a slot of
            `meta` holds what cannot be used there.
    """
    action = _td3.require_actions(env, config)
    sizes = off_policy.sizes(config, config.num_step_return)
    buffer = sizes.buffer(env, config.num_envs)
    normalize = normalization.observations(config.normalize_observation)
    to_env, to_unit = envs.unit_box(action)
    nets = _td3.networks_of(env.observation, action, config, config.num_critics)

    # --- the losses -------------------------------------------------------------------

    def learn(policy, critic, batches, noise, age, meta, context):
        """U steps down `_td3.critic_loss`, U / delay steps down `_td3.actor_loss`."""
        arguments = nets, policy, critic, batches, noise, meta, context
        if meta.policy_delay is None:
            return _td3.learn(*arguments)
        return _td3.learn_at_delay(*arguments, age * config.num_gradient_steps)

    # --- birth ------------------------------------------------------------------------

    def init(key, meta):
        actor_key, critic_key, warmup_key = jax.random.split(key, 3)
        policy = _td3.newborn(nets.init(actor_key), meta)
        critic = _td3.newborn(nets.critics.init(critic_key), meta)
        state, steps, last_noise = _td3.warm_up(
            warmup_key, env, action, to_env, config.num_envs, sizes.num_warmup, meta
        )
        obs_stats = normalization.init(env.observation.shape)
        obs_stats = normalize.update(obs_stats, envs.unpacked(steps.obs))
        agent = Agent(jnp.int32(0), policy, critic, obs_stats)
        experience = Experience(state, last_noise, buffer.start(steps), jnp.int32(0))
        return InnerState(agent, experience, clock=training.start_clock())

    # --- update -----------------------------------------------------------------------

    def act_unit(agent, obs):
        obs = normalize.apply(agent.obs_stats, obs)
        return nets.act(agent.actor.params, obs)

    def update(key, meta, state):
        """T steps of the environments and U gradient steps of the critics."""
        agent, experience, clock = state.agent, state.experience, state.clock
        noise_key, act_key, sample_key, smoothing_key = training.keys(key, clock, 4)
        context = training.context(agent.age, sizes.lifetime.num_updates)
        explore = _td3.explorer(partial(act_unit, agent), to_env, meta, context)
        drawn = noise.draw(noise_key, meta, context, experience.noise, config.num_steps)
        after, _, steps, finished, _ = rollouts.collect(
            act_key, env, experience.episodes, drawn, explore
        )
        obs_stats = normalize.update(agent.obs_stats, envs.unpacked(steps.obs))
        own = experience.steps_since_birth + config.num_steps
        shape = _td3.shape_of(config)
        rows, sampled = off_policy.insert_and_sample(
            sample_key, buffer, experience.rows, clock.update, own, steps, shape
        )
        batches = _td3.batches_of(
            meta, context, to_unit, sampled, lambda obs: normalize.apply(obs_stats, obs)
        )
        smoothing = jax.random.normal(smoothing_key, (*shape, *action.shape))

        improve = population.phase(partial(learn, meta=meta, context=context))
        policy, critic, info = improve(
            agent.actor, agent.critic, batches, smoothing, agent.age
        )
        agent = Agent(agent.age + 1, policy, critic, obs_stats)
        experience = Experience(after, drawn[-1], rows, own)
        state = InnerState(agent, experience, (), training.tick(clock))
        return state, info | {"totals": rollouts.totals(finished)}

    # --- the interface ----------------------------------------------------------------

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        del key, meta, state, mask
        return to_env(act_unit(agent, obs)), carry

    return training.inner_loop(
        *(env, config, meta, sizes.lifetime, init, update, act),
        tunable=TUNABLE,
        choices=CHOICES,
    )


if __name__ == "__main__":
    metaevo.train_main(make)
