"""Deep Q-learning (Mnih et al., 2015, https://www.nature.com/articles/nature14236).

With double Q-learning (van Hasselt et al., 2016, https://arxiv.org/abs/1509.06461),
dueling networks (Wang et al., 2016, https://arxiv.org/abs/1511.06581) and n-step
returns by configuration. Defaults are those of CleanRL, with ten environments in place
of one step in ten that learns. Time limits are bootstrapped from the true last
observation; only termination ends the bootstrap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from metaevo import (
    envs,
    exploration,
    losses,
    optimizers,
    population,
    rewards,
    schedules,
    slots,
    spaces,
)
from metaevo.errors import ConfigError
from metaevo.rl import config_checks, evaluation, networks, replay, returns, rollouts
from metaevo.rl.rollouts import learned_from
from metaevo.slots import Context, Slot
from metaevo.types import InnerLoop, InnerState


@dataclass(frozen=True)
class Config:
    """What is static: shapes and loop lengths.

    Attributes:
        total_timesteps: frames in a lifetime, warm-up included, rounded down to whole
            segments.
        learning_starts: frames of the warm-up, by random actions.
        buffer_size: frames that the replay buffer holds, at most a lifetime's.
        num_envs: E, environments of one member.
        num_steps: T, steps of them between updates. An update takes E x T frames.
        num_gradient_steps: U, minibatches of an update.
        batch_size: B, transitions in a minibatch.
        target_period: updates between those of the target network.
        num_segments: K, points on the learning curve.
        double, dueling: as in the papers.
        num_step_return: n, steps before the bootstrap.
        features, activation: hidden layers.
        num_eval_envs: episodes that `evaluate` averages over.
    """

    total_timesteps: int = 500_000
    learning_starts: int = 10_000
    buffer_size: int = 10_000
    num_envs: int = 10
    num_steps: int = 1
    num_gradient_steps: int = 1
    batch_size: int = 128
    target_period: int = 50
    num_segments: int = 16
    double: bool = False
    dueling: bool = False
    num_step_return: int = 1
    features: tuple[int, ...] = (120, 84)
    activation: str = "relu"
    num_eval_envs: int = 16


class Meta(NamedTuple):
    """What may evolve.

    Attributes:
        lr: Adam's step size.
        gamma: discount, in [0, 1].
        epsilon: share of random actions, in [0, 1].
        exploration: `(q [A], epsilon, context) -> probabilities [A]`.
        target_rate: τ, how far the target network moves to the online one every
            `target_period` updates, in (0, 1].
        td_loss: `(td_error, q, target, context) -> [...]`, td_error = target − q.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, what
            the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
    """

    lr: Slot = 2.5e-4
    gamma: Slot = 0.99
    epsilon: Slot = schedules.linear(1.0, 0.05, 0.5)
    exploration: Slot = exploration.epsilon_greedy
    target_rate: Slot = 1.0
    td_loss: Slot = losses.td_square
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.adam


class Agent(NamedTuple):
    age: jax.Array  # int32, updates since birth
    params: Any
    target_params: Any
    opt_state: Any


class Experience(NamedTuple):
    episodes: rollouts.Episodes
    rows: jax.Array  # of the replay buffer
    steps_since_birth: jax.Array  # int32, steps since birth, warm-up not counted


class Clock(NamedTuple):
    update: jax.Array  # int32, updates done


TUNABLE = spaces.tune(
    lr=spaces.log(),
    gamma=spaces.one_minus_log(),
)
"""The hyperparameters that a baseline is tuned in."""


def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """DQN on `env`, whose actions are discrete.

    Metrics of `train`: those of `episodes.metrics`, and on the minibatches the mean
    `q`, and mean and root mean square of q − target, `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other, or continuous actions.
    """
    config_checks.positive(config)
    if not isinstance(env.action, envs.Discrete):
        raise ConfigError(f"env={env.name!r}: DQN needs discrete actions; see td3, sac")
    frames = config.num_envs * config.num_steps
    num_rows, num_warmup = config_checks.ring(config, config.num_step_return)
    num_updates, updates_per_segment = config_checks.lifetime(
        config, frames, num_warmup * config.num_envs
    )

    num_actions = env.action.num
    network = networks.MLP(
        config.features,
        num_actions,
        activation=config.activation,
        obs_ndim=len(env.observation.shape),
        dueling=config.dueling,
    )
    buffer = replay.make(
        env,
        num_rows,
        config.num_envs,
        num_warmup,
        config.num_steps,
        config.num_step_return,
    )

    def context_of(agent):
        return Context(progress=jnp.minimum(agent.age / num_updates, 1.0))

    # --- acting -----------------------------------------------------------------------

    def noise(key, num_steps):
        return jax.random.gumbel(key, (num_steps, config.num_envs, num_actions))

    def explore(agent, meta, context):
        def choose(obs, noise):
            q = network.apply(agent.params, obs)
            epsilon = slots.value(meta.epsilon, context)
            probabilities = meta.exploration(q, epsilon, context)
            return jnp.argmax(jnp.log(probabilities) + noise, -1)

        return choose

    def init(key, meta):
        network_key, env_key, noise_key, warmup_key = jax.random.split(key, 4)
        params = network.init(network_key, jnp.zeros(env.observation.shape))
        agent = Agent(jnp.int32(0), params, params, meta.optimizer.init(params))
        state = rollouts.start(env_key, env, config.num_envs)
        state, steps, _ = rollouts.collect(
            warmup_key,
            env,
            state,
            noise(noise_key, num_warmup),
            lambda obs, noise: jnp.argmax(noise, -1),
        )
        experience = Experience(state, buffer.start(steps), jnp.int32(0))
        return InnerState(agent, experience, clock=Clock(jnp.int32(0)))

    # --- learning ---------------------------------------------------------------------

    def target_of(params, target_params, batch, meta, context):
        """n-step targets [B] of a minibatch of windows [n, B, ...]."""
        reward = learned_from(meta, batch, context)
        total, factor, last = returns.n_step_window(
            reward, batch.terminated, batch.done, slots.value(meta.gamma, context)
        )
        next_obs = batch.next_obs[last, jnp.arange(config.batch_size)]
        next_q = network.apply(target_params, next_obs)
        chooser = network.apply(params, next_obs) if config.double else next_q
        best = jax.nn.one_hot(jnp.argmax(chooser, -1), num_actions)
        return total + factor * (next_q * best).sum(-1)

    def loss(params, target, batch, meta, context):
        q = network.apply(params, batch.obs[0])
        q = (q * jax.nn.one_hot(batch.action[0], num_actions)).sum(-1)
        td_error = target - q
        total = meta.td_loss(td_error, q, target, context).mean()
        return total, (q.mean(), -td_error.mean(), (td_error**2).mean())

    def learn(params, target_params, opt_state, batches, meta, context):
        """One gradient step on each of the minibatches, leaves [U, n, B, ...]."""
        lr = slots.value(meta.lr, context)

        def step(carry, batch):
            params, opt_state = carry
            target = target_of(params, target_params, batch, meta, context)
            in_loss = context._replace(return_std=target.std())
            gradient, info = jax.grad(loss, has_aux=True)(
                params, target, batch, meta, in_loss
            )
            params, opt_state = optimizers.step(
                meta.optimizer, gradient, params, opt_state, lr, context
            )
            return (params, opt_state), info

        (params, opt_state), info = jax.lax.scan(step, (params, opt_state), batches)
        return params, opt_state, jax.tree.map(jnp.mean, info)

    def update(key, meta, state):
        """T steps of the environments and U gradient steps."""
        agent, experience, clock = state.agent, state.experience, state.clock
        noise_key, act_key, sample_key = jax.random.split(
            jax.random.fold_in(key, clock.update), 3
        )
        context = context_of(agent)
        after, steps, finished = rollouts.collect(
            act_key,
            env,
            experience.episodes,
            noise(noise_key, config.num_steps),
            explore(agent, meta, context),
        )
        inserted = clock.update * config.num_steps
        rows = buffer.add(experience.rows, inserted, steps)
        steps_since_birth = experience.steps_since_birth + config.num_steps
        shape = (config.num_gradient_steps, config.batch_size)
        batches = buffer.sample(
            sample_key, rows, inserted + config.num_steps, steps_since_birth, shape
        )
        batches = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), batches)

        @population.phase
        def improve(params, target_params, opt_state, batches):
            return learn(params, target_params, opt_state, batches, meta, context)

        params, opt_state, (q, error, squared) = improve(
            agent.params, agent.target_params, agent.opt_state, batches
        )
        rate = slots.value(meta.target_rate, context)
        # On the clock, not on the age: under vmap this stays a branch.
        target_params = jax.lax.cond(
            (clock.update + 1) % config.target_period == 0,
            lambda: optax.incremental_update(params, agent.target_params, rate),
            lambda: agent.target_params,
        )
        agent = Agent(agent.age + 1, params, target_params, opt_state)
        state = InnerState(
            agent,
            Experience(after, rows, steps_since_birth),
            (),
            Clock(clock.update + 1),
        )
        return state, {
            "totals": rollouts.totals(finished),
            "q": q,
            "error": error,
            "squared": squared,
        }

    # --- the interface ----------------------------------------------------------------

    def train(key, meta, state):
        def step(state, _):
            return update(key, meta, state)

        state, info = jax.lax.scan(step, state, None, length=updates_per_segment)
        return state, {
            **rollouts.metrics(state.experience.episodes, info["totals"]),
            "q": info["q"].mean(),
            "value_error_mean": info["error"].mean(),
            "value_error_rms": jnp.sqrt(info["squared"].mean()),
        }

    def act(key, meta, agent, carry, obs):
        del key, meta
        return jnp.argmax(network.apply(agent.params, obs), -1), carry

    return InnerLoop(
        meta=meta,
        init=init,
        train=train,
        evaluate=evaluation.of_agent(env, act, config.num_eval_envs),
        num_segments=config.num_segments,
        act=act,
        frames_per_segment=updates_per_segment * frames,
        env=env,
        tunable=TUNABLE,
    )
