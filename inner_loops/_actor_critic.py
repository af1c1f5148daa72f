"""Common parts of A2C, A3C and IMPALA: one gradient step a rollout, by old parameters.

W workers share parameters. In an update each takes those of some updates ago, acts with
them, and gives one gradient; the gradients are applied in turn. What a worker learns
with is what the algorithms differ in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from inner_loops import _ppo
from inner_loops._ppo import Normalizers, Rollout
from metaevo import envs, losses, optimizers, rewards, slots
from metaevo.errors import ConfigError
from metaevo.rl import (
    actor_critics,
    config_checks,
    delays,
    heads,
    network_inputs,
    networks,
    normalization,
    returns,
    rollouts,
    training,
)
from metaevo.rl.actor_critics import ActorCritic
from metaevo.slots import Context, Slot
from metaevo.types import InnerLoop, InnerState

__all__ = ["Agent", "Algorithm", "Estimate", "Experience", "check_config", "inner_loop"]


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and loop lengths.

    Attributes:
        total_timesteps: frames in a lifetime, rounded down to whole segments.
        num_envs: E, environments of one member, of all its workers.
        num_steps: T, steps of a rollout. An update takes E x T frames.
        max_delay: D, the most updates that a worker is behind; D sets of parameters are
            kept.
        num_segments: K, points on the learning curve.
        anneal_lr: whether the learning rate falls linearly to 0 over the lifetime.
        normalize_observation: by running statistics.
        normalize_reward: by running statistics; None: with a GRU, which policy and
            critic share, so that the gradient of large values drowns the policy's.
        normalize_advantage: whether the advantages of a worker's rollout get mean 0 and
            deviation 1.
        torso: before the hidden layers of policy and critic: `mlp`, nothing; `cnn`,
            MinAtar's convolution; `nature`, the Nature paper's for 84 x 84 pixels.
        memory: `none`, or `gru` of `hidden` units before those layers.
        hidden: units of the GRU.
        features: units of each hidden layer of policy and critic.
        activation: function of these layers.
        reward_scale: factor of the learner's reward, > 0.
        policy: of continuous actions: `normal`, with deviations of its own, or
            `tanh_normal`, of bounded actions, with those that the network gives.
        initial_log_std: of `normal`.
        num_eval_envs: episodes that `evaluate` averages over.
    """

    total_timesteps: int = 500_000
    num_envs: int = 8
    num_steps: int = 5
    max_delay: int = 0
    num_segments: int = 16
    anneal_lr: bool = True
    normalize_observation: bool = False
    normalize_reward: bool | None = None
    normalize_advantage: bool = False
    torso: networks.Torso = "mlp"
    memory: actor_critics.MemoryName = "none"
    hidden: int = 64
    features: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    reward_scale: float = 1.0
    policy: heads.Policy = "normal"
    initial_log_std: float = 0.0
    num_eval_envs: int = 16


CHOICES = (
    "inner.normalize_observation=true",
    "inner.normalize_reward=true",
    "inner.normalize_advantage=true",
    "inner.anneal_lr=false",
)
"""Static settings that a rival may take."""


class Meta(NamedTuple):
    """Slots that all of these algorithms have.

    Attributes:
        lr: step size of the optimizer, before annealing; `context.stats` holds `delay`,
            that of the worker whose gradient is applied.
        gamma: discount, in [0, 1].
        gae_lambda: trace decay, in [0, 1].
        ent_coef: weight of the entropy bonus.
        vf_coef: weight of the value loss.
        max_grad_norm: global norm that each worker's gradient is clipped to.
        delay: δ, updates that the last worker is behind, rounded, in [0, D]; None: D.
        advantage: `(reward, value, next_value, log_ratio, terminated, done, context) ->
            [T, E]`, from [T, E] each, what the policy's gradient is weighted by; None:
            that of the algorithm. `context.stats` holds the numbers of the estimate.
        value_loss: `(value, target, old_value, context) -> [...]`.
        policy_loss: added term `(log_prob, log_ratio, advantage, entropy, context)
            -> [...]`, or None.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, the
            reward that the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
        activation: `(x) -> [...]`, of hidden layers; None: that of the Config.
    """

    lr: Slot = 7e-4
    gamma: Slot = 0.99
    gae_lambda: Slot = 1.0
    ent_coef: Slot = 0.01
    vf_coef: Slot = 0.5
    max_grad_norm: slots.Positive = 0.5
    delay: slots.NotNegative | None = None
    advantage: Slot | None = None
    value_loss: Slot = losses.square
    policy_loss: Slot | None = None
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.rmsprop(0.99, 1e-5)
    activation: Slot | None = None


