"""Minibatches of a rollout: their random orders, and gradient steps on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from metaevo import optimizers, slots
from metaevo.slots import Context
from metaevo.types import Key, PyTree

__all__ = ["descend", "orders"]


def orders(key: Key, num_epochs: int, num_minibatches: int, size: int) -> jax.Array:
    """Each epoch's random order of `size` samples, cut into minibatches.

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


def descend(
    loss: Callable[..., tuple[jax.Array, PyTree]],
    drawn: PyTree,
    take: Callable[[PyTree], PyTree],
    params: PyTree,
    opt_state: PyTree,
    lr: jax.Array | float,
    meta: Any,
    context: Context,
    stop: Callable[[PyTree], jax.Array] | None = None,
) -> tuple[PyTree, PyTree, PyTree]:
    """One gradient step on each of several minibatches.

    Args:
        loss: `(params, minibatch, meta, context) -> (scalar, info)`.
        drawn: leaves [steps, ...], one slice for each minibatch.
        take: from a slice of `drawn` to the minibatch.
        meta: with the slots `max_grad_norm` and `optimizer`.
        stop: `info -> bool`: where it is true of a minibatch, neither its step nor any
            later one is taken. They are computed all the same: the length of the scan
            is static. None: all are taken.

    Returns:
        params, optimizer state, and `info` averaged over the minibatches up to the one
        that stopped.
    """
    max_norm = slots.value(meta.max_grad_norm, context)

    def step(carry, at):
        params, opt_state = carry
        gradient, info = jax.grad(loss, has_aux=True)(params, take(at), meta, context)
        gradient = optimizers.clip_by_global_norm(gradient, max_norm)
        params, opt_state = optimizers.step(
            meta.optimizer, gradient, params, opt_state, lr, context
        )
        return (params, opt_state), info

    if stop is not None:
        return _until(stop, step, (params, opt_state), drawn)
    (params, opt_state), info = jax.lax.scan(step, (params, opt_state), drawn)
    return params, opt_state, jax.tree.map(jnp.mean, info)


def _until(stop, step, learned, drawn):
    """The steps of `descend` before the first minibatch of which `stop` is true."""

    def guarded(carry, at):
        learned, running = carry
        after, info = step(learned, at)
        taken = running & ~stop(info)
        learned = jax.tree.map(lambda x, y: jnp.where(taken, x, y), after, learned)
        return (learned, taken), (info, running)

    start = learned, jnp.array(True)
    (learned, _), (info, seen) = jax.lax.scan(guarded, start, drawn)
    # Selected, not multiplied: what was computed beyond the end may be infinite.
    mean = jax.tree.map(lambda x: jnp.where(seen, x, 0.0).sum() / seen.sum(), info)
    return *learned, mean
