"""A check that a function in a slot gives one value for each element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import slots
from metaevo.errors import ConfigError
from metaevo.learned import operations
from metaevo.portable import tracing
from metaevo.types import Params

ELEMENTWISE = ("value_loss", "td_loss", "policy_loss", "drift")
"""Slots whose functions give a value for each element of their inputs."""

_NUM = 3  # elements


class _Stats(dict):
    """Scalars under any name."""

    def __missing__(self, key: str) -> float:
        return 0.5


def check(meta: Any) -> None:
    """Check the functions in the slots of `ELEMENTWISE`, on shapes.

    A loss that is averaged already would train a batch, but not its elements: weights
    of samples would act on nothing. A constant is taken. A function that cannot be
    called so is left to the algorithm.

    Raises:
        ConfigError: one gives other values than one for each element; names the slot.
    """
    for name in ELEMENTWISE:
        slot = getattr(meta, name, None)
        if callable(slot) and (wrong := _wrong(name, slot)):
            called = getattr(slot, "__name__", "")
            raise ConfigError(f"meta.{name}{called and '='}{called}: {wrong}")


def check_own(spec: Mapping[str, Mapping], params: Params) -> None:
    """Check the learned functions that the user wrote, on shapes, before they train.

    Args:
        spec: `Space.spec`.
        params: shapes, from `jax.eval_shape(space.init, key)`.

    Raises:
        ConfigError: one cannot be traced with what it declares that it reads, so that
            no solution could be saved; or gives other values than one for each element.
    """
    for name, op in spec.items():
        own = None if op["op"] == "number" else operations.own(op["op"])
        if own is None:
            continue
        learned = own.rebuild(op)
        try:
            tracing.describe(name, op, learned, params[name])
        except NotImplementedError:
            continue  # it is saved without a program
        except Exception as error:
            said = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"{name}={op['op']}: it could not be saved: {said}; a learned function "
                "that reads its context declares what, such as "
                'operation(..., reads=lambda op: ("return_std",))'
            ) from None
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params[name])
        if name in ELEMENTWISE and (wrong := _wrong(name, learned.bind(zeros))):
            raise ConfigError(f"{name}={op['op']}: {wrong}")


def _wrong(name: str, slot: Any) -> str | None:
    """Return what is wrong with the values of a function; None if nothing is known."""
    each = jax.ShapeDtypeStruct((_NUM,), np.float32)
    inputs = [
        jax.ShapeDtypeStruct((), np.float32) if x == "clip_eps" else each
        for x in slots.SIGNATURES[name]
    ]

    def call(*values):
        return slot(*values, slots.Context(0.5, values[0].sum(), _Stats()))

    try:
        shape = jax.eval_shape(call, *inputs).shape
    except Exception:
        return None
    if shape == (_NUM,) or (shape == () and _is_constant(call, inputs)):
        return None
    expected = "expected one for each element, which the algorithm averages"
    if shape == ():
        return f"it gives one number for a whole batch; {expected}: leave out .mean()"
    return f"it gives {list(shape)} for inputs of [{_NUM}]; {expected}"


def _is_constant(call: Callable, inputs: Sequence[jax.ShapeDtypeStruct]) -> bool:
    """Return True if what a function gives does not depend on its inputs."""
    both = [jax.ShapeDtypeStruct((2, *x.shape), x.dtype) for x in inputs]
    try:
        # One value for two inputs: JAX refuses it where the inputs have a part in it.
        jax.eval_shape(jax.vmap(call, out_axes=None), *both)
    except ValueError:
        return False
    return True
