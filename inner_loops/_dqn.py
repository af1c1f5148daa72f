"""Common parts of DQN, GORILA and Ape-X: birth, targets, gradients of a minibatch.

Deep Q-learning, Mnih et al., 2015, https://www.nature.com/articles/nature14236.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from metaevo import envs, exploration, losses, optimizers, rewards, schedules, slots
from metaevo.rl import (
    config_checks,
    networks,
    normalization,
    off_policy,
    packing,
    priorities,
    q_learning,
    replay,
    returns,
    rollouts,
    training,
    value_heads,
)
from metaevo.rl.networks import Network
from metaevo.rl.rollouts import Transition, learned_from
from metaevo.slots import Context, Slot
from metaevo.types import Key

__all__ = [
    "Config",
    "DqnParts",
    "Experience",
    "Meta",
    "RainbowConfig",
    "Seen",
    "first_mass",
    "mass_of",
    "noise_keys",
    "parts",
    "target_copy",
]


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
        target_period: updates between those of the target network.
        num_segments: K, points on the learning curve.
        double: let one network choose the next action, and the other value it.
        dueling: give value and advantages a head each.
        num_step_return: n, steps before the bootstrap.
        normalize_observation: by running statistics.
        normalize_reward: give discounted returns deviation 1, by running statistics.
        torso: before the hidden layers: `mlp`, nothing; `cnn`,
            MinAtar's convolution; `nature`, the Nature paper's for 84 x 84 pixels.
        features: units of each hidden layer.
        activation: function of these layers.
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
    normalize_observation: bool = False
    normalize_reward: bool = False
    torso: networks.Torso = "mlp"
    features: tuple[int, ...] = (120, 84)
    activation: str = "relu"
    num_eval_envs: int = 16


@dataclass(frozen=True)
class RainbowConfig(Config):
    """Static settings of DQN and Ape-X, with the network's outputs and their noise.

    Attributes:
        head: outputs of the network for each action: `scalar`, one value;
            `categorical`, probabilities of `num_atoms` returns from `v_min` to `v_max`;
            `quantile`, `num_atoms` quantiles of the return.
        num_atoms: numbers for each action of a head that learns a distribution.
        v_min: return of the first atom of `categorical`.
        v_max: return of the last one.
        noisy: explore by noise on the parameters, too; see the slot `epsilon`.
    """

    head: value_heads.HeadName = "scalar"
    num_atoms: int = 101
    v_min: float = -100.0
    v_max: float = 100.0
    noisy: bool = False


class Meta(NamedTuple):
    """Slots that all of these algorithms have.

    Attributes:
        lr: Adam's step size.
        gamma: discount, in [0, 1].
        epsilon: share of random actions, in [0, 1].
        exploration: `(q [A], epsilon, context) -> probabilities [A]`.
        target_rate: τ, how far the target network moves to the online one every
            `target_period` updates, in (0, 1].
        td_loss: `(td_error, q, target, context) -> [...]`, td_error = target − q.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, the
            reward that the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
        max_grad_norm: global norm that gradients are clipped to; None: no clip.
    """

    lr: Slot = 2.5e-4
    gamma: Slot = 0.99
    epsilon: slots.Share = schedules.linear(1.0, 0.05, 0.5)
    exploration: Slot = exploration.epsilon_greedy
    target_rate: slots.Rate = 1.0
    td_loss: Slot = losses.td_square
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.adam
    max_grad_norm: slots.Positive | None = None


class Experience(NamedTuple):
    """The member's environments and replay buffer, without priorities."""

    episodes: rollouts.Episodes
    rows: packing.Packed  # of the replay buffer
    steps_since_birth: jax.Array  # int32, warm-up not counted
    discounted_return: jax.Array  # of the learner's reward, for its normalization


class Seen(NamedTuple):
    """Inputs of a priority; leaves [B].

    Attributes:
        td_error: target − q.
        target: of the value.
        reward: Σ_{i<m} γⁱ rᵢ of the m <= n steps, those that the agent learns from.
        terminated: whether the last of them terminated the episode.
    """

    td_error: jax.Array
    target: jax.Array
    reward: jax.Array
    terminated: jax.Array


def mass_of(
    seen: Seen, age: Any, visits: Any, std: jax.Array, meta: Any, context: Context
) -> jax.Array:
    """p^α of transitions [B]; `std` is the deviation of a minibatch's targets."""
    in_priority = context._replace(return_std=std)
    p = meta.priority(
        seen.td_error, age, visits, seen.reward, seen.terminated, in_priority
    )
    return priorities.mass(p, slots.value(meta.priority_exponent, context))


