"""Continuous and discrete actions for soft actor-critic.

Its losses are expectations over the policy's actions: of one reparametrized sample
where actions are continuous (Haarnoja et al., 2018, https://arxiv.org/abs/1812.05905),
exact sums where they are discrete (Christodoulou, 2019,
https://arxiv.org/abs/1910.07207).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import envs
from metaevo.rl import critics, distributions, noise, q_learning
from metaevo.rl.distributions import among_legal

__all__ = ["ActionValues", "Actions", "actions_of", "categorical", "tanh_normal"]


class ActionValues(NamedTuple):
    """The policy's actions in some states, with the critics' values of them.

    Attributes:
        q: [N, ..., *K] of N critics; *K is one axis of all actions where they are
            discrete, and no axis where one action was sampled.
        log_prob: [..., *K].
        mean: `[..., *K] -> [...]`, the expectation over the policy's actions.
    """

    q: jax.Array
    log_prob: jax.Array
    mean: Callable[[jax.Array], jax.Array]


class Actions(NamedTuple):
    """A kind of actions. `outputs` [..., num_outputs] are those of the policy network.

    Noise is standard normal, [..., *noise_shape]. A mask [..., A] bool holds the legal
    ones of discrete actions; None: all are.

    Attributes:
        noise_shape: of one action's noise.
        num_outputs: of the policy network.
        init_critics: `key -> params`, leaves [N, ...].
        entropy_unit: what the slot `target_entropy` is a multiple of, in nats.
        target_entropy: default of that slot.
        random: `(noise, mask) -> action` of the environment, uniform.
        sample: `(outputs, noise, mask) -> action` of the environment.
        mode: `(outputs, mask) -> action` of the environment, the likeliest.
        values: `(params, obs, action) -> [N, ...]`, of the environment's actions.
        evaluate: `(params of critics, obs, outputs, noise, mask) -> Evaluated`.
    """

    noise_shape: tuple[int, ...]
    num_outputs: int
    init_critics: Callable[..., Any]
    entropy_unit: float
    target_entropy: float
    random: Callable[..., jax.Array]
    sample: Callable[..., jax.Array]
    mode: Callable[..., jax.Array]
    values: Callable[..., jax.Array]
    evaluate: Callable[..., ActionValues]


def actions_of(env: envs.Env, config: Any) -> Actions:
    """The `Actions` of an environment, with critics of a Config.

    Args:
        config: with `features`, `activation`, `num_critics`, `critic_layer_norm`,
            `min_log_std` and `max_log_std`.

    Raises:
        ConfigError: continuous actions without bounds.
    """
    sizes = config.features, config.activation, config.num_critics
    layer_norm = config.critic_layer_norm
    if isinstance(env.action, envs.Discrete):
        num = env.action.num
        critic = critics.of_observations(env.observation, num, *sizes, layer_norm)
        return categorical(num, critic)
    critic = critics.of_actions(env.observation, env.action, *sizes, layer_norm)
    return tanh_normal(env.action, critic, config.min_log_std, config.max_log_std)


def tanh_normal(
    action: envs.Box, critic: critics.Critics, min_log_std: float, max_log_std: float
) -> Actions:
    """Actions in a box, tanh of a normal distribution.

    The unit of the target entropy is the dimension of the action, its default −1.

    Args:
        critic: from `critics.of_actions`.
        min_log_std, max_log_std: bounds of the log-deviation.

    Raises:
        ConfigError: the box has no bounds.
    """
    to_env, to_unit = envs.unit_box(action)
    num = action.shape[0]

    def policy(outputs):
        mean, log_std = jnp.split(outputs, 2, -1)
        log_std = jnp.clip(log_std, min_log_std, max_log_std)
        return distributions.TanhNormal(mean, log_std)

    def evaluate(params, obs, outputs, noise, mask):
        del mask
        action, log_prob = policy(outputs).transform_and_log_prob(noise)
        return ActionValues(critic.values(params, obs, action), log_prob, lambda x: x)

    return Actions(
        action.shape,
        2 * num,
        critic.init,
        entropy_unit=float(num),
        target_entropy=-1.0,
        random=lambda normal, mask: to_env(noise.uniform(normal)),
        sample=lambda outputs, noise, mask: to_env(
            policy(outputs).transform_and_log_prob(noise)[0]
        ),
        mode=lambda outputs, mask: to_env(policy(outputs).mode()),
        values=lambda params, obs, action: critic.values(params, obs, to_unit(action)),
        evaluate=evaluate,
    )


def categorical(num_actions: int, critic: critics.Critics) -> Actions:
    """Discrete actions; those that are not legal have probability 0.

    The unit of the target entropy is that of the uniform distribution, log A, its
    default 0.89 (CleanRL's `sac_atari`; the paper has 0.98).

    Args:
        critic: from `critics.of_observations`.
    """

    def evaluate(params, obs, outputs, noise, mask):
        del noise
        log_prob = jax.nn.log_softmax(among_legal(outputs, mask))
        probability = jnp.exp(log_prob)
        if mask is not None:
            log_prob = jnp.where(mask, log_prob, 0.0)
        return ActionValues(
            critic.values(params, obs),
            log_prob,
            lambda x: (probability * x).sum(-1),
        )

    def sample(outputs, normal, mask):
        return jnp.argmax(among_legal(outputs, mask) + noise.gumbel(normal), -1)

    return Actions(
        (num_actions,),
        num_actions,
        critic.init,
        entropy_unit=math.log(num_actions),
        target_entropy=0.89,
        random=q_learning.best_action,
        sample=sample,
        mode=q_learning.best_action,
        values=lambda params, obs, action: q_learning.of_action(
            critic.values(params, obs), action
        ),
        evaluate=evaluate,
    )
