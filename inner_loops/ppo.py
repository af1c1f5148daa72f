"""Proximal policy optimization (Schulman et al., 2017, https://arxiv.org/abs/1707.06347).

Defaults are those of PureJaxRL (Lu et al., 2022). The policy objective is written as
E[r A − drift(r, A)] (mirror learning, Kuba et al., 2022), which with the default drift
is PPO's clipped objective. Unlike most implementations time limits are bootstrapped:
a truncated episode's value target contains the value of its true last observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import drifts, envs, losses, optimizers, population, rewards, slots, spaces
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
        num_steps: T, steps of a rollout. An update takes E x T frames.
        num_epochs, num_minibatches: passes over a rollout, and gradient steps in one.
        num_segments: K, points on the learning curve.
        anneal_lr: whether the learning rate falls linearly to 0 over the lifetime.
        normalize_observation, normalize_reward: by running statistics.
        features, activation: hidden layers of policy and critic.
        initial_log_std: of a continuous policy.
        num_eval_envs: episodes that `evaluate` averages over.
    """

    total_timesteps: int = 500_000
    num_envs: int = 4
    num_steps: int = 128
    num_epochs: int = 4
    num_minibatches: int = 4
    num_segments: int = 16
    anneal_lr: bool = True
    normalize_observation: bool = False
    normalize_reward: bool = False
    features: tuple[int, ...] = (64, 64)
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
        activation: `(x) -> [...]`, of hidden layers; None: that of the Config.

    `context.stats` of all slots holds `entropy`, `kl` and `clip_fraction`, means over
    the last update's minibatches, 0 before the first; of the losses also `clip_eps`.
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
    activation: Slot | None = None


class Agent(NamedTuple):
    """Networks, optimizer state, normalizers."""

    age: jax.Array  # int32, updates since birth
    params: Any
    opt_state: Any
    obs_stats: normalization.RunningStats
    return_stats: normalization.RunningStats
    stats: dict[str, jax.Array]  # of the last update, for the context


class Experience(NamedTuple):
    """Where the member's environments are; leaves [E, ...]."""

    episodes: rollouts.Episodes
    discounted_return: jax.Array  # of the learner's reward, for its normalization


class Clock(NamedTuple):
    update: jax.Array  # int32, updates done in this lifetime


class Transition(NamedTuple):
    """One rollout; leaves [T, E, ...]."""

    obs: jax.Array  # as the networks see it
    action: jax.Array
    log_prob: jax.Array
    reward: jax.Array  # as the agent learns from it
    terminated: jax.Array
    done: jax.Array
    next_obs: jax.Array  # the true one, as the networks see it
    raw_obs: jax.Array
    finished: rollouts.Finished