def first_mass(
    seen: Seen, std: jax.Array | None, meta: Any, context: Context
) -> tuple[jax.Array, jax.Array]:
    """p^α of new transitions [B], by who acts, and the deviation of their targets.

    Args:
        std: that of a minibatch's targets; None: theirs.
    """
    std = seen.target.std() if std is None else std
    zeros = jnp.zeros(seen.target.shape)
    return mass_of(seen, zeros, zeros, std, meta, context), std


class DqnParts(NamedTuple):
    """Parts that follow from an environment and a Config.

    Attributes:
        sizes: of the lifetime and the buffer.
        buffer: the replay buffer.
        network: from observations to action values [..., A].
        noise: `(key, num_steps) -> noise` of `rollouts.collect`.
        normalize: of observations.
        born: `(key, meta) -> (params, stats, episodes, rows, discounted return [E])`,
            after the warm-up; `stats` are those of `normalization.after_rollout`.
        seen: `(stats, steps, meta, context) -> steps` with any leading axes, as the
            learner sees them: normalized, rewards by the slot `reward`.
        gradient: `(params, target_params, batch, meta, context) -> (gradient, info)` of
            a minibatch that is `seen`, windows [n, B, ...], clipped; `info` has
            scalars, among them `loss`.
        weighted: `(params, target_params, batch, weights [B], meta, context) ->
            (gradient, info, Seen)`: `gradient`, of losses weighted by `weights`.
        errors: `(params, target_params, batch, meta, context) -> Seen` of windows
            [n, B, ...] that are `seen`.
    """

    sizes: off_policy.Sizes
    buffer: replay.Replay
    network: Network
    noise: Callable[[Key, int], jax.Array]
    normalize: normalization.Normalizer
    born: Callable[..., tuple[Any, Any, rollouts.Episodes, packing.Packed, jax.Array]]
    seen: Callable[..., Transition]
    gradient: Callable[..., tuple[Any, dict[str, jax.Array]]]
    weighted: Callable[..., tuple[Any, dict[str, jax.Array], Seen]]
    errors: Callable[..., Seen]


