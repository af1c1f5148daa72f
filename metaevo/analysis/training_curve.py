"""The learning curve of a training run: agents that differ in their seeds alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.analysis import stats
from metaevo.analysis.plots import figures
from metaevo.storage import jsonl, run_directory

NAME = "learning_curve"
"""Name of the figure and of its CSV in `report/`."""

ENOUGH = 6
"""Number of seeds from which on an interval can hold 95 %: all of five lie on the same
side of their distribution's median in more than 5 % of cases."""

_MEMBERS = "members/"
_MAX_PANELS = 12


def records(directory: str | Path) -> list[dict[str, Any]]:
    """Return the records of a training run, one per segment; [] before the first."""
    path = run_directory.paths(directory).metrics
    return jsonl.read_generations(path) if jsonl.count(path) else []


def are_of_training(records: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if records are those of a training run."""
    return bool(records) and f"{_MEMBERS}healthy" in records[0]


def metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return the metrics of training by name, [N, K] for N agents and K segments.

    Values after an agent's numbers were not finite are NaN: it was lost, and what runs
    in its place began later. `return` is NaN where no episode ended.
    """
    healthy = np.cumprod(_column(records, f"{_MEMBERS}healthy"), 1) > 0
    names = [name for name in records[0] if name.startswith(_MEMBERS)]
    return {
        name.removeprefix(_MEMBERS): np.where(healthy, _column(records, name), np.nan)
        for name in names
        if name != f"{_MEMBERS}healthy"
    }


def alive(records: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return which agents have had finite numbers in all segments, [N] bool."""
    return np.asarray(_column(records, f"{_MEMBERS}healthy").min(1) > 0)


def frames(records: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return the frames of each agent after each segment, [K]."""
    return np.array([r["frames"] / len(r["population"]) for r in records])


def _column(records: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    # The log holds the shortest decimals that give the same float32.
    return np.array([r[name] for r in records], np.float32).T


def sentence(returns: np.ndarray) -> str:
    """Return the mean of returns with its interval, and how many are missing.

    >>> sentence(np.array([1.0, 2.0]))
    'mean 1.50, from 1.00 to 2.00, of 2 agents'
    """
    finite = returns[np.isfinite(returns)]
    if not len(finite):
        return f"none of {len(returns)} agents has one"
    text = f"mean {finite.mean():.2f}"
    if len(finite) >= ENOUGH:
        text = f"mean {stats.bootstrap(finite, stats.mean).text}"
    elif len(finite) > 1:
        text += f", from {finite.min():.2f} to {finite.max():.2f},"
    lost = len(returns) - len(finite)
    return f"{text} of {len(finite)} agents" + (f", {lost} failed" if lost else "")


def figure(folder: Path, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Draw the learning curve: the mean over seeds, its interval, and each seed.

    Args:
        folder: where `learning_curve.png` and `learning_curve.csv` are written. The
            table has a row per segment: frames of one agent, mean return, the bounds
            of its 95 % interval (with fewer than `ENOUGH` seeds the least and the
            greatest return), and each return.
    """
    curve, x = metrics(records)["return"], frames(records)
    rows = [_row(x, scores) for x, scores in zip(x, curve.T, strict=True)]
    bounds = "95 % interval" if len(curve) >= ENOUGH else "least and greatest"
    table = np.array([row[:4] for row in rows], float)

    def draw(axes):
        from matplotlib.ticker import EngFormatter

        for scores in curve:
            axes.plot(x, scores, color=figures.COLORS["start"], lw=0.6)
        _, mean, low, high = table.T
        axes.plot(x, mean, color=figures.COLORS["solution"], label="mean")
        axes.fill_between(
            x,
            low,
            high,
            color=figures.COLORS["solution"],
            alpha=0.25,
            label=bounds,
        )
        axes.set(xlabel="frames of one agent", ylabel="training return")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        figures.legend_above(axes, 2)

    seeds = [f"seed{i}" for i in range(len(curve))]
    return figures.figure(
        folder,
        NAME,
        "Learning curve",
        draw,
        (["frames", "mean", "low", "high", *seeds], rows),
        f"Mean return of the episodes that ended in each segment, over {len(curve)} "
        f"seeds. Shaded: {bounds}"
        + (" of the mean, by the bootstrap." if len(curve) >= ENOUGH else " seed.")
        + " In gray each seed.",
    )


def _row(frames: float, scores: np.ndarray) -> list[float]:
    finite = scores[np.isfinite(scores)]
    mean = finite.mean() if len(finite) else np.nan
    low = finite.min() if len(finite) else np.nan
    high = finite.max() if len(finite) else np.nan
    if len(finite) >= ENOUGH:
        _, low, high, _ = stats.bootstrap(finite, stats.mean)
    return [frames, mean, low, high, *scores]


def others(folder: Path, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Draw the other metrics of training: each seed, and in bold the mean."""
    found, x = metrics(records), frames(records)
    names = [name for name in found if name != "return"][:_MAX_PANELS]
    rows = [
        [frame, *(_row(frame, found[name][:, k])[1] for name in names)]
        for k, frame in enumerate(x)
    ]

    def draw(*panels):
        from matplotlib.ticker import EngFormatter

        for i, (name, panel) in enumerate(
            zip(names, np.atleast_1d(panels), strict=True), 1
        ):
            for values in found[name]:
                panel.plot(x, values, color=figures.COLORS["start"], lw=0.6)
            panel.plot(x, [row[i] for row in rows], color=figures.INK)
            panel.set(xlabel="frames of one agent", title=name.replace("_", " "))
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))

    return figures.figure(
        folder,
        "metrics",
        "Other metrics of training",
        draw,
        (["frames", *names], rows),
        "In each segment: gray each seed, bold their mean.",
        num_panels=len(names),
    )
