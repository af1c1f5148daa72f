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
from typing import NamedTuple

import jax
import jax.numpy as jnp

import metaevo
from inner_loops import _td3
from inner_loops._td3 import Learner
from metaevo import envs, losses, optimizers, population, rewards, spaces
from metaevo.rl import (
    noise,
    normalization,
    off_policy,
    packing,
    rollouts,
    training,
)
from metaevo.slots import Slot
from metaevo.types import InnerLoop, InnerState, on_any_env


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and loop lengths.

    Attributes:
        total_timesteps: frames in a lifetime, warm-up included, rounded down to whole
            segments.
        learning_starts: frames of the warm-up, by random actions.
        buffer_size: frames that the replay buffer holds, at most a lifetime's.
        num_envs: E, environments of one member.
        num_steps: T, steps of them between updates. An update takes E x T frames.
        num_gradient_steps: U, minibatches of an update.
        batch_size: B, transitions in a minibatch.
        policy_delay: steps of the critics for each of the actor's; divides U.
        num_step_return: n, steps before the bootstrap.
        num_critics: critics, of which the target takes the least.
        critic_layer_norm: normalize the critics' hidden layers.
        num_segments: K, points on the learning curve.
        normalize_observation: by running statistics.
        features: units of each hidden layer of actor and critics.
        activation: function of these layers.
        num_eval_envs: episodes that `evaluate` averages over.
    """

    total_timesteps: int = 1_000_000
    learning_starts: int = 1_000
    buffer_size: int = 1_000_000
    num_envs: int = 1
    num_steps: int = 2
    num_gradient_steps: int = 2
    batch_size: int = 256
    policy_delay: int = 2
    num_step_return: int = 1
    num_critics: int = 2
    critic_layer_norm: bool = False
    num_segments: int = 16
    normalize_observation: bool = False
    features: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    num_eval_envs: int = 16


class Meta(NamedTuple):
    """Slots of TD3. Noise is in units of half the range of actions.

    Attributes:
        actor_lr, critic_lr: Adam's step sizes.
        gamma: discount, in [0, 1].
        tau: how far the target networks move at each step of the actor, in (0, 1].
        exploration_noise: standard deviation of the noise on actions taken.
        noise_correlation: of that noise, and of the warm-up's actions, from step to
            step, in [0, 1); 0 is white noise.
        smoothing_noise, noise_clip: of the noise on the target's actions.
        reward_scale: factor of rewards.
        td_loss: `(td_error, q, target, context) -> [...]`, td_error = target − q.
        actor_loss: `(q, action, context) -> [...]` of the actor's own actions.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, the
            reward that the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
        policy_delay: steps of the critics for each of the actor's, at least 1, need not
            be whole. None: `Config.policy_delay`, which costs less on accelerators,
            where a step that is not due is computed and dropped.
    """

    actor_lr: Slot = 3e-4
    critic_lr: Slot = 3e-4
    gamma: Slot = 0.99
    tau: Slot = 0.005
    exploration_noise: Slot = 0.1
    noise_correlation: Slot = 0.0
    smoothing_noise: Slot = 0.2
    noise_clip: Slot = 0.5
    reward_scale: Slot = 1.0
    td_loss: Slot = losses.td_square
    actor_loss: Slot = losses.minus_q
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.adam
    policy_delay: Slot | None = None


class Agent(NamedTuple):
    age: jax.Array  # int32, updates since birth
    actor: Learner
    critic: Learner
    obs_stats: normalization.RunningStats


class Experience(NamedTuple):
    episodes: rollouts.Episodes
    noise: jax.Array  # [E, A], the last
    rows: packing.Packed  # of the replay buffer
    steps_since_birth: jax.Array  # int32, warm-up not counted


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
    action = _td3.checked_actions(env, config)
    sizes = off_policy.sizes(config, config.num_step_return)
    buffer = sizes.buffer(env, config.num_envs)
    normalize = normalization.observations(config.normalize_observation)
    to_env, to_unit = envs.unit_box(action)
    nets = _td3.networks_of(env.observation, action, config)

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
        state, steps, last_noise = off_policy.warm_up(
            jax.random.split(warmup_key, 4),
            env,
            action.shape,
            lambda normal, mask: to_env(noise.uniform(normal)),
            config.num_envs,
            sizes.num_warmup,
            meta,
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
        noise_key, act_key, sample_key, smoothing_key = jax.random.split(
            jax.random.fold_in(key, clock.update), 4
        )
        context = training.context(agent.age, sizes.lifetime.num_updates)
        after, steps, finished, last_noise = _td3.explore(
            act_key,
            noise_key,
            env,
            meta,
            context,
            experience.episodes,
            experience.noise,
            config.num_steps,
            lambda obs: act_unit(agent, obs),
            to_env,
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

        @population.phase
        def improve(policy, critic, batches, noise, age):
            return learn(policy, critic, batches, noise, age, meta, context)

        policy, critic, info = improve(
            agent.actor, agent.critic, batches, smoothing, agent.age
        )
        agent = Agent(agent.age + 1, policy, critic, obs_stats)
        experience = Experience(after, last_noise, rows, own)
        state = InnerState(agent, experience, (), training.tick(clock))
        return state, info | {"totals": rollouts.totals(finished)}

    # --- the interface ----------------------------------------------------------------

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        del key, meta, state, mask
        return to_env(act_unit(agent, obs)), carry

    return training.inner_loop(
        env, config, meta, sizes.lifetime, init, update, act, tunable=TUNABLE
    )


if __name__ == "__main__":
    metaevo.train_main(make)
