"""Minibatches of a rollout: the random orders that they are taken in."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from metaevo.types import Key

__all__ = ["orders"]


def orders(key: Key, num_epochs: int, num_minibatches: int, size: int) -> jax.Array:
    """Each epoch's random order of `size` things, cut into its minibatches.

    An order is what sorting random bits does to the numbers 0 to `size` - 1. Each
    number travels in the low bits of what is sorted: sorting pairs instead takes
    several times as long on CPU. Of 32 bits that leaves 32 - log2 `size` random ones;
    equal ones stay in order.

    Args:
        num_minibatches: divides `size`.

    Returns:
        [num_epochs x num_minibatches, size / num_minibatches] int32.
    """
    low = (size - 1).bit_length()
    bits = jax.random.bits(key, (num_epochs, size), jnp.uint32) >> low << low
    packed = jnp.sort(bits | jnp.arange(size, dtype=jnp.uint32), -1, stable=False)
    order = (packed & ((1 << low) - 1)).astype(jnp.int32)
    return order.reshape(num_epochs * num_minibatches, -1)