def parts(
    env: envs.Env,
    config: Any,
    algorithm: str,
    head: value_heads.ValueHead | None = None,
    wrap: Callable[[Network], Network] = lambda network: network,
) -> DqnParts:
    """The parts for a Config with the fields of DQN's.

    Args:
        algorithm: its name, for errors.
        head: what the network's outputs are; None: action values.
        wrap: makes the network another, with parameters of its own.

    Raises:
        ConfigError: sizes that do not fit each other, or continuous actions.
    """
    num_actions = config_checks.require_discrete(env, algorithm).num
    sizes = off_policy.sizes(config, config.num_step_return)
    buffer = sizes.buffer(env, config.num_envs)
    normalize = normalization.observations(config.normalize_observation)
    scale = normalization.rewards(config.normalize_reward)
    head = head or value_heads.scalar()
    outputs = wrap(
        networks.mlp(
            config.features,
            num_actions,
            activation=config.activation,
            dueling=config.dueling,
            torso=networks.torso(config.torso, env.observation),
            width=head.width,
        )
    )
    network = value_heads.values(outputs, head)

    # --- the loss ---------------------------------------------------------------------

    def next_plain(params, target_params, obs, mask):
        """Outputs of the target network at argmaxₐ Q⁻(o, a) over the legal actions."""
        del params
        out = outputs.apply(target_params, obs)
        return head.of_action(out, q_learning.best_action(head.values(out), mask))

    def next_double(params, target_params, obs, mask):
        """Outputs of the target network at argmaxₐ Q(o, a) over the legal actions."""
        out = outputs.apply(target_params, obs)
        best = q_learning.best_action(network.apply(params, obs), mask)
        return head.of_action(out, best)

    next_outputs = next_double if config.double else next_plain

    def seen(stats, steps, meta, context):
        obs_stats, return_stats = stats
        reward = scale.apply(return_stats, learned_from(meta, steps, context))
        obs, next_obs = (
            normalize.apply(obs_stats, x) for x in (steps.obs, steps.next_obs)
        )
        return steps._replace(obs=obs, next_obs=next_obs, reward=reward)

    def target_of(params, target_params, batch, meta, context):
        """n-step targets of the head and rewards [B], of windows [n, B, ...]."""
        total, factor, last = returns.n_step_window(
            batch.reward, batch.terminated, batch.done, slots.value(meta.gamma, context)
        )
        next_obs, next_mask = jax.tree.map(
            lambda x: x[last, jnp.arange(len(last))], (batch.next_obs, batch.next_mask)
        )
        out = next_outputs(params, target_params, next_obs, next_mask)
        return head.target(out, total, factor), total, last

    def outputs_of(params, batch):
        """Outputs of the actions taken."""
        return head.of_action(outputs.apply(params, batch.obs[0]), batch.action[0])

    def loss(params, target, batch, weights, meta, context):
        """Of a minibatch; `context.return_std` is the deviation of its targets."""
        out = outputs_of(params, batch)
        q = head.values(out)
        td_error = head.mean(target) - q
        losses = head.loss(out, target, meta.td_loss, context)
        total = (losses if weights is None else weights * losses).mean()
        info = {
            "q": q.mean(),
            "error": -td_error.mean(),
            "squared": (td_error**2).mean(),
            "return_std": context.return_std,
            "loss": total,
        }
        return total, (info, td_error)

    def weighted(params, target_params, batch, weights, meta, context: Context):
        target, reward, last = target_of(params, target_params, batch, meta, context)
        mean = head.mean(target)
        in_loss = context._replace(return_std=mean.std())
        found, (info, td_error) = jax.grad(loss, has_aux=True)(
            params, target, batch, weights, meta, in_loss
        )
        if meta.max_grad_norm is not None:
            max_norm = slots.value(meta.max_grad_norm, context)
            found = optimizers.clip_by_global_norm(found, max_norm)
        return found, info, of_windows(td_error, mean, reward, batch, last)

    def gradient(params, target_params, batch, meta, context):
        return weighted(params, target_params, batch, None, meta, context)[:2]

    def errors(params, target_params, batch, meta, context):
        target, reward, last = target_of(params, target_params, batch, meta, context)
        mean = head.mean(target)
        td_error = mean - head.values(outputs_of(params, batch))
        return of_windows(td_error, mean, reward, batch, last)

    def of_windows(td_error, target, reward, batch, last):
        terminated = batch.terminated[last, jnp.arange(len(last))]
        return Seen(td_error, target, reward, terminated)

    # --- birth ------------------------------------------------------------------------

    def noise(key, num_steps):
        return jax.random.gumbel(key, (num_steps, config.num_envs, num_actions))

    def born(key, meta):
        network_key, env_key, noise_key, warmup_key = jax.random.split(key, 4)
        params = network.init(network_key, jnp.zeros(env.observation.shape))
        state, _, steps, _, _ = rollouts.collect(
            warmup_key,
            env,
            rollouts.start(env_key, env, config.num_envs),
            noise(noise_key, sizes.num_warmup),
            q_learning.random_actions,
        )
        context = training.context(jnp.int32(0), sizes.lifetime.num_updates)
        stats = normalization.init(env.observation.shape), normalization.init(())
        stats, discounted_return = normalization.after_rollout(
            config, stats, jnp.zeros(config.num_envs), steps, meta, context
        )
        return params, stats, state, buffer.start(steps), discounted_return

    return DqnParts(
        *(sizes, buffer, network, noise, normalize, born, seen),
        *(gradient, weighted, errors),
    )


def noise_keys(key: Key, config: RainbowConfig) -> tuple[Key, Key]:
    """Keys of noise on parameters in an update: [E] in acting, [U, 2] in learning.

    The two of a minibatch are those of the online and of the target network.
    """
    act_key, learn_key = jax.random.split(key)
    shape = config.num_gradient_steps, 2
    in_acting = jax.random.split(act_key, config.num_envs)
    return in_acting, jax.random.split(learn_key, shape)


def target_copy(
    params: Any,
    target_params: Any,
    clock: training.Clock,
    config: Any,
    meta: Any,
    context: Context,
) -> Any:
    """Move the target network by the slot `target_rate`, in every `target_period`.

    Args:
        params: after the update.
        target_params: before it.
        clock: of the update.
    """
    rate = slots.value(meta.target_rate, context)
    # On the clock, not on the age: under vmap this stays a branch.
    return jax.lax.cond(
        (clock.update + 1) % config.target_period == 0,
        lambda: optax.incremental_update(params, target_params, rate),
        lambda: target_params,
    )
