"""Slots: the places of an algorithm that may evolve.

A slot is data: a number, an array, or a `jax.tree_util.Partial` (a static function
with array leaves). So a `Meta`, the NamedTuple of an algorithm's slots, is a pytree
and crosses jit, vmap and scan.

Function slots take a trailing `context`. Number slots may be replaced by schedules,
`Partial`s of `context`; an algorithm reads them with `value`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from jax.tree_util import Partial

from metaevo.errors import ConfigError

Slot = Any  # float | jax.Array | Partial

SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "value_loss": ("value", "target", "old_value"),
    "td_loss": ("td_error", "q", "target"),
    "actor_loss": ("q", "action"),
    "q_aggregation": ("q",),
    "policy_loss": ("log_prob", "log_ratio", "advantage", "entropy"),
    "drift": ("log_ratio", "advantage", "clip_eps"),
    "activation": ("x",),
    "reward": ("obs", "action", "reward", "next_obs", "terminated"),
    "exploration": ("q", "epsilon"),
    "optimizer": ("gradient", "state", "params"),
    "actor": ("obs",),
    "number": (),
}
"""Kind of slot -> names of its inputs, in order, before `context`.

`number` stands for every number slot; an optimizer's are those of `update`.
"""

WITHOUT_CONTEXT = frozenset({"activation"})
"""Kinds whose functions take no `context`."""

ONE_TRANSITION = frozenset({"reward"})
"""Kinds whose functions take one transition; all others take any leading axes."""


class Context(NamedTuple):
    """The agent's place in its lifetime, as stop-gradient scalars.

    Attributes:
        progress: updates done / updates in a lifetime, in [0, 1).
        return_std: standard deviation of the current batch's value targets.
        stats: further scalars by name; each algorithm documents its own.
    """

    progress: jax.Array | float = 0.0
    return_std: jax.Array | float = 1.0
    stats: Mapping[str, jax.Array | float] = {}


class Optimizer(NamedTuple):
    """Two `Partial`s: a value of the `optimizer` slot, see `metaevo.optimizers`.

    Attributes:
        init: `params -> state`.
        update: `(gradient, state, params, context) -> (direction, state)`.
    """

    init: Partial
    update: Partial


def function(fn: Callable) -> Partial:
    """Makes a plain function a slot value; a decorator for hand-made defaults.

    >>> double = function(lambda x: 2 * x)
    >>> double(3.0), jax.tree.leaves(double)
    (6.0, [])
    """
    slot = Partial(fn)
    slot.__doc__ = fn.__doc__
    slot.__dict__["__name__"] = getattr(fn, "__name__", "slot")
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
