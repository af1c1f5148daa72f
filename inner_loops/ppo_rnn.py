"""Proximal policy optimization with a recurrent network, for what must be remembered.

PPO (Schulman et al., 2017, https://arxiv.org/abs/1707.06347) whose policy and critic
are heads of one GRU (Cho et al., 2014, https://arxiv.org/abs/1406.1078). A rollout
keeps the memory it began with; learning replays it from there, so that gradients go
back through time to its beginning, and minibatches are over environments, never over
time. Unlike in most implementations time limits are bootstrapped: the value of a
truncated episode's true last observation is that of the memory which saw the episode.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from metaevo import drifts, envs, losses, optimizers, population, rewards, slots, spaces
from metaevo.errors import ConfigError
from metaevo.rl import (
    config_checks,
    distributions,
    evaluation,
    minibatches,
    networks,
    normalization,
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
        num_steps: T, steps of a rollout, and the most that a gradient goes back in
            time. An update takes E x T frames.
        num_epochs, num_minibatches: passes over a rollout, and gradient steps in one,
            each on whole rollouts of some of the environments.
        num_segments: K, points on the learning curve.
        anneal_lr: whether the learning rate falls linearly to 0 over the lifetime.
        normalize_observation, normalize_reward: by running statistics.
        hidden: units of the GRU, and of the layer before it.
        features: hidden layers of policy and critic after it.
        activation: of all layers but the GRU's.
        initial_log_std: of a continuous policy.
        num_eval_envs: episodes that `evaluate` averages over.
    """

    total_timesteps: int = 500_000
    num_envs: int = 16
    num_steps: int = 128
    num_epochs: int = 4
    num_minibatches: int = 4
    num_segments: int = 16
    anneal_lr: bool = True
    normalize_observation: bool = False
    normalize_reward: bool = False
    hidden: int = 64
    features: tuple[int, ...] = (64,)
    activation: str = "tanh"
    initial_log_std: float = 0.0
    num_eval_envs: int = 16


class Meta(NamedTuple):
    """What may evolve.

    Attributes:
        lr: Adam's step size, before annealing.
        gamma: discount, in [0, 1].
        gae_lambda: trace decay, in [0, 1].
        ent_coef, vf_coef: weights of entropy bonus and value loss.
        clip_eps: ε of the policy's clip, and of the default value loss.
        max_grad_norm: global norm that gradients are clipped to.
        drift: `(log_ratio, advantage, clip_eps, context) -> [...]`, >= 0.
        value_loss: `(value, target, old_value, context) -> [...]`.
        policy_loss: added term `(log_prob, log_ratio, advantage, entropy, context)
            -> [...]`, or None.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, what
            the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.

    `context.stats` of the losses holds `clip_eps`.
    """

    lr: Slot = 2.5e-4
    gamma: Slot = 0.99
    gae_lambda: Slot = 0.95
    ent_coef: Slot = 0.01
    vf_coef: Slot = 0.5
    clip_eps: Slot = 0.2
    max_grad_norm: Slot = 0.5
    drift: Slot = drifts.ppo_clip
    value_loss: Slot = losses.clipped_square
    policy_loss: Slot | None = None
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.adam


class Agent(NamedTuple):
    """Networks, optimizer state, normalizers."""

    age: jax.Array  # int32, updates since birth
    params: Any
    opt_state: Any
    obs_stats: normalization.RunningStats
    return_stats: normalization.RunningStats


class Experience(NamedTuple):
    """Where the member's environments are; leaves [E, ...]."""

    episodes: rollouts.Episodes
    memory: jax.Array  # [E, hidden], zero where an episode begins
    discounted_return: jax.Array  # of the learner's reward, for its normalization


class Clock(NamedTuple):
    update: jax.Array  # int32, updates done in this lifetime


class Transition(NamedTuple):
    """One rollout; leaves [T, E, ...]."""

    obs: jax.Array  # as the networks see it
    action: jax.Array
    log_prob: jax.Array
    memory: jax.Array  # after seeing obs
    reward: jax.Array  # as the agent learns from it
    terminated: jax.Array
    done: jax.Array
    next_obs: jax.Array  # the true one, as the networks see it
    raw_obs: jax.Array
    finished: rollouts.Finished


