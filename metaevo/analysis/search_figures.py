"""Figures of a search's report, from its log and its comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from metaevo.analysis import lineage, stats, verdicts
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.plots import figures
from metaevo.analysis.plots.figures import Drawing
from metaevo.analysis.results import Scores

SOLUTION, GREY = figures.COLORS["solution"], figures.COLORS["start"]


def _column(records: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """A metric of all generations, NaN where it has no value, [generations]."""
    return np.array([r.get(name) for r in records], float)


def fitness(records: list[dict], measure: str) -> Drawing:
    columns = ("best", "q75", "median", "mean", "q25", "worst")
    rows = [
        [r["generation"], *(r[f"fitness_{c}"] for c in columns), r["failed"]]
        for r in records
    ]
    # A generation in which all failed has no fitness and leaves a gap.
    x = {name: _column(records, f"fitness_{name}") for name in columns}
    generation = _column(records, "generation")

    def draw(axes):
        axes.fill_between(
            generation,
            x["q25"],
            x["q75"],
            color=SOLUTION,
            alpha=0.25,
            label="quartiles",
        )
        axes.plot(generation, x["median"], color=SOLUTION, label="median")
        axes.plot(generation, x["mean"], color=figures.INK, ls="--", label="mean")
        axes.plot(generation, x["best"], color=GREY, lw=0.8, label="best (noisy)")
        axes.set(xlabel="generation", ylabel=measure)
        figures.legend_above(axes, 4)

    return Drawing(
        "fitness",
        "Fitness of the population",
        draw,
        (["generation", *columns, "failed"], rows),
        "The best of a generation is the luckiest of many noisy scores. It is not the "
        "result.",
    )


def by_task(records: list[dict], names: Sequence[str]) -> Drawing | None:
    """Draw the population's mean fitness on each of `names`; None if none is known."""
    columns = [_column(records, f"task{i}/fitness") for i in range(len(names))]
    known = [i for i, x in enumerate(columns) if np.isfinite(x).any()]
    if not known:
        return None
    generation = _column(records, "generation")
    names, means = [names[i] for i in known], [columns[i] for i in known]

    def draw(*panels):
        for name, mean, panel in zip(names, means, panels, strict=True):
            panel.plot(generation, mean, color=SOLUTION)
            panel.set(xlabel="generation", title=name)

    return Drawing(
        "by_task",
        "Fitness on each task",
        draw,
        (["generation", *names], np.stack([generation, *means], 1)),
        "Mean of the population before tasks are joined, without members that failed.",
        num_panels=len(names),
    )


def signal(records: list[dict]) -> Drawing | None:
    """Draw the share of the spread between members that is signal; None: one seed."""
    if not any("signal" in r for r in records):
        return None
    names = ("signal", "signal_twice")
    generation, *shares = (_column(records, x) for x in ("generation", *names))

    def draw(axes):
        labels = ("with its seeds", "with twice as many")
        for x, label, style in zip(shares, labels, ("-", "--"), strict=True):
            axes.plot(generation, x, color=SOLUTION, ls=style, label=label)
        axes.set(xlabel="generation", ylabel="share of signal", ylim=(-0.02, 1.02))
        figures.legend_above(axes, 2)

    return Drawing(
        "signal",
        "Signal in the scores of members",
        draw,
        (["generation", *names], np.stack([generation, *shares], 1)),
        "Share of the variance between members on which their seeds agree. The rest is "
        "noise, by which the strategy selects as well.",
    )


def lately(records: list[dict]) -> dict[str, float] | None:
    """Return the mean `signal` and `signal_twice` of the last third of generations.

    Returns:
        None for a search with one seed per member.
    """
    last = [r for r in verdicts.last_third(records) if "signal" in r]
    if not last:
        return None
    return {x: float(np.mean([r[x] for r in last])) for x in ("signal", "signal_twice")}


