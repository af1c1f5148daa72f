"""Ape-X DDPG: prioritized replay at scale for continuous actions (Horgan et al., 2018).

https://arxiv.org/abs/1803.00933, there Ape-X DPG: the deep deterministic policy
gradient (Lillicrap et al., 2016, https://arxiv.org/abs/1509.02971) of n steps, learned
from what many actors add to one prioritized buffer with first priorities of their own.
Differences from the paper:

* Each actor has its own scale of noise, on the ladder of Ape-X's ε.
* Actors act with the newest parameters, in step with the learner.
* Target networks follow at each step by `tau`.
* The optimizer is Adam, gradients are not clipped, sizes are for small environments.

With α = 0 and equal noise it is DDPG of n steps, on minibatches drawn uniformly.
Networks and gradient steps are in `_td3`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

import metaevo
from inner_loops import _dqn, _off_policy, _td3
from inner_loops._dqn import Seen
from inner_loops._td3 import TargetTrainState
from metaevo import envs, losses, optimizers, population, rewards, slots, spaces
from metaevo.learned.priorities import absolute
from metaevo.rl import (
    config_checks,
    noise,
    off_policy,
    packing,
    priorities,
    q_learning,
    rollouts,
    training,
)
from metaevo.slots import Slot
from metaevo.types import InnerLoop, InnerState, on_any_env

__all__ = ["TUNABLE", "Agent", "Config", "Experience", "Meta", "make"]


@dataclass(frozen=True)
class Config(_off_policy.Config):
    """Static settings: shapes and loop lengths.

    Attributes:
        num_envs: E, environments of one member: actors.
        num_gradient_steps: U, minibatches of an update, drawn at once.
        critic_layer_norm: normalize the critic's hidden layers.
        features: units of each hidden layer of actor and critic.
    """

    total_timesteps: int = 100_000
    buffer_size: int = 100_000
    num_envs: int = 8
    num_gradient_steps: int = 4
    batch_size: int = 128
    num_step_return: int = 3


class Meta(NamedTuple):
    """Slots of Ape-X DDPG. Noise is in units of half the range of actions.

    Attributes:
        actor_lr: Adam's step size for the policy.
        critic_lr: that for the critics.
        gamma: discount, in [0, 1].
        tau: how far the target networks move at each step, in (0, 1].
        exploration_noise: σ in [0, 1], standard deviation of the first environment's
            noise on actions taken.
        noise_exponent: >= 0; that of environment i of E is
            σ^(1 + noise_exponent i / (E − 1)).
        noise_correlation: of that noise, and of the warm-up's actions, from step to
            step, in [0, 1); 0 is white noise.
        reward_scale: factor of rewards.
        priority: `(td_error, age, visits, reward, terminated, context) -> p [...]`, see
            `metaevo.learned.priorities`.
        priority_exponent: α >= 0: transitions are drawn in proportion to p^α.
        importance_exponent: β in [0, 1]: of the importance weights of the critic's
            losses; 1 corrects in full.
        td_loss: `(td_error, q, target, context) -> [...]`, td_error = target − q.
        actor_loss: `(q, action, context) -> [...]` of the actor's own actions.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, the
            reward that the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
    """

    actor_lr: Slot = 3e-4
    critic_lr: Slot = 1e-3
    gamma: Slot = 0.99
    tau: slots.Rate = 0.005
    exploration_noise: slots.Share = 0.4
    noise_exponent: slots.NotNegative = 3.0
    noise_correlation: slots.Correlation = 0.0
    reward_scale: Slot = 1.0
    priority: Slot = absolute
    priority_exponent: slots.NotNegative = 0.6
    importance_exponent: slots.Share = 0.4
    td_loss: Slot = losses.td_square
    actor_loss: Slot = losses.minus_q
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.adam


class Agent(NamedTuple):
    age: jax.Array  # int32, updates since birth
    actor: TargetTrainState
    critic: TargetTrainState
    return_std: jax.Array  # of the last minibatch's targets


class Experience(NamedTuple):
    episodes: rollouts.Episodes
    noise: jax.Array  # [E, A], the last
    rows: packing.Packed  # of the replay buffer
    priorities: priorities.Priorities  # of its windows
    steps_since_birth: jax.Array  # int32, warm-up not counted


TUNABLE = spaces.tune(
    actor_lr=spaces.log(),
    critic_lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    tau=spaces.log(),
    exploration_noise=spaces.logit(),
    noise_exponent=spaces.log(),
    priority_exponent=spaces.log(),
    importance_exponent=spaces.logit(),
)
"""The space that a baseline is tuned in."""


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """Ape-X DDPG on `env`, whose actions are continuous and bounded.

    Metrics of `train`: those of `rollouts.metrics`; `importance`, the mean of the
    importance weights; and on the minibatches the mean `q`, and mean and root mean
    square of q − target, `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other, other actions, or a slot of
            `meta` holds what cannot be used there.
    """
    config_checks.check_positive(config)
    action = config_checks.require_box(env, "Ape-X DDPG")
    sizes = off_policy.sizes(config, config.num_step_return)
    buffer = sizes.buffer(env, config.num_envs)
    windows = sizes.priorities(config.num_envs)
    to_env, to_unit = envs.unit_box(action)
    nets = _td3.networks_of(env.observation, action, config, num_critics=1)

    # --- targets and priorities -------------------------------------------------------

    def target_of(actor, critic, batch):
        """R + γⁿ (1 − terminated) Q(o', π(o')) by parameters of π and Q."""
        action = nets.act(actor, batch.next_obs)
        return batch.target(nets.critics.values(critic, batch.next_obs, action)[0])

    def first_mass(actor, critic, rows, indices, std, meta, context):
        """The actors' own p^α of new windows, [n, T, E] to [T, E], and their targets.

        By the parameters that act, in the place of the target networks, too.
        """

        def seen_in(indices):
            new = off_policy.read(buffer, rows, indices)
            batch = _td3.batches_of(meta, context, to_unit, new)
            target = target_of(actor, critic, batch)
            q = nets.critics.values(critic, batch.obs, batch.action)[0]
            return Seen(target - q, target, batch.reward, batch.terminated)

        seen = priorities.map_windows(seen_in, indices, config.batch_size)
        mass, std = _dqn.first_mass(seen, std, meta, context)
        return mass.reshape(indices.shape[1:]), std

    # --- birth ------------------------------------------------------------------------

    def init(key, meta):
        actor_key, critic_key, warmup_key = jax.random.split(key, 3)
        actor = _td3.newborn(nets.init(actor_key), meta)
        critic = _td3.newborn(nets.critics.init(critic_key), meta)
        episodes, steps, last_noise = _td3.warm_up(
            warmup_key, env, action, to_env, config.num_envs, sizes.num_warmup, meta
        )
        rows = buffer.start(steps)
        context = training.context(jnp.int32(0), sizes.lifetime.num_updates)
        mass, std = first_mass(
            *(actor.params, critic.params, rows, windows.first()),
            *(None, meta, context),
        )
        agent = Agent(jnp.int32(0), actor, critic, std)
        experience = Experience(
            episodes, last_noise, rows, windows.start(mass), jnp.int32(0)
        )
        return InnerState(agent, experience, clock=training.start_clock())

    # --- update -----------------------------------------------------------------------

    def learn(actor, critic, batches, drawn, meta, context):
        """A step of critic and actor on each of the minibatches, leaves [U, B, ...]."""
        beta = slots.value(meta.importance_exponent, context)

        def step(carry, at):
            (actor, critic), (batch, (mass, age, visits)) = carry, at
            weights = priorities.weights(mass, beta)
            target = target_of(actor.target_params, critic.target_params, batch)
            critic, info, td_error = _td3.weighted_step_to(
                *(target, nets.critics, critic, batch, weights),
                *(meta.critic_lr, meta, context),
            )
            actor, critic, _ = _td3.actor_step(
                nets, actor, critic, batch.obs, meta, context
            )
            seen = Seen(td_error[0], target, batch.reward, batch.terminated)
            std = info["return_std"]
            mass = _dqn.mass_of(seen, age, visits + 1.0, std, meta, context)
            return (actor, critic), (mass, info | {"importance": weights.mean()})

        (actor, critic), (mass, info) = jax.lax.scan(
            step, (actor, critic), (batches, drawn)
        )
        std = info["return_std"][-1]
        return actor, critic, std, mass, jax.tree.map(jnp.mean, info)

    def update(key, meta, state):
        """T steps of the environments and U gradient steps."""
        agent, experience, clock = state.agent, state.experience, state.clock
        noise_key, act_key, sample_key = training.keys(key, clock, 3)
        context = training.context(agent.age, sizes.lifetime.num_updates)
        scales = q_learning.ladder(
            slots.value(meta.exploration_noise, context),
            slots.value(meta.noise_exponent, context),
            config.num_envs,
        )
        explore = _td3.explorer(
            partial(nets.act, agent.actor.params),
            to_env,
            meta._replace(exploration_noise=scales[:, None]),
            context,
        )
        noises = noise.draw(
            noise_key, meta, context, experience.noise, config.num_steps
        )
        after, _, steps, finished, _ = rollouts.collect(
            act_key, env, experience.episodes, noises, explore
        )
        own = experience.steps_since_birth + config.num_steps
        before = clock.update * config.num_steps
        rows = buffer.add(experience.rows, before, steps)
        mass, _ = first_mass(
            *(agent.actor.params, agent.critic.params, rows, windows.newest(before)),
            *(agent.return_std, meta, context),
        )
        kept = windows.add(experience.priorities, before, own, mass)
        shape = (config.num_gradient_steps, config.batch_size)
        drawn = windows.draw(sample_key, kept, before + config.num_steps, own, shape)
        batches = _td3.batches_of(
            meta, context, to_unit, off_policy.read(buffer, rows, drawn.indices)
        )

        improve = population.phase(partial(learn, meta=meta, context=context))
        actor, critic, std, mass, info = improve(
            agent.actor, agent.critic, batches, (drawn.mass, drawn.age, drawn.visits)
        )
        kept = windows.update(kept, drawn.indices, mass)
        agent = Agent(agent.age + 1, actor, critic, std)
        experience = Experience(after, noises[-1], rows, kept, own)
        state = InnerState(agent, experience, (), training.tick(clock))
        return state, info | {"totals": rollouts.totals(finished)}

    # --- the interface ----------------------------------------------------------------

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        del key, meta, state, mask
        return to_env(nets.act(agent.actor.params, obs)), carry

    return training.inner_loop(
        env, config, meta, sizes.lifetime, init, update, act, tunable=TUNABLE
    )


if __name__ == "__main__":
    metaevo.train_main(make)
