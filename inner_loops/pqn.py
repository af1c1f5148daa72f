"""Parallelized Q-learning (Gallici et al., 2025, https://arxiv.org/abs/2407.04811).

Q(λ) on fresh rollouts: no replay buffer and no target network; layer normalization
keeps it stable. Numbers of environments, steps and minibatches and λ are those of the
authors' CartPole; layers, learning rate and ε are CleanRL's. Differences from the
paper: time limits are bootstrapped from the true last observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import metaevo
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
from metaevo.rl import (
    config_checks,
    minibatches,
    networks,
    normalization,
    q_learning,
    returns,
    rollouts,
    training,
)
from metaevo.rl.rollouts import learned_from
from metaevo.slots import Slot
from metaevo.types import InnerLoop, InnerState, on_any_env


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and loop lengths.

    Attributes:
        total_timesteps: frames in a lifetime, rounded down to whole segments.
        num_envs: E, environments of one member.
        num_steps: T, steps of a rollout. An update takes E x T frames.
        num_epochs: passes over a rollout.
        num_minibatches: gradient steps in a pass.
        num_segments: K, points on the learning curve.
        anneal_lr: whether the learning rate falls linearly to 0 over the lifetime.
        normalize_observation: by running statistics.
        normalize_reward: give discounted returns deviation 1, by running statistics.
        torso: before the hidden layers: `mlp`, nothing; `cnn`,
            MinAtar's convolution; `nature`, the Nature paper's for 84 x 84 pixels.
        features: units of each hidden layer, each with layer normalization.
        activation: function of these layers.
        num_eval_envs: episodes that `evaluate` averages over.
    """

    total_timesteps: int = 500_000
    num_envs: int = 32
    num_steps: int = 64
    num_epochs: int = 4
    num_minibatches: int = 16
    num_segments: int = 16
    anneal_lr: bool = True
    normalize_observation: bool = False
    normalize_reward: bool = False
    torso: networks.Torso = "mlp"
    features: tuple[int, ...] = (120, 84)
    activation: str = "relu"
    num_eval_envs: int = 16


class Meta(NamedTuple):
    """Slots of PQN.

    Attributes:
        lr: step size, before annealing.
        gamma: discount, in [0, 1].
        q_lambda: trace decay λ, in [0, 1].
        epsilon: share of random actions, in [0, 1].
        exploration: `(q [A], epsilon, context) -> probabilities [A]`.
        max_grad_norm: global norm that gradients are clipped to.
        td_loss: `(td_error, q, target, context) -> [...]`, td_error = target − q.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, the
            reward that the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
    """

    lr: Slot = 2.5e-4
    gamma: Slot = 0.99
    q_lambda: slots.Share = 0.95
    epsilon: slots.Share = schedules.linear(1.0, 0.05, 0.5)
    exploration: Slot = exploration.epsilon_greedy
    max_grad_norm: slots.Positive = 10.0
    td_loss: Slot = losses.td_square
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.radam


class Agent(NamedTuple):
    age: jax.Array  # int32, updates since birth
    params: Any
    opt_state: Any
    obs_stats: normalization.RunningStats
    return_stats: normalization.RunningStats


class Experience(NamedTuple):
    """The member's environments; leaves [E, ...]."""

    episodes: rollouts.Episodes
    discounted_return: jax.Array  # of the learner's reward, for its normalization


TUNABLE = spaces.combine(
    spaces.tune(
        lr=spaces.log(),
        gamma=spaces.one_minus_log(),
        q_lambda=spaces.one_minus_log(),
        max_grad_norm=spaces.log(),
    ),
    spaces.schedule("linear", 3, epsilon=spaces.logit()),
)
"""The space that a baseline is tuned in: ε bends at its middle and its end."""

