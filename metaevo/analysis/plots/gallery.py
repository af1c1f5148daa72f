"""Which portrait a slot gets; numbers are drawn together.

Portraits are of losses and optimizers (`metaevo.analysis.plots.losses`), and of what
an agent is paid, tries and does (`metaevo.analysis.plots.agents`). A new operation gets
one here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import schedules, slots
from metaevo.analysis.plots import agents, figures, losses
from metaevo.analysis.plots.losses import OURS, THEIRS, Portrait, lines, table
from metaevo.slots import Context

__all__ = ["gallery", "portrait"]


def gallery(
    bound: Mapping[str, Any],
    spec: Mapping[str, Mapping],
    params: Mapping[str, Any],
    visited: tuple[float, float] | None = None,
) -> list[Portrait]:
    """Portraits of everything that evolved.

    Args:
        bound: slot -> function or number.
        spec: slot -> its operation and settings.
        params: slot -> its evolved numbers.
        visited: where value - target lay while agents trained with it.
    """
    found = [
        portrait(name, op, bound[name], params[name], visited)
        for name, op in spec.items()
    ]
    moving = {k: op for k, op in spec.items() if op["op"] in ("knots", "steps")}
    fixed = {k: op for k, op in spec.items() if op["op"] == "number"}
    if moving:
        found.append(_over_life(moving, bound))
    if fixed:
        found.append(_numbers(fixed, params))
    return [drawn for drawn in found if drawn]


def portrait(
    slot: str,
    op: Mapping[str, Any],
    function: Any,
    params: Any,
    visited: tuple[float, float] | None = None,
) -> Portrait | None:
    """A slot's portrait; None for numbers, which `gallery` draws together.

    Args:
        op, params: its entry in `Space.spec`, and its evolved numbers.
        function: the slot's value.
    """
    match slot, op["op"]:
        case (("value_loss" | "td_loss"), _):
            return losses.loss(slot, op, function, visited)
        case "drift", _:
            return losses.drift(op, function)
        case "policy_loss", _:
            return losses.policy_loss(op, function)
        case "activation", _:
            return losses.activation(op, function)
        case _, "adam_numbers":
            return losses.adam(op, params)
        case _, "recurrent":
            return losses.recurrent(op, function)
        case _, "feedback":
            return _feedback(slot, op, function)
        case _, "potential":
            return agents.potential(op, function)
        case _, "free_reward":
            return agents.free(op, function)
        case _, "impact":
            return agents.impact(op, params)
        case _, "graded":
            return agents.graded(op, function, params)
        case _, "policy":
            return agents.policy(op, function)
    return None


def _over_life(spec: Mapping[str, Mapping], bound: Mapping[str, Any]) -> Portrait:
    """Numbers that change over a lifetime, beside the hand-made ones."""
    progress = np.linspace(0.0, 1.0, 101, dtype=np.float32)

    def over_life(number):
        at = jax.vmap(lambda t: jnp.asarray(slots.value(number, Context(progress=t))))
        return np.broadcast_to(np.asarray(at(progress)), progress.shape)

    curves = {}
    for name, op in spec.items():
        curves[name] = {"solution": over_life(bound[name])}
        if "default" in op:
            default = schedules.from_plain(op["default"])
            curves[name]["hand-made"] = over_life(default)

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
    """Factors of more than 10 want a logarithmic axis."""
    if y.min() > 0 and y.max() > 10 * y.min():
        panel.set_yscale("log")


def _feedback(slot: str, op: Mapping, number: Callable) -> Portrait:
    """A number against each statistic that it follows, the others at their units."""
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


def _numbers(spec: Mapping[str, Mapping], params: Mapping[str, Any]) -> Portrait:
    """How far numbers moved, each on its own scale."""
    drawn = all("prior" in op for op in spec.values())
    moved = {
        name: float(params[name]) * op.get("scale", 1.0) for name, op in spec.items()
    }

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

    said = {name: op.get("transform", op.get("prior", "")) for name, op in spec.items()}
    table = ["slot", "scale", "x"], [(k, said[k], x) for k, x in moved.items()]
    scales = ", ".join(f"{name}: {scale}" for name, scale in said.items())
    return Portrait(
        "numbers", "The evolved numbers", draw, table, f"Scales: {scales}.", 1
    )
