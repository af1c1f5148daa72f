"""A run as the page of `metaevo watch` shows it, while it goes on and afterwards.

All is read from its files. However long a log is, little of it is parsed, and little of
it is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from metaevo.analysis import (
    holdout,
    newest,
    rivals,
    search_figures,
    trials,
    verdicts,
)
from metaevo.analysis.overview import RunRow, done
from metaevo.analysis.plots import figures, gallery
from metaevo.analysis.plots.figures import Drawing
from metaevo.errors import MetaevoError
from metaevo.learned import operations
from metaevo.storage import jsonl, run_directory
from metaevo.storage._files import read_lines
from metaevo.storage.run_directory import Paths
from metaevo.text import duration

__all__ = ["view"]

Record = dict[str, Any]
SPACED, LAST = 400, 60  # generations of a curve, at least; last ones that are looked at
MOST_POINTS = 1_000  # of a lineage
MOST_NUMBERS = 3  # that a lineage shows
BEST_TRIALS = 5
FUNCTIONS = (
    "As of the newest checkpoint. Thin lines: what the search started with, and simple "
    "functions that anybody can write down."
)
UNREADABLE = (MetaevoError, OSError, ValueError, KeyError, TypeError, AttributeError)


def view(row: RunRow) -> dict[str, Any]:
    """Return what a page shows of a run: facts, figures, the best trials, problems."""
    paths = run_directory.paths(row.name)
    found: dict[str, Any] = {"facts": {}, "figures": [], "trials": [], "problems": []}

    def curve() -> Iterator[Drawing]:
        yield _curve(spaced, _held_out(paths))

    def functions() -> Iterator[Drawing]:
        yield from _functions(newest.read(paths.newest), _held_out(paths))

    def population() -> Iterator[Drawing]:
        yield from _population(last)

    try:
        spaced, last = jsonl.sample(paths.metrics, SPACED, LAST)
        found["facts"] = _facts(row, paths, last)
        if last and "parents" not in last[-1] and (tried := trials.trials(last)):
            found["trials"] = trials.cells(tried, BEST_TRIALS)
    except UNREADABLE as error:
        return found | {"problems": [str(error)]}
    for part in (curve, functions, population) if last else ():
        try:
            found["figures"] += [figures.inline(x, row.name) for x in part()]
        except UNREADABLE as error:
            found["problems"].append(str(error))
    return found


def _held_out(paths: Paths) -> tuple[Mapping[str, holdout.HeldOut], Mapping[str, Any]]:
    return holdout.load(paths.held_out) if paths.held_out.is_dir() else ({}, {})


# --- facts ----------------------------------------------------------------------------


def _facts(row: RunRow, paths: Paths, last: Sequence[Record]) -> dict[str, str]:
    """Return what is known of a run as short texts by name."""
    found = {"state": row.state, "generations": done(row)}
    found["time spent"] = duration(row.seconds)
    if row.left is not None:
        found["time left"] = f"{duration(row.left)}, and what follows the search"
    if paths.conclusion.is_dir():
        steps = sum(1 for _ in paths.conclusion.glob("*/*"))
        found["time left"] = f"what follows the search; {steps} steps are done"
    if paths.trial_log.exists():
        scores = [*read_lines(paths.trial_log, jsonl.MAX_LINE)]
        failed = sum(b'"score": null' in line for line in scores)
        running = max(sum(1 for _ in paths.trials.glob("*")) - len(scores), 0)
        found["trials"] = f"{running} running; {len(scores)} ended, {failed} failed"
    if last:
        record = last[-1]
        found["frames"] = f"{record.get('frames', 0):,}"
        for name in ("best", "mean"):
            score = record[f"fitness_{name}"]
            found[f"{name} of the newest"] = "none" if score is None else f"{score:.6g}"
        num = len(record["population"])
        found["failed in the newest"] = f"{record['failed']} of {num}"
        if "stopped_early" in record:
            found["trials"] = _halving(record, num)
    return found


def _halving(record: Record, num: int) -> str:
    """Say how many trials of asynchronous successive halving came how far."""
    went_on = sum(parent >= 0 for parent in record["parents"])
    drawn, lived = int(record["trials"]), int(record["whole_lives"])
    return (
        f"{drawn} drawn; {num} running, of which {went_on} were promoted and "
        f"{num - went_on} are new; {drawn - num - lived} stopped early, "
        f"{int(record['stopped_early'])} of them in the newest generation; "
        f"{lived} whole lives"
    )


# --- figures --------------------------------------------------------------------------


def _curve(spaced: list[Record], held_out: tuple) -> Drawing:
    """Draw the population's scores, and the solution's where there are any."""
    drawn, (runs, known) = search_figures.fitness(spaced, "fitness"), held_out
    scores = {int(k): np.array(x, float) for k, x in known.get("earlier", {}).items()}
    at = {"start": 0, "solution": known.get("generation", 0)}
    scores |= {at[name]: runs[name].fitness[0] for name in at if name in runs}
    if not scores:
        caption = f"{drawn.caption} That is scored on held-out seeds after the search."
        return drawn._replace(caption=caption)
    points = np.array([(k, verdicts.average(x)) for k, x in sorted(scores.items())])

    def draw(axes):
        axes.plot(*points.T, "o", color=figures.INK, label="solution")
        drawn.draw(axes)

    caption = f"{drawn.caption} That is the solution on held-out seeds, the points."
    return drawn._replace(draw=draw, caption=caption)


def _population(last: Sequence[Record]) -> Iterator[Drawing]:
    """Draw the newest scores, and who came from whom where agents live on."""
    record = last[-1]
    scores = np.sort(np.array(record["population"], float))

    def draw(axes):
        axes.plot(scores, "o", ms=3, color=figures.COLORS["solution"])
        axes.set(xlabel="members, by score", ylabel="fitness")
        axes.locator_params("x", integer=True)

    title = f"Population of generation {record['generation'] + 1}"
    caption = "The score of each member that did not fail."
    yield Drawing("population", title, draw, ([], []), caption)
    if "parents" in record:
        numbers = [key for key in record if key.startswith("numbers/")]
        unseen = {*numbers[MOST_NUMBERS:]}
        some = [
            {key: x for key, x in one.items() if key not in unseen}
            for one in last[-max(2, MOST_POINTS // len(scores)) :]
        ]
        if ancestry := search_figures.ancestry(some, None):
            caption = "Of the newest generations. In bold the line of the best agent."
            yield ancestry._replace(caption=caption)


def _functions(kept: Mapping[str, tuple], held_out: tuple) -> Iterator[Drawing]:
    """Draw the evolved functions as they are now, with the start and simple rivals."""
    spec, params = kept.get("solution", ({}, {}))
    best = (held_out[1].get("simple") or {}).get("name")
    others = {}
    for slot, op in spec.items():
        simple = rivals.SIMPLE.get(operations.get(op["op"]).slot, {})
        names = rivals.DRAWN if best is None else (best.removeprefix(f"{slot} "),)
        some = {name: x for name, x in simple.items() if name in names}
        if slot in kept.get("start", ({},))[0]:
            first, start = (x[slot] for x in kept["start"])
            some |= {"start": operations.get(first["op"]).rebuild(first).bind(start)}
        others[slot] = some
    for drawing in gallery.gallery(spec, params, None, others):
        title = drawing.title.replace("evolved", "newest", 1)
        yield drawing._replace(title=title, caption=FUNCTIONS)
