"""Painters of portraits: curves over a number, contours over two, bars of sensitivity.

What is drawn is declared with the function, see `metaevo.learned.portraits`. Inputs are
drawn as declared, not as agents saw them: an artifact does not hold their observations.
A function without a lifetime is drawn as it is in the middle of one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.analysis.plots import figures
from metaevo.learned import operations
from metaevo.learned.portraits import (
    LIFETIME,
    Axis,
    Contour,
    Curve,
    Inputs,
    Strongest,
)
from metaevo.portable import signatures
from metaevo.slots import Context

__all__ = ["Evolved", "Painted", "bars", "painted"]

OURS, THEIRS = figures.COLORS["solution"], figures.COLORS["hand-made"]
STYLES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1)))
CLIPS = dict.fromkeys(("rho_clip", "c_clip", "pg_clip"), 1.0)
STATS = {"gamma": 0.95, "gae_lambda": 0.95, "leak": 0.0, "clip_eps": 0.2, **CLIPS}
QUICKLY = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
"""Options of a program that is run once."""
SAMPLES, SIDE = 512, 41  # inputs drawn for bars, and points a side of a contour
MOST_BARS, MOST_OUTPUTS = 64, 3


class Evolved(NamedTuple):
    """An evolved function, as painters take it.

    Attributes:
        slot: its name.
        op: its entry in `Space.spec`: the operation and its settings.
        function: the slot's value.
        hand_made: that of the function to compare with, or None.
        visited: range of value - target while agents trained with it, or None.
        others: further functions of the slot to compare with, by name.
    """

    slot: str
    op: Mapping[str, Any]
    function: Any
    hand_made: Any = None
    visited: tuple[float, float] | None = None
    others: Mapping[str, Any] = {}


class Painted(NamedTuple):
    """A panel.

    Attributes:
        draw: draws it, given matplotlib axes.
        columns: its numbers by name, arrays that may differ in length.
    """

    draw: Callable[[Any], None]
    columns: Mapping[str, Any]


def painted(panel: Any, evolved: Evolved) -> Iterator[Painted]:
    """Paint what one declaration of `metaevo.learned.portraits` shows."""
    return _PAINTERS[type(panel)](panel, evolved)


def _middle(op: Mapping[str, Any]) -> Context:
    """Return the context of the middle of a lifetime, with what a function reads."""
    others = dict.fromkeys(operations.get(op["op"]).reads(op), 0.5)
    return Context(0.5, 1.0, others | STATS)


def _moments(op: Mapping[str, Any], x: Axis) -> dict[str, Context]:
    """Return the moments of a lifetime that are drawn: label -> context."""
    if not op.get("temporal") or x == LIFETIME:
        return {"evolved": _middle(op)}
    names = {"evolved, start": 0.0, "middle": 0.5, "end of life": 1.0}
    return {name: _middle(op)._replace(progress=t) for name, t in names.items()}


def _points(axis: Axis) -> np.ndarray:
    spaced = np.geomspace if axis.log else np.linspace
    return spaced(axis.low, axis.high, axis.num).astype(np.float32)


def _thin(draw: Callable, place: float, low: float, high: float) -> None:
    """Draw a thin line by `axvline` or `axhline` if it lies inside an axis."""
    if low < place < high:
        draw(place, color=figures.INK, lw=0.5, zorder=0)


# --- curves ---------------------------------------------------------------------------


def _curve(one: Curve, evolved: Evolved) -> Iterator[Painted]:
    """Paint the curves; several by name are those of the middle of a lifetime."""
    x, middle = _points(one.x), _middle(evolved.op)
    moments = {"evolved": middle} if one.names else _moments(evolved.op, one.x)
    drawn = {name: (evolved.function, at) for name, at in moments.items()}
    others = {} if one.names else evolved.others
    drawn |= {name: (other, middle) for name, other in others.items()}
    if evolved.hand_made is not None:
        drawn["hand-made"] = evolved.hand_made, middle

    # One program for all, run once: compilation is all of its time.
    @functools.partial(jax.jit, compiler_options=QUICKLY)
    def all_values(drawn, x):
        return {name: one.of(f, x, context) for name, (f, context) in drawn.items()}

    values = {
        name: np.asarray(y).reshape(len(x), -1).T
        for name, y in all_values(drawn, x).items()
    }
    ours = {name: values[name][0] for name in moments}
    if one.names:
        ours = dict(zip(one.names, values["evolved"], strict=True))
    theirs = values.get("hand-made")

    def draw(panel):
        if evolved.visited is not None:
            panel.axvspan(
                *np.clip(evolved.visited, one.x.low, one.x.high),
                color=figures.COLORS["start"],
                alpha=0.15,
                lw=0,
                label="visited",
            )
        for i, (label, y) in enumerate((k, values[k][0]) for k in others):
            color, style = figures.color(label, i), STYLES[1 + i % (len(STYLES) - 1)]
            panel.plot(x, y, color=color, lw=1.1, ls=style, label=label)
        for i, y in enumerate(() if theirs is None else theirs):
            label = "_" if i else "hand-made"
            panel.plot(x, y, color=THEIRS, ls=STYLES[i], label=label)
        for i, (label, y) in enumerate(ours.items()):
            color, style = OURS, STYLES[i % len(STYLES)]
            if one.names and theirs is None:
                color, style = figures.color(label, i), "-"
            panel.plot(x, y, color=color, ls=style, label=label)
        panel.set(xlabel=one.x.label, ylabel=one.label)
        _scales(panel, one, np.stack([*ours.values()]), theirs)
        _thin(panel.axvline, one.x.mark, one.x.low, one.x.high)
        _thin(panel.axhline, 0.0, *panel.get_ylim())
        figures.legend_above(panel, 3)

    columns = {f"{one.label}: {label}": y for label, y in ours.items()}
    for i, y in enumerate(() if theirs is None else theirs):
        columns[": ".join([one.label, *one.names[i : i + 1], "hand-made"])] = y
    yield Painted(draw, {one.x.label: x, **columns})


def _scales(panel: Any, one: Curve, y: np.ndarray, theirs: np.ndarray | None) -> None:
    """Choose scales and ends of the axes."""
    everything = y if theirs is None else np.concatenate([y, theirs])
    panel.yaxis.set_major_formatter("{x:g}")  # no factor beside the legend
    if one.x.log:
        panel.set_xscale("log")
    if one.range is not None:
        panel.set_ylim(one.range)
    elif everything.min() > 0 and everything.max() > 30 * everything.min():
        panel.set_yscale("log")
    elif theirs is not None and np.ptp(theirs) > 3 * np.ptp(y) > 0:
        # The evolved curves set the scale: the hand-made one would flatten them.
        margin = 0.15 * float(np.ptp(y))
        panel.set_ylim(float(y.min()) - margin, float(y.max()) + margin)


def _inputs(one: Inputs, evolved: Evolved) -> Iterator[Painted]:
    given, _, call = signatures.signature(evolved.op)
    reads = operations.get(evolved.op["op"]).reads(evolved.op)
    names = [*given, *reads]
    ranges = {name: one.ranges.get(name, (-3.0, 0.5, 3.0)) for name in names}
    sizes = {"n": 1, "a": 4}

    def over(name):
        def at(function, x, context):
            now = {key: usual for key, (_, usual, _) in ranges.items()} | {name: x}
            arrays = [
                jnp.full([sizes.get(str(size), size) for size in shape], now[key])
                for key, shape in given.items()
            ]
            scalars = {"progress": context.progress} | {key: now[key] for key in reads}
            context = signatures.context_of(scalars)
            y = call(lambda _, *args: function(*args), (), arrays, context)
            return jnp.asarray(y, jnp.float32).mean()

        return jax.vmap(at, (None, 0, None))

    for name in names:
        low, _, high = ranges[name]
        axis = Axis(name.replace("_", " "), low, high)
        axis = LIFETIME if name == "progress" else axis
        yield from _curve(
            Curve(axis, evolved.slot.replace("_", " "), over(name)), evolved
        )


# --- contours -------------------------------------------------------------------------


def _contour(one: Contour, evolved: Evolved) -> Iterator[Painted]:
    x, y = np.meshgrid(_points(one.x), _points(one.y))
    of, middle = jax.jit(one.of), _middle(evolved.op)
    drawn = {"evolved": evolved.function, "hand-made": evolved.hand_made}
    heights = {
        name: np.asarray(of(function, x.ravel(), y.ravel(), middle)).reshape(x.shape)
        for name, function in drawn.items()
        if function is not None
    }
    levels = _levels(np.stack([*heights.values()]))
    for name, height in heights.items():
        title = f"{one.label}, {name}"
        color = OURS if name == "evolved" else THEIRS
        yield _contours(one.x, one.y, (x, y, height), title, levels, color)


def _levels(height: np.ndarray) -> np.ndarray:
    """Return the heights of contours, of a function that is never negative by powers.

    >>> _levels(np.array([0.0, 100.0])).round(1).tolist()
    [0.3, 1.0, 3.0, 10.0, 30.0, 60.0]
    """
    low, high = float(height.min()), float(height.max())
    if low >= 0:
        return max(high, 1e-3) * np.array([0.003, 0.01, 0.03, 0.1, 0.3, 0.6])
    return np.linspace(low, high, 10)[1:-1]


def _contours(
    x: Axis,
    y: Axis,
    grid: tuple[np.ndarray, np.ndarray, np.ndarray],
    title: str,
    levels: np.ndarray,
    color: str = OURS,
) -> Painted:
    """Paint contours of the last of three arrays over the other two."""
    across, up, height = grid

    def draw(panel):
        if height.min() < levels[-1] and height.max() > levels[0]:
            drawn = panel.contour(across, up, height, levels, colors=color)
            panel.clabel(drawn, levels[1::2], fmt="%.2g", fontsize=7.5)
        panel.set(xlim=(x.low, x.high), ylim=(y.low, y.high))
        panel.set(xlabel=x.label, ylabel=y.label, title=title)
        _thin(panel.axvline, x.mark, x.low, x.high)
        _thin(panel.axhline, y.mark, y.low, y.high)

    places = {f"{title}: {x.label}": across, f"{title}: {y.label}": up}
    return Painted(draw, {**places, title: height})


# --- sensitivity ----------------------------------------------------------------------


def _strongest(one: Strongest, evolved: Evolved) -> Iterator[Painted]:
    """Contours over the two inputs that change most; a curve if there is only one."""
    units, names = [*one.inputs.values()], [*one.inputs][:MOST_BARS]
    of, middle = jax.jit(one.of), _middle(evolved.op)

    def values(x):
        return np.asarray(of(evolved.function, x, middle)).reshape(len(x), -1)

    rng = np.random.default_rng(0)
    x = np.array(rng.uniform(-1, 1, (SAMPLES, len(units))) * units, np.float32)
    usual, changes = values(x), []
    chooses = usual.dtype.kind == "i"
    for i in range(len(names)):
        other = x.copy()
        other[:, i] = np.roll(x[:, i], 1)
        change = usual != values(other) if chooses else abs(usual - values(other))
        changes.append(float(change.mean()))
    strongest = np.argsort(-np.array(changes), kind="stable")[:2]
    axes = [
        Axis(f"{one.what} {names[i]}", -units[i], units[i], num=SIDE) for i in strongest
    ]
    if len(axes) == 1:

        def of_one(function, x, context):
            return one.of(function, x[:, None], context)

        yield from _curve(Curve(axes[0], one.label, of_one), evolved)
    else:
        first, second = axes
        across, up = np.meshgrid(_points(first), _points(second))
        inputs = np.zeros((across.size, len(units)), np.float32)
        inputs[:, strongest] = np.stack([across.ravel(), up.ravel()], -1)
        heights = values(inputs).T.reshape(-1, *across.shape)[:MOST_OUTPUTS]
        for i, height in enumerate(heights):
            title = f"{one.label} {i}" if len(heights) > 1 else one.label
            title += ", other inputs 0" if len(names) > 2 else ""
            grid = across, up, height
            yield _contours(first, second, grid, title, _levels(height))
    label = f"mean change of the {one.label}"
    if chooses:
        label = "share of choices that change"
    yield bars(dict(zip(names, changes, strict=True)), one.what, label)


def bars(
    values: Mapping[str, float],
    what: str,
    label: str,
    ends: tuple[float, float] | None = None,
) -> Painted:
    """Paint a bar for each name; `ends` are those of the panel, if they are known."""
    names, place = [*values], np.arange(len(values))

    def draw(panel):
        panel.bar(place, [*values.values()], color=OURS, width=0.7)
        panel.set_xticks(place, names)
        panel.set_xlim(-0.6, max(len(names), 4) - 0.4)  # one bar fills no panel
        if sum(map(len, names)) > 30:
            panel.tick_params(axis="x", rotation=90)
        panel.set(xlabel=what, ylabel=label, ylim=ends)
        _thin(panel.axhline, 0.0, *panel.get_ylim())

    return Painted(draw, {what: names, label: [*values.values()]})


_PAINTERS: Mapping[type, Callable[..., Iterator[Painted]]] = {
    Curve: _curve,
    Inputs: _inputs,
    Contour: _contour,
    Strongest: _strongest,
}
