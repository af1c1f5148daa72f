"""Common parts of PPO and recurrent PPO: the loss, its slots, learning from a rollout.

Proximal policy optimization, Schulman et al., 2017, https://arxiv.org/abs/1707.06347.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import (
    drifts,
    losses,
    messages,
    optimizers,
    population,
    rewards,
    slots,
    spaces,
)
from metaevo.errors import ConfigError
from metaevo.rl import (
    config_checks,
    heads,
    minibatches,
    network_inputs,
    networks,
    normalization,
    returns,
    rollouts,
    training,
)
from metaevo.rl.rollouts import learned_from
from metaevo.slots import Context, Slot
from metaevo.types import InnerState

# --- the loss -------------------------------------------------------------------------


class Batch(NamedTuple):
    """Inputs of the loss; leaves [..., *shape] with the same leading axes."""

    obs: jax.Array  # normalized
    sample: Any  # of the policy, see `heads.PolicyHead`
    log_prob: jax.Array  # of the policy that acted
    value: jax.Array  # before learning
    advantage: jax.Array
    target: jax.Array  # of the value: advantage + value
    mask: jax.Array | None = None  # [..., A] legal actions


def standardized(advantage: jax.Array, axis: int | None) -> jax.Array:
    """Advantages of mean 0 and deviation 1 over `axis`, None for all axes."""
    advantage = advantage - advantage.mean(axis, keepdims=True)
    return advantage / (advantage.std(axis, keepdims=True) + 1e-8)


def unchanged(advantage: jax.Array, axis: int | None) -> jax.Array:
    """Advantages as they are, in place of `standardized`."""
    del axis
    return advantage


def advantages(config: Any) -> Callable[[jax.Array, int | None], jax.Array]:
    """Return the treatment of a minibatch's advantages that a Config asks for."""
    return standardized if config.normalize_advantage else unchanged


