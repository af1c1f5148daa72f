"""A check that a function in a slot gives what its algorithm expects of it."""

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
_SHAPES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    **{name: {"clip_eps": ()} for name in ELEMENTWISE},
    "correction": {},
    "rescale": {},
    "priority": {},
    "activation": {},
    "advantage": dict.fromkeys(slots.SIGNATURES["advantage"], (_NUM, 2)),
    "exploration": {"q": (_NUM, 4), "epsilon": ()},
    "q_transform": {"q": (_NUM, 4)},
    "q_aggregation": {"q": (2, _NUM)},
    "reward": {
        **dict.fromkeys(slots.SIGNATURES["reward"], ()),
        **dict.fromkeys(("obs", "next_obs"), (4,)),
    },
}
"""Kind of slot -> shapes of those inputs that are not one number for each element.

Those of an environment are its own where it is known.
"""

_EXPECTED: Mapping[str, str] = {
    **dict.fromkeys(
        ELEMENTWISE, "expected one for each element, which the algorithm averages"
    ),
    "exploration": "expected a probability for each action",
    "reward": "expected one number, its reward",
    "advantage": "expected one for each step",
    "q_transform": "expected one for each action",
    "q_aggregation": "expected one for all critics of each transition",
}
"""Kind of slot -> what its values are, where not only one for each element."""

_CONSTANT = (*ELEMENTWISE, "advantage", "correction", "q_transform")
"""Kinds whose functions may give one number that no input has a part in."""


class _Stats(dict):
    """Scalars under any name."""

    def __missing__(self, key: str) -> float:
        return 0.5


def check(meta: Any, env: Any = None) -> None:
    """Check what functions of known kinds give, where a slot has not its default.

    A loss that is averaged already would train a batch, but not its elements: weights
    of samples would act on nothing. A constant is taken where it can be averaged or
    broadcast. A rule of exploration gives a distribution over actions. A function that
    cannot be called so is left to the algorithm.

    Args:
        meta: the slots of a loop.
        env: the `envs.Env` that it trains on; None: unknown.

    Raises:
        ConfigError: one gives values of another shape, or no distribution; names the
            slot.
    """
    defaults = getattr(type(meta), "_field_defaults", {})
    for name in _SHAPES:
        slot = getattr(meta, name, None)
        default = defaults.get(name)
        if not callable(slot) or slot is default:
            continue
        wrong = _wrong(name, slot, env)
        # An algorithm of the user's may mean another thing by the name.
        if wrong and not (callable(default) and _wrong(name, default, env)):
            called = getattr(slot, "__name__", "")
            raise ConfigError(f"meta.{name}{called and '='}{called}: {wrong}")


def check_own(spec: Mapping[str, Mapping], params: Params, env: Any = None) -> None:
    """Check the learned functions that the user wrote, before they train.

    Args:
        spec: `Space.spec`.
        params: shapes, from `jax.eval_shape(space.init, key)`.
        env: as of `check`.

    Raises:
        ConfigError: one raises; cannot be traced with what it declares that it reads,
            so that no solution could be saved; gives values of another shape than its
            slot takes, or no distribution; or, in a slot of `ELEMENTWISE`, does not
            start as it says or has numbers without effect.
    """
    for name, op in spec.items():
        own = None if op["op"] == "number" else operations.own(op["op"])
        if own is None:
            continue
        learned = own.rebuild(op)
        if wrong := _wrong_of_own(name, op, learned, params[name], env):
            raise ConfigError(f"{name}={op['op']}: {wrong}")
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
        runs = _runs(name, learned, params[name])
        if runs and (wrong := _wrong_values(name, learned, own.start(op))):
            raise ConfigError(f"{name}={op['op']}: {wrong}")


def _wrong_of_own(
    name: str, op: Mapping[str, Any], learned: Any, params: Params, env: Any
) -> str | None:
    """Return what is wrong with the shape or the distribution of a user's function."""
    if name not in _SHAPES:
        return None
    declared = operations.get(op["op"]).shapes(op) if name == "reward" else {}
    shapes = {key: tuple(shape[1:]) for key, shape in declared.items()}
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
    start = learned.init(jax.random.key(0)) if name == "exploration" else zeros
    return _wrong(name, learned.bind(start), env, shapes)


