"""Portraits of everything that evolved in a run, beside what is hand-made.

What a portrait shows is declared with the function, see `metaevo.learned.portraits`.
Numbers are drawn together, and so are those that change over a lifetime.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from metaevo import slots
from metaevo.analysis.plots import painters
from metaevo.analysis.plots.figures import Drawing
from metaevo.analysis.plots.painters import Evolved, Painted
from metaevo.learned import operations, portraits
from metaevo.learned.portraits import Inputs, Portrait

__all__ = ["gallery", "portrait"]

Range = tuple[float, float]


def gallery(
    spec: Mapping[str, Mapping],
    params: Mapping[str, Any],
    visited: Mapping[str, Range] | None = None,
    others: Mapping[str, Mapping[str, Any]] = {},
) -> list[Drawing]:
    """Portraits of everything that evolved.

    Args:
        spec: slot -> its operation and settings.
        params: slot -> its evolved numbers.
        visited: slot -> range of value - target while agents trained with it.
        others: slot -> further functions to compare with, by name.
    """
    seen, schedules, numbers = visited or {}, [], {}
    drawn = [
        portrait(name, op, params[name], seen.get(name), others.get(name, {}))
        for name, op in spec.items()
    ]
    caption = ""
    for name, op in spec.items():
        if op["op"] == "number":
            # A slot that follows another's number has none of its own.
            if not isinstance(params[name], Mapping):
                numbers[name] = op
        elif operations.get(op["op"]).slot == "number":
            panels, caption = _painted(name, op, params[name], None)
            schedules += panels
    if schedules:
        title = "The evolved schedules"
        drawn.append(_portrait("schedules", title, schedules, caption))
    if numbers:
        drawn.append(_numbers(numbers, params))
    return [one for one in drawn if one is not None]


def portrait(
    slot: str,
    op: Mapping[str, Any],
    params: Any,
    visited: Range | None = None,
    others: Mapping[str, Any] = {},
) -> Drawing | None:
    """A slot's portrait; None for numbers, which `gallery` draws together.

    Args:
        slot: its name.
        op: its entry in `Space.spec`.
        params: its evolved numbers.
        visited: range of value - target while agents trained with it.
        others: further functions to compare with, by name.
    """
    if op["op"] == "number" or operations.get(op["op"]).slot == "number":
        return None
    title = f"The evolved {slot.replace('_', ' ')}"
    return _portrait(slot, title, *_painted(slot, op, params, visited, others))


def _painted(
    slot: str,
    op: Mapping[str, Any],
    params: Any,
    visited: Range | None,
    others: Mapping[str, Any] = {},
) -> tuple[list[Painted], str]:
    """The panels of a function, and its caption."""
    operation = operations.get(op["op"])
    shapes = itertools.chain(*operation.shapes(op).values())
    usual = portraits.KINDS.get(operation.slot, _of_inputs)
    if any(isinstance(size, int) for size in shapes):
        usual = _of_inputs  # its inputs are not those of its kind
    declare = operation.portrait or usual
    declared, learned = declare(op), operation.rebuild(op)
    hand_made = None
    if learned.starts_hand_made:
        hand_made = learned.bind(learned.init(jax.random.key(0)))
    elif declared.hand_made is not None:
        hand_made = operations.resolve(declared.hand_made)
        if not isinstance(hand_made, jax.tree_util.Partial):
            hand_made = slots.function(hand_made)
    evolved = Evolved(slot, op, learned.bind(params), hand_made, visited, others)
    panels = [painters.painted(panel, evolved) for panel in declared.panels]
    return [*itertools.chain(*panels)], declared.caption


def _of_inputs(op: Mapping[str, Any]) -> Portrait:
    """Portrait of a function that declares none."""
    caption = "Its mean output against each input, the others at 0.5."
    return Portrait((Inputs(),), caption)


def _portrait(
    name: str, title: str, panels: Sequence[Painted], caption: str
) -> Drawing:
    columns: dict[str, list] = {}
    for panel in panels:
        columns |= {key: np.ravel(x).tolist() for key, x in panel.columns.items()}
    rows = [*itertools.zip_longest(*columns.values(), fillvalue="")]

    def draw(*axes):
        for panel, one in zip(panels, axes, strict=True):
            panel.draw(one)

    return Drawing(name, title, draw, ([*columns], rows), caption, len(panels))


def _numbers(ops: Mapping[str, Mapping], params: Mapping[str, Any]) -> Drawing:
    """Moves of numbers away from their defaults, each on its own scale."""
    moved = {
        slot: float(params[slot]) * op.get("scale", 1.0) for slot, op in ops.items()
    }
    what, ends = "moved by, on its own scale", None
    if all("prior" in op for op in ops.values()):
        what, ends = "place in its range", (0.0, 1.0)
    scales = {
        slot: op.get("transform", op.get("prior", "")) for slot, op in ops.items()
    }
    caption = "Scales: " + ", ".join(f"{x}: {y}" for x, y in scales.items()) + "."
    panel = painters.bars(moved, "number", what, ends)
    return _portrait("numbers", "The evolved numbers", [panel], caption)
