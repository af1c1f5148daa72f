"""Functions of an artifact as a user gets them: inputs are checked while JAX traces.

A search calls the bare function, which `slots.unchecked` gives back: there inputs
broadcast, and checks would cost time. Here shapes are compared where JAX knows them,
before anything runs, so that a jitted function pays nothing.

Numbers of less than 32 bits are computed in float32, and results stay so. Activations
and directions of optimizers have the type of their inputs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from metaevo import slots
from metaevo.learned import operations, shapes
from metaevo.slots import Optimizer

__all__ = ["checked", "function"]


def checked(name: str, op: Mapping[str, Any], bound: Any) -> Any:
    """Return the value of a slot with checks of its inputs.

    Args:
        name: the slot's name, which messages begin with.
        op: its operation with its settings.
        bound: the bare value; numbers and their schedules are returned as they are.

    Raises:
        ArtifactError: there is no such operation.
    """
    if isinstance(bound, Optimizer):
        return _optimizer(bound)
    if not isinstance(bound, Partial):
        return bound
    operation = operations.get(op["op"])
    if operation.slot == "number":
        return bound
    inner = shapes.inner(operation.slot, operation.shapes(op))
    if operation.slot in slots.ONE_TRANSITION and "action" not in op:
        inner.pop("action", None)  # it is not read
    return function(name, operation.slot, inner, bound)


def function(
    name: str, kind: str, inner: Mapping[str, shapes.Inner], bound: Partial
) -> Partial:
    """Return a function whose inputs are checked.

    Args:
        name: its name in messages.
        kind: a key of `slots.SIGNATURES`.
        inner: name of an input -> axes of one element, `shapes.inner`.
        bound: `(*inputs, context) -> values`.

    Returns:
        a `Partial` like `bound`. It raises ValueError, in one line that names two
        inputs with their shapes, unless all have the same leading axes or none.
    """
    bare = bound.func
    signature = inspect.signature(bare)
    ahead = list(signature.parameters)[: len(bound.args)]
    expected = slots.SIGNATURES[kind]

    @functools.wraps(bare)
    def call(*args: Any, **named: Any) -> Any:
        whole = signature.bind(*args, **named)
        given = whole.arguments
        rest = [key for key in given if key not in ahead]
        # A user's own function may name its inputs as it likes.
        inputs = dict(zip(expected, rest, strict=False))
        sizes = {x: _shape(given[key]) for x, key in inputs.items()}
        _check(name, kind, inner, sizes)
        types = [x.dtype for x in (given[key] for key in rest) if _is_half(x)]
        for key in rest:
            given[key] = jax.tree.map(_single, given[key])
        if kind in slots.OVER_TIME:
            _spread(given, inputs, inner, sizes)
        found = bare(*whole.args, **whole.kwargs)
        back = types and kind in slots.WITHOUT_CONTEXT
        return found.astype(types[0]) if back else found

    call.__dict__["unchecked"] = bare
    return Partial(call, *bound.args, **bound.keywords)


def _check(name: str, kind: str, inner: Mapping, sizes: Mapping[str, tuple]) -> None:
    if kind in slots.ONE_TRANSITION:
        if message := shapes.one(inner, sizes):
            raise ValueError(f"{name}: {message}")
        return
    shapes.check(name, inner, sizes)


def _shape(x: Any) -> tuple:
    return x.shape if hasattr(x, "shape") else np.shape(x)


def _spread(given: dict, inputs: Mapping, inner: Mapping, sizes: Mapping) -> None:
    """Broadcast numbers that stand for all steps: a loop goes over arrays."""
    whole = max(sizes.values(), key=len, default=())
    for name, key in inputs.items():
        if inner[name] is not None and not sizes[name]:
            given[key] = jnp.broadcast_to(jnp.asarray(given[key]), whole)


# --- types ----------------------------------------------------------------------------


def _is_half(x: Any) -> bool:
    """Return True for an array of floating numbers of less than 32 bits."""
    dtype = getattr(x, "dtype", None)
    return (
        dtype is not None
        and jnp.issubdtype(dtype, jnp.floating)
        and jnp.finfo(dtype).bits < 32
    )


def _single(x: Any) -> Any:
    return x.astype(jnp.float32) if _is_half(x) else x


def _optimizer(bound: Optimizer) -> Optimizer:
    """Return an optimizer that keeps what it keeps in 32 bits at least."""

    def start(init: Callable, *args: Any) -> Any:
        return init(*jax.tree.map(_single, args))

    def step(update: Callable, gradient: Any, *rest: Any, **named: Any) -> Any:
        single, more = jax.tree.map(_single, ((gradient, *rest), named))
        direction, state = update(*single, **more)
        cast = jax.tree.map(
            lambda d, g: d.astype(g.dtype) if _is_half(g) else d, direction, gradient
        )
        return cast, state

    init = _wrapped(start, bound.init)
    return Optimizer(init, _wrapped(step, bound.update))


def _wrapped(around: Callable, bound: Partial) -> Partial:
    """Return a `Partial` like `bound` that is called by `around(bound, ...)`."""
    bare, count = bound.func, len(bound.args)

    @functools.wraps(bare)
    def call(*args: Any, **named: Any) -> Any:
        return around(functools.partial(bare, *args[:count]), *args[count:], **named)

    call.__dict__["unchecked"] = bare
    return Partial(call, *bound.args, **bound.keywords)
