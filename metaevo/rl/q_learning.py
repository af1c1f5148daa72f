"""Parts of algorithms with action values, DQN and PQN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from metaevo import slots
from metaevo.slots import Context

__all__ = ["explorer", "greedy", "of_action"]


def of_action(q: jax.Array, action: jax.Array) -> jax.Array:
    """Values of the actions taken, [..., A] and int [...] to [...].

    >>> of_action(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1, 0])).tolist()
    [2.0, 3.0]
    """
    # A one-hot product: the gradient of a gather is a scatter, slow on CPU.
    return (q * jax.nn.one_hot(action, q.shape[-1])).sum(-1)


def explorer(
    q_values: Callable[[jax.Array], jax.Array], meta: Any, context: Context
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Actions by the slots `epsilon` and `exploration`.

    Args:
        q_values: observations [E, ...] to values [E, A].

    Returns:
        `(obs [E, ...], Gumbel noise [E, A]) -> action [E]`, for `rollouts.collect`.
    """

    def choose(obs, noise):
        epsilon = slots.value(meta.epsilon, context)
        probabilities = meta.exploration(q_values(obs), epsilon, context)
        return jnp.argmax(jnp.log(probabilities) + noise, -1)

    return choose


def greedy(q_values: Callable[[Any, jax.Array], jax.Array]) -> Callable:
    """The `InnerLoop.act` of an agent with `params`: the action of the largest value.

    Args:
        q_values: `(params, obs) -> [A]`.
    """

    def act(key, meta, agent, carry, obs):
        del key, meta
        return jnp.argmax(q_values(agent.params, obs), -1), carry

    return act
