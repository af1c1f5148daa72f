"""A check that a function in a slot gives one value for each element."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import slots
from metaevo.errors import ConfigError, raised
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
    """Check the learned functions that the user wrote, before they train.

    Args:
        spec: `Space.spec`.
        params: shapes, from `jax.eval_shape(space.init, key)`.

    Raises:
        ConfigError: one raises; cannot be traced with what it declares that it reads,
            so that no solution could be saved; gives other values than one for each
            element; does not start as it says; or its numbers have no effect.
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
            said = raised(error, own.build)
            if _runs(name, learned, params[name]):
                said += (
                    ". With all of the context it runs: declare what it reads, such as "
                    'operation(..., reads=lambda op: ("return_std",))'
                )
            raise ConfigError(f"{name}={op['op']}: {said}") from None
        if name in ELEMENTWISE:
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params[name])
            wrong = _wrong(name, learned.bind(zeros))
            if wrong is None and _runs(name, learned, params[name]):
                wrong = _wrong_values(name, learned, own.start(op))
            if wrong:
                raise ConfigError(f"{name}={op['op']}: {wrong}")


def _inputs(name: str) -> list[jax.ShapeDtypeStruct]:
    each = jax.ShapeDtypeStruct((_NUM,), np.float32)
    scalar = jax.ShapeDtypeStruct((), np.float32)
    return [scalar if x == "clip_eps" else each for x in slots.SIGNATURES[name]]


def _called(slot: Any, *values: Any) -> Any:
    """Call a function with a context that has everything."""
    return slot(*values, slots.Context(0.5, values[0].sum(), _Stats()))


def _runs(name: str, learned: Any, params: Any) -> bool:
    """Return True if a function of elements runs with a context that has everything."""
    if name not in ELEMENTWISE:
        return False
    try:
        jax.eval_shape(
            lambda params, *x: _called(learned.bind(params), *x), params, *_inputs(name)
        )
    except Exception:
        return False
    return True


def _wrong(name: str, slot: Any) -> str | None:
    """Return what is wrong with the values of a function; None if nothing is known."""
    inputs = _inputs(name)
    call = functools.partial(_called, slot)
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


def _wrong_values(name: str, learned: Any, hand_made: Any) -> str | None:
    """Return what is wrong with the start of a function, and with its numbers."""
    draw = np.random.default_rng(0).normal
    inputs = [draw(size=x.shape).astype(x.dtype) for x in _inputs(name)]
    start = learned.init(jax.random.key(0))
    moved = jax.tree.map(lambda x: x + draw(size=x.shape).astype(x.dtype), start)
    each = jax.jit(lambda params: _called(learned.bind(params), *inputs))
    values = np.asarray(each(start))
    if learned.starts_hand_made and hand_made is not None:
        wanted = np.asarray(jax.jit(lambda: _called(hand_made, *inputs))())
        if not np.allclose(values, wanted, 1e-3, 1e-5):
            return (
                f"starts_hand_made=True, but it starts as {values.flat[0]:.4g} where "
                f"the hand-made function is {wanted.flat[0]:.4g}"
            )
    if np.array_equal(values, each(moved), equal_nan=True):
        return "its values do not depend on its numbers, so that nothing would evolve"
    return None


def _is_constant(call: Callable, inputs: Sequence[jax.ShapeDtypeStruct]) -> bool:
    """Return True if what a function gives does not depend on its inputs."""
    both = [jax.ShapeDtypeStruct((2, *x.shape), x.dtype) for x in inputs]
    try:
        # One value for two inputs: JAX refuses it where the inputs have a part in it.
        jax.eval_shape(jax.vmap(call, out_axes=None), *both)
    except ValueError:
        return False
    return True
