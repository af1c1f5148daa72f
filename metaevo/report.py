"""Figures and tables of a finished run, each figure with the CSV it was drawn from."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats as scipy_stats

from metaevo import losses
from metaevo.comparison import HeldOut
from metaevo.loggers import jsonl
from metaevo.slots import Context
from metaevo.stats import Paired
from metaevo.types import Params, Search

COLORS = {"solution": "#0072B2", "hand-made": "#D55E00", "start": "#999999"}


def verdict_sentence(paired: Paired, measure: str) -> str:
    """`better than the hand-made one: mean return +3.1 [+1.2, +5.0] (...)`."""
    word = {
        "better": "better than the hand-made one",
        "worse": "worse than the hand-made one",
        "no difference": "not distinguishable from the hand-made one",
    }[paired.verdict]
    failed = f", {paired.num_failed} failed" if paired.num_failed else ""
    return (
        f"{word}: {measure} {paired.difference:+.2f} "
        f"[{paired.low:+.2f}, {paired.high:+.2f}] "
        f"(95 % interval, {paired.num_pairs} paired seeds{failed})"
    )


def write(
    directory: Path, search: Search, solution: Params, held_out: Mapping[str, HeldOut]
) -> None:
    """Writes `directory/report/`: PNG and CSV.

    `fitness`: fitness against generation. `value_loss`: the evolved loss and its
    gradient beside the squared error, where it is evolved. `held_out` and
    `learning_curves`: the comparison, where it was made.
    """
    folder = Path(directory) / "report"
    folder.mkdir(exist_ok=True)
    _fitness(folder, jsonl.read(Path(directory) / "metrics.jsonl"), search)
    if "value_loss" in search.space.spec:
        meta = search.space.bind(solution, search.tasks[0].meta)
        spec = search.space.spec["value_loss"]
        _value_loss(folder, meta.value_loss, 1.5 * spec["scale"] * spec["limit"])
    if held_out:
        _held_out(folder, held_out)
        for task, loop in enumerate(search.tasks):
            suffix = f"_task{task}" if len(search.tasks) > 1 else ""
            _learning_curves(
                folder / f"learning_curves{suffix}",
                {name: runs.curves[task] for name, runs in held_out.items()},
                loop.frames_per_segment,
            )


def _fitness(folder: Path, records: list[dict[str, Any]], search: Search) -> None:
    columns = ("best", "q75", "median", "mean", "q25", "worst")
    rows = [
        [r["generation"], *(r[f"fitness_{c}"] for c in columns), r["failed"]]
        for r in records
    ]
    _csv(folder / "fitness.csv", ["generation", *columns, "failed"], rows)
    # A generation of only failures has no fitness: a gap.
    table = np.array([[np.nan if x is None else x for x in row] for row in rows])
    generation, best, q75, median, average, q25, _, _ = table.T
    figure, axes = _figure()
    axes.fill_between(
        generation, q25, q75, color=COLORS["solution"], alpha=0.25, label="quartiles"
    )
    axes.plot(generation, median, color=COLORS["solution"], label="median")
    axes.plot(generation, average, color="black", ls="--", label="mean")
    axes.plot(generation, best, color=COLORS["start"], lw=0.8, label="best (noisy)")
    axes.set(
        xlabel="generation",
        ylabel=search.fitness.name,
        title="Fitness of the population",
    )
    axes.legend(frameon=False)
    _save(figure, folder / "fitness.png")


def _value_loss(folder: Path, learned: Any, limit: float) -> None:
    """Draws loss and gradient against value − target, v_old = v (clip inactive)."""
    x = jnp.linspace(-limit, limit, 601)
    context = Context(stats={"clip_eps": 0.2})

    def curve(loss):
        def at(v):
            old = jax.lax.stop_gradient(v)
            return loss(v, jnp.zeros_like(v), old, context)

        return jax.vmap(jax.value_and_grad(at))(x)

    curves = {"solution": curve(learned), "hand-made": curve(losses.square)}
    header, columns = ["error"], [x]
    for name, (value, gradient) in curves.items():
        header += [f"{name} loss", f"{name} gradient"]
        columns += [value, gradient]
    _csv(folder / "value_loss.csv", header, np.stack(columns, 1))
    figure, panels = _figure(2)
    labels = {"solution": "evolved", "hand-made": "squared error, ½x²"}
    for i, (panel, title) in enumerate(zip(panels, ("Loss", "Gradient"), strict=True)):
        for name, value in curves.items():
            y = value[i] - value[i][len(x) // 2] if i == 0 else value[i]
            panel.plot(x, y, color=COLORS[name], label=labels[name])
        # The evolved curve sets the scale: the square would flatten it.
        y = curves["solution"][i]
        y = y - y[len(x) // 2] if i == 0 else y
        low, high = float(y.min()), float(y.max())
        margin = 0.15 * (high - low) + 1e-3
        panel.set(
            xlabel="value - target (units of return)",
            title=title + (", 0 at 0" if i == 0 else ""),
            ylim=(low - margin, high + margin),
        )
        panel.axhline(0, color="black", lw=0.5)
        panel.axvline(0, color="black", lw=0.5)
    panels[0].legend(frameon=False)
    _save(figure, folder / "value_loss.png")


def _held_out(folder: Path, held_out: Mapping[str, HeldOut]) -> None:
    rows = [
        [name, task, seed, runs.fitness[task, seed], runs.final_return[task, seed]]
        for name, runs in held_out.items()
        for task, seed in np.ndindex(runs.fitness.shape)
    ]
    header = ["name", "task", "seed", "fitness", "final_return"]
    _csv(folder / "held_out.csv", header, rows)


def _learning_curves(
    path: Path, curves: Mapping[str, np.ndarray], frames_per_segment: int
) -> None:
    """Mean over seeds with its 95 % interval, per segment; `curves` are [N, K]."""
    figure, axes = _figure()
    rows = []
    for name, runs in curves.items():
        count = np.isfinite(runs).sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            average = np.nansum(runs, 0) / count
            error = np.sqrt(np.nansum((runs - average) ** 2, 0) / (count - 1) / count)
        margin = scipy_stats.t.ppf(0.975, np.maximum(count - 1, 1)) * error
        frames = frames_per_segment * np.arange(1, runs.shape[1] + 1)
        axes.plot(frames, average, color=COLORS[name], label=name)
        axes.fill_between(
            frames, average - margin, average + margin, color=COLORS[name], alpha=0.2
        )
        low, high = average - margin, average + margin
        rows += [[name, *row] for row in zip(frames, average, low, high, strict=True)]
    _csv(path.with_suffix(".csv"), ["name", "frames", "mean", "low", "high"], rows)
    axes.set(
        xlabel="frames",
        ylabel="training return",
        title="Held-out seeds, mean and 95 % interval",
    )
    axes.legend(frameon=False)
    _save(figure, path.with_suffix(".png"))


# --- drawing --------------------------------------------------------------------------


def _figure(num_panels: int = 1):
    # Not pyplot: no window system, no global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * num_panels, 3.6), layout="constrained")
    axes = figure.subplots(1, num_panels)
    for panel in np.atleast_1d(axes):
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure, path: Path) -> None:
    figure.savefig(path, dpi=150)


def _csv(path: Path, header: list[str], rows: Iterable[Iterable[Any]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
