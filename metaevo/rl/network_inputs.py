"""Messages beside observations: what the networks of an agent see.

A loop with a slot `message` and a Config key `message_size` calls
`NetworkInputs.with_message` wherever a network reads observations: acting, learning,
normalization. The environment, the reward that an agent learns from and a rollout's
actions are not touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import envs, slots
from metaevo.errors import ConfigError
from metaevo.slots import Context

__all__ = ["NetworkInputs", "of", "without_messages"]


class NetworkInputs(NamedTuple):
    """Inputs that networks see in place of observations.

    Attributes:
        space: space of an input.
        with_message: `(meta, context, obs [..., *shape]) -> [..., *space.shape]`.
    """

    space: envs.Box
    with_message: Callable[[Any, Context, jax.Array], jax.Array]


def of(
    env: envs.Env, message_size: int, meta: Any, stats: Sequence[str] = ()
) -> NetworkInputs:
    """The inputs of the networks of agents on `env`.

    Without messages networks see observations as they are, in bytes where they are
    packed. With messages they see the flattened observation, float32, and then the
    message.

    Args:
        message_size: numbers in a message; 0: there is none.
        meta: slots, with the message in `message`. The default of `type(meta).message`
            means: no message.
        stats: names in the algorithm's `context.stats`, which a message may read.

    Raises:
        ConfigError: `meta` has a message and `message_size` is 0, or has one of another
            size. `with_message` raises it too, while JAX traces, for what evolves.
    """
    if message_size:
        inputs = _with_messages(env, message_size)
    else:
        inputs = _refusing_messages(env, type(meta)._field_defaults["message"])
    obs = jax.ShapeDtypeStruct((1, *env.observation.shape), jnp.float32)
    context = Context(stats=dict.fromkeys(stats, jnp.zeros(())))
    checked = slots.checked(meta)
    jax.eval_shape(lambda obs: inputs.with_message(checked, context, obs), obs)
    return inputs


def without_messages(env: envs.Env) -> NetworkInputs:
    """The inputs of an algorithm without a slot `message`: observations."""
    return NetworkInputs(env.observation, lambda meta, context, obs: obs)


def _refusing_messages(env: envs.Env, silent: Any) -> NetworkInputs:
    def with_message(meta, context, obs):
        del context
        # A slot that crossed jit is another object with the same function.
        if getattr(meta.message, "func", None) is not silent.func:
            raise ConfigError(
                "the slot message holds a message and inner.message_size=0: no network "
                "would see it; set inner.message_size to the numbers that it has"
            )
        return obs

    return NetworkInputs(env.observation, with_message)


def _with_messages(env: envs.Env, size: int) -> NetworkInputs:
    num_axes = len(env.observation.shape)

    def with_message(meta, context, obs):
        obs = envs.unpacked(obs)
        obs = obs.reshape(*obs.shape[: obs.ndim - num_axes], -1)
        message = jnp.asarray(meta.message(obs, context), jnp.float32)
        expected = (*obs.shape[:-1], size)
        if message.shape not in ((), expected):
            raise ConfigError(
                f"inner.message_size={size}: the message has shape "
                f"{list(message.shape)}, expected {list(expected)}, {size} for each "
                f"observation, or [], one number for all"
            )
        return jnp.concatenate([obs, jnp.broadcast_to(message, expected)], -1)

    space = envs.Box((math.prod(env.observation.shape) + size,))
    return NetworkInputs(space, with_message)
