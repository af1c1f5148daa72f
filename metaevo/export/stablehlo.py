"""An evolved function as StableHLO, serialized by `jax.export`.

    from jax import export
    loss = export.deserialize(open("value_loss.stablehlo", "rb").read()).call

The number of elements stays open, and the function can be differentiated once.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from metaevo.errors import ConfigError
from metaevo.export import inputs as of_users
from metaevo.learned import operations
from metaevo.portable import tracing

__all__ = ["content"]

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def content(slot: str, op: Mapping[str, Any], params: Any) -> bytes:
    """The serialized function, of float32 arrays; an optimizer's step of n numbers.

    Args:
        slot: its slot in the artifact.
        op: its operation with its settings.
        params: its parameters.

    Raises:
        ConfigError: the package flatbuffers is missing.
    """
    try:
        importlib.import_module("flatbuffers")
    except ImportError:
        raise ConfigError(
            f"to=stablehlo of {slot} needs the package flatbuffers: "
            "pip install 'metaevo[export]'"
        ) from None
    learned = operations.get(op["op"]).rebuild(op)
    call, inputs = tracing.traceable(op, learned, of_users.signature)
    function = jax.jit(functools.partial(call, params))
    exported = jax.export.export(function, platforms=PLATFORMS)(*inputs.values())
    outputs = exported.out_avals
    # A function that chooses, and an optimizer, are not differentiated.
    smooth = len(outputs) == 1 and jnp.issubdtype(outputs[0].dtype, jnp.floating)
    return bytes(exported.serialize(vjp_order=int(smooth)))