CHOICES = (
    "inner.normalize_observation=true",
    "inner.normalize_reward=true",
    "inner.anneal_lr=false",
)
"""Static settings that a rival may take."""


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """PQN on `env`, whose actions are discrete.

    Metrics of `train`: those of `rollouts.metrics`, and on the minibatches the mean
    `q`, and mean and root mean square of q − target, `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other, continuous actions, or a slot of
            `meta` holds what cannot be used there.
    """
    config_checks.check_positive(config)
    num_actions = config_checks.require_discrete(env, "PQN").num
    batch_size = config_checks.minibatched(config)
    lifetime = config_checks.lifetime(config, batch_size)
    network = networks.mlp(
        config.features,
        num_actions,
        activation=config.activation,
        layer_norm=True,
        torso=networks.torso(config.torso, env.observation),
    )
    normalize = normalization.observations(config.normalize_observation)
    scale = normalization.rewards(config.normalize_reward)

    def q_values(agent, obs):
        return network.apply(agent.params, normalize.apply(agent.obs_stats, obs))

    # --- the loss ---------------------------------------------------------------------

    def targets(params, steps, meta, context):
        """λ-returns [T, E] of a rollout, by the values before learning."""
        return returns.lambda_return(
            steps.reward,
            q_learning.best_value(
                network.apply(params, steps.next_obs), steps.next_mask
            ),
            steps.terminated,
            steps.done,
            slots.value(meta.gamma, context),
            slots.value(meta.q_lambda, context),
        )

    def loss(params, minibatch, meta, context):
        """`context.return_std` is the deviation of the rollout's targets."""
        batch, target = minibatch
        q = q_learning.of_action(network.apply(params, batch.obs), batch.action)
        td_error = target - q
        total = meta.td_loss(td_error, q, target, context).mean()
        return total, {
            "q": q.mean(),
            "error": -td_error.mean(),
            "squared": (td_error**2).mean(),
            "return_std": context.return_std,
        }

    # --- birth ------------------------------------------------------------------------

    def init(key, meta):
        network_key, env_key = jax.random.split(key)
        params = network.init(network_key, jnp.zeros(env.observation.shape))
        opt_state = meta.optimizer.init(params)
        stats = normalization.init(env.observation.shape), normalization.init(())
        agent = Agent(jnp.int32(0), params, opt_state, *stats)
        experience = Experience(
            rollouts.start(env_key, env, config.num_envs), jnp.zeros(config.num_envs)
        )
        return InnerState(agent, experience, clock=training.start_clock())

    # --- update -----------------------------------------------------------------------

    def learn(params, opt_state, steps, order, meta, context):
        """Gradient steps on minibatches; `order` is [steps, minibatch] int32."""
        target = targets(params, steps, meta, context)
        context = context._replace(return_std=target.std())
        samples = jax.tree.map(
            lambda x: x.reshape(batch_size, *x.shape[2:]), (steps, target)
        )
        lr = training.learning_rate(meta, context, config.anneal_lr)

        def take(chosen):
            return jax.tree.map(lambda x: x[chosen], samples)

        return minibatches.descend(
            loss, order, take, params, opt_state, lr, meta, context
        )

    def update(key, meta, state):
        """One rollout and the gradient steps on it."""
        agent, experience, clock = state.agent, state.experience, state.clock
        noise_key, act_key, order_key = training.keys(key, clock, 3)
        context = training.context(agent.age, lifetime.num_updates)
        shape = (config.num_steps, config.num_envs, num_actions)
        after, _, steps, finished, _ = rollouts.collect(
            act_key,
            env,
            experience.episodes,
            jax.random.gumbel(noise_key, shape),
            q_learning.explorer(partial(q_values, agent), meta, context),
        )
        stats, discounted_return = normalization.after_rollout(
            *(config, (agent.obs_stats, agent.return_stats)),
            *(experience.discounted_return, steps, meta, context),
        )
        steps = steps._replace(
            reward=scale.apply(stats[1], learned_from(meta, steps, context)),
            obs=normalize.apply(stats[0], steps.obs),
            next_obs=normalize.apply(stats[0], steps.next_obs),
        )
        order = minibatches.orders(
            order_key, config.num_epochs, config.num_minibatches, batch_size
        )

        improve = population.phase(partial(learn, meta=meta, context=context))
        params, opt_state, info = improve(agent.params, agent.opt_state, steps, order)
        agent = Agent(agent.age + 1, params, opt_state, *stats)
        experience = Experience(after, discounted_return)
        state = InnerState(agent, experience, (), training.tick(clock))
        return state, info | {"totals": rollouts.totals(finished)}

    # --- the interface ----------------------------------------------------------------

    return training.inner_loop(
        env,
        config,
        meta,
        lifetime,
        init,
        update,
        q_learning.greedy(q_values),
        tunable=TUNABLE,
        choices=CHOICES,
        masks=True,
    )


if __name__ == "__main__":
    metaevo.train_main(make)
