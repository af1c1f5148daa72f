"""Parallelized Q-learning (Gallici et al., 2025, https://arxiv.org/abs/2407.04811).

Q(λ) on fresh rollouts: no replay buffer and no target network; layer normalization
keeps it stable. Sizes are those of the authors' CartPole. Time limits are bootstrapped
from the true last observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

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
from metaevo.rl import (
    config_checks,
    evaluation,
    minibatches,
    networks,
    returns,
    rollouts,
)
from metaevo.rl.rollouts import learned_from
from metaevo.slots import Context, Slot
from metaevo.types import InnerLoop, InnerState


@dataclass(frozen=True)
class Config:
    """What is static: shapes and loop lengths.

    Attributes:
        total_timesteps: frames in a lifetime, rounded down to whole segments.
        num_envs: E, environments of one member.
        num_steps: T, steps of a rollout. An update takes E x T frames.
        num_epochs, num_minibatches: passes over a rollout, and gradient steps in one.
        num_segments: K, points on the learning curve.
        anneal_lr: whether the learning rate falls linearly to 0 over the lifetime.
        features, activation: hidden layers, each with layer normalization.
        num_eval_envs: episodes that `evaluate` averages over.
    """

    total_timesteps: int = 500_000
    num_envs: int = 32
    num_steps: int = 64
    num_epochs: int = 4
    num_minibatches: int = 16
    num_segments: int = 16
    anneal_lr: bool = True
    features: tuple[int, ...] = (120, 84)
    activation: str = "relu"
    num_eval_envs: int = 16


class Meta(NamedTuple):
    """What may evolve.

    Attributes:
        lr: step size, before annealing.
        gamma: discount, in [0, 1].
        q_lambda: trace decay λ, in [0, 1].
        epsilon: share of random actions, in [0, 1].
        exploration: `(q [A], epsilon, context) -> probabilities [A]`.
        max_grad_norm: global norm that gradients are clipped to.
        td_loss: `(td_error, q, target, context) -> [...]`, td_error = target − q.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, what
            the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
    """

    lr: Slot = 2.5e-4
    gamma: Slot = 0.99
    q_lambda: Slot = 0.95
    epsilon: Slot = schedules.linear(1.0, 0.05, 0.5)
    exploration: Slot = exploration.epsilon_greedy
    max_grad_norm: Slot = 10.0
    td_loss: Slot = losses.td_square
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.radam


class Agent(NamedTuple):
    age: jax.Array  # int32, updates since birth
    params: Any
    opt_state: Any


class Clock(NamedTuple):
    update: jax.Array  # int32, updates done


TUNABLE = spaces.tune(
    lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    q_lambda=spaces.one_minus_log(),
    max_grad_norm=spaces.log(),
)
"""The hyperparameters that a baseline is tuned in."""


def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """PQN on `env`, whose actions are discrete.

    Metrics of `train`: those of `episodes.metrics`, and on the minibatches the mean
    `q`, and mean and root mean square of q − target, `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other, or continuous actions.
    """
    config_checks.positive(config)
    if not isinstance(env.action, envs.Discrete):
        raise ConfigError(f"env={env.name!r}: PQN needs discrete actions; see td3, sac")
    batch_size = config_checks.minibatched(config)
    num_updates, updates_per_segment = config_checks.lifetime(config, batch_size)

    num_actions = env.action.num
    network = networks.MLP(
        config.features,
        num_actions,
        activation=config.activation,
        obs_ndim=len(env.observation.shape),
        layer_norm=True,
    )

    def context_of(agent):
        return Context(progress=jnp.minimum(agent.age / num_updates, 1.0))

    def init(key, meta):
        network_key, env_key = jax.random.split(key)
        params = network.init(network_key, jnp.zeros(env.observation.shape))
        agent = Agent(jnp.int32(0), params, meta.optimizer.init(params))
        experience = rollouts.start(env_key, env, config.num_envs)
        return InnerState(agent, experience, clock=Clock(jnp.int32(0)))

    def explore(params, meta, context):
        def choose(obs, noise):
            q = network.apply(params, obs)
            epsilon = slots.value(meta.epsilon, context)
            probabilities = meta.exploration(q, epsilon, context)
            return jnp.argmax(jnp.log(probabilities) + noise, -1)

        return choose

    # --- learning ---------------------------------------------------------------------

    def loss(params, batch, target, meta, context):
        q = network.apply(params, batch.obs)
        q = (q * jax.nn.one_hot(batch.action, num_actions)).sum(-1)
        td_error = target - q
        total = meta.td_loss(td_error, q, target, context).mean()
        return total, (q.mean(), -td_error.mean(), (td_error**2).mean())

    def learn(params, opt_state, batch, target, order, meta, context):
        """Gradient steps on minibatches; `order` is [steps, minibatch] int32."""
        lr = slots.value(meta.lr, context)
        if config.anneal_lr:
            lr = lr * (1.0 - context.progress)
        max_norm = slots.value(meta.max_grad_norm, context)

        def step(carry, chosen):
            params, opt_state = carry
            minibatch = jax.tree.map(lambda x: x[chosen], (batch, target))
            gradient, info = jax.grad(loss, has_aux=True)(
                params, *minibatch, meta, context
            )
            gradient = optimizers.clip_by_global_norm(gradient, max_norm)
            params, opt_state = optimizers.step(
                meta.optimizer, gradient, params, opt_state, lr, context
            )
            return (params, opt_state), info

        (params, opt_state), info = jax.lax.scan(step, (params, opt_state), order)
        return params, opt_state, jax.tree.map(jnp.mean, info)

    def update(key, meta, state):
        """One rollout and the gradient steps on it."""
        agent, experience, clock = state.agent, state.experience, state.clock
        noise_key, act_key, order_key = jax.random.split(
            jax.random.fold_in(key, clock.update), 3
        )
        context = context_of(agent)
        shape = (config.num_steps, config.num_envs, num_actions)
        experience, steps, finished = rollouts.collect(
            act_key,
            env,
            experience,
            jax.random.gumbel(noise_key, shape),
            explore(agent.params, meta, context),
        )
        order = minibatches.orders(
            order_key, config.num_epochs, config.num_minibatches, batch_size
        )

        @population.phase
        def improve(params, opt_state, steps, order):
            target = returns.lambda_return(
                learned_from(meta, steps, context),
                network.apply(params, steps.next_obs).max(-1),
                steps.terminated,
                steps.done,
                slots.value(meta.gamma, context),
                slots.value(meta.q_lambda, context),
            )
            in_loss = context._replace(return_std=target.std())
            batch, target = jax.tree.map(
                lambda x: x.reshape(batch_size, *x.shape[2:]), (steps, target)
            )
            return learn(params, opt_state, batch, target, order, meta, in_loss)

        params, opt_state, (q, error, squared) = improve(
            agent.params, agent.opt_state, steps, order
        )
        agent = Agent(agent.age + 1, params, opt_state)
        state = InnerState(agent, experience, (), Clock(clock.update + 1))
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
            **rollouts.metrics(state.experience, info["totals"]),
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
        frames_per_segment=updates_per_segment * batch_size,
        env=env,
        tunable=TUNABLE,
    )