class Batch(NamedTuple):
    """What the losses need; leaves [B, ...]."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


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

STATS = ("entropy", "kl", "clip_fraction")
"""What the context says of the last update."""


def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """PPO on `env`.

    Metrics of `train`: those of `episodes.metrics`, `entropy`, `kl`, `clip_fraction`
    (the share of ratios outside 1 ± ε), and mean and root mean square of value − target
    on the rollouts, `value_error_mean` and `_rms`.

    Raises:
        ConfigError: sizes that do not fit each other.
    """
    config_checks.positive(config)
    batch_size = config_checks.minibatched(config)
    num_updates, updates_per_segment = config_checks.lifetime(config, batch_size)

    discrete = isinstance(env.action, envs.Discrete)
    num_outputs = env.action.num if discrete else env.action.shape[0]
    distribution = distributions.Categorical if discrete else distributions.Normal
    obs_ndim = len(env.observation.shape)
    net = (config.activation, obs_ndim)
    actor = networks.MLP(config.features, num_outputs, 0.01, *net)
    critic = networks.MLP(config.features, 1, 1.0, *net)

    def policy(meta, params, obs):
        out = actor.apply(params["actor"], obs, meta.activation)
        if discrete:
            return distributions.Categorical(out)
        return distributions.Normal(out, params["log_std"])

    def value_of(meta, params, obs):
        return critic.apply(params["critic"], obs, meta.activation)[..., 0]

    def normalize_obs(agent, obs):
        """The observation as the networks see it."""
        if config.normalize_observation:
            return normalization.normalize(agent.obs_stats, obs)
        return obs

    def context_of(agent):
        progress = jnp.minimum(agent.age / num_updates, 1.0)
        return Context(progress=progress, stats=agent.stats)

    # --- birth ------------------------------------------------------------------------

    def init(key, meta):
        actor_key, critic_key, env_key = jax.random.split(key, 3)
        obs = jnp.zeros(env.observation.shape)
        params = {
            "actor": actor.init(actor_key, obs),
            "critic": critic.init(critic_key, obs),
        }
        if not discrete:
            params["log_std"] = jnp.full(num_outputs, config.initial_log_std)
        agent = Agent(
            jnp.int32(0),
            params,
            meta.optimizer.init(params),
            normalization.init(env.observation.shape),
            normalization.init(()),
            dict.fromkeys(STATS, jnp.zeros(())),
        )
        experience = Experience(
            rollouts.start(env_key, env, config.num_envs), jnp.zeros(config.num_envs)
        )
        return InnerState(agent, experience, clock=Clock(jnp.int32(0)))

    # --- rollout ----------------------------------------------------------------------

    def rollout(key, meta, context, agent, experience):
        """T steps of E environments: -> (experience, Transition)."""
        noise_key, step_key, reset_key = jax.random.split(key, 3)
        shape = (config.num_steps, config.num_envs)
        # Drawn at once: random numbers inside the scan cost more.
        noise = distribution.noise(noise_key, (*shape, num_outputs))
        drawn, world = rollouts.worlds(step_key, reset_key, env, *shape)

        # The scan holds what acting needs; all else is done for all steps at once.
        def step(before, drawn):
            noise, drawn = drawn
            pi = policy(meta, agent.params, normalize_obs(agent, before.obs))
            action = pi.transform(noise)
            after, out, finished = rollouts.step(env, world(drawn), before, action)
            transition = rollouts.Transition(
                envs.packed(env, before.obs),
                action,
                out.reward,
                envs.packed(env, out.final_obs),
                out.terminated,
                out.done,
            )
            return after, (transition, pi, finished)

        after, (steps, pi, finished) = jax.lax.scan(
            step, experience.episodes, (noise, drawn)
        )
        reward = learned_from(meta, steps, context)
        gamma = slots.value(meta.gamma, context)

        def discount(before, at):
            reward, done = at
            discounted = reward + gamma * before
            return jnp.where(done, 0.0, discounted), discounted

        last, discounted = jax.lax.scan(
            discount, experience.discounted_return, (reward, steps.done)
        )
        rollout = Transition(
            obs=normalize_obs(agent, steps.obs),
            action=steps.action,
            log_prob=jax.vmap(distribution.log_prob)(pi, steps.action),
            reward=reward,
            terminated=steps.terminated,
            done=steps.done,
            next_obs=normalize_obs(agent, steps.next_obs),
            raw_obs=steps.obs,
            finished=finished,
        )
        return Experience(after, last), rollout, discounted

    # --- learning ---------------------------------------------------------------------

    def loss(params, batch, meta, context):
        pi = policy(meta, params, batch.obs)
        log_prob = pi.log_prob(batch.action)
        log_ratio = log_prob - batch.log_prob
        ratio = jnp.exp(log_ratio)
        entropy = pi.entropy()
        clip_eps = slots.value(meta.clip_eps, context)

        drift = meta.drift(log_ratio, batch.advantage, clip_eps, context)
        policy_loss = -(ratio * batch.advantage - drift).mean()
        if meta.policy_loss is not None:
            policy_loss += meta.policy_loss(
                log_prob, log_ratio, batch.advantage, entropy, context
            ).mean()
        value_loss = meta.value_loss(
            value_of(meta, params, batch.obs), batch.target, batch.value, context
        ).mean()
        total = (
            policy_loss
            + slots.value(meta.vf_coef, context) * value_loss
            - slots.value(meta.ent_coef, context) * entropy.mean()
        )
        return total, {
            "entropy": entropy.mean(),
            "kl": (ratio - 1 - log_ratio).mean(),
            "clip_fraction": (jnp.abs(ratio - 1) > clip_eps).mean(dtype=jnp.float32),
        }

    def learn(params, opt_state, batch, order, meta, context):
        """Gradient steps on minibatches; `order` is [steps, minibatch] int32."""
        lr = slots.value(meta.lr, context)
        if config.anneal_lr:
            lr = lr * (1.0 - context.progress)
        max_norm = slots.value(meta.max_grad_norm, context)
        # What is small is gathered and standardized for all steps at once.
        small = jax.tree.map(lambda x: x[order], batch._replace(obs=()))
        advantage = small.advantage - small.advantage.mean(-1, keepdims=True)
        advantage /= advantage.std(-1, keepdims=True) + 1e-8
        small = small._replace(advantage=advantage)

        def step(carry, at):
            params, opt_state = carry
            chosen, small = at
            minibatch = small._replace(obs=batch.obs[chosen])
            gradient, info = jax.grad(loss, has_aux=True)(
                params, minibatch, meta, context
            )
            gradient = optimizers.clip_by_global_norm(gradient, max_norm)
            params, opt_state = optimizers.step(
                meta.optimizer, gradient, params, opt_state, lr, context
            )
            return (params, opt_state), info

        (params, opt_state), info = jax.lax.scan(
            step, (params, opt_state), (order, small)
        )
        return params, opt_state, jax.tree.map(jnp.mean, info)

    def advantages(meta, params, rollout, value, gamma, gae_lambda):
        next_value = value_of(meta, params, rollout.next_obs)
        return returns.generalized_advantage(
            rollout.reward,
            value,
            next_value,
            rollout.terminated,
            rollout.done,
            gamma,
            gae_lambda,
        )

    def update(key, meta, state):
        """One rollout and the gradient steps on it."""
        agent, experience, clock = state.agent, state.experience, state.clock
        rollout_key, order_key = jax.random.split(jax.random.fold_in(key, clock.update))
        context = context_of(agent)
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
            order_key, config.num_epochs, config.num_minibatches, batch_size
        )

        @population.phase
        def improve(params, opt_state, data, order):
            value = value_of(meta, params, data.obs)
            advantage = advantages(
                meta,
                params,
                data,
                value,
                slots.value(meta.gamma, context),
                slots.value(meta.gae_lambda, context),
            )
            target = advantage + value
            in_loss = context._replace(
                return_std=target.std(),
                stats={
                    **context.stats,
                    "clip_eps": slots.value(meta.clip_eps, context),
                },
            )
            batch = Batch(
                data.obs, data.action, data.log_prob, value, advantage, target
            )
            batch = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), batch)
            # value − target, where the value loss is evaluated first.
            error = -advantage.mean(), (advantage**2).mean()
            return *learn(params, opt_state, batch, order, meta, in_loss), error

        params, opt_state, info, error = improve(
            agent.params, agent.opt_state, data, order
        )
        agent = Agent(agent.age + 1, params, opt_state, obs_stats, return_stats, info)
        state = InnerState(agent, experience, (), Clock(clock.update + 1))
        return state, {
            **info,
            "totals": rollouts.totals(data.finished),
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
            **{name: info[name].mean() for name in STATS},
            "value_error_mean": info["error"].mean(),
            "value_error_rms": jnp.sqrt(info["squared_error"].mean()),
        }

    def act(key, meta, agent, carry, obs):
        del key
        return policy(meta, agent.params, normalize_obs(agent, obs)).mode(), carry

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
