"""Soft actor-critic (Haarnoja et al., 2018, https://arxiv.org/abs/1812.05905).

Twin critics and an automatic temperature, with a tanh-normal policy or, where actions
are discrete, a categorical one (Christodoulou, 2019, https://arxiv.org/abs/1910.07207),
whose losses are exact expectations over the actions. Differences from the papers: time
limits are bootstrapped from the true last observation, exploration noise may be
correlated in time, and the temperature starts at 0.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import metaevo
from inner_loops import _off_policy
from inner_loops._off_policy import CHOICES, Experience
from metaevo import envs, losses, optimizers, population, rewards, slots, spaces
from metaevo.errors import ConfigError
from metaevo.rl import (
    config_checks,
    critics,
    networks,
    noise,
    normalization,
    off_policy,
    rollouts,
    soft,
    training,
)
from metaevo.rl.rollouts import learned_from
from metaevo.slots import Slot
from metaevo.types import InnerLoop, InnerState, on_any_env


@dataclass(frozen=True)
class Config(_off_policy.Config):
    """Static settings: shapes and loop lengths.

    Attributes:
        features: units of each hidden layer of policy and critics.
        num_critics: N, critics.
        num_target_critics: of them, drawn anew for each minibatch, those that the
            target aggregates; at most N. REDQ (Chen et al., 2021,
            https://arxiv.org/abs/2101.05982) has 2 of 10, and a policy that climbs
            the mean of all; here it climbs their aggregate.
        normalize_observation: by running statistics.
        initial_temperature: α at birth.
        min_log_std: lower bound of the log-deviation of continuous actions.
        max_log_std: its upper bound.
    """

    num_critics: int = 2
    num_target_critics: int = 2
    normalize_observation: bool = False
    initial_temperature: float = 0.2
    min_log_std: float = -5.0
    max_log_std: float = 2.0


class Meta(NamedTuple):
    """Slots of SAC.

    Attributes:
        actor_lr: Adam's step size for the policy.
        critic_lr: that for the critics.
        temperature_lr: that for the temperature.
        gamma: discount, in [0, 1].
        tau: how far the target critics move at each step, in (0, 1].
        target_entropy: H̄, per dimension of a continuous action, as a share of the
            uniform distribution's entropy, log A, of discrete ones. None: −1 and 0.89.
        noise_correlation: of the noise of actions taken, warm-up included, from step to
            step, in [0, 1); 0 is the paper's white noise.
        reward_scale: factor of rewards.
        td_loss: `(td_error, q, target, context) -> [...]`, td_error = target − q.
        q_aggregation: `(q [N, ...], context) -> [...]`, one value of the critics' N.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, the
            reward that the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.

    `context.stats` of the losses and of `target_entropy` holds `temperature`.
    """

    actor_lr: Slot = 3e-4
    critic_lr: Slot = 3e-4
    temperature_lr: Slot = 3e-4
    gamma: Slot = 0.99
    tau: slots.Rate = 0.005
    target_entropy: Slot | None = None
    noise_correlation: slots.Correlation = 0.0
    reward_scale: Slot = 1.0
    td_loss: Slot = losses.td_square
    q_aggregation: Slot = losses.least_q
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.adam


class TrainState(NamedTuple):
    """Parameters and their optimizer's state."""

    params: Any
    opt_state: Any


class Agent(NamedTuple):
    age: jax.Array  # int32, updates since birth
    actor: TrainState
    critic: TrainState
    target_critic: Any
    log_temperature: TrainState
    obs_stats: normalization.RunningStats


TUNABLE = spaces.tune(
    actor_lr=spaces.log(),
    critic_lr=spaces.log(),
    temperature_lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    tau=spaces.log(),
    target_entropy=spaces.linear(),
    reward_scale=spaces.log(),
)
"""The space that a baseline is tuned in."""


def _check(config: Config) -> None:
    config_checks.check_positive(config)
    if not config.initial_temperature > 0:
        raise ConfigError(
            f"inner.initial_temperature={config.initial_temperature} must be > 0"
        )
    if not config.min_log_std <= config.max_log_std:
        raise ConfigError(
            f"inner.min_log_std={config.min_log_std} is above "
            f"inner.max_log_std={config.max_log_std}"
        )
    if config.num_target_critics > config.num_critics:
        raise ConfigError(
            f"inner.num_target_critics={config.num_target_critics} is more than "
            f"inner.num_critics={config.num_critics}"
        )


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """SAC on `env`, whose actions are discrete, or continuous and bounded.

    Metrics of `train`: those of `rollouts.metrics`, and on the minibatches the mean
    `q`, `entropy` and `temperature`, and mean and root mean square of q − target,
    `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other, actions without bounds, or a slot
            of `meta` holds what cannot be used there.
    """
    _check(config)
    sizes = off_policy.sizes(config, config.num_step_return)
    buffer = sizes.buffer(env, config.num_envs)
    normalize = normalization.observations(config.normalize_observation)
    actions = soft.actions_of(env, config)
    actor = networks.mlp(
        config.features,
        actions.num_outputs,
        0.01,
        config.activation,
        len(env.observation.shape),
    )
    if meta.target_entropy is None:
        meta = meta._replace(target_entropy=actions.target_entropy)

    # --- the losses -------------------------------------------------------------------

    def target_of(agent, batch, key, noise, temperature, meta, context):
        """R + γⁿ (1 − terminated) E[agg Q⁻(o', a') − α log π(a'|o')], a' ~ π(o')."""
        outputs = actor.apply(agent.actor.params, batch.next_obs)
        q, log_prob, mean = actions.evaluate(
            agent.target_critic, batch.next_obs, outputs, noise, batch.next_mask
        )
        q = critics.random_subset(key, q, config.num_target_critics)
        next_value = mean(meta.q_aggregation(q, context) - temperature * log_prob)
        return batch.target(next_value)

    def critic_loss(params, target, batch, meta, context):
        """Sum over the critics of the mean TD loss."""
        q = actions.values(params, batch.obs, batch.action)
        td_error = target - q
        context = context._replace(return_std=target.std())
        total = meta.td_loss(td_error, q, target, context).mean(-1).sum()
        return total, {
            "q": q.mean(),
            "error": -td_error.mean(),
            "squared": (td_error**2).mean(),
            "return_std": context.return_std,
        }

    def actor_loss(params, critic, temperature, batch, noise, meta, context):
        """E[α log π(a|o) − agg Q(o, a)], and the entropy."""
        outputs = actor.apply(params, batch.obs)
        q, log_prob, mean = actions.evaluate(
            critic, batch.obs, outputs, noise, batch.mask
        )
        q = meta.q_aggregation(q, context)
        return mean(temperature * log_prob - q).mean(), -mean(log_prob).mean()

    def temperature_gradient(entropy, meta, context):
        """d/d log α of −log α (log π + H̄): α rises while the entropy is below H̄."""
        share = actions.target_entropy
        if meta.target_entropy is not None:
            share = slots.value(meta.target_entropy, context)
        return entropy - actions.entropy_unit * share

    # --- birth ------------------------------------------------------------------------

    def init(key, meta):
        keys = jax.random.split(key, 6)
        actor_key, critic_key, *warmup_keys = keys
        critic = actions.init_critics(critic_key)
        state, steps, last_noise = off_policy.warm_up(
            warmup_keys,
            env,
            actions.noise_shape,
            actions.random,
            config.num_envs,
            sizes.num_warmup,
            meta,
        )
        obs_stats = normalization.init(env.observation.shape)

        def learner(params):
            return TrainState(params, meta.optimizer.init(params))

        agent = Agent(
            jnp.int32(0),
            learner(actor.init(actor_key, jnp.zeros(env.observation.shape))),
            learner(critic),
            critic,
            learner(jnp.float32(math.log(config.initial_temperature))),
            normalize.update(obs_stats, envs.unpacked(steps.obs)),
        )
        experience = Experience(state, last_noise, buffer.start(steps), jnp.int32(0))
        return InnerState(agent, experience, clock=training.start_clock())

    # --- update -----------------------------------------------------------------------

    def step(agent, batch, key, noise, meta, context):
        """One step of critics, actor and temperature on a minibatch [B, ...]."""

        def descend(learner, gradient, lr):
            params, opt_state = optimizers.step(
                meta.optimizer,
                gradient,
                learner.params,
                learner.opt_state,
                slots.value(lr, context),
                context,
            )
            return TrainState(params, opt_state)

        temperature = jnp.exp(agent.log_temperature.params)
        in_loss = context._replace(stats={"temperature": temperature})
        target = target_of(agent, batch, key, noise[0], temperature, meta, in_loss)
        gradient, info = jax.grad(critic_loss, has_aux=True)(
            agent.critic.params, target, batch, meta, in_loss
        )
        critic = descend(agent.critic, gradient, meta.critic_lr)
        gradient, entropy = jax.grad(actor_loss, has_aux=True)(
            agent.actor.params,
            critic.params,
            temperature,
            batch,
            noise[1],
            meta,
            in_loss,
        )
        agent = agent._replace(
            actor=descend(agent.actor, gradient, meta.actor_lr),
            critic=critic,
            target_critic=optax.incremental_update(
                critic.params, agent.target_critic, slots.value(meta.tau, context)
            ),
            log_temperature=descend(
                agent.log_temperature,
                temperature_gradient(entropy, meta, in_loss),
                meta.temperature_lr,
            ),
        )
        return agent, info | {"entropy": entropy, "temperature": temperature}

    def update(key, meta, state):
        """T steps of the environments and U gradient steps."""
        agent, experience, clock = state.agent, state.experience, state.clock
        keys = training.keys(key, clock, 5)
        noise_key, act_key, sample_key, learn_key, subset_key = keys
        context = training.context(
            agent.age,
            sizes.lifetime.num_updates,
            {"temperature": jnp.exp(agent.log_temperature.params)},
        )

        def explore(carry, obs, noise, state, mask):
            del state
            obs = normalize.apply(agent.obs_stats, obs)
            outputs = actor.apply(agent.actor.params, obs)
            return carry, actions.sample(outputs, noise, mask), ()

        drawn = noise.draw(noise_key, meta, context, experience.noise, config.num_steps)
        after, _, steps, finished, _ = rollouts.collect(
            act_key, env, experience.episodes, drawn, explore
        )
        obs_stats = normalize.update(agent.obs_stats, envs.unpacked(steps.obs))
        agent = agent._replace(obs_stats=obs_stats)
        own = experience.steps_since_birth + config.num_steps
        shape = (config.num_gradient_steps, config.batch_size)
        rows, sampled = off_policy.insert_and_sample(
            sample_key, buffer, experience.rows, clock.update, own, steps, shape
        )
        scale = slots.value(meta.reward_scale, context)
        batches = off_policy.n_step(
            sampled,
            scale * learned_from(meta, sampled, context),
            slots.value(meta.gamma, context),
            lambda obs: normalize.apply(obs_stats, obs),
        )
        # Of the target's and of the actor's actions, for each minibatch.
        shape = (config.num_gradient_steps, 2, config.batch_size, *actions.noise_shape)
        samples = jax.random.normal(learn_key, shape)
        keys = jax.random.split(subset_key, config.num_gradient_steps)

        @population.phase
        def improve(agent, batches, keys, noise):
            def one(agent, drawn):
                batch, key, noise = drawn
                return step(agent, batch, key, noise, meta, context)

            agent, info = jax.lax.scan(one, agent, (batches, keys, noise))
            return agent, jax.tree.map(jnp.mean, info)

        agent, info = improve(agent, batches, keys, samples)
        agent = agent._replace(age=agent.age + 1)
        experience = Experience(after, drawn[-1], rows, own)
        state = InnerState(agent, experience, (), training.tick(clock))
        return state, info | {"totals": rollouts.totals(finished)}

    # --- the interface ----------------------------------------------------------------

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        del key, meta, state
        obs = normalize.apply(agent.obs_stats, obs)
        outputs = actor.apply(agent.actor.params, obs)
        return actions.mode(outputs, mask), carry

    lifetime, discrete = sizes.lifetime, isinstance(env.action, envs.Discrete)
    return training.inner_loop(
        *(env, config, meta, lifetime, init, update, act),
        tunable=TUNABLE,
        choices=CHOICES,
        masks=discrete,
    )


if __name__ == "__main__":
    metaevo.train_main(make)
