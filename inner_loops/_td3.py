"""Common parts of TD3 with critics of its own and with shared ones: losses, learning.

Twin delayed deep deterministic policy gradient, Fujimoto et al., 2018,
https://arxiv.org/abs/1802.09477. `Meta` stands for the slots of either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from inner_loops import _off_policy
from metaevo import envs, losses, optimizers, rewards, slots
from metaevo.errors import ConfigError
from metaevo.rl import config_checks, critics, networks, noise, off_policy, rollouts
from metaevo.rl.rollouts import learned_from
from metaevo.slots import Context, Slot
from metaevo.types import Key

# --- settings and slots ---------------------------------------------------------------


@dataclass(frozen=True)
class Config(_off_policy.Config):
    """Static settings: shapes and loop lengths.

    Attributes:
        policy_delay: steps of the critics for each of the actor's; divides U.
        num_critics: critics, of which the target takes the least.
        normalize_observation: by running statistics.
    """

    num_steps: int = 2
    num_gradient_steps: int = 2
    policy_delay: int = 2
    num_critics: int = 2
    normalize_observation: bool = False


class Meta(NamedTuple):
    """Slots that both have. Noise is in units of half the range of actions.

    Attributes:
        actor_lr: Adam's step size for the policy.
        critic_lr: that for the critics.
        gamma: discount, in [0, 1].
        tau: how far the target networks move at each step of the actor, in (0, 1].
        exploration_noise: standard deviation of the noise on actions taken.
        noise_correlation: of that noise, and of the warm-up's actions, from step to
            step, in [0, 1); 0 is white noise.
        smoothing_noise: standard deviation of the noise on the target's actions.
        noise_clip: bound of this noise.
        reward_scale: factor of rewards.
        td_loss: `(td_error, q, target, context) -> [...]`, td_error = target − q.
        actor_loss: `(q, action, context) -> [...]` of the actor's own actions.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, the
            reward that the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
    """

    actor_lr: Slot = 3e-4
    critic_lr: Slot = 3e-4
    gamma: Slot = 0.99
    tau: slots.Rate = 0.005
    exploration_noise: slots.NotNegative = 0.1
    noise_correlation: slots.Correlation = 0.0
    smoothing_noise: slots.NotNegative = 0.2
    noise_clip: slots.NotNegative = 0.5
    reward_scale: Slot = 1.0
    td_loss: Slot = losses.td_square
    actor_loss: Slot = losses.minus_q
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.adam


# --- the losses -----------------------------------------------------------------------


class Networks(NamedTuple):
    """Actor and critics; actions in [−1, 1].

    Attributes:
        init: `key -> parameters of the actor`.
        act: `(params, obs [..., *shape]) -> [..., A]`.
        critics: N of them.
    """

    init: Callable[[Any], Any]
    act: Callable[[Any, jax.Array], jax.Array]
    critics: critics.Critics


class TargetTrainState(NamedTuple):
    """A network, its slow copy and its optimizer's state."""

    params: Any
    target_params: Any
    opt_state: Any


def target_of(
    nets: Networks,
    policy: TargetTrainState,
    critic: TargetTrainState,
    batch: off_policy.NStepTransition,
    noise: jax.Array,
    meta: Any,
    context: Context,
) -> jax.Array:
    """R + γⁿ (1 − terminated) minⱼ Q⁻ⱼ(o', ã),  ã = clip(π⁻(o') + clip(σ' noise, ±c)).

    Args:
        noise: [B, A] standard normal.
    """
    clip = slots.value(meta.noise_clip, context)
    noise = jnp.clip(slots.value(meta.smoothing_noise, context) * noise, -clip, clip)
    next_action = nets.act(policy.target_params, batch.next_obs) + noise
    next_q = nets.critics.values(
        critic.target_params, batch.next_obs, jnp.clip(next_action, -1.0, 1.0)
    ).min(0)
    return batch.target(next_q)


def critic_loss(params, critics, target, batch, weights, meta, context):
    """Sum over the critics of the mean TD loss, weighted by `weights` [B] or None.

    The slot `td_loss` sees target − q, q [N, B] and the target, and in
    `context.return_std` the deviation of the targets.

    Returns:
        the loss, and the metrics and target − q [N, B].
    """
    q = critics.values(params, batch.obs, batch.action)
    td_error = target - q
    context = context._replace(return_std=target.std())
    losses = meta.td_loss(td_error, q, target, context)
    losses = losses if weights is None else weights * losses
    info = {
        "q": q.mean(),
        "error": -td_error.mean(),
        "squared": (td_error**2).mean(),
        "return_std": context.return_std,
    }
    return losses.mean(-1).sum(), (info, td_error)


