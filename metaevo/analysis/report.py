"""The report of a run: one offline HTML file, and the data of each figure as CSV.

A report is made from the files of the run directory alone, at any time: of a run that
has not ended, it shows what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metaevo.analysis import (
    distill,
    first_screen,
    holdout,
    results,
    search_figures,
    stats,
    training_curve,
    trials,
    verdicts,
)
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.independent import judge
from metaevo.analysis.plots import figures, gallery, opponents
from metaevo.analysis.plots.figures import Drawing
from metaevo.analysis.results import Scores
from metaevo.config import flat
from metaevo.storage import artifacts, history, run_directory
from metaevo.storage._files import replace_file
from metaevo.types import Params, Space


class _Run(NamedTuple):
    """Contents of a run's files; a run that has not ended lacks parts.

    Attributes:
        directory: the run's.
        manifest: of the run.
        records: of its log, one a generation, or a segment of a training run.
        trained: True for a training run, which has no solution.
        held_out: candidate -> its runs on held-out seeds; empty without a comparison.
        facts: what is known of the comparison.
        scores: of agents as they are, or None.
        artifact: the solution, or None.
    """

    directory: Path
    manifest: Mapping[str, Any]
    records: list[dict]
    trained: bool
    held_out: Mapping[str, HeldOut]
    facts: Mapping[str, Any]
    scores: Scores | None
    artifact: artifacts.Artifact | None

    @property
    def replayed(self) -> bool:
        """True if agents continue others, so that the solution is a schedule."""
        return bool(self.records) and "parents" in self.records[-1]

    @property
    def places(self) -> list[str]:
        """The tasks of the comparison in words; [] without one."""
        if not self.held_out:
            return []
        num_tasks = len(next(iter(self.held_out.values())).fitness)
        return verdicts.places(self.facts, num_tasks)


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
    run = _loaded(Path(directory))
    folder = run_directory.paths(run.directory).report
    folder.mkdir(exist_ok=True)

    def drawn(drawings: Iterable[Drawing]) -> Iterator[dict[str, Any]]:
        for drawing in drawings:
            between()
            yield figures.figure(folder, *drawing)

    portraits = [*drawn(_portraits(run))]
    shown = [*drawn(_drawings(run, between))]
    if run.held_out:
        _held_out_table(folder, run.held_out)
    path = folder / "index.html"
    replace_file(path, _page(run, portraits, shown, between).encode())
    return path


def _loaded(directory: Path) -> _Run:
    paths = run_directory.paths(directory)
    manifest = run_directory.read_manifest(directory)
    records = training_curve.records(directory)
    held_out, facts = {}, {"measure": first_screen.measure(manifest), "noise": None}
    if paths.held_out.is_dir():
        held_out, facts = holdout.load(paths.held_out)
    return _Run(
        directory,
        manifest,
        records,
        training_curve.are_of_training(records),
        held_out,
        facts,
        results.read_scores(directory),
        artifacts.load(paths.solution) if paths.solution.is_dir() else None,
    )


def _portraits(run: _Run) -> list[Drawing]:
    """Pictures of what evolved; [] without a solution."""
    if run.artifact is None:
        return []
    spec = run.artifact.manifest["slots"]
    params = artifacts.params(run_directory.paths(run.directory).solution)
    return gallery.gallery(
        spec, params, verdicts.visited(run.held_out, spec, run.facts)
    )


def _drawings(run: _Run, between: Callable[[], None]) -> Iterator[Drawing]:
    """The other figures of a run, in the order of the page."""
    records, held_out, facts = run.records, run.held_out, run.facts
    if run.trained:
        yield training_curve.figure(records)
        yield training_curve.others(records)
    elif records:
        joined = first_screen.joined(run.manifest)
        yield search_figures.fitness(records, joined or facts["measure"])
        tasks = first_screen.tasks(run.manifest) if joined else []
        yield from filter(
            None,
            (
                search_figures.by_task(records, tasks),
                search_figures.over_generations(records, held_out, facts),
                search_figures.signal(records),
                search_figures.front(facts),
                search_figures.genealogy(facts),
            ),
        )
    for task, frames in enumerate(facts.get("frames_per_segment", ())):
        place = run.places[task] if run.places else ""
        if any(x.train[task]["return"].shape[1] > 1 for x in held_out.values()):
            yield search_figures.learning_curves(held_out, task, place, frames, between)
        yield from opponents.drawings(held_out, task, place)
    if run.replayed:
        ancestry = search_figures.ancestry(records, run.scores)
        yield from [ancestry] if ancestry else []
    elif tried := trials.drawing(records):
        yield tried
    if records and not run.trained:
        yield search_figures.strategy(records)


def _page(
    run: _Run, portraits: list[dict], shown: list[dict], between: Callable[[], None]
) -> str:
    """The page as HTML, with figures that were drawn."""
    held_out, facts, records = run.held_out, run.facts, run.records
    slots = run.artifact.slots if run.artifact is not None else {}
    spec = run.artifact.manifest["slots"] if run.artifact is not None else {}
    return figures.page(
        "report.html",
        manifest=run.manifest,
        searched=first_screen.searched(run.manifest, len(records)),
        loading=first_screen.loading(run.directory, spec) if spec else {},
        cost=first_screen.cost(run.manifest, records, history.read(run.directory)),
        portraits=portraits,
        unfinished=_unfinished(run.directory, len(records), run.trained),
        verdicts=verdicts.every(held_out, facts),
        num_verdicts=len(verdicts.verdicts(held_out, facts)),
        simplest=verdicts.simplest(facts),
        places=run.places,
        independent=_independent(run.directory),
        warnings=[*verdicts.warnings(facts, held_out), *_earlier_looks(run.directory)],
        figures=shown,
        table=_estimates(held_out, between),
        trained=run.trained,
        unseen=facts.get("num_searched", 1) < len(facts.get("tasks", [""])),
        agents=_agents(run.scores),
        replayed=run.replayed,
        measure=facts["measure"],
        numbers={k: v for k, v in slots.items() if isinstance(v, float)},
        noise=facts["noise"],
        signal=search_figures.lately(records),
        closed=distill.sentences(run.directory),
        records=records,
        failed=sum(r["failed"] for r in records),
        not_scored=sum(r.get("not_scored", 0) for r in records),
        history=_history(run.directory),
        settings=flat(run.manifest["identity"]["settings"]),
        choices=facts.get("choices", ()),
        front=facts.get("front", ()),
        path=facts.get("path", ()),
        formulas=_formulas(run),
        min_seeds=stats.MIN_SEEDS,
        num_seeds=len(next(iter(held_out.values())).fitness[0]) if held_out else 0,
    )


def _formulas(run: _Run) -> dict[str, Sequence[str]]:
    """The formulas of the solution by slot, if it has any, as text and as LaTeX."""
    known = run.artifact.properties if run.artifact is not None else {}
    return {slot: x.formula for slot, x in known.items() if x.formula}


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


def evolved(space: Space, params: Params) -> bytes | None:
    """Draw the first evolved function as the report does, during the search.

    Args:
        space: the space of the search.
        params: params of the solution.

    Returns:
        a PNG; None if no function evolves that can be drawn during a search.
    """
    for slot, op in space.spec.items():
        found = gallery.portrait(slot, op, params[slot])
        if found is not None:
            return figures.png(found.draw, found.num_panels)
    return None


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
                if len(finite) >= stats.MIN_SEEDS:
                    cells[key] = stats.bootstrap(finite, stats.iqm)
                elif len(finite):
                    cells[key] = stats.Few(tuple(map(float, finite)))
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
        interval = stats.mean_interval(x) if len(x) >= 3 else None
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
