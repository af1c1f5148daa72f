"""Portraits: drawings of an evolved function beside the hand-made one.

A portrait holds the numbers that it draws. The report writes it as it writes its other
figures. A temporal function is drawn at the start, the middle and the end of a
lifetime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaevo.analysis.plots import figures
from metaevo.slots import Context

__all__ = [
    "OURS",
    "STYLES",
    "THEIRS",
    "Evolved",
    "Portrait",
    "heading",
    "lines",
    "moments",
    "table",
    "zero",
]

OURS, THEIRS = figures.COLORS["solution"], figures.COLORS["hand-made"]
STYLES = ("-", "--", ":")


class Evolved(NamedTuple):
    """An evolved slot, as plots take it.

    Attributes:
        slot: its name.
        op: its entry in `Space.spec`: the operation and its settings.
        function: the slot's value, a function or a number.
        params: its evolved numbers.
        visited: range of value - target while agents trained with it, or None.
    """

    slot: str
    op: Mapping[str, Any]
    function: Any
    params: Any
    visited: tuple[float, float] | None = None


class Portrait(NamedTuple):
    """Arguments of `figures.figure` after the folder, in order."""

    name: str
    title: str
    draw: Callable
    table: tuple[list[str], Sequence]
    caption: str
    num_panels: int = 1


def heading(slot: str) -> str:
    """A portrait's title.

    >>> heading("td_loss")
    'The evolved td loss'
    """
    return f"The evolved {slot.replace('_', ' ')}"


def moments(op: Mapping[str, Any], **stats: float) -> dict[str, Context]:
    """Moments of a lifetime at which a function is drawn: label -> context.

    The standard deviation of the targets is 1 in each.
    """
    if not op.get("temporal"):
        return {"evolved": Context(0.0, 1.0, stats)}
    names = {"evolved, start": 0.0, "middle": 0.5, "end of life": 1.0}
    return {name: Context(t, 1.0, stats) for name, t in names.items()}


def lines(panel: Any, x: Any, ours: Mapping, theirs: tuple | None) -> None:
    """Draw evolved curves by label, in one color and several styles.

    Args:
        panel: matplotlib axes.
        x: [n].
        ours: label -> [n].
        theirs: label and [n] of the hand-made curve below them, or None.
    """
    if theirs is not None:
        panel.plot(x, theirs[1], color=THEIRS, label=theirs[0])
    for (label, y), style in zip(ours.items(), STYLES, strict=False):
        panel.plot(x, y, color=OURS, ls=style, label=label)
    figures.legend_above(panel, 2 if len(ours) > 1 else 3)


def zero(panel: Any) -> None:
    """Draw both axes through the origin."""
    panel.axhline(0, color=figures.INK, lw=0.5, zorder=0)
    panel.axvline(0, color=figures.INK, lw=0.5, zorder=0)


def table(**columns: Any) -> tuple[list[str], list]:
    """A portrait's table of columns, flattened.

    >>> table(x=[1, 2], y=[3.0, 4.0])
    (['x', 'y'], [(1, 3.0), (2, 4.0)])
    """
    values = [np.ravel(x).tolist() for x in columns.values()]
    return list(columns), list(zip(*values, strict=True))