def actor_loss(params, nets, critic, obs, meta, context):
    """Mean of the slot `actor_loss`, by default −Q₁(o, π(o))."""
    action = nets.act(params, obs)
    q = nets.critics.values(critic.params, obs, action)[0]
    return meta.actor_loss(q, action, context).mean()


# --- networks -------------------------------------------------------------------------


def require_actions(env: envs.Env, config: Any) -> envs.Box:
    """The actions of `env`, with sizes that fit each other.

    Raises:
        ConfigError: sizes that do not fit each other, or actions that are not
            continuous.
    """
    config_checks.check_positive(config)
    action = config_checks.require_box(env, "TD3")
    if config.num_gradient_steps % config.policy_delay:
        raise ConfigError(
            f"inner.policy_delay={config.policy_delay} does not divide "
            f"inner.num_gradient_steps={config.num_gradient_steps}"
        )
    return action


def networks_of(
    observation: envs.Box,
    action: envs.Box,
    config: _off_policy.Config,
    num_critics: int,
) -> Networks:
    """The networks of a Config."""
    features, activation = config.features, config.activation
    actor = networks.mlp(
        features, action.shape[0], 0.01, activation, len(observation.shape)
    )
    return Networks(
        lambda key: actor.init(key, jnp.zeros(observation.shape)),
        lambda params, obs: jnp.tanh(actor.apply(params, obs)),
        critics.of_actions(
            observation,
            action,
            features,
            activation,
            num_critics,
            config.critic_layer_norm,
        ),
    )


def newborn(params: Any, meta: Any) -> TargetTrainState:
    """A learner whose slow copy is equal."""
    return TargetTrainState(params, params, meta.optimizer.init(params))


# --- acting ---------------------------------------------------------------------------


def warm_up(
    key: Key,
    env: envs.Env,
    action: envs.Box,
    to_env: Callable[[jax.Array], jax.Array],
    num_envs: int,
    num_steps: int,
    meta: Any,
) -> tuple[rollouts.Episodes, rollouts.Transition, jax.Array]:
    """`off_policy.warm_up` by actions that are uniform in their range.

    Args:
        to_env: from actions in [−1, 1] to those of the environment.
    """

    def random(normal, mask):
        del mask
        return to_env(noise.uniform(normal))

    keys = jax.random.split(key, 4)
    return off_policy.warm_up(
        keys, env, action.shape, random, num_envs, num_steps, meta
    )


def explorer(
    act: Callable[[jax.Array], jax.Array],
    to_env: Callable[[jax.Array], jax.Array],
    meta: Any,
    context: Context,
) -> Callable[..., tuple[Any, jax.Array, Any]]:
    """The `choose` of `rollouts.collect` that adds noise to actions.

    Args:
        act: observations [E, ...] to actions in [−1, 1].
        to_env: from these to actions of the environment.
    """
    sigma = slots.value(meta.exploration_noise, context)

    def choose(carry, obs, noise, state, mask):
        del state, mask
        return carry, to_env(jnp.clip(act(obs) + sigma * noise, -1.0, 1.0)), ()

    return choose


# --- learning -------------------------------------------------------------------------


def shape_of(config: Any) -> tuple[int, int, int]:
    """Steps of the actor, steps of the critics for each, and the minibatch."""
    cycles = config.num_gradient_steps // config.policy_delay
    return cycles, config.policy_delay, config.batch_size


def batches_of(meta, context, to_unit, windows, see=lambda obs: obs):
    """Windows from the buffer, leaves [n, ...], as the losses take them: `Batch`.

    Args:
        to_unit: from actions of the environment to [−1, 1].
        see: normalizes observations.
    """
    scale = slots.value(meta.reward_scale, context)
    reward = scale * learned_from(meta, windows, context)
    gamma = slots.value(meta.gamma, context)
    batches = off_policy.n_step(windows, reward, gamma, see)
    return batches._replace(action=to_unit(batches.action))


class Variant(NamedTuple):
    """Changes that a population with a shared critic makes to learning.

    Attributes:
        critic_gradient: `gradient -> gradient`.
        actor_gradient: `(gradient, params, obs, meta, context) -> (gradient, info)`.
        actor_step: `(before, after, meta, context) -> TargetTrainState`, the actor's
            step that is taken.
    """

    critic_gradient: Callable[[Any], Any] = lambda gradient: gradient
    actor_gradient: Callable[..., tuple[Any, dict[str, jax.Array]]] = (
        lambda gradient, params, obs, meta, context: (gradient, {})
    )
    actor_step: Callable[..., TargetTrainState] = lambda before, after, meta, context: (
        after
    )