class Batch(NamedTuple):
    """What the losses need; leaves [T, B, ...], B environments."""

    obs: jax.Array
    done: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


def forget(memory: jax.Array, done: jax.Array) -> jax.Array:
    """Memory [..., hidden] to go on with after a step: none after an episode's end."""
    return jnp.where(done[..., None], 0.0, memory)


def replay(
    cell: Callable[[jax.Array, jax.Array], jax.Array],
    memory: jax.Array,
    inputs: jax.Array,
    done: jax.Array,
) -> jax.Array:
    """The memories of a rollout once more.

    Args:
        cell: `(memory [B, hidden], input [B, ...]) -> memory`.
        memory: [B, hidden], that the rollout began with.
        inputs: [T, B, ...].
        done: [T, B] bool, whether the step ended an episode: the next begins anew.

    Returns:
        [T, B, hidden], each after its step's input was seen.
    """

    def step(memory, at):
        x, done = at
        memory = cell(memory, x)
        return forget(memory, done), memory

    return jax.lax.scan(step, memory, (inputs, done))[1]


TUNABLE = spaces.tune(
    lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    gae_lambda=spaces.one_minus_log(),
    ent_coef=spaces.log(),
    vf_coef=spaces.log(),
    clip_eps=spaces.log(),
    max_grad_norm=spaces.log(),
)
"""The hyperparameters that a baseline is tuned in."""


