"""Figures of a search's report, from its log and its comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.analysis import lineage, stats
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.plots import figures
from metaevo.analysis.results import Scores


def fitness(folder: Path, records: list[dict], measure: str) -> dict:
    columns = ("best", "q75", "median", "mean", "q25", "worst")
    rows = [
        [r["generation"], *(r[f"fitness_{c}"] for c in columns), r["failed"]]
        for r in records
    ]
    # A generation in which all failed has no fitness and leaves a gap.
    table = np.array([[np.nan if x is None else x for x in row] for row in rows])
    generation, best, q75, median, average, q25, _, _ = table.T

    def draw(axes):
        axes.fill_between(
            generation,
            q25,
            q75,
            color=figures.COLORS["solution"],
            alpha=0.25,
            label="quartiles",
        )
        axes.plot(generation, median, color=figures.COLORS["solution"], label="median")
        axes.plot(generation, average, color=figures.INK, ls="--", label="mean")
        axes.plot(
            generation,
            best,
            color=figures.COLORS["start"],
            lw=0.8,
            label="best (noisy)",
        )
        axes.set(xlabel="generation", ylabel=figures.plain(measure))
        figures.legend_above(axes, 4)

    return figures.figure(
        folder,
        "fitness",
        "Fitness of the population",
        draw,
        (["generation", *columns, "failed"], rows),
        "The best of a generation is the luckiest of many noisy scores. It is not the "
        "result.",
    )


def over_generations(
    folder: Path,
    records: list[dict],
    held_out: Mapping[str, HeldOut],
    facts: Mapping[str, Any],
) -> dict | None:
    """Draw what members score in the search, and the solution on held-out seeds.

    Where the first rises and the second does not, the search fits its own worlds.
    """
    scored = {int(k): np.array(x, float) for k, x in facts.get("earlier", {}).items()}
    last = facts.get("generation", 0)
    one_task = facts.get("num_searched") == 1  # several are aggregated in the search
    if not scored or "solution" not in held_out or not one_task or last > len(records):
        return None
    num = len(next(iter(scored.values())))
    if "start" in held_out:
        scored[0] = held_out["start"].fitness[0][:num]
    scored[last] = held_out["solution"].fitness[0][:num]
    rows = []
    for generation in sorted(scored):
        x = scored[generation][np.isfinite(scored[generation])]
        error = x.std(ddof=1) / np.sqrt(len(x)) if len(x) > 1 else np.nan
        record = records[min(generation, len(records) - 1)]
        mean = x.mean() if len(x) else np.nan
        rows.append([generation, record["fitness_mean"], mean, error])

    def draw(axes):
        means = [
            np.nan if r["fitness_mean"] is None else r["fitness_mean"] for r in records
        ]
        axes.plot(
            range(len(records)),
            means,
            color=figures.INK,
            ls="--",
            label="population mean, in the search",
        )
        generations, _, mean, error = np.array(rows, float).T
        axes.errorbar(
            generations,
            mean,
            error,
            color=figures.COLORS["solution"],
            marker="o",
            capsize=3,
            label="solution, held-out seeds",
        )
        axes.set(xlabel="generation", ylabel=figures.plain(facts["measure"]))
        figures.legend_above(axes, 1)

    return figures.figure(
        folder,
        "held_out_over_generations",
        "Score in the search and on held-out seeds",
        draw,
        (["generation", "population_mean", "held_out_mean", "standard_error"], rows),
        f"The solution after some generations, trained on {num} seeds that the search "
        "never saw, the same for all, with standard errors. If the population's mean "
        "rises and this does not, the search fits the worlds of its own.",
    )


def learning_curves(
    folder: Path,
    held_out: Mapping[str, HeldOut],
    task: int,
    place: str,
    frames_per_segment: int,
    between: Callable[[], None],
) -> dict | None:
    if not held_out:
        return None
    suffix = f"_task{task}" if task else ""
    rows = []
    for name, runs in held_out.items():
        curve = runs.train[task]["return"]
        for k in range(curve.shape[1]):
            between()
            scores = curve[np.isfinite(curve[:, k]), k]
            if len(scores) >= 3:
                frames = frames_per_segment * (k + 1)
                rows.append([name, frames, *stats.bootstrap(scores, stats.iqm)[:3]])

    def draw(axes):
        from matplotlib.ticker import EngFormatter

        for i, name in enumerate(held_out):
            color = figures.color(name, i)
            part = np.array([row[1:] for row in rows if row[0] == name])
            if len(part):
                frames, iqm, low, high = part.T
                axes.plot(frames, iqm, color=color, label=figures.plain(name))
                axes.fill_between(frames, low, high, color=color, alpha=0.2)
        axes.set(xlabel="frames", ylabel="training return")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        figures.legend_above(axes, 3)

    return figures.figure(
        folder,
        f"learning_curves{suffix}",
        "Learning curves on held-out seeds" + (f", {place}" if place else ""),
        draw,
        (["name", "frames", "iqm", "low", "high"], rows),
        "Interquartile mean over seeds with its bootstrap 95 % interval."
        + " The start is what the search began with." * ("start" in held_out),
    )


def ancestry(folder: Path, records: list[dict], scores: Scores | None) -> dict | None:
    """Draw each member's numbers, joined to its parent's; None if none evolve."""
    names = list(lineage.numbers(records[-1]))
    if not names:
        return None
    values = {name: [lineage.numbers(r)[name] for r in records] for name in names}
    best = lineage.fittest(records[-1])
    if scores is not None and scores.best is not None:
        best = scores.best
    line = lineage.line(records, best)
    generations = [r["generation"] for r in records]
    grey = figures.COLORS["start"]
    rows = [
        [r["generation"], member, parent, *(values[name][i][member] for name in names)]
        for i, r in enumerate(records)
        for member, parent in enumerate(r["parents"])
    ]

    def draw(*panels):
        from matplotlib.collections import LineCollection

        for name, panel in zip(names, panels, strict=True):
            steps = [
                [(x - 1, values[name][i - 1][parent]), (x, values[name][i][member])]
                for i, (x, r) in enumerate(zip(generations, records, strict=True))
                for member, parent in enumerate(r["parents"])
                if parent >= 0
            ]
            panel.add_collection(LineCollection(steps, colors=grey, linewidths=0.5))
            x = np.repeat(generations, len(records[0]["parents"]))
            panel.scatter(x, np.concatenate(values[name]), color=grey, s=2)
            panel.plot(
                [records[i]["generation"] for i, _ in line],
                [values[name][i][member] for i, member in line],
                color=figures.COLORS["solution"],
                lw=2,
                label="line of the best agent",
            )
            everything = np.concatenate(values[name])
            low, high = everything.min(), everything.max()
            panel.set(xlabel="generation", title=figures.plain(name))
            if low > 0 and high / low > 10:
                panel.set_yscale("log")

    return figures.figure(
        folder,
        "lineage",
        "Who came from whom",
        draw,
        (["generation", "member", "parent", *names], rows),
        "Each point is a member, joined to the agent it continued. In bold the line of "
        "the best agent: the schedule that the solution replays.",
        num_panels=len(names),
    )


def strategy(folder: Path, records: list[dict]) -> dict:
    """Draw the strategy's own metrics against the generation."""
    known = {
        "generation",
        "failed",
        "not_scored",
        "frames",
        "seconds",
        "frames_per_second",
    }
    known |= {"population", "parents"}
    names = [
        name
        for name in records[0]
        if name not in known and "/" not in name and not name.startswith("fitness_")
    ]
    counts = ["failed"]
    if any(r.get("not_scored") for r in records):
        counts.append("not_scored")
    names = [*counts, *names]
    rows = [[r["generation"], *(r.get(name) for name in names)] for r in records]

    def draw(*panels):
        for name, panel in zip(names, np.atleast_1d(panels), strict=True):
            values = [np.nan if r.get(name) is None else r[name] for r in records]
            panel.plot([r["generation"] for r in records], values, color=figures.INK)
            panel.set(xlabel="generation", title=figures.plain(name.replace("_", " ")))
            if name in counts:
                panel.set_ylim(0, max(1.0, *values) * 1.05)

    return figures.figure(
        folder,
        "strategy",
        "The strategy",
        draw,
        (["generation", *names], rows),
        "Members that failed, those that no episode scored if there were any, and the "
        "strategy's own metrics.",
        num_panels=len(names),
    )