PLAIN = Variant()


def weighted_step_to(
    target, critics, critic, batch, weights, lr, meta, context, variant=PLAIN
):
    """One step of the critics towards `target` [B] on a minibatch [B, ...].

    Args:
        weights: [B], of the losses; None: all 1.

    Returns:
        the critics, metrics, and target − q [N, B] before the step.
    """
    gradient, (info, td_error) = jax.grad(critic_loss, has_aux=True)(
        critic.params, critics, target, batch, weights, meta, context
    )
    params, opt_state = optimizers.step(
        meta.optimizer,
        variant.critic_gradient(gradient),
        critic.params,
        critic.opt_state,
        slots.value(lr, context),
        context,
    )
    return TargetTrainState(params, critic.target_params, opt_state), info, td_error


def step_to(target, critics, critic, batch, lr, meta, context, variant=PLAIN):
    """`weighted_step_to` with equal weights: the critics and metrics."""
    rest = lr, meta, context, variant
    return weighted_step_to(target, critics, critic, batch, None, *rest)[:2]


def critic_step(nets, policy, critic, batch, noise, meta, context, variant=PLAIN):
    """One step of both critics on a minibatch [B, ...]."""
    target = target_of(nets, policy, critic, batch, noise, meta, context)
    rest = batch, meta.critic_lr, meta, context, variant
    return step_to(target, nets.critics, critic, *rest)


def actor_step(nets, policy, critic, obs, meta, context, variant=PLAIN):
    """One step of the actor, and of both target networks."""
    gradient = jax.grad(actor_loss)(policy.params, nets, critic, obs, meta, context)
    gradient, info = variant.actor_gradient(gradient, policy.params, obs, meta, context)
    params, opt_state = optimizers.step(
        meta.optimizer,
        gradient,
        policy.params,
        policy.opt_state,
        slots.value(meta.actor_lr, context),
        context,
    )
    tau = slots.value(meta.tau, context)
    target = optax.incremental_update(params, policy.target_params, tau)
    learned = TargetTrainState(params, target, opt_state)
    learned = variant.actor_step(policy, learned, meta, context)
    target = optax.incremental_update(critic.params, critic.target_params, tau)
    return learned, critic._replace(target_params=target), info


def learn(nets, policy, critic, batches, noise, meta, context, variant=PLAIN):
    """Gradient steps on minibatches [U / delay, delay, B, ...].

    The actor takes U / delay steps, each after `delay` steps of the critics, in a loop
    of that length: no gradient is computed to be thrown away.
    """

    def cycle(carry, drawn):
        policy, critic = carry

        def step(critic, drawn):
            batch, noise = drawn
            return critic_step(
                nets, policy, critic, batch, noise, meta, context, variant
            )

        critic, info = jax.lax.scan(step, critic, drawn)
        obs = drawn[0].obs[-1]
        policy, critic, more = actor_step(
            nets, policy, critic, obs, meta, context, variant
        )
        return (policy, critic), info | more

    (policy, critic), info = jax.lax.scan(cycle, (policy, critic), (batches, noise))
    return policy, critic, jax.tree.map(jnp.mean, info)


def learn_at_delay(nets, policy, critic, batches, noise, meta, context, steps_before):
    """`learn`, the delay being the slot `policy_delay`, a number of at least 1.

    Of steps 1, 2, ... of the critics since birth the actor follows step i if
    ⌊i / delay⌋ is more than ⌊(i − 1) / delay⌋: at a delay of 1.5, two steps of three.
    The step is a branch; under vmap, as on accelerators, it is computed each time.

    Args:
        steps_before: of the critics since birth, int32.
    """
    delay = jnp.maximum(slots.value(meta.policy_delay, context), 1.0)

    def step(carry, drawn):
        policy, critic, count = carry
        batch, noise = drawn
        critic, info = critic_step(nets, policy, critic, batch, noise, meta, context)

        def with_actor():
            return actor_step(nets, policy, critic, batch.obs, meta, context)[:2]

        acts = jnp.floor((count + 1) / delay) > jnp.floor(count / delay)
        policy, critic = jax.lax.cond(acts, with_actor, lambda: (policy, critic))
        return (policy, critic, count + 1), info

    drawn = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (batches, noise))
    (policy, critic, _), info = jax.lax.scan(
        step, (policy, critic, steps_before), drawn
    )
    return policy, critic, jax.tree.map(jnp.mean, info)
