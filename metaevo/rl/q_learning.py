"""Parts of algorithms with action values, DQN and PQN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from metaevo import slots
from metaevo.slots import Context

__all__ = ["explorer", "greedy", "of_action", "random_actions"]


def of_action(q: jax.Array, action: jax.Array) -> jax.Array:
    """Values of the actions taken, [..., A] and int [...] to [...].

    >>> of_action(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1, 0])).tolist()
    [2.0, 3.0]
    """
    # A one-hot product: the gradient of a gather is a scatter, slow on CPU.
    return (q * jax.nn.one_hot(action, q.shape[-1])).sum(-1)


def explorer(
    q_values: Callable[[jax.Array], jax.Array], meta: Any, context: Context
) -> Callable[..., tuple[Any, jax.Array, tuple[()]]]:
    """Actions by the slots `epsilon` and `exploration`.

    Args:
        q_values: observations [E, ...] to values [E, A].

    Returns:
        the `choose` of `rollouts.collect`; its noise is Gumbel's, [E, A].
    """

    def choose(carry, obs, noise, state, mask):
        del state, mask
        epsilon = slots.value(meta.epsilon, context)
        probabilities = meta.exploration(q_values(obs), epsilon, context)
        return carry, jnp.argmax(jnp.log(probabilities) + noise, -1), ()

    return choose


def random_actions(carry, obs, noise, state, mask):
    """The `choose` of a warm-up: uniform actions, by Gumbel noise [E, A]."""
    del obs, state, mask
    return carry, jnp.argmax(noise, -1), ()


def greedy(q_values: Callable[[Any, jax.Array], jax.Array]) -> Callable:
    """The `InnerLoop.act` of an agent with `params`: the action of the largest value.

    Args:
        q_values: `(params, obs) -> [A]`.
    """

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        del key, meta, state, mask
        return jnp.argmax(q_values(agent.params, obs), -1), carry

    return act
