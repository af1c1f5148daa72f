"""Properties of evolved functions: what holds for all inputs, and where they were used.

Guarantees and facts follow from the operation and its parameters, so they are found
anew when an artifact is loaded. The range of inputs that was visited in training, and
the minimum of a loss without guarantees, were measured: the artifact's manifest holds
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import formulas
from metaevo.learned import operations
from metaevo.slots import Context
from metaevo.types import Params

__all__ = ["Properties", "inside", "measured_minimum", "of", "record", "unit", "where"]

Interval = tuple[float, float]


class Properties(NamedTuple):
    """Properties of one evolved function.

    Attributes:
        title: its builder, such as `losses.residual_network`.
        guarantees: names in `operations.GUARANTEES`.
        facts: numbers by name that hold by construction.
        unit: of errors: `return_std` if it is scale-equivariant, else `return`.
        visited: range of value − target in training, mean ± 2 sd, in `unit`; None if
            it was not measured.
        minimum: value − target, in `unit`, where a loss of a critic is least: by
            construction if `facts` has it, else on the range that was visited; None if
            unknown.
        label: of a function that may change the optimum; else empty.
        formula: of a formula, its text and its LaTeX; else empty.
    """

    title: str
    guarantees: tuple[str, ...]
    facts: Mapping[str, float]
    unit: str
    visited: Interval | None = None
    minimum: float | None = None
    label: str = ""
    formula: tuple[str, str] | tuple[()] = ()

    def lines(self) -> list[str]:
        """A description in a few lines."""
        held = ", ".join(self.guarantees) or "nothing"
        found = [f"guaranteed by construction: {held}"]
        if self.label:
            found[0] += f" ({self.label})"
        found = [f"formula: {text}" for text in self.formula[:1]] + found
        found += [
            f"{name.replace('_', ' ')}: {x:.4g}"
            for name, x in self.facts.items()
            if name != "minimum"
        ]
        if self.minimum is not None:
            at = f"value - target = {self.minimum:.4g} {self.unit}"
            if "minimum" in self.facts:
                found.append(f"least at {at}")
            elif self.visited is not None and self.minimum in self.visited:
                found.append(f"least at an end of the range visited, {at}")
            else:
                found.append(f"least at {at}, of the range visited")
        if self.visited is not None:
            low, high = self.visited
            found.append(
                f"visited in training: value - target from {low:.4g} to {high:.4g} "
                f"{self.unit}"
            )
        return found


def unit(op: Mapping[str, Any]) -> str:
    """The unit of errors of an operation with its settings."""
    claims = operations.get(op["op"]).guarantees(op)
    return "return_std" if "scale-equivariant" in claims else "return"


def of(
    op: Mapping[str, Any], params: Params, recorded: Mapping[str, Any] | None = None
) -> Properties:
    """The properties of an evolved function.

    Args:
        op: its entry in a manifest; not a number's.
        params: nested dicts of arrays, or one array.
        recorded: its entry under `properties` in a manifest.

    Raises:
        ArtifactError: there is no such operation.
        ValueError, TypeError, AttributeError: what was recorded is malformed.
    """
    operation = operations.get(op["op"])
    facts = dict(operation.facts(op, params))
    recorded = recorded or {}
    minimum = facts.get("minimum", recorded.get("minimum"))
    return Properties(
        operation.title,
        tuple(operation.guarantees(op)),
        facts,
        unit(op),
        _range(recorded.get("visited")),
        None if minimum is None else _finite(minimum),
        # A manifest is a stranger's text: any label means the one that there is.
        "may change the optimum" if op.get("label") else "",
        _formula(operation.slot, op, params),
    )


def _formula(slot: str, op: Mapping[str, Any], params: Any) -> Any:
    """A formula's text and LaTeX; () of another function."""
    if slot not in formulas.SLOTS or not {"text", "family"} <= op.keys():
        return ()
    return formulas.shown(slot, op, params), formulas.latex(slot, op, params)


def _finite(x: Any) -> float:
    x = float(x)
    if not math.isfinite(x):
        raise ValueError(f"{x} is not finite")
    return x


def _range(given: Any) -> Interval | None:
    if given is None:
        return None
    low, high = map(_finite, given)
    if low > high:
        raise ValueError(f"range {given}: its ends are the wrong way round")
    return low, high


def record(
    op: Mapping[str, Any], params: Params, visited: Interval | None
) -> dict[str, Any]:
    """The entry under `properties` in a manifest.

    Args:
        op: the function's entry in `Space.spec`.
        params: its parameters.
        visited: range of value − target, in the operation's unit.
    """
    found = of(op, params, {"visited": visited})
    minimum = found.minimum
    if minimum is None and visited is not None and not op.get("temporal"):
        minimum = measured_minimum(op, params, visited)
    return {
        "guarantees": list(found.guarantees),
        "unit": found.unit,
        **{name: x for name, x in found.facts.items() if name != "minimum"},
        **({} if minimum is None else {"minimum": minimum}),
        **({} if visited is None else {"visited": list(visited)}),
    }


# A loss of an error e, by kind of slot.
_AT = {
    "value_loss": lambda loss, e: loss(e, 0 * e, e, Context(return_std=1.0)),
    "td_loss": lambda loss, e: loss(-e, e, 0 * e, Context(return_std=1.0)),
}


def measured_minimum(
    op: Mapping[str, Any], params: Params, visited: Interval
) -> float | None:
    """The error at which a loss of a critic is least, on 1001 points of a range.

    The target is 0, and PPO's clip does not act.

    Returns:
        value − target; None for other kinds of slots.
    """
    operation = operations.get(op["op"])
    if operation.slot not in _AT:
        return None
    loss = operation.rebuild(op).bind(jax.tree.map(jnp.asarray, params))
    e = jnp.linspace(*visited, 1001)
    return float(e[int(jnp.argmin(_AT[operation.slot](loss, e)))])


def where(properties: Mapping[str, Properties], slot: str | None) -> str:
    """The slot that is meant: `slot`, or the only one with a visited range.

    Raises:
        ValueError: there is none, or there are several.
    """
    known = [name for name, one in properties.items() if one.visited is not None]
    if slot is None and len(known) == 1:
        return known[0]
    if slot not in known:
        raise ValueError(
            f"slot={slot!r}: expected a slot whose range was recorded in training: "
            f"{', '.join(known) or 'this artifact has none'}"
        )
    return slot


def inside(one: Properties, error: Any, return_std: Any = None) -> np.ndarray:
    """True where errors lie within the range that was visited in training.

    Args:
        one: of a slot with a visited range.
        error: value − target, any shape.
        return_std: standard deviation of the value targets, where the range is in its
            unit.

    Raises:
        ValueError: `return_std` is needed and missing.
    """
    assert one.visited is not None
    low, high = one.visited
    error = np.asarray(error)
    if one.unit == "return_std":
        if return_std is None:
            raise ValueError(
                f"{one.title} measures errors in standard deviations of the value "
                "targets: give return_std=targets.std()"
            )
        error = error / np.asarray(return_std)
    return (low <= error) & (error <= high)
