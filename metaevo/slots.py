"""Slots: the places of an algorithm that may evolve.

A slot is data: a number, an array, or a `jax.tree_util.Partial` (a static function
with array leaves). So a `Meta`, the NamedTuple of an algorithm's slots, is a pytree
and crosses jit, vmap and scan.

Function slots take a trailing `context`. Number slots may be replaced by schedules,
`Partial`s of `context`; an algorithm reads them with `value`.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import re
import sys
import typing
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import Partial

from metaevo.errors import ConfigError

Slot = Any  # float | jax.Array | Partial

# Slots of plain numbers that lie in a range: the annotations of a Meta's fields, of
# which a number that a user gives is checked by `checked`. An algorithm may write its
# own, Annotated[Slot, "[2, 5)"].
Share = Annotated[Slot, "[0, 1]"]
Rate = Annotated[Slot, "(0, 1]"]
Correlation = Annotated[Slot, "[0, 1)"]
Positive = Annotated[Slot, "(0, inf]"]
NotNegative = Annotated[Slot, "[0, inf]"]
AtLeastOne = Annotated[Slot, "[1, inf)"]

_RANGE = re.compile(r"[\[(][-\d.e]+, ?([-\d.e]+|inf)[\])]")

_OVER_TIME = ("reward", "value", "next_value", "log_ratio", "terminated", "done")

SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "value_loss": ("value", "target", "old_value"),
    "td_loss": ("td_error", "q", "target"),
    "actor_loss": ("q", "action"),
    "q_aggregation": ("q",),
    "policy_loss": ("log_prob", "log_ratio", "advantage", "entropy"),
    "drift": ("log_ratio", "advantage", "clip_eps"),
    "activation": ("x",),
    "advantage": _OVER_TIME,
    "correction": ("log_ratio",),
    "reward": ("obs", "action", "reward", "next_obs", "terminated"),
    "exploration": ("q", "epsilon"),
    "priority": ("td_error", "age", "visits", "reward", "terminated"),
    "rescale": ("x",),
    "q_transform": ("q",),
    "optimizer": ("gradient", "state", "params"),
    "actor": ("obs",),
    "shaper": ("own", "other"),
    "message": ("obs",),
    "number": (),
}
"""Kind of slot -> names of its inputs, in order, before `context`.

