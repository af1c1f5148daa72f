"""The learning curve of a training run: agents that differ in their seeds alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.analysis import stats
from metaevo.analysis.plots import figures
from metaevo.analysis.plots.figures import Drawing
from metaevo.storage import jsonl, run_directory
from metaevo.text import score

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
    text = f"mean {score(finite.mean())}"
    if len(finite) >= ENOUGH:
        text = f"mean {stats.mean_interval(finite).text}"
    elif len(finite) > 1:
        text += f", from {score(finite.min())} to {score(finite.max())},"
    lost = len(returns) - len(finite)
    return f"{text} of {len(finite)} agents" + (f", {lost} failed" if lost else "")


def figure(records: Sequence[Mapping[str, Any]]) -> Drawing:
    """Draw the learning curve: the mean over seeds, its interval, and each seed.

    Its table, `learning_curve.csv`, has a row per segment: frames of one agent, mean
    return, the bounds of its 95 % interval (with fewer than `ENOUGH` seeds the least
    and the greatest return), and each return.
    """
    curve, x = metrics(records)["return"], frames(records)
    rows = [[at, *_summary(y), *y] for at, y in zip(x, curve.T, strict=True)]
    bounds = "95 % interval" if len(curve) >= ENOUGH else "least and greatest"

    def draw(axes):
        axes.plot(x, curve.T, color=figures.COLORS["start"], lw=0.6)
        _, mean, *ends = np.array(rows, float).T[:4]
        figures.band(axes, x, mean, ends, figures.COLORS["solution"], "mean")
        axes.set_ylabel("training return")
        figures.in_frames(axes, "frames of one agent")
        figures.legend_above(axes, 2)

    seeds = [f"seed{i}" for i in range(len(curve))]
    return Drawing(
        NAME,
        "Learning curve",
        draw,
        (["frames", "mean", "low", "high", *seeds], rows),
        f"Mean return of the episodes that ended in each segment, over {len(curve)} "
        f"seeds. Shaded: {bounds}"
        + (" of the mean." if len(curve) >= ENOUGH else " seed.")
        + " In gray each seed.",
    )


def _summary(scores: np.ndarray) -> tuple[float, float, float]:
    """Mean and bounds of the finite ones; NaN if there are none."""
    finite = scores[np.isfinite(scores)]
    if not len(finite):
        return np.nan, np.nan, np.nan
    low, high = finite.min(), finite.max()
    if len(finite) >= ENOUGH:
        _, low, high, _ = stats.mean_interval(finite)
    return finite.mean(), low, high


def others(records: Sequence[Mapping[str, Any]]) -> Drawing:
    """Draw the other metrics of training: each seed, and in bold the mean."""
    of_name, x = metrics(records), frames(records)
    names = [name for name in of_name if name != "return"][:_MAX_PANELS]
    means = [
        np.array([_summary(scores)[0] for scores in of_name[name].T]) for name in names
    ]

    def draw(*panels):
        for name, mean, panel in zip(names, means, panels, strict=True):
            panel.plot(x, of_name[name].T, color=figures.COLORS["start"], lw=0.6)
            panel.plot(x, mean, color=figures.INK)
            panel.set_title(name.replace("_", " "))
            figures.in_frames(panel, "frames of one agent")

    return Drawing(
        "metrics",
        "Other metrics of training",
        draw,
        (["frames", *names], [*zip(x, *means, strict=True)]),
        "In each segment: gray each seed, bold their mean.",
        num_panels=len(names),
    )
