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
    results,
    search_figures,
    stats,
    training_curve,
    verdicts,
)
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.independent import judge
from metaevo.analysis.plots import figures, gallery, opponents
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
        drawn.append(search_figures.fitness(folder, records, measure))
        drawn.append(search_figures.over_generations(folder, records, held_out, facts))
    places = _places(held_out, facts)
    for task, frames in enumerate(facts.get("frames_per_segment", ())):
        place = places[task] if places else ""
        drawn.append(
            search_figures.learning_curves(
                folder, held_out, task, place, frames, between
            )
        )
        drawn += opponents.drawn(folder, held_out, task, place)
    slots = {}
    if paths.solution.is_dir():
        artifact = artifacts.load(paths.solution)
        slots, spec = artifact.slots, artifact.manifest["slots"]
        params = artifacts.params(paths.solution)
        visited = verdicts.visited(held_out, spec, facts)
        for portrait in gallery.gallery(slots, spec, params, visited):
            between()
            drawn.append(figures.figure(folder, *portrait))
    replayed = bool(records) and "parents" in records[-1]
    if replayed:
        between()
        drawn.append(search_figures.ancestry(folder, records, scores))
    if records and not trained:
        drawn.append(search_figures.strategy(folder, records))

    if held_out:
        _held_out_table(folder, held_out)
    page = figures.page(
        "report.html",
        manifest=manifest,
        unfinished=_unfinished(directory, len(records), trained),
        verdicts=verdicts.verdicts(held_out, facts),
        places=places,
        independent=_independent(directory),
        warnings=[*verdicts.warnings(facts), *_earlier_looks(directory)],
        figures=[figure for figure in drawn if figure],
        table=_estimates(held_out, between),
        trained=trained,
        unseen=facts.get("num_searched", 1) < len(facts.get("tasks", [""])),
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


def _independent(directory: Path) -> tuple[verdicts.Verdict, ...]:
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


# --- parts ---------------------------------------------------------------------------


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
