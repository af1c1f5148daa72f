"""Scores by seed, in rows that every kind of comparison gives."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from metaevo.analysis import verdicts
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.independent import judge
from metaevo.storage import jsonl

FILE = "scores.jsonl"
"""Name of the file of a comparison of several runs."""


class Row(NamedTuple):
    """Scores of a candidate on one task in one measure.

    Attributes:
        candidate: name of what was trained.
        task: name of the task, or of the setting; empty if there is none.
        measure: name of the fitness, or `final return`.
        agent: the independent agent; empty for the agent of the search.
        step_size: of the independent agent; None for the agent of the search.
        search: index of the search that found the candidate, from 0.
        scores: [N] by seed, not finite where the run failed.
    """

    candidate: str
    task: str
    measure: str
    agent: str
    step_size: float | None
    search: int
    scores: np.ndarray


def of_table(table: verdicts.Table) -> list[Row]:
    """Return a row for each cell of a table and each search."""
    return [
        Row(candidate, place.removeprefix("on "), measure, "", None, i, x)
        for (place, candidate, measure), searches in table.items()
        for i, x in enumerate(searches)
    ]


def of_held_out(held_out: Mapping[str, HeldOut], facts: Mapping[str, Any]) -> list[Row]:
    """Return the rows of runs on held-out seeds; `facts` as in `verdicts.verdicts`."""
    table: dict[verdicts.TableCell, np.ndarray] = {}
    for name, runs in held_out.items():
        tasks = verdicts.places(facts, len(runs.fitness))
        table |= verdicts.table(name, [runs], tasks, facts["measure"])
    only = str((facts.get("tasks") or [""])[0] or "")
    return [row._replace(task=row.task or only) for row in of_table(table)]


def of_judged(judged: judge.Judged) -> list[Row]:
    """Return the rows of an independent agent, one for each step size."""
    agent = f"independent {judged.agent.upper()}"
    places = verdicts.places({"tasks": judged.tasks}, len(judged.tasks))
    names = [x.removeprefix("on ") or judged.tasks[0] for x in places]
    both = {verdicts.SOLUTION: judged.solution, verdicts.HAND_MADE: judged.hand_made}
    return [
        Row(candidate, task, measure, agent, lr, 0, scores)
        for candidate, tasks in both.items()
        for task, returns in zip(names, tasks, strict=True)
        for measure, at in zip(judge.MEASURES, returns, strict=True)
        for lr, scores in zip(judged.step_sizes, at, strict=True)
    ]


def json_lines(rows: Iterable[Row]) -> str:
    """Return a JSON object per row, each in a line; None where a run failed."""
    plain = ({k: jsonl.plain(x) for k, x in row._asdict().items()} for row in rows)
    return "".join(f"{json.dumps(x)}\n" for x in plain)


def parsed(records: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Invert `json_lines`, of its objects."""
    return [Row(**{**x, "scores": numbers(x["scores"])}) for x in records]


@np.errstate(over="ignore")
def numbers(x: Any) -> np.ndarray:
    """Return a list of numbers as [N] float32, NaN for None.

    Raises:
        TypeError, ValueError, OverflowError: it is none.
    """
    found = np.array(x, np.float32)
    if found.ndim != 1:
        raise ValueError("no list of numbers")
    return found
