"""Parts of algorithms with action values, DQN and PQN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from metaevo import slots
from metaevo.slots import Context

__all__ = [
    "best_action",
    "best_value",
    "explorer",
    "greedy",
    "ladder",
    "legal_probabilities",
    "of_action",
    "random_actions",
]


def best_action(q: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The legal actions of the largest values, [..., A] to int32 [...].

    Args:
        mask: [..., A] bool, the legal actions, at least one; None: all are.

    >>> best_action(jnp.array([1.0, 3.0, 2.0]), jnp.array([True, False, True])).item()
    2
    """
    return jnp.argmax(q if mask is None else jnp.where(mask, q, -jnp.inf), -1)


def best_value(q: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The largest values of legal actions, [..., A] to [...]; see `best_action`."""
    return (q if mask is None else jnp.where(mask, q, -jnp.inf)).max(-1)


def legal_probabilities(
    probabilities: jax.Array, mask: jax.Array | None = None
) -> jax.Array:
    """Probabilities [..., A] given that the action is legal, uniform if none can be.

    >>> mask = jnp.array([True, False, True])
    >>> legal_probabilities(jnp.array([0.125, 0.5, 0.375]), mask).tolist()
    [0.25, 0.0, 0.75]
    >>> legal_probabilities(jnp.array([0.0, 1.0, 0.0]), mask).tolist()
    [0.5, 0.0, 0.5]
    """
    if mask is None:
        return probabilities
    kept = jnp.where(mask, probabilities, 0.0)
    total = kept.sum(-1, keepdims=True)
    uniform = mask / mask.sum(-1, keepdims=True, dtype=kept.dtype)
    # Smaller totals are rounding, and dividing by them is not exact.
    return jnp.where(total > 1e-30, kept / jnp.maximum(total, 1e-30), uniform)


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

    The slot sees illegal actions with the value of the worst legal one: it does not
    know of masks. What it gives is restricted to legal actions.

    Args:
        q_values: observations [E, ...] to values [E, A].

    Returns:
        the `choose` of `rollouts.collect`; its noise is Gumbel's, [E, A].
    """

    def choose(carry, obs, noise, state, mask):
        del state
        epsilon, q = slots.value(meta.epsilon, context), q_values(obs)
        if mask is not None:
            worst = jnp.where(mask, q, jnp.inf).min(-1, keepdims=True)
            q = jnp.where(mask, q, worst)
        probabilities = meta.exploration(q, epsilon, context)
        probabilities = legal_probabilities(probabilities, mask)
        return carry, jnp.argmax(jnp.log(probabilities) + noise, -1), ()

    return choose


def ladder(
    epsilon: jax.Array | float, exponent: jax.Array | float, num_envs: int
) -> jax.Array:
    """Shares of random actions [E] of actors of Ape-X, ε^(1 + α i / (E − 1)).

    Args:
        epsilon: ε in [0, 1], of the first environment.
        exponent: α >= 0; 0: all have ε.
        num_envs: E; one alone has ε.

    References:
        Horgan et al., 2018, https://arxiv.org/abs/1803.00933, section 4.1.

    >>> ladder(0.5, 2.0, 3).tolist()
    [0.5, 0.25, 0.125]
    """
    place = jnp.arange(num_envs) / max(num_envs - 1, 1)
    return jnp.asarray(epsilon, jnp.float32) ** (1.0 + exponent * place)


def random_actions(carry, obs, noise, state, mask):
    """The `choose` of a warm-up: uniform legal actions, by Gumbel noise [E, A]."""
    del obs, state
    return carry, best_action(noise, mask), ()


def greedy(q_values: Callable[[Any, jax.Array], jax.Array]) -> Callable:
    """The `InnerLoop.act` that takes the legal action of the largest value.

    Args:
        q_values: `(agent, obs) -> [A]`.
    """

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        del key, meta, state
        return best_action(q_values(agent, obs), mask), carry

    return act