def _inputs(
    name: str, env: Any = None, shapes: Mapping[str, tuple] | None = None
) -> list[jax.ShapeDtypeStruct]:
    """Return shapes of what a function of a kind is called with, but the context."""
    known = dict(_SHAPES[name])
    num_actions = getattr(getattr(env, "action", None), "num", None)
    if env is not None and name == "reward":
        known |= dict.fromkeys(("obs", "next_obs"), env.observation.shape)
        known["action"] = () if num_actions else env.action.shape
    elif num_actions and name in ("exploration", "q_transform"):
        known["q"] = (_NUM, num_actions)
    known |= shapes or {}
    inputs = []
    for given in slots.SIGNATURES[name]:
        shape, dtype = known.get(given, (_NUM,)), np.float32
        if given in ("terminated", "done"):
            dtype = np.bool_
        elif given == "action" and not shape:
            dtype = np.int32
        inputs.append(jax.ShapeDtypeStruct(shape, dtype))
    return inputs


def _called(name: str, slot: Any, *values: Any) -> Any:
    """Call a function with a context that has everything."""
    if name in slots.WITHOUT_CONTEXT:
        return slot(*values)
    return slot(*values, slots.Context(0.5, values[0].sum(), _Stats()))


def _runs(name: str, learned: Any, params: Any) -> bool:
    """Return True if a function of elements runs with a context that has everything."""
    if name not in ELEMENTWISE:
        return False
    try:
        jax.eval_shape(
            lambda params, *x: _called(name, learned.bind(params), *x),
            *(params, *_inputs(name)),
        )
    except Exception:
        return False
    return True


def _wrong(
    name: str, slot: Any, env: Any, shapes: Mapping[str, tuple] | None = None
) -> str | None:
    """Return what is wrong with the values of a function; None if nothing is known."""
    inputs = _inputs(name, env, shapes)
    call = functools.partial(_called, name, slot)
    wanted = inputs[0].shape
    if name == "q_aggregation":
        wanted = wanted[1:]
    elif name in slots.ONE_TRANSITION:
        wanted = ()
    expected = _EXPECTED.get(name, "expected one for each element")
    try:
        values = jax.eval_shape(call, *inputs)
    except Exception:
        return None
    if values is None:
        return f"it returns None; {expected}"
    shape = getattr(values, "shape", None)
    if shape is None:
        return f"it returns a {type(values).__name__}; {expected}"
    if name == "exploration" and shape in (wanted, wanted[1:]):
        return _wrong_distribution(slot, wanted)
    if shape == wanted:
        return None
    if shape != ():
        given = f"inputs of {list(inputs[0].shape)}"
        if name in slots.ONE_TRANSITION:
            given = "one transition"
        return f"it gives {list(shape)} for {given}; {expected}"
    if name in _CONSTANT and _is_constant(call, inputs):
        return None
    advice = ": leave out .mean()" if name in ELEMENTWISE else ""
    return f"it gives one number for a whole batch; {expected}{advice}"


def _wrong_distribution(slot: Any, shape: tuple[int, ...]) -> str | None:
    """Return what is wrong with what a rule of exploration gives for q of a shape."""
    q = jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)
    try:
        values = np.asarray(_called("exploration", slot, q, jnp.float32(0.3)))
    except Exception:
        return None
    for number in values.flat:
        if not number >= -1e-5:
            return f"it gives {number:.4g} as a probability; expected 0 or more"
    for total in np.ravel(values.sum(-1)):
        if not abs(total - 1) <= 1e-3:
            return f"its probabilities sum to {total:.4g}; expected 1"
    return None


def _wrong_values(name: str, learned: Any, hand_made: Any) -> str | None:
    """Return what is wrong with the start of a function, and with its numbers."""
    draw = np.random.default_rng(0).normal
    inputs = [draw(size=x.shape).astype(x.dtype) for x in _inputs(name)]
    start = learned.init(jax.random.key(0))
    moved = jax.tree.map(lambda x: x + draw(size=x.shape).astype(x.dtype), start)
    each = jax.jit(lambda params: _called(name, learned.bind(params), *inputs))
    values = np.asarray(each(start))
    if learned.starts_hand_made and hand_made is not None:
        wanted = np.asarray(jax.jit(lambda: _called(name, hand_made, *inputs))())
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