def over_generations(
    records: list[dict], held_out: Mapping[str, HeldOut], facts: Mapping[str, Any]
) -> Drawing | None:
    """Draw what members score in the search, and the solution on held-out seeds.

    Where the first rises and the second does not, the search fits its own worlds.
    """
    scored = {int(k): np.array(x, float) for k, x in facts.get("earlier", {}).items()}
    last = facts.get("generation", 0)
    one_task = facts.get("num_searched") == 1  # several are aggregated in the search
    if not scored or "solution" not in held_out or not one_task or last > len(records):
        return None
    num = len(next(iter(scored.values())))
    start = held_out.get("start", held_out.get("hand-made"))  # where it is this one
    if start is not None:
        scored[0] = start.fitness[0][:num]
    scored[last] = held_out["solution"].fitness[0][:num]
    rows = []
    for generation in sorted(scored):
        x = scored[generation][np.isfinite(scored[generation])]
        error = x.std(ddof=1) / np.sqrt(len(x)) if len(x) > 1 else np.nan
        record = records[min(generation, len(records) - 1)]
        mean = x.mean() if len(x) else np.nan
        rows.append([generation, record["fitness_mean"], mean, error])

    def draw(axes):
        axes.plot(
            range(len(records)),
            _column(records, "fitness_mean"),
            color=figures.INK,
            ls="--",
            label="population mean, in the search",
        )
        generations, _, mean, error = np.array(rows, float).T
        axes.errorbar(
            generations,
            mean,
            error,
            color=SOLUTION,
            marker="o",
            capsize=3,
            label="solution, held-out seeds",
        )
        axes.set(xlabel="generation", ylabel=facts["measure"])
        figures.legend_above(axes, 1)

    return Drawing(
        "held_out_over_generations",
        "Score in the search and on held-out seeds",
        draw,
        (["generation", "population_mean", "held_out_mean", "standard_error"], rows),
        f"The solution after some generations, trained on {num} seeds that the search "
        "never saw, the same for all, with standard errors. If the population's mean "
        "rises and this does not, the search fits the worlds of its own.",
    )


def front(facts: Mapping[str, Any]) -> Drawing | None:
    """Draw score against length of the programs that a search kept; None: it has none.

    Args:
        facts: `results.formulas` among them.
    """
    members = facts.get("front") or []
    if not members:
        return None
    x, mean, error = (
        np.array([one[name] for one in members], float)
        for name in ("length", "mean", "error")
    )
    rows = [
        [one["length"], one["mean"], one["error"], one["looks"], text]
        for one in members
        for text in ["; ".join(one["formulas"].values())]
    ]

    def draw(axes):
        axes.errorbar(x, mean, error, color=SOLUTION, marker="o", capsize=3, ls=":")
        axes.axhline(0, color=GREY, lw=0.8)
        axes.set(xlabel="operations", ylabel="score, less the start's")

    return Drawing(
        "front",
        "Size against score",
        draw,
        (["operations", "mean", "standard_error", "looks", "formula"], rows),
        "Programs that no shorter one scores as much as, with standard errors of the "
        "search's own scores. These were chosen among many, so they are flattered.",
    )


def genealogy(facts: Mapping[str, Any]) -> Drawing | None:
    """Draw the ancestors of the solution's formula; None: it has none but the start.

    Args:
        facts: `results.formulas` among them.
    """
    line = facts.get("genealogy") or []
    if len(line) < 2:
        return None
    rows = [[x["generation"], "; ".join(x["formulas"].values())] for x in line]
    generations = [row[0] for row in rows]

    def draw(axes):
        axes.step(generations, range(len(rows)), color=SOLUTION, marker="o")
        axes.set(xlabel="generation", ylabel="mutations since the start")

    return Drawing(
        "genealogy",
        "Ancestors of the solution",
        draw,
        (["generation", "formula"], rows),
        "When each formula on the way from the start to the solution was first scored. "
        "Mutations that do not change the formula are left out.",
    )