`number` stands for every number slot; an optimizer's are those of `update`.
"""

WITHOUT_CONTEXT = frozenset({"activation"})
"""Kinds whose functions take no `context`."""

ONE_TRANSITION = frozenset({"reward"})
"""Kinds whose functions take one transition; all others take any leading axes."""

OVER_TIME = frozenset({"advantage"})
"""Kinds whose functions go over the steps of a rollout, which are their first axis."""


class Context(NamedTuple):
    """The agent's place in its lifetime, as stop-gradient scalars.

    Attributes:
        progress: updates done / updates in a lifetime, in [0, 1).
        return_std: standard deviation of the current batch's value targets; None
            where there are none, outside the losses of critics. Functions that need it
            raise there.
        stats: further scalars by name; each algorithm documents its own.
    """

    progress: jax.Array | float = 0.0
    return_std: jax.Array | float | None = None
    stats: Mapping[str, jax.Array | float] = {}


class Optimizer(NamedTuple):
    """Two `Partial`s: a value of the `optimizer` slot, see `metaevo.optimizers`.

    Attributes:
        init: `params -> state`.
        update: `(gradient, state, params, context) -> (direction, state)`.
    """

    init: Partial
    update: Partial


def extended(cls: type) -> Any:
    """Make the annotations of a NamedTuple's subclass fields; a class decorator.

    They follow the fields of the base. One that the base has keeps its place, and gets
    the new default.

    Args:
        cls: with a NamedTuple as its base. All fields have defaults.

    >>> class Base(NamedTuple):
    ...     lr: Slot = 1e-3
    ...     gamma: Slot = 0.99
    >>> @extended
    ... class Meta(Base):
    ...     lr: Slot = 0.1
    ...     tau: Slot = 0.5
    >>> Meta(gamma=0.9)
    Meta(lr=0.1, gamma=0.9, tau=0.5)
    """
    base: Any = cls.__base__
    own = {name: vars(cls)[name] for name in cls.__annotations__}
    defaults = base._field_defaults | own
    fields = namedtuple(cls.__name__, defaults, defaults=defaults.values())
    names = ("__doc__", "__module__", "__qualname__", "__annotations__")
    body = {name: getattr(cls, name) for name in names}
    return type(cls.__name__, (fields, base), body | {"__slots__": ()})


def function(fn: Callable) -> Partial:
    """Make a plain function a slot value; a decorator for hand-made defaults.

    >>> double = function(lambda x: 2 * x)
    >>> double(3.0), jax.tree.leaves(double)
    (6.0, [])
    """
    slot = Partial(fn)
    slot.__doc__ = fn.__doc__
    slot.__dict__["__name__"] = getattr(fn, "__name__", "slot")
    return slot


def unchecked(slot: Slot) -> Slot:
    """Return the bare function of one that `metaevo.load` gave; all else as it is.

    A loaded function checks the shapes of its inputs. A loop calls the bare one: some
    broadcast on purpose, such as a head of quantiles.
    """
    if isinstance(slot, Optimizer):
        bare = Optimizer(*map(unchecked, slot))
        same = all(x is y for x, y in zip(bare, slot, strict=True))
        return slot if same else bare
    inside = getattr(getattr(slot, "func", None), "unchecked", None)
    if isinstance(slot, Partial) and inside is not None:
        return Partial(inside, *slot.args, **slot.keywords)
    return slot


def value(slot: Slot, context: Context) -> jax.Array | float:
    """The number in a number slot now: itself, or its schedule at `context`."""
    return slot(context) if isinstance(slot, Partial) else slot


def is_number(slot: Slot) -> bool:
    """True if a slot holds a number, a schedule of one, or nothing yet."""
    if callable(slot):
        return list(inspect.signature(slot).parameters) == ["context"]
    return slot is None or jax.tree.structure(slot).num_leaves == 1


def get(meta: Any, name: str) -> Slot:
    """The slot `name` of an algorithm.

    Raises:
        ConfigError: the algorithm has no such slot; names the nearest one.
    """
    if name not in meta._fields:
        near = difflib.get_close_matches(name, meta._fields, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"no slot {name!r} in this algorithm.{hint} "
            f"Its slots: {', '.join(meta._fields)}"
        )
    return getattr(meta, name)


def replace(meta: Any, **slots: Slot) -> Any:
    """`meta` with slots replaced; raises like `get`."""
    for name in slots:
        get(meta, name)
    return meta._replace(**slots)


def wrong_kind(kind: str, slot: Callable) -> str | None:
    """Say of which other kind a function is; None if it may be of this kind.

    Kinds share their numbers of inputs, so a function of another kind would compute
    with the wrong ones, and often without an error. It is known by the names of its
    inputs. A user's function may name them as it likes.

    >>> wrong_kind("drift", lambda value, target, old_value, context: 0.0)
    'it is for value_loss; expected a function of (log_ratio, advantage, clip_eps)'
    >>> wrong_kind("drift", lambda r, advantage, eps, context: 0.0)
    """
    try:
        given = tuple(x for x in inspect.signature(slot).parameters if x != "context")
    except (TypeError, ValueError):  # no signature, as some functions in C
        return None
    expected = SIGNATURES.get(kind)
    others = [other for other, inputs in SIGNATURES.items() if inputs == given]
    if expected in (None, given) or not others:
        return None
    inputs = ", ".join(expected) or "context"
    return f"it is for {' or '.join(others)}; expected a function of ({inputs})"


# --- what a user gives ----------------------------------------------------------------


def optimizer(transformation: Any) -> Optimizer:
    """Make an optax transformation a slot value; see `optimizers.from_optax`."""

    def update(gradient, state, params, context):
        del context
        return transformation.update(gradient, state, params)

    return Optimizer(function(transformation.init), function(update))


def checked(meta: Any) -> Any:
    """Replace the slots of a `Meta` that JAX does not take by those it does.

    Plain functions become `Partial`s and optax transformations `Optimizer`s, and loaded
    functions are `unchecked`; all other slots stay the same objects.

    Raises:
        ConfigError: a slot holds what cannot be used there, or a plain number outside
            of its range; names slot and remedy.

    >>> class Meta(NamedTuple):
    ...     tau: Rate | None = None
    >>> checked(Meta(0.5))
    Meta(tau=0.5)
    >>> checked(Meta(0))
    Traceback (most recent call last):
        ...
    metaevo.errors.ConfigError: meta.tau=0 must be in (0, 1]
    """
    defaults, ranges = type(meta)._field_defaults, _ranges(type(meta))
    found = {
        name: _checked(name, slot, defaults.get(name), ranges.get(name))
        for name, slot in zip(meta._fields, meta, strict=True)
    }
    changed = {name: x for name, x in found.items() if x is not getattr(meta, name)}
    return meta._replace(**changed) if changed else meta


def _checked(name: str, slot: Any, default: Any, within: str | None) -> Slot:
    """One slot of `checked`; the default tells a function slot from a number slot."""
    if isinstance(default, Optimizer):
        if isinstance(slot, Optimizer):
            return unchecked(slot)
        if callable(getattr(slot, "init", None)) and hasattr(slot, "update"):
            return _direction(name, optimizer(slot))
        expected = (
            "an optax transformation that gives a direction, such as "
            "optax.scale_by_adam(), or an Optimizer of metaevo.optimizers"
        )
    elif callable(slot):
        kind = "number" if isinstance(default, int | float) else name
        if wrong := wrong_kind(kind, slot):
            called = getattr(slot, "__name__", "")
            raise ConfigError(f"meta.{name}{called and '='}{called}: {wrong}")
        if isinstance(slot, Partial):
            return unchecked(slot)
        return function(slot) if hasattr(slot, "__name__") else Partial(slot)
    elif isinstance(default, Partial) and not is_number(default):
        inputs = ", ".join(inspect.signature(default).parameters)
        expected = (
            f"a function of ({inputs}); one with parameters that evolve goes into the "
            f"search's space, spaces.replace({name}=...)"
        )
    elif (slot is None and default is None) or _is_numeric(slot):
        _check_range(name, slot, within)
        return slot
    else:
        expected = "a number, an array, or a function of the context"
        if default is None:
            expected = "None, a number, arrays, or a function"
    shown = getattr(slot, "__name__", None) or repr(slot)
    raise ConfigError(f"meta.{name}={shown}: expected {expected}")


@functools.cache
def _ranges(cls: type) -> dict[str, str]:
    """Return the ranges of a Meta's slots by name.

    Slots that have one in every algorithm need no annotation.
    """
    found: dict[str, str] = {}
    for name in getattr(cls, "_fields", ()):
        hint = _hint(cls, name)
        for x in (hint, *typing.get_args(hint)):  # of `Share | None` the first
            texts = [y for y in getattr(x, "__metadata__", ()) if isinstance(y, str)]
            found.update((name, y) for y in texts if _RANGE.fullmatch(y))
        if name in ("gamma", "gae_lambda"):
            found.setdefault(name, "[0, 1]")
        elif name == "lr" or name.endswith("_lr"):
            found.setdefault(name, "[0, inf)")
    return found


def _hint(cls: type, name: str) -> Any:
    """The annotation of a field; None if it cannot be evaluated, which is no error."""
    for base in cls.__mro__:
        if name in (own := inspect.get_annotations(base)):
            text = getattr(own[name], "__forward_arg__", own[name])
            space = vars(sys.modules.get(base.__module__, typing))
            with contextlib.suppress(Exception):
                return eval(text, dict(space)) if isinstance(text, str) else text
            return None
    return None


def _check_range(name: str, slot: Slot, within: str | None) -> None:
    """Check a plain number that has a range.

    Args:
        within: the range, such as `(0, 1]`, or None.

    Raises:
        ConfigError: it is outside, or no number at all.
    """
    if not isinstance(slot, int | float | np.number):
        return
    if within is not None:
        low, high = map(float, within[1:-1].split(","))
        above = low <= slot if within[0] == "[" else low < slot
        below = slot <= high if within[-1] == "]" else slot < high
        if not (above and below):
            expected = f"in {within}"
            if high == math.inf:
                least = "at least" if within[0] == "[" else "above"
                expected = f"{least} {low:g}" + " and finite" * (within[-1] == ")")
            raise ConfigError(f"meta.{name}={slot} must be {expected}")
    if math.isnan(slot):
        raise ConfigError(f"meta.{name}={slot}: expected a number")


def _is_numeric(slot: Any) -> bool:
    """True for a number, an array, or a nonempty pytree of them."""
    leaves = jax.tree.leaves(slot)
    return bool(leaves) and all(
        isinstance(x, bool | int | float | np.number | np.bool_ | jax.Array)
        or (isinstance(x, np.ndarray) and x.dtype.kind in "biuf")
        for x in leaves
    )


def _direction(name: str, made: Optimizer) -> Optimizer:
    """The optimizer, if its first step of a vector is a direction to subtract.

    `optax.adam(1e-3)` gives what is to be added: with it an agent would climb its loss.
    """
    with jax.ensure_compile_time_eval():
        ones = jax.numpy.ones(3)
        try:
            direction, _ = made.update(ones, made.init(ones), ones, Context())
            downhill = float(jax.numpy.sum(direction)) >= 0
        except Exception as error:
            raise ConfigError(
                f"meta.{name}: this transformation takes no single vector "
                f"({type(error).__name__}: {error}); wrap it with "
                "metaevo.optimizers.from_optax"
            ) from error
    if not downhill:
        raise ConfigError(
            f"meta.{name}: this transformation gives a step to add to the parameters, "
            "as optax.adam(1e-3) does; give the direction alone, such as "
            "optax.scale_by_adam(), and the step size in the slot of the learning rate"
        )
    return made
