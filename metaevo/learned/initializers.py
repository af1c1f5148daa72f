"""Initializers of network weights. They need jax alone, as artifacts do."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

__all__ = ["orthogonal"]


def orthogonal(scale: float) -> Callable:
    """Orthogonal initializer that is safe under vmap.

    LAPACK's QR batched over members starts work in the thread pool that it runs on,
    and can deadlock (jaxlib 0.10 on CPU). The batching rule here is a loop over
    members.

    Returns:
        `(key, shape, dtype) -> array`, an initializer for flax modules.
    """
    initializer = jax.nn.initializers.orthogonal(scale)

    def init(key, shape, dtype=jnp.float32):
        draw = jax.custom_batching.sequential_vmap(lambda k: initializer(k, shape))
        return draw(key).astype(dtype)

    return init
