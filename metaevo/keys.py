"""Typed PRNG keys as plain arrays and back, to be sent or saved."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def is_key(x: Any) -> bool:
    """Return True for an array, or a shape, of typed PRNG keys."""
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def to_data(x: Any) -> Any:
    """Return the uint32 data of typed PRNG keys; anything else as it is.

    >>> to_data(jax.random.key(3)).tolist()
    [0, 3]
    >>> to_data(1.5)
    1.5
    """
    return jax.random.key_data(x) if is_key(x) else x


def from_data(data: Any, like: Any) -> Any:
    """Invert `to_data`.

    Args:
        data: what `to_data` returned.
        like: the value that it was called with, or its shape and dtype.

    >>> bool(from_data(to_data(jax.random.key(3)), like=jax.random.key(0)).ndim)
    False
    """
    if not is_key(like):
        return data
    impl = jax.random.key_impl(jnp.zeros((), like.dtype))
    return jax.random.wrap_key_data(data, impl=impl)