def loss(
    head: heads.PolicyHead,
    pi: Any,
    value: jax.Array,
    batch: Batch,
    meta: Meta,
    context: Context,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """PPO's loss as mirror learning (Kuba et al., 2022) writes it.

    −E[r A − drift(r, A)] + E[policy_loss] + c_v E[value_loss] − c_e E[entropy], which
    with the default drift is the clipped objective.

    Args:
        head: of the policy.
        pi, value: the distribution and the value now, at the observations of `batch`.
        batch: of one minibatch, with standardized advantages, or as they are.
        context: `context.stats` holds `STATS` and `clip_eps`, `context.return_std` is
            the deviation of the rollout's value targets.

    Returns:
        the loss and the `STATS` of this minibatch.
    """
    log_prob = head.log_prob(pi, batch.sample)
    log_ratio = log_prob - batch.log_prob
    ratio = jnp.exp(log_ratio)
    entropy = head.entropy(pi, batch.sample)
    clip_eps = slots.value(meta.clip_eps, context)

    drift = meta.drift(log_ratio, batch.advantage, clip_eps, context)
    policy_loss = -(ratio * batch.advantage - drift).mean()
    if meta.policy_loss is not None:
        policy_loss += meta.policy_loss(
            log_prob, log_ratio, batch.advantage, entropy, context
        ).mean()
    value_loss = meta.value_loss(value, batch.target, batch.value, context).mean()
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


STATS = ("entropy", "kl", "clip_fraction")
"""Names in `context.stats`: means over the last update's minibatches."""


# --- settings, slots and state --------------------------------------------------------


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
        normalize_observation: give observations mean 0 and deviation 1, by running
            statistics.
        normalize_reward: give discounted returns deviation 1, by running statistics.
        torso: before the hidden layers of policy and critic: `mlp`, nothing; `cnn`,
            MinAtar's convolution; `nature`, the Nature paper's for 84 x 84 pixels.
        features: units of each hidden layer of policy and critic.
        activation: function of these layers.
        normalize_advantage: give a minibatch's advantages mean 0 and deviation 1.
        reward_scale: factor of the learner's reward, > 0.
        target_kl: an update's gradient steps end at 1.5 times this KL divergence;
            None: all are taken.
        policy: of continuous actions: `normal`, with deviations of its own, or
            `tanh_normal`, of bounded actions, with those that the network gives.
        initial_log_std: of `normal`.
        num_eval_envs: episodes that `evaluate` averages over.
        message_size: numbers in a message, see `Meta.message`; 0: there is none.
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
    torso: networks.Torso = "mlp"
    features: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    normalize_advantage: bool = True
    reward_scale: float = 1.0
    target_kl: float | None = None
    policy: heads.Policy = "normal"
    initial_log_std: float = 0.0
    num_eval_envs: int = 16
    message_size: int = 0


class Meta(NamedTuple):
    """Slots of PPO and recurrent PPO.

    Attributes:
        lr: Adam's step size, before annealing.
        gamma: discount, in [0, 1].
        gae_lambda: trace decay, in [0, 1].
        ent_coef: weight of the entropy bonus.
        vf_coef: weight of the value loss.
        clip_eps: ε of the policy's clip, and of the default value loss.
        max_grad_norm: global norm that gradients are clipped to.
        drift: `(log_ratio, advantage, clip_eps, context) -> [...]`, >= 0.
        value_loss: `(value, target, old_value, context) -> [...]`.
        policy_loss: added term `(log_prob, log_ratio, advantage, entropy, context)
            -> [...]`, or None.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, the
            reward that the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
        activation: `(x) -> [...]`, of hidden layers; None: that of the Config.
        advantage: `(reward, value, next_value, log_ratio, terminated, done, context) ->
            [T, E]`, from [T, E] each, `log_ratio` 0; None: generalized advantage
            estimation, by which the critic's targets are made in any case.
            `context.stats` holds `gamma` and `gae_lambda`.
        message: `(obs, context) -> [..., message_size]`, seen by the networks beside
            the flattened observation [..., n], and by nothing else; see `messages`.

    `context.stats` of all slots holds `entropy`, `kl` and `clip_fraction`, means over
    the last update's minibatches, 0 before the first; of the losses also `clip_eps`.
    """

    lr: Slot = 2.5e-4
    gamma: Slot = 0.99
    gae_lambda: Slot = 0.95
    ent_coef: Slot = 0.01
    vf_coef: Slot = 0.5
    clip_eps: slots.NotNegative = 0.2
    max_grad_norm: slots.Positive = 0.5
    drift: Slot = drifts.ppo_clip
    value_loss: Slot = losses.clipped_square
    policy_loss: Slot | None = None
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.adam
    activation: Slot | None = None
    advantage: Slot | None = None
    message: Slot = messages.silent


TUNABLE = spaces.tune(
    lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    gae_lambda=spaces.one_minus_log(),
    ent_coef=spaces.log(),
    vf_coef=spaces.log(),
    clip_eps=spaces.log(),
    max_grad_norm=spaces.log(),
)
"""The space that a baseline is tuned in."""

CHOICES = (
    "meta.value_loss=metaevo.losses:square",
    "inner.normalize_observation=true",
    "inner.normalize_reward=true",
    "inner.target_kl=0.02",
    "inner.anneal_lr=false",
)
"""Static settings that a rival may take: the first leaves out the clip of values."""


class Agent(NamedTuple):
    """Networks, optimizer state, normalizers."""

    age: jax.Array  # int32, updates since birth
    params: Any
    opt_state: Any
    obs_stats: normalization.RunningStats
    return_stats: normalization.RunningStats
    stats: dict[str, jax.Array]  # of the last update, for the context


class Normalizers(NamedTuple):
    """Of observations, and of rewards by the deviation of discounted returns."""

    obs: normalization.Normalizer
    reward: normalization.Normalizer


class Rollout(NamedTuple):
    """One rollout; leaves [T, E, ...]."""

    obs: jax.Array  # with its message, normalized
    sample: Any  # of the policy, see `heads.PolicyHead`
    log_prob: jax.Array
    reward: jax.Array  # that the agent learns from
    terminated: jax.Array
    done: jax.Array
    next_obs: jax.Array  # the true one, normalized
    raw_obs: jax.Array  # with its message
    finished: rollouts.Finished
    mask: jax.Array | None = None  # [T, E, A] legal actions
    memory: Any = ()  # after seeing obs


def normalizers(config: Any) -> Normalizers:
    """The normalizers of a Config."""
    return Normalizers(
        normalization.observations(config.normalize_observation),
        normalization.rewards(config.normalize_reward),
    )


def newborn(net_inputs: network_inputs.NetworkInputs, params: Any, meta: Meta) -> Agent:
    """An agent with these parameters."""
    return Agent(
        jnp.int32(0),
        params,
        meta.optimizer.init(params),
        normalization.init(net_inputs.space.shape),
        normalization.init(()),
        dict.fromkeys(STATS, jnp.zeros(())),
    )


# --- rollout --------------------------------------------------------------------------


def check_config(config: Any) -> None:
    """Check the settings of a Config that both PPOs have.

    Raises:
        ConfigError: one is out of range.
    """
    config_checks.check_positive(config, may_be_zero=("message_size",))
    if not config.reward_scale > 0:
        raise ConfigError(f"inner.reward_scale={config.reward_scale} must be > 0")
    if config.target_kl is not None and not config.target_kl > 0:
        raise ConfigError(f"inner.target_kl={config.target_kl} must be > 0, or none")


class Acted(NamedTuple):
    """Steps of a rollout with the actions taken; leaves [T, E, ...]."""

    steps: rollouts.Transition
    sample: Any  # of the policy, see `heads.PolicyHead`
    log_prob: jax.Array
    finished: rollouts.Finished
    memory: Any = ()  # after seeing the observation


def rollout_for_learning(
    config: Any,
    normalize: normalization.Normalizer,
    net_inputs: network_inputs.NetworkInputs,
    meta: Any,
    context: Context,
    agent: Any,
    acted: Acted,
    discounted_return: jax.Array,
) -> tuple[jax.Array, Rollout, jax.Array]:
    """Compute for all steps at once what acting does not need.

    Args:
        config: with `reward_scale`.
        normalize: of observations.
        agent: with `obs_stats`.
        discounted_return: [E], of the learner's reward, before the rollout.

    Returns:
        the discounted return [E] after it, the rollout, and the discounted returns
        [T, E] within.
    """
    steps = acted.steps
    reward = config.reward_scale * learned_from(meta, steps, context)
    gamma = slots.value(meta.gamma, context)
    last, discounted = returns.discounted_so_far(
        reward, steps.done, gamma, discounted_return
    )
    obs = net_inputs.with_message(meta, context, steps.obs)
    next_obs = net_inputs.with_message(meta, context, steps.next_obs)
    rollout = Rollout(
        obs=normalize.apply(agent.obs_stats, obs),
        sample=acted.sample,
        log_prob=acted.log_prob,
        reward=reward,
        terminated=steps.terminated,
        done=steps.done,
        next_obs=normalize.apply(agent.obs_stats, next_obs),
        raw_obs=obs,
        finished=acted.finished,
        mask=steps.mask,
        memory=acted.memory,
    )
    return last, rollout, discounted


# --- update ---------------------------------------------------------------------------


class PpoParts(NamedTuple):
    """The differences between PPO and recurrent PPO.

    Attributes:
        rollout: `(key, meta, context, agent, experience) -> (experience, Rollout,
            discounted returns [T, E])`.
        start: `experience -> the memory that a rollout begins with`, () for none.
        values: `(meta, params, Rollout) -> (value, next value)`, [T, E] each.
        split: `(Batch, Rollout, start, order) -> (drawn, take)` for
            `minibatches.descend`; `order` is [steps, samples] int32.
        loss: `(params, minibatch, meta, context) -> (scalar, STATS)`.
        num_samples: what minibatches are drawn from: transitions or environments.
    """

    rollout: Callable[..., tuple[Any, Rollout, jax.Array]]
    start: Callable[[Any], Any]
    values: Callable[[Meta, Any, Rollout], tuple[jax.Array, jax.Array]]
    split: Callable[..., tuple[Any, Callable[[Any], Any]]]
    loss: Callable[..., tuple[jax.Array, dict[str, jax.Array]]]
    num_samples: int


def too_far(config: Any) -> Callable[[dict[str, jax.Array]], jax.Array] | None:
    """The condition that ends an update's gradient steps, for `minibatches.descend`.

    Steps end before that on the first minibatch whose KL divergence, estimated as in
    `STATS`, is above 1.5 times `config.target_kl`, as in stable-baselines3. (CleanRL
    looks once an epoch, and at 1.0 times it.)
    """
    if config.target_kl is None:
        return None
    return lambda info: info["kl"] > 1.5 * config.target_kl


def update_of(
    config: Any, num_updates: int, normalize: Normalizers, parts: PpoParts
) -> training.Update:
    """The update: one rollout and the gradient steps on it."""
    stop = too_far(config)

    def learn(meta, context, params, opt_state, rollout, start, order):
        value, next_value = parts.values(meta, params, rollout)
        gamma = slots.value(meta.gamma, context)
        gae_lambda = slots.value(meta.gae_lambda, context)
        ends = rollout.terminated, rollout.done
        advantage = returns.generalized_advantage(
            rollout.reward, value, next_value, *ends, gamma, gae_lambda
        )
        target = advantage + value
        clip_eps = slots.value(meta.clip_eps, context)
        in_loss = context._replace(
            return_std=target.std(), stats={**context.stats, "clip_eps": clip_eps}
        )
        weight = advantage
        if meta.advantage is not None:
            decays = {"gamma": gamma, "gae_lambda": gae_lambda}
            before = in_loss._replace(stats={**context.stats, **decays})
            log_ratio = jnp.zeros_like(value)
            weight = meta.advantage(
                rollout.reward, value, next_value, log_ratio, *ends, before
            )
        batch = Batch(
            rollout.obs,
            rollout.sample,
            rollout.log_prob,
            value,
            weight,
            target,
            rollout.mask,
        )
        drawn, take = parts.split(batch, rollout, start, order)
        lr = training.learning_rate(meta, in_loss, config.anneal_lr)
        learned = minibatches.descend(
            parts.loss, drawn, take, params, opt_state, lr, meta, in_loss, stop
        )
        # value − target, where the value loss is evaluated first.
        error = {"error": -advantage.mean(), "squared": (advantage**2).mean()}
        error["return_std"] = in_loss.return_std
        return *learned, error

    def update(key, meta, state):
        agent, experience, clock = state.agent, state.experience, state.clock
        rollout_key, order_key = training.keys(key, clock)
        context = training.context(agent.age, num_updates, agent.stats)
        start = parts.start(experience)
        experience, rollout, discounted = parts.rollout(
            rollout_key, meta, context, agent, experience
        )
        obs_stats = normalize.obs.update(agent.obs_stats, rollout.raw_obs)
        return_stats = normalize.reward.update(agent.return_stats, discounted)
        reward = normalize.reward.apply(return_stats, rollout.reward)
        rollout = rollout._replace(reward=reward)
        order = minibatches.orders(
            order_key, config.num_epochs, config.num_minibatches, parts.num_samples
        )

        improve = population.phase(partial(learn, meta, context))
        params, opt_state, stats, error = improve(
            agent.params, agent.opt_state, rollout, start, order
        )
        agent = Agent(agent.age + 1, params, opt_state, obs_stats, return_stats, stats)
        state = InnerState(agent, experience, (), training.tick(clock))
        totals = rollouts.totals(rollout.finished)
        return state, {**stats, **error, "totals": totals}

    return update