class Agent(NamedTuple):
    """Networks, their past, optimizer state, normalizers."""

    age: jax.Array  # int32, updates since birth
    params: Any
    past: Any  # params of the last D updates, see `delays`
    opt_state: Any
    obs_stats: normalization.RunningStats
    return_stats: normalization.RunningStats
    stats: dict[str, jax.Array]  # of the last update, for the context


class Experience(NamedTuple):
    """The member's environments; leaves [E, ...]."""

    episodes: rollouts.Episodes
    memory: Any  # of the policy, () without one
    discounted_return: jax.Array  # of the learner's reward, for its normalization


class Estimate(NamedTuple):
    """Values of a rollout; leaves [T, E]."""

    error: jax.Array  # target − value
    advantage: jax.Array


class Algorithm(NamedTuple):
    """The differences between the algorithms.

    Attributes:
        numbers: `(meta, context) -> {name: number}` of the estimate, for `estimate` and
            for the slot `advantage`, in `context.stats`.
        estimate: `(meta, numbers, Rollout, value, next_value, log_ratio, context) ->
            Estimate`, of which no gradient is taken.
        learner: `(params that act, params of the present) -> params` of which the
            gradient is taken, of one worker.
        step_size: `(meta, context, delay) -> ` the learning rate of a gradient; the
            context's `stats` hold `delay`.
        entropy: `(meta, context, num_workers) -> [W]`, the weights of the bonus.
        stats: names in `context.stats`: of the scalars that a loss returns.
    """

    numbers: Callable[[Any, Context], Mapping[str, Any]]
    estimate: Callable[..., Estimate]
    learner: Callable[[Any, Any], Any]
    step_size: Callable[[Any, Context, jax.Array], Any]
    entropy: Callable[[Any, Context, int], jax.Array]
    stats: tuple[str, ...]


# --- the loss -------------------------------------------------------------------------


