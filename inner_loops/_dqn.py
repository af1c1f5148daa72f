"""Common parts of DQN and GORILA: birth, targets, and the gradient of one minibatch.

Deep Q-learning, Mnih et al., 2015, https://www.nature.com/articles/nature14236.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from metaevo import envs, optimizers, slots
from metaevo.rl import (
    config_checks,
    networks,
    off_policy,
    packing,
    q_learning,
    replay,
    returns,
    rollouts,
    training,
    value_heads,
)
from metaevo.rl.networks import Network
from metaevo.rl.rollouts import learned_from
from metaevo.slots import Context
from metaevo.types import Key

__all__ = ["Parts", "parts", "target_copy"]


class Parts(NamedTuple):
    """Parts that follow from an environment and a Config.

    Attributes:
        sizes: of the lifetime and the buffer.
        buffer: the replay buffer.
        network: from observations to action values [..., A].
        noise: `(key, num_steps) -> noise` of `rollouts.collect`.
        born: `key -> (params, episodes, rows)`, after the warm-up.
        gradient: `(params, target_params, batch, meta, context) -> (gradient, info)` of
            a minibatch, windows [n, B, ...], clipped; `info` has scalars, among them
            `loss`.
    """

    sizes: off_policy.Sizes
    buffer: replay.Replay
    network: Network
    noise: Callable[[Key, int], jax.Array]
    born: Callable[[Key], tuple[Any, rollouts.Episodes, packing.Packed]]
    gradient: Callable[..., tuple[Any, dict[str, jax.Array]]]


def parts(
    env: envs.Env,
    config: Any,
    algorithm: str,
    head: value_heads.Head | None = None,
    wrap: Callable[[Network], Network] = lambda network: network,
) -> Parts:
    """The parts for a Config with the fields of DQN's.

    Args:
        algorithm: its name, for errors.
        head: what the network's outputs are; None: action values.
        wrap: makes the network another, with parameters of its own.

    Raises:
        ConfigError: sizes that do not fit each other, or continuous actions.
    """
    num_actions = config_checks.discrete(env, algorithm).num
    sizes = off_policy.sizes(config, config.num_step_return)
    buffer = sizes.buffer(env, config.num_envs)
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

    def target_of(params, target_params, batch, meta, context):
        """n-step targets of the head, of a minibatch of windows [n, B, ...]."""
        reward = learned_from(meta, batch, context)
        total, factor, last = returns.n_step_window(
            reward, batch.terminated, batch.done, slots.value(meta.gamma, context)
        )
        next_obs, next_mask = jax.tree.map(
            lambda x: x[last, jnp.arange(config.batch_size)],
            (batch.next_obs, batch.next_mask),
        )
        out = next_outputs(params, target_params, next_obs, next_mask)
        return head.target(out, total, factor)

    def loss(params, target, batch, meta, context):
        """Of a minibatch; `context.return_std` is the deviation of its targets."""
        out = head.of_action(outputs.apply(params, batch.obs[0]), batch.action[0])
        q = head.values(out)
        td_error = head.mean(target) - q
        total = head.loss(out, target, meta.td_loss, context).mean()
        return total, {
            "q": q.mean(),
            "error": -td_error.mean(),
            "squared": (td_error**2).mean(),
            "return_std": context.return_std,
            "loss": total,
        }

    def gradient(params, target_params, batch, meta, context: Context):
        target = target_of(params, target_params, batch, meta, context)
        in_loss = context._replace(return_std=head.mean(target).std())
        found, info = jax.grad(loss, has_aux=True)(params, target, batch, meta, in_loss)
        if meta.max_grad_norm is not None:
            max_norm = slots.value(meta.max_grad_norm, context)
            found = optimizers.clip_by_global_norm(found, max_norm)
        return found, info

    # --- birth ------------------------------------------------------------------------

    def noise(key, num_steps):
        return jax.random.gumbel(key, (num_steps, config.num_envs, num_actions))

    def born(key):
        network_key, env_key, noise_key, warmup_key = jax.random.split(key, 4)
        params = network.init(network_key, jnp.zeros(env.observation.shape))
        state, _, steps, _, _ = rollouts.collect(
            warmup_key,
            env,
            rollouts.start(env_key, env, config.num_envs),
            noise(noise_key, sizes.num_warmup),
            q_learning.random_actions,
        )
        return params, state, buffer.start(steps)

    return Parts(sizes, buffer, network, noise, born, gradient)


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
