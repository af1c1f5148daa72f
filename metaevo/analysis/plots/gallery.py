"""Portraits of everything that evolved in a run.

An operation names the function that draws it, see `metaevo.learned.operations`. Numbers
are drawn together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metaevo import slots
from metaevo.analysis.plots import numbers
from metaevo.analysis.plots.portraits import Evolved, Portrait
from metaevo.learned import operations

__all__ = ["gallery", "portrait"]


def gallery(
    bound: Mapping[str, Any],
    spec: Mapping[str, Mapping],
    params: Mapping[str, Any],
    visited: Mapping[str, tuple[float, float]] | None = None,
) -> list[Portrait]:
    """Portraits of everything that evolved.

    Args:
        bound: slot -> function or number.
        spec: slot -> its operation and settings.
        params: slot -> its evolved numbers.
        visited: slot -> range of value - target while agents trained with it.
    """
    seen = visited or {}
    found = [
        portrait(name, op, bound[name], params[name], seen.get(name))
        for name, op in spec.items()
    ]
    together: dict[str, list[Evolved]] = {}
    fixed = []
    for name, op in spec.items():
        one = Evolved(name, op, slots.unchecked(bound[name]), params[name])
        if op["op"] == "number":
            fixed.append(one)
        elif operations.get(op["op"]).together:
            together.setdefault(operations.get(op["op"]).plot, []).append(one)
    found += [operations.resolve(plot)(several) for plot, several in together.items()]
    if fixed:
        found.append(numbers.fixed(fixed))
    return [drawn for drawn in found if drawn]


def portrait(
    slot: str,
    op: Mapping[str, Any],
    function: Any,
    params: Any,
    visited: tuple[float, float] | None = None,
) -> Portrait | None:
    """A slot's portrait; None for numbers that `gallery` draws together.

    Args:
        slot: its name.
        op: its entry in `Space.spec`.
        function: the slot's value.
        params: its evolved numbers.
        visited: range of value - target while agents trained with it.
    """
    if op["op"] == "number":
        return None
    operation = operations.get(op["op"])
    if operation.together:
        return None
    draw = operations.resolve(operation.plot)
    return draw(Evolved(slot, op, slots.unchecked(function), params, visited))
