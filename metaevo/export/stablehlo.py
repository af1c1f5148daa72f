"""An evolved function as StableHLO, serialized by `jax.export`.

    from jax import export
    loss = export.deserialize(open("value_loss.stablehlo", "rb").read()).call

The number of elements stays open, and the function can be differentiated once.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence

import jax

from metaevo.errors import ConfigError
from metaevo.export.programs import Evolved
from metaevo.storage import numpy_export

__all__ = ["content"]

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def content(one: Evolved, provenance: Sequence[str]) -> bytes:
    """The serialized function, of float32 arrays; an optimizer's step of n numbers.

    Args:
        provenance: not kept: the format has no place for it.

    Raises:
        ConfigError: the package flatbuffers is missing.
    """
    del provenance
    try:
        importlib.import_module("flatbuffers")
    except ImportError:
        raise ConfigError(
            "to=stablehlo needs the package flatbuffers: pip install 'metaevo[export]'"
        ) from None
    call, inputs = numpy_export.traceable(one.op, one.learned)
    function = jax.jit(functools.partial(call, one.params))
    export = jax.export.export(function, platforms=PLATFORMS)
    return bytes(
        export(*inputs.values()).serialize(vjp_order=int(one.gradient is not None))
    )
