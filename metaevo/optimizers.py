"""Optimizers: values of the `optimizer` slot.

An optimizer gives a *direction*; the algorithm does `params - lr * direction`. So a
learning rate that evolves is an argument, never a constant of the optimizer. Learned
ones are in `metaevo.learned.optimizers`.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from metaevo import slots
from metaevo.slots import Optimizer


def from_optax(transformation: optax.GradientTransformation) -> Optimizer:
    """Wrap an optax transformation that does not scale by a learning rate.

    `optax.scale_by_adam()`, not `optax.adam(1e-3)`. Call it once, at import: the
    result compares by the identity of its functions.
    """
    return slots.optimizer(transformation)


def elementwise(transformation: optax.GradientTransformation) -> Optimizer:
    """Like `from_optax`, for transformations that treat all numbers alike.

    All tensors are then one long vector to it, and its state is of vectors: a step of a
    small network is one operation in place of one for each tensor.
    """

    def init(params):
        return transformation.init(ravel_pytree(params)[0])

    def update(gradient, state, params, context):
        del params, context
        vector, tensors = ravel_pytree(gradient)
        direction: Any
        direction, state = transformation.update(vector, state)
        return tensors(direction), state

    return Optimizer(slots.function(init), slots.function(update))


adam = elementwise(optax.scale_by_adam(eps=1e-5))
"""Adam (Kingma and Ba, 2015) with the ε of 1e-5 that PPO implementations use."""

radam = elementwise(optax.scale_by_radam())
"""Rectified Adam (Liu et al., 2020)."""


@functools.cache
def rmsprop(
    decay: float = 0.9, epsilon: float = 1e-10, momentum: float = 0.0
) -> Optimizer:
    """RMSProp in TensorFlow's form (Tieleman and Hinton, 2012, lecture 6.5).

    s ← decay s + (1 − decay) g², m ← momentum m + g / √(s + ε), the direction m. As in
    TensorFlow 1's `RMSPropOptimizer`, whose defaults these are, s starts at 1 and ε is
    inside the root. stable-baselines3 has it as `RMSpropTFLike`. m is without the
    learning rate, which there is in it: with momentum the two differ where the rate
    changes.

    Returns:
        the same object for the same arguments.
    """
    rms = optax.scale_by_rms(decay, epsilon, initial_scale=1.0, eps_in_sqrt=True)
    return elementwise(optax.chain(rms, optax.trace(momentum)) if momentum else rms)


def step(
    optimizer: Optimizer, gradient: Any, params: Any, state: Any, lr: Any, context: Any
) -> tuple[Any, Any]:
    """One step against `gradient`: -> (params, state)."""
    direction, state = optimizer.update(gradient, state, params, context)
    return jax.tree.map(lambda p, d: p - lr * d, params, direction), state


def clip_by_global_norm(gradient, max_norm: jax.Array | float):
    """Scales `gradient` to a norm of at most `max_norm`, which may be traced."""
    norm = jnp.linalg.norm(ravel_pytree(gradient)[0])
    factor = jnp.minimum(1.0, max_norm / jnp.maximum(norm, 1e-12))
    return jax.tree.map(lambda g: g * factor, gradient)