def learning_curves(
    held_out: Mapping[str, HeldOut],
    task: int,
    place: str,
    frames_per_segment: int,
    between: Callable[[], None],
) -> Drawing:
    suffix = f"_task{task}" if task else ""
    rows = []
    for name, runs in held_out.items():
        for k, scores in enumerate(runs.train[task]["return"].T, 1):
            between()
            scores = scores[np.isfinite(scores)]
            if len(scores) >= 3:
                iqm = stats.bootstrap(scores, stats.iqm)[:3]
                rows.append([name, frames_per_segment * k, *iqm])

    def draw(axes):
        for i, name in enumerate(held_out):
            part = np.array([row[1:] for row in rows if row[0] == name])
            if len(part):
                frames, iqm, *ends = part.T
                figures.band(axes, frames, iqm, ends, figures.color(name, i), name)
        axes.set_ylabel("training return")
        figures.in_frames(axes, "frames")
        figures.legend_above(axes, 3)

    return Drawing(
        f"learning_curves{suffix}",
        "Learning curves on held-out seeds" + (f", {place}" if place else ""),
        draw,
        (["name", "frames", "iqm", "low", "high"], rows),
        "Interquartile mean over seeds with its bootstrap 95 % interval."
        + " The start is what the search began with." * ("start" in held_out),
    )


def ancestry(records: list[dict], scores: Scores | None) -> Drawing | None:
    """Draw each member's numbers, joined to its parent's; None if none evolve."""
    values = [lineage.numbers(record) for record in records]
    names = [*values[-1]]
    if not names:
        return None
    best = lineage.fittest(records[-1])
    if scores is not None and scores.best is not None:
        best = scores.best
    line = lineage.line(records, best)
    generations = [r["generation"] for r in records]
    born = [
        (i, member, parent)
        for i, record in enumerate(records)
        for member, parent in enumerate(record["parents"])
    ]
    rows = [
        [generations[i], member, parent, *(values[i][name][member] for name in names)]
        for i, member, parent in born
    ]

    def draw(*panels):
        from matplotlib.collections import LineCollection

        for name, panel in zip(names, panels, strict=True):

            def at(i, member, name=name):
                return generations[i], values[i][name][member]

            steps = [
                [(generations[i] - 1, at(i - 1, parent)[1]), at(i, member)]
                for i, member, parent in born
                if parent >= 0 and i  # the records may begin in the middle of a run
            ]
            panel.add_collection(LineCollection(steps, colors=GREY, linewidths=0.5))
            everything = np.array([at(i, member) for i, member, _ in born])
            panel.scatter(*everything.T, color=GREY, s=2)
            panel.plot(*np.transpose([at(*one) for one in line]), color=SOLUTION, lw=2)
            panel.set(xlabel="generation", title=name)
            low, high = everything[:, 1].min(), everything[:, 1].max()
            if low > 0 and high / low > 10:
                panel.set_yscale("log")

    return Drawing(
        "lineage",
        "Who came from whom",
        draw,
        (["generation", "member", "parent", *names], rows),
        "Each point is a member, joined to the agent it continued. In bold the line of "
        "the best agent: the schedule that the solution replays.",
        num_panels=len(names),
    )


# Keys of a record besides the strategy's own metrics.
_KNOWN = {"generation", "failed", "not_scored", "frames", "seconds"}
_KNOWN |= {"frames_per_second", "population", "parents"}
_KNOWN |= {"signal", "signal_twice", "agreement"}


def strategy(records: list[dict]) -> Drawing:
    """Draw the strategy's own metrics against the generation."""
    counts = ["failed"]
    if any(r.get("not_scored") for r in records):
        counts.append("not_scored")
    names = [
        name
        for name in records[0]
        if name not in _KNOWN and "/" not in name and not name.startswith("fitness_")
    ]
    names = [*counts, *names]
    rows = [[r["generation"], *(r.get(name) for name in names)] for r in records]

    def draw(*panels):
        for name, panel in zip(names, panels, strict=True):
            values = _column(records, name)
            panel.plot(_column(records, "generation"), values, color=figures.INK)
            panel.set(xlabel="generation", title=name.replace("_", " "))
            if name in counts:
                panel.set_ylim(0, max(1.0, *values) * 1.05)

    return Drawing(
        "strategy",
        "The strategy",
        draw,
        (["generation", *names], rows),
        "Members that failed, those that no episode scored if there were any, and the "
        "strategy's own metrics.",
        num_panels=len(names),
    )
