"""The report of a run: one offline HTML file, and the data of each figure as CSV.

A report is made from the files of the run directory alone, at any time: of a run that
has not ended, it shows what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.analysis import (
    distill,
    holdout,
    lineage,
    results,
    stats,
    training_curve,
    verdicts,
)
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.independent import judge
from metaevo.analysis.plots import figures, gallery
from metaevo.analysis.results import Scores
from metaevo.config import flat
from metaevo.storage import artifacts, history, jsonl, run_directory
from metaevo.storage._files import replace_file
from metaevo.types import Params, Space


def write(directory: str | Path, between: Callable[[], None] = lambda: None) -> Path:
    """Write `DIRECTORY/report/`: `index.html`, and a PNG and a CSV per figure.

    Args:
        directory: directory of a run, which need not have finished.
        between: called often; what it raises ends the work.

    Returns:
        the path of `index.html`.

    Raises:
        ConfigError: there is no run.
        ArtifactError: the solution was altered.
        CheckpointError: other files of the run are damaged.
    """
    directory = Path(directory)
    paths = run_directory.paths(directory)
    folder = paths.report
    manifest = run_directory.read_manifest(directory)
    records = (
        jsonl.read_generations(paths.metrics) if jsonl.count(paths.metrics) else []
    )
    folder.mkdir(exist_ok=True)
    held_out, facts = {}, {"measure": "fitness", "noise": None}
    if paths.held_out.is_dir():
        held_out, facts = holdout.load(paths.held_out)
    measure = facts["measure"]
    scores = results.read_scores(directory)

    drawn: list[dict | None] = []
    trained = training_curve.are_of_training(records)
    if trained:
        drawn += [training_curve.figure(folder, records)]
        drawn += [training_curve.others(folder, records)]
    elif records:
        drawn.append(_fitness(folder, records, measure))
    places = _places(held_out, facts)
    for task, frames in enumerate(facts.get("frames_per_segment", ())):
        place = places[task] if places else ""
        drawn.append(_learning_curves(folder, held_out, task, place, frames, between))
    slots = {}
    if paths.solution.is_dir():
        artifact = artifacts.load(paths.solution)
        slots, spec = artifact.slots, artifact.manifest["slots"]
        params = artifacts.params(paths.solution)
        visited = verdicts.visited(held_out, spec)
        for portrait in gallery.gallery(slots, spec, params, visited):
            between()
            drawn.append(figures.figure(folder, *portrait))
    replayed = bool(records) and "parents" in records[-1]
    if replayed:
        between()
        drawn.append(_lineage(folder, records, scores))
    if records and not trained:
        drawn.append(_strategy(folder, records))

    if held_out:
        _held_out_table(folder, held_out)
    page = figures.page(
        "report.html",
        manifest=manifest,
        unfinished=_unfinished(directory, len(records), trained),
        verdicts=verdicts.verdicts(held_out, facts),
        independent=_independent(directory),
        places=places,
        warnings=[*verdicts.warnings(facts), *_earlier_looks(directory)],
        figures=[figure for figure in drawn if figure],
        table=_estimates(held_out, between),
        trained=trained,
        agents=_agents(scores),
        replayed=replayed,
        measure=measure,
        numbers={k: v for k, v in slots.items() if isinstance(v, float)},
        noise=facts["noise"],
        closed=distill.sentences(directory),
        records=records,
        failed=sum(r["failed"] for r in records),
        not_scored=sum(r.get("not_scored", 0) for r in records),
        history=_history(directory),
        settings=flat(manifest["identity"]["settings"]),
        num_seeds=len(next(iter(held_out.values())).fitness[0]) if held_out else 0,
    )
    path = folder / "index.html"
    replace_file(path, page.encode())
    return path


def _independent(directory: Path) -> tuple[judge.Verdict, ...]:
    """Verdicts in an independent agent; none if it did not judge."""
    folder = run_directory.paths(directory).independent
    return judge.load(folder).verdicts if folder.is_dir() else ()


def _unfinished(directory: Path, done: int, trained: bool) -> str | None:
    """Say how far an unfinished run is; None if it is finished.

    Args:
        done: generations in the log.
        trained: True for a training run, which has no solution.
    """
    finished = history.generation_finished(directory)
    asked = history.generations_asked(directory)
    at_its_end = finished if asked is None else asked
    if finished is not None and finished == done == at_its_end:
        return None
    text = f"This run is unfinished: generation {done}"
    text += f" of {asked} is done." if asked is not None else " is done."
    if trained:
        return text
    if not run_directory.paths(directory).solution.is_dir():
        return f"{text} There is no solution yet."
    return (
        f"{text} The solution, and what was compared with it, are those of an earlier "
        "end of the run" + (f", generation {finished}." if finished else ".")
    )


# --- figures --------------------------------------------------------------------------


def _fitness(folder: Path, records: list[dict], measure: str) -> dict:
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


def _learning_curves(
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

        for name in held_out:
            part = np.array([row[1:] for row in rows if row[0] == name])
            if len(part):
                frames, iqm, low, high = part.T
                axes.plot(
                    frames, iqm, color=figures.COLORS[name], label=figures.plain(name)
                )
                axes.fill_between(
                    frames, low, high, color=figures.COLORS[name], alpha=0.2
                )
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


def evolved(space: Space, meta: Any, params: Params) -> bytes | None:
    """Draw the first evolved function as the report does, during the search.

    Args:
        space: the space of the search.
        meta: the slots, with those of the space replaced.
        params: params of the solution.

    Returns:
        a PNG; None if no function evolves that can be drawn during a search.
    """
    for slot, op in space.spec.items():
        if op.get("default", 0.0) is not None:
            found = gallery.portrait(slot, op, getattr(meta, slot), params[slot])
            if found:
                return figures.png(found.draw, found.num_panels)
    return None


def _lineage(folder: Path, records: list[dict], scores: Scores | None) -> dict | None:
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


def _strategy(folder: Path, records: list[dict]) -> dict:
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


def _places(held_out: Mapping[str, HeldOut], facts: Mapping[str, Any]) -> list[str]:
    """Return the tasks of the comparison in words; [] without one."""
    if not held_out:
        return []
    return verdicts.places(facts, len(next(iter(held_out.values())).fitness))


# --- tables ---------------------------------------------------------------------------


def _held_out_table(folder: Path, held_out: Mapping[str, HeldOut]) -> None:
    rows = [
        [name, task, seed, runs.fitness[task, seed], runs.final_return[task, seed]]
        for name, runs in held_out.items()
        for task, seed in np.ndindex(runs.fitness.shape)
    ]
    header = ["name", "task", "seed", "fitness", "final_return"]
    figures.write_csv(folder / "held_out.csv", header, rows)


def _estimates(
    held_out: Mapping[str, HeldOut], between: Callable[[], None]
) -> list[dict[str, Any]]:
    """Estimate interquartile means and P(better than hand-made), a row each."""
    rows = []
    for name, runs in held_out.items():
        for task in range(len(runs.fitness)):
            cells = {"name": name, "task": task}
            for key in ("fitness", "final_return"):
                between()
                scores = getattr(runs, key)[task]
                finite = scores[np.isfinite(scores)]
                cells[f"{key}_failed"] = len(scores) - len(finite)
                if len(finite) >= 3:
                    cells[key] = stats.bootstrap(finite, stats.iqm)
            theirs = held_out["hand-made"].fitness[task]
            mine = runs.fitness[task]
            if np.isfinite(mine).any() and np.isfinite(theirs).any():
                cells["improvement"] = stats.probability_of_improvement(
                    mine[np.isfinite(mine)], theirs[np.isfinite(theirs)]
                )
            rows.append(cells)
    return rows


def _agents(scores: Scores | None) -> list[dict[str, Any]]:
    """Estimate the mean return of agents as they are, a row each."""
    if scores is None:
        return []
    rows = []
    for name, x in scores.evaluations.items():
        x = x[np.isfinite(x)]
        interval = stats.bootstrap(x, stats.mean) if len(x) >= 3 else None
        rows.append({"name": name, "interval": interval, "num": len(x)})
    return rows


def _earlier_looks(directory: Path) -> list[str]:
    """Return a sentence if the search ended before and was extended."""
    ends = [
        event["generation"]
        for event in history.read(directory)
        if event["event"] == "finished"
    ]
    earlier = sorted({x for x in ends if x < ends[-1]}) if ends else []
    if not earlier:
        return []
    return [
        "this run ended before, after "
        f"{' and '.join(str(x) for x in earlier)} generations, and was extended. "
        "It was compared on these same seeds then. Extending a run until a verdict "
        "pleases gives false verdicts more often than the 5 % of one look"
    ]


def _history(directory: Path) -> list[dict[str, Any]]:
    events = history.read(directory)
    events = [event for event in events if "parts" not in event]
    for event in events:
        time = datetime.fromtimestamp(event["time"])
        event["time"] = time.isoformat(" ", "seconds")
    return events
