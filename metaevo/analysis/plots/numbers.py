"""Portraits of numbers: tuned, scheduled, or following how training goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import schedules, slots
from metaevo.analysis.plots import figures
from metaevo.analysis.plots.portraits import (
    OURS,
    THEIRS,
    Evolved,
    Portrait,
    lines,
    table,
)
from metaevo.slots import Context

__all__ = ["feedback", "fixed", "over_life"]


def over_life(evolved: Sequence[Evolved]) -> Portrait:
    """Numbers that change over a lifetime, beside the hand-made ones."""
    progress = np.linspace(0.0, 1.0, 101, dtype=np.float32)

    def values_of(number):
        at = jax.vmap(lambda t: jnp.asarray(slots.value(number, Context(progress=t))))
        return np.broadcast_to(np.asarray(at(progress)), progress.shape)

    curves = {}
    for one in evolved:
        curves[one.slot] = {"solution": values_of(one.function)}
        if "default" in one.op:
            default = schedules.from_plain(one.op["default"])
            curves[one.slot]["hand-made"] = values_of(default)

    def draw(*panels):
        for (name, both), panel in zip(curves.items(), panels, strict=True):
            for who, values in both.items():
                panel.plot(progress, values, color=figures.COLORS[who], label=who)
            panel.set(xlabel="share of the lifetime", ylabel=name)
            _scale(panel, np.concatenate(list(both.values())))
            figures.legend_above(panel, 2)

    columns = {
        f"{name} {who}": values
        for name, both in curves.items()
        for who, values in both.items()
    }
    return Portrait(
        "schedules",
        "The evolved schedules",
        draw,
        table(progress=progress, **columns),
        "What the number is at each moment of an agent's life, before any decay that "
        "the algorithm's own settings add.",
        len(curves),
    )


def _scale(panel: Any, y: np.ndarray) -> None:
    """Make the axis of factors of more than 10 logarithmic."""
    if y.min() > 0 and y.max() > 10 * y.min():
        panel.set_yscale("log")


def feedback(evolved: Evolved) -> Portrait:
    """A number against each statistic that it follows, the others at their units."""
    slot, op, number = evolved.slot, evolved.op, evolved.function
    units, sizes = op["stats"], np.linspace(0.0, 3.0, 121)
    at = jax.jit(jax.vmap(lambda stats: number(Context(progress=0.5, stats=stats))))
    curves = {}
    for name in units:
        ones = {k: np.full_like(sizes, unit) for k, unit in units.items()}
        curves[name] = np.asarray(at(ones | {name: sizes * units[name]}))
    default = schedules.from_plain(op["default"])
    usual = float(slots.value(default, Context(progress=0.5)))

    def draw(*panels):
        for (name, y), panel in zip(curves.items(), panels, strict=True):
            hand_made = np.full_like(y, usual)
            lines(panel, sizes * units[name], {"evolved": y}, ("hand-made", hand_made))
            panel.set(xlabel=name.replace("_", " "), ylabel=slot)
            _scale(panel, y)

    return Portrait(
        slot,
        f"How {slot} follows training",
        draw,
        table(size=sizes, **curves),
        "Against each statistic up to three of its units, the others at one unit.",
        len(curves),
    )


def fixed(evolved: Sequence[Evolved]) -> Portrait:
    """Moves of numbers away from their defaults, each on its own scale."""
    drawn = all("prior" in one.op for one in evolved)
    moved = {one.slot: float(one.params) * one.op.get("scale", 1.0) for one in evolved}

    def draw(panel):
        place = np.arange(len(moved))
        panel.barh(place, list(moved.values()), color=OURS, height=0.6)
        panel.set_yticks(place, list(moved))
        panel.invert_yaxis()
        if drawn:
            panel.set(xlim=(0, 1), xlabel="place in its range")
        else:
            panel.axvline(0, color=THEIRS, label="hand-made")
            panel.set(xlabel="moved by, on its own scale")
            figures.legend_above(panel, 1)

    scale = {
        one.slot: one.op.get("transform", one.op.get("prior", "")) for one in evolved
    }
    rows = [(name, scale[name], x) for name, x in moved.items()]
    scales = ", ".join(f"{name}: {text}" for name, text in scale.items())
    return Portrait(
        "numbers",
        "The evolved numbers",
        draw,
        (["slot", "scale", "x"], rows),
        f"Scales: {scales}.",
        1,
    )
