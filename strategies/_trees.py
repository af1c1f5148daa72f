"""Params as trees and as flat vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from metaevo.types import Params, Space


def strong(tree: Any) -> Any:
    """Strip weak types, with which the next generation would be compiled again."""

    def cast(x):
        x = jnp.asarray(x)
        return jax.lax.convert_element_type(x, x.dtype)

    return jax.tree.map(cast, tree)


def zeros(space: Space) -> Params:
    """Return params of the space that are all 0."""
    shapes = jax.eval_shape(space.init, jax.random.key(0))
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def flattening(space: Space) -> tuple[Callable, Callable, int]:
    """Return a function `Params -> [D]`, its inverse, and D."""
    flat, unravel = ravel_pytree(zeros(space))
    return lambda params: strong(ravel_pytree(params)[0]), unravel, flat.size
