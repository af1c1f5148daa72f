"""The inputs of learned functions, as programs of them are traced and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import slots
from metaevo.learned import operations
from metaevo.slots import Context

__all__ = ["N", "Signature", "context_of", "signature"]

N, _A = jax.export.symbolic_shape("n, a")
_OPEN = {"n": N, "a": _A}


class Signature(NamedTuple):
    """The inputs of a learned function.

    Attributes:
        given: name -> shape, in order; n and a are open. Over time they are steps and
            trajectories.
        seen: scalars that it reads of its context, in order.
        call: `(apply, params, given arrays, context) -> values`.
    """

    given: Mapping[str, tuple]
    seen: tuple[str, ...]
    call: Callable


def signature(op: Mapping[str, Any]) -> Signature:
    """The inputs of the function that an entry of `Space.spec` describes.

    Raises:
        ArtifactError: there is no such operation.
    """
    operation = operations.get(op["op"])
    shapes = operation.shapes(op)
    usual = ("n", "a") if operation.slot in slots.OVER_TIME else ("n",)
    given = {
        name: tuple(_OPEN.get(str(size), size) for size in shapes.get(name, usual))
        for name in slots.SIGNATURES[operation.slot]
    }
    seen = operation.reads(op)
    if op.get("temporal"):
        seen = (*seen, "progress")
    call = _plainly
    if operation.slot in slots.WITHOUT_CONTEXT:
        call = _without_context
    elif operation.slot in slots.ONE_TRANSITION:
        call = _transitions
    return Signature(given, seen, call)


def _plainly(apply, params, given, context):
    return apply(params, *given, context)


def _without_context(apply, params, given, context):
    del context
    return apply(params, *given)


def _transitions(apply, params, given, context):
    """One transition an element; actions and flags come as floats, as all inputs."""

    def one(obs, action, reward, next_obs, terminated):
        action = action if action.ndim else action.astype(jnp.int32)
        return apply(params, obs, action, reward, next_obs, terminated != 0, context)

    return jax.vmap(one)(*given)


def context_of(scalars: Mapping[str, Any]) -> Context:
    """The context that holds these scalars: its fields by name, others as `stats`."""
    fields = {x: scalars[x] for x in ("progress", "return_std") if x in scalars}
    stats = {name: x for name, x in scalars.items() if name not in fields}
    return Context(**fields, stats=stats)