def loss(
    core: ActorCritic,
    algorithm: Algorithm,
    treat: Callable[[jax.Array, None], jax.Array],
    params: Any,
    rollout: Rollout,
    memory: Any,
    ent_coef: jax.Array,
    meta: Any,
    context: Context,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """−E[log π A] + E[policy_loss] + c_v E[value_loss] − c_e E[entropy].

    Args:
        treat: of advantages, `_ppo.standardized` or `_ppo.unchanged`.
        rollout: of one worker, leaves [T, E, ...].
        memory: with which it began, leaves [E, ...].
        ent_coef: c_e of this worker.

    Returns:
        the loss, and scalars of this rollout.
    """
    pi, value, memories = core.replay(
        meta, params, memory, rollout.obs, rollout.done, rollout.mask
    )
    log_prob = core.head.log_prob(pi, rollout.sample)
    entropy = core.head.entropy(pi, rollout.sample)
    log_ratio = log_prob - rollout.log_prob
    # No gradient is taken of what is learned from, nor computed.
    old_value, fixed_ratio, memories, old = jax.lax.stop_gradient(
        (value, log_ratio, memories, params)
    )

    def ahead(rows):
        return core.ahead(meta, old, *rows)

    next_value = returns.next_values(
        old_value,
        rollout.terminated,
        rollout.done,
        (memories, rollout.next_obs),
        ahead,
    )
    numbers = algorithm.numbers(meta, context)
    estimate = algorithm.estimate(
        meta, numbers, rollout, old_value, next_value, fixed_ratio, context
    )
    target = old_value + estimate.error
    context = context._replace(
        return_std=target.std(), stats={**context.stats, **numbers}
    )
    advantage = estimate.advantage
    if meta.advantage is not None:
        ends = rollout.terminated, rollout.done
        advantage = meta.advantage(
            rollout.reward, old_value, next_value, fixed_ratio, *ends, context
        )
    advantage = treat(jax.lax.stop_gradient(advantage), None)
    policy_loss = -(log_prob * advantage).mean()
    if meta.policy_loss is not None:
        policy_loss += meta.policy_loss(
            log_prob, log_ratio, advantage, entropy, context
        ).mean()
    value_loss = meta.value_loss(value, target, old_value, context).mean()
    total = (
        policy_loss
        + slots.value(meta.vf_coef, context) * value_loss
        - ent_coef * entropy.mean()
    )
    # Capped: metrics and `context.stats` stay finite however far actors are behind.
    fixed_ratio = jnp.minimum(fixed_ratio, returns.LARGEST_LOG_RATIO)
    ratio = returns.importance_ratio(fixed_ratio)
    return total, {
        "entropy": entropy.mean(),
        "kl": (ratio - 1 - fixed_ratio).mean(),
        "clip_fraction": (ratio > numbers.get("rho_clip", jnp.inf)).mean(
            dtype=jnp.float32
        ),
        "error": -estimate.error.mean(),
        "squared": (estimate.error**2).mean(),
        "return_std": target.std(),
    }


# --- workers --------------------------------------------------------------------------


def check_config(config: Any, num_workers: int) -> None:
    """Check the settings that all of these algorithms have.

    Raises:
        ConfigError: one is out of range, or they do not fit each other.
    """
    config_checks.check_positive(config, may_be_zero=("max_delay",))
    if not config.reward_scale > 0:
        raise ConfigError(f"inner.reward_scale={config.reward_scale} must be > 0")
    if config.num_envs % num_workers:
        raise ConfigError(
            f"inner.num_workers={num_workers} does not divide "
            f"inner.num_envs={config.num_envs}: each has as many environments"
        )


def divided(tree: Any, num_workers: int, axis: int = 0) -> Any:
    """Leaves [..., E, ...] as [W, ..., E / W, ...], E at `axis`."""

    def one(x):
        shape = *x.shape[:axis], num_workers, -1, *x.shape[axis + 1 :]
        return jnp.moveaxis(x.reshape(shape), axis, 0)

    return jax.tree.map(one, tree)


def merged(tree: Any, axis: int = 0) -> Any:
    """Leaves [..., W, E / W, ...] as [..., E, ...], W at `axis`."""

    def one(x):
        return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    return jax.tree.map(one, tree)


def normalizers(config: Any) -> Normalizers:
    """The normalizers of a Config; see its `normalize_reward`."""
    rewards = config.normalize_reward
    return Normalizers(
        normalization.observations(config.normalize_observation),
        normalization.rewards(config.memory == "gru" if rewards is None else rewards),
    )


def inner_loop(
    env: envs.Env,
    config: Any,
    meta: Any,
    algorithm: Algorithm,
    num_workers: int = 1,
    **fields: Any,
) -> InnerLoop:
    """The inner loop of an algorithm.

    Args:
        config: with `num_envs`, `num_steps`, `max_delay`, `anneal_lr`,
            `normalize_observation`, `normalize_reward`, `normalize_advantage`,
            `reward_scale`, and what `actor_critics.of` and `training.inner_loop` read.
        meta: with the slots `gamma`, `vf_coef`, `max_grad_norm`, `delay`, `advantage`,
            `value_loss`, `policy_loss`, `reward`, `optimizer`, `activation`, and those
            that `algorithm` reads.
        **fields: further fields of the `InnerLoop`.

    Raises:
        ConfigError: sizes that do not fit each other, or a slot of `meta` holds what
            cannot be used there.
    """
    check_config(config, num_workers)
    delays.check_delay(meta.delay, config.max_delay)
    lifetime = config_checks.lifetime(config, config.num_envs * config.num_steps)
    core, head = (core := actor_critics.of(env, config)), core.head
    normalize = normalizers(config)
    treat = _ppo.advantages(config)
    no_stats = dict.fromkeys(algorithm.stats, jnp.zeros(()))

    def init(key, meta):
        params_key, env_key = jax.random.split(key)
        params = core.init(params_key)
        memory = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (config.num_envs, *x.shape)), core.memory()
        )
        experience = Experience(
            rollouts.start(env_key, env, config.num_envs),
            memory,
            jnp.zeros(config.num_envs),
        )
        agent = Agent(
            jnp.int32(0),
            params,
            delays.start(params, config.max_delay),
            meta.optimizer.init(params),
            normalization.init(env.observation.shape),
            normalization.init(()),
            no_stats,
        )
        return InnerState(agent, experience, clock=training.start_clock())

    def act_and_see(key, meta, context, agent, acting, experience):
        """T steps of the workers' environments; `acting` has leaves [W, ...]."""
        keys = jax.random.split(key, 3)  # of noise, steps and starts
        # Drawn at once: random numbers inside the scan cost more.
        noise = head.noise(keys[0], (config.num_steps, config.num_envs))

        @jax.vmap
        def one(params, memory, obs, noise, mask):
            memory, pi = core.act(meta, params, memory, obs, mask)
            return memory, pi, head.sample(pi, noise)

        def choose(memory, obs, noise, state, mask):
            del state
            obs = normalize.obs.apply(agent.obs_stats, obs)
            each = divided((memory, obs, noise, mask), num_workers)
            memory, pi, sample = one(acting, *each)
            return merged(memory), head.action(merged(sample)), (pi, sample)

        after, memory, steps, finished, (pi, sample) = rollouts.collect(
            keys[1:], env, experience.episodes, noise, choose, experience.memory
        )
        log_prob = jax.vmap(jax.vmap(head.log_prob))(pi, sample)
        acted = _ppo.Acted(steps, merged(sample, 1), merged(log_prob, 1), finished)
        before = experience.discounted_return
        net_inputs = network_inputs.without_messages(env)
        last, data, discounted = _ppo.rollout_for_learning(
            config, normalize.obs, net_inputs, meta, context, agent, acted, before
        )
        return Experience(after, memory, last), data, discounted

    def update(key, meta, state):
        agent, experience, clock = state.agent, state.experience, state.clock
        context = training.context(agent.age, lifetime.num_updates, agent.stats)
        delay = delays.of_workers(
            delays.bounded(meta.delay, config.max_delay, context), num_workers
        )
        acting = jax.vmap(
            lambda one: delays.read(agent.past, clock.update, agent.params, one)
        )(delay)
        memory = divided(experience.memory, num_workers)
        experience, rollout, discounted = act_and_see(
            jax.random.fold_in(key, clock.update),
            meta,
            context,
            agent,
            acting,
            experience,
        )
        obs_stats = normalize.obs.update(agent.obs_stats, rollout.raw_obs)
        return_stats = normalize.reward.update(agent.return_stats, discounted)
        reward = normalize.reward.apply(return_stats, rollout.reward)
        seen = rollout._replace(reward=reward, raw_obs=(), finished=())

        def improve(params, opt_state, acting, delay, rollout, memory):
            ent_coef = algorithm.entropy(meta, context, num_workers)

            def gradient(acting, rollout, memory, ent_coef):
                def of(params):
                    return loss(
                        *(core, algorithm, treat, params),
                        *(rollout, memory, ent_coef, meta, context),
                    )

                return jax.grad(of, has_aux=True)(algorithm.learner(acting, params))

            each = divided(rollout, num_workers, 1)
            gradients, info = jax.vmap(gradient)(acting, each, memory, ent_coef)

            def apply(learned, at):
                params, opt_state = learned
                gradient, delay = at
                late = {**context.stats, "delay": delay.astype(jnp.float32)}
                then = context._replace(stats=late)
                lr = algorithm.step_size(meta, then, delay)
                if config.anneal_lr:
                    lr = lr * (1.0 - context.progress)
                max_norm = slots.value(meta.max_grad_norm, context)
                gradient = optimizers.clip_by_global_norm(gradient, max_norm)
                learned = optimizers.step(
                    meta.optimizer, gradient, params, opt_state, lr, context
                )
                return learned, None

            learned, _ = jax.lax.scan(apply, (params, opt_state), (gradients, delay))
            return *learned, jax.tree.map(jnp.mean, info)

        params, opt_state, info = improve(
            agent.params, agent.opt_state, acting, delay, seen, memory
        )
        past = delays.push(agent.past, clock.update, agent.params)
        stats = {name: info[name] for name in algorithm.stats}
        agent = Agent(
            agent.age + 1, params, past, opt_state, obs_stats, return_stats, stats
        )
        state = InnerState(agent, experience, (), training.tick(clock))
        kept = {*algorithm.stats, "error", "squared", "return_std"}
        info = {name: x for name, x in info.items() if name in kept}
        return state, info | {"totals": rollouts.totals(rollout.finished)}

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        del key, state
        obs = normalize.obs.apply(agent.obs_stats, obs)
        memory, pi = core.act(meta, agent.params, carry, obs, mask)
        return head.greedy(pi), memory

    return training.inner_loop(
        env,
        config,
        meta,
        lifetime,
        init,
        update,
        act,
        initial_carry=core.memory,
        masks=True,
        **fields,
    )