def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """Recurrent PPO on `env`. An agent's carry is its memory, [hidden].

    Metrics of `train`: those of `episodes.metrics`, `entropy`, `kl`, and mean and root
    mean square of value − target on the rollouts, `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other.
    """
    config_checks.positive(config)
    if config.num_envs % config.num_minibatches:
        raise ConfigError(
            f"inner.num_minibatches={config.num_minibatches} does not divide "
            f"inner.num_envs={config.num_envs}: minibatches are of environments"
        )
    batch_size = config.num_envs * config.num_steps
    num_updates, updates_per_segment = config_checks.lifetime(config, batch_size)

    discrete = isinstance(env.action, envs.Discrete)
    num_outputs = env.action.num if discrete else env.action.shape[0]
    distribution = distributions.Categorical if discrete else distributions.Normal
    obs_ndim = len(env.observation.shape)
    # Initialized as all the rest: flax's own orthogonal may hang under vmap.
    cell = nn.GRUCell(config.hidden, recurrent_kernel_init=networks.orthogonal(1.0))
    embedding = networks.MLP(
        (), config.hidden, math.sqrt(2), config.activation, obs_ndim
    )
    actor = networks.MLP(config.features, num_outputs, 0.01, config.activation)
    critic = networks.MLP(config.features, 1, 1.0, config.activation)

    def embed(params, obs):
        x = embedding.apply(params["embedding"], obs)
        return getattr(nn, config.activation)(x)

    def remember(params, memory, x):
        """Memory [..., hidden] after seeing an embedded observation."""
        return cell.apply(params["cell"], memory, x)[0]

    def initial_carry():
        return jnp.zeros(config.hidden)

    def policy(params, memory):
        out = actor.apply(params["actor"], memory)
        if discrete:
            return distributions.Categorical(out)
        return distributions.Normal(out, params["log_std"])

    def value_of(params, memory):
        return critic.apply(params["critic"], memory)[..., 0]

    def normalize_obs(agent, obs):
        """The observation as the networks see it."""
        if config.normalize_observation:
            return normalization.normalize(agent.obs_stats, obs)
        return obs

    def context_of(agent):
        return Context(progress=jnp.minimum(agent.age / num_updates, 1.0))

    # --- birth ------------------------------------------------------------------------

    def init(key, meta):
        keys, memory = jax.random.split(key, 5), initial_carry()
        params = {
            "embedding": embedding.init(keys[0], jnp.zeros(env.observation.shape)),
            "cell": cell.init(keys[1], memory, memory),
            "actor": actor.init(keys[2], memory),
            "critic": critic.init(keys[3], memory),
        }
        if not discrete:
            params["log_std"] = jnp.full(num_outputs, config.initial_log_std)
        agent = Agent(
            jnp.int32(0),
            params,
            meta.optimizer.init(params),
            normalization.init(env.observation.shape),
            normalization.init(()),
        )
        experience = Experience(
            rollouts.start(keys[4], env, config.num_envs),
            jnp.zeros((config.num_envs, config.hidden)),
            jnp.zeros(config.num_envs),
        )
        return InnerState(agent, experience, clock=Clock(jnp.int32(0)))

    # --- rollout ----------------------------------------------------------------------

    def rollout(key, meta, context, agent, experience):
        """T steps of E environments: -> (experience, Transition, discounted return)."""
        noise_key, step_key, reset_key = jax.random.split(key, 3)
        shape = (config.num_steps, config.num_envs)
        # Drawn at once: random numbers inside the scan cost more.
        noise = distribution.noise(noise_key, (*shape, num_outputs))
        drawn, world = rollouts.worlds(step_key, reset_key, env, *shape)

        def step(experience, drawn):
            before, (noise, drawn) = experience.episodes.obs, drawn
            obs = normalize_obs(agent, before)
            memory = remember(agent.params, experience.memory, embed(agent.params, obs))
            pi = policy(agent.params, memory)
            action = pi.transform(noise)
            after, out, finished = rollouts.step(
                env, world(drawn), experience.episodes, action
            )
            seen = before, action, out.reward, out.final_obs, out.terminated, out.done
            reward = learned_from(meta, rollouts.Transition(*seen), context)
            discounted = reward + slots.value(meta.gamma, context) * (
                experience.discounted_return
            )
            transition = Transition(
                obs=obs,
                action=action,
                log_prob=pi.log_prob(action),
                memory=memory,
                reward=reward,
                terminated=out.terminated,
                done=out.done,
                next_obs=normalize_obs(agent, out.final_obs),
                raw_obs=before,
                finished=finished,
            )
            experience = Experience(
                after,
                forget(memory, out.done),
                jnp.where(out.done, 0.0, discounted),
            )
            return experience, (transition, discounted)

        experience, (rollout, discounted) = jax.lax.scan(
            step, experience, (noise, drawn)
        )
        return experience, rollout, discounted

    # --- learning ---------------------------------------------------------------------

    def loss(params, batch, memory, meta, context):
        memory = replay(
            partial(remember, params), memory, embed(params, batch.obs), batch.done
        )
        pi = policy(params, memory)
        log_prob = pi.log_prob(batch.action)
        log_ratio = log_prob - batch.log_prob
        ratio = jnp.exp(log_ratio)
        entropy = pi.entropy()
        advantage = batch.advantage - batch.advantage.mean()
        advantage = advantage / (batch.advantage.std() + 1e-8)
        clip_eps = slots.value(meta.clip_eps, context)

        drift = meta.drift(log_ratio, advantage, clip_eps, context)
        policy_loss = -(ratio * advantage - drift).mean()
        if meta.policy_loss is not None:
            policy_loss += meta.policy_loss(
                log_prob, log_ratio, advantage, entropy, context
            ).mean()
        value_loss = meta.value_loss(
            value_of(params, memory), batch.target, batch.value, context
        ).mean()
        total = (
            policy_loss
            + slots.value(meta.vf_coef, context) * value_loss
            - slots.value(meta.ent_coef, context) * entropy.mean()
        )
        return total, (entropy.mean(), (ratio - 1 - log_ratio).mean())

    def learn(params, opt_state, batch, memory, order, meta, context):
        """Gradient steps on minibatches of environments, [steps, minibatch] int32.

        `memory` [E, hidden] is what the rollout began with.
        """
        lr = slots.value(meta.lr, context)
        if config.anneal_lr:
            lr = lr * (1.0 - context.progress)
        max_norm = slots.value(meta.max_grad_norm, context)

        def step(carry, chosen):
            params, opt_state = carry
            minibatch = jax.tree.map(lambda x: x[:, chosen], batch)
            gradient, info = jax.grad(loss, has_aux=True)(
                params, minibatch, memory[chosen], meta, context
            )
            gradient = optimizers.clip_by_global_norm(gradient, max_norm)
            params, opt_state = optimizers.step(
                meta.optimizer, gradient, params, opt_state, lr, context
            )
            return (params, opt_state), info

        (params, opt_state), (entropy, kl) = jax.lax.scan(
            step, (params, opt_state), order
        )
        return params, opt_state, entropy.mean(), kl.mean()

    def evaluated(params, rollout, gamma, gae_lambda):
        """Values and advantages of a rollout, [T, E] each."""
        value = value_of(params, rollout.memory)
        # The true next observation, seen with this episode's memory: after its end
        # the rollout went on with another's.
        ahead = remember(params, rollout.memory, embed(params, rollout.next_obs))
        advantage = returns.generalized_advantage(
            rollout.reward,
            value,
            value_of(params, ahead),
            rollout.terminated,
            rollout.done,
            gamma,
            gae_lambda,
        )
        return value, advantage

    def update(key, meta, state):
        """One rollout and the gradient steps on it."""
        agent, experience, clock = state.agent, state.experience, state.clock
        rollout_key, order_key = jax.random.split(jax.random.fold_in(key, clock.update))
        context = context_of(agent)
        memory = experience.memory
        experience, data, discounted = rollout(
            rollout_key, meta, context, agent, experience
        )
        obs_stats, return_stats = agent.obs_stats, agent.return_stats
        if config.normalize_observation:
            obs_stats = normalization.update(obs_stats, data.raw_obs)
        if config.normalize_reward:
            return_stats = normalization.update(return_stats, discounted)
            data = data._replace(reward=normalization.scale(return_stats, data.reward))
        order = minibatches.orders(
            order_key, config.num_epochs, config.num_minibatches, config.num_envs
        )

        @population.phase
        def improve(params, opt_state, data, memory, order):
            value, advantage = evaluated(
                params,
                data,
                slots.value(meta.gamma, context),
                slots.value(meta.gae_lambda, context),
            )
            target = advantage + value
            in_loss = context._replace(
                return_std=target.std(),
                stats={"clip_eps": slots.value(meta.clip_eps, context)},
            )
            batch = Batch(
                data.obs,
                data.done,
                data.action,
                data.log_prob,
                value,
                advantage,
                target,
            )
            # value − target, where the value loss is evaluated first.
            error = -advantage.mean(), (advantage**2).mean()
            learned = learn(params, opt_state, batch, memory, order, meta, in_loss)
            return *learned, error

        params, opt_state, entropy, kl, error = improve(
            agent.params, agent.opt_state, data, memory, order
        )
        agent = Agent(agent.age + 1, params, opt_state, obs_stats, return_stats)
        state = InnerState(agent, experience, (), Clock(clock.update + 1))
        return state, {
            "totals": rollouts.totals(data.finished),
            "entropy": entropy,
            "kl": kl,
            "error": error[0],
            "squared_error": error[1],
        }

    # --- the interface ----------------------------------------------------------------

    def train(key, meta, state):
        def step(state, _):
            return update(key, meta, state)

        state, info = jax.lax.scan(step, state, None, length=updates_per_segment)
        return state, {
            **rollouts.metrics(state.experience.episodes, info["totals"]),
            "entropy": info["entropy"].mean(),
            "kl": info["kl"].mean(),
            "value_error_mean": info["error"].mean(),
            "value_error_rms": jnp.sqrt(info["squared_error"].mean()),
        }

    def act(key, meta, agent, carry, obs):
        del key, meta
        memory = remember(
            agent.params, carry, embed(agent.params, normalize_obs(agent, obs))
        )
        return policy(agent.params, memory).mode(), memory

    return InnerLoop(
        meta=meta,
        init=init,
        train=train,
        evaluate=evaluation.of_agent(env, act, config.num_eval_envs, initial_carry),
        num_segments=config.num_segments,
        act=act,
        initial_carry=initial_carry,
        frames_per_segment=updates_per_segment * batch_size,
        env=env,
        tunable=TUNABLE,
    )
