"""Trials of a run: which numbers were tried, and what they scored.

A trial is one combination of numbers of members that are newborn in each generation,
with all scores that it got. Where agents live on, it is one agent of the last
generation with the numbers that it trains with now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaevo import text
from metaevo.analysis import lineage
from metaevo.analysis.plots import figures
from metaevo.analysis.plots.figures import Drawing
from metaevo.errors import printable

COLUMNS = ("fitness", "error", "scores", "failed", "generation", "member", "parent")
MAX_DRAWN = 10_000  # the best ones


class Tried(NamedTuple):
    """One row of the table.

    Attributes:
        numbers: slot -> value.
        fitness: mean of its finite scores; NaN if there are none.
        error: standard error of this mean over scores; NaN of fewer than two.
        scores: number of finite scores.
        failed: number of the others.
        generation: the last one in which it was scored.
        member: its place in that generation.
        parent: the member of the generation before whose agent it continues; -1: none.
    """

    numbers: Mapping[str, float]
    fitness: float
    error: float
    scores: int
    failed: int
    generation: int
    member: int
    parent: int


def trials(records: Sequence[Mapping[str, Any]]) -> list[Tried]:
    """Return the trials of a run, best first, those without a score last.

    Args:
        records: of the run's log, one a generation. [] if none has `numbers/SLOT`.

    >>> log = {"generation": 0, "population": [1.0, 3.0, 5.0], "numbers/lr": [1, 2, 1]}
    >>> [(x.numbers["lr"], x.fitness, x.scores) for x in trials([log])]
    [(1.0, 3.0, 2), (2.0, 3.0, 1)]
    """
    lives_on = bool(records) and "parents" in records[-1]
    scored: dict[tuple, list[tuple[int, int, float]]] = {}
    slots: list[str] = []
    for record in records[-1:] if lives_on else records:
        numbers = lineage.numbers(record)
        slots = [*numbers]
        for member, values in enumerate(zip(*numbers.values(), strict=True)):
            one = (*values, member) if lives_on else values
            score = record["population"][member]
            at = record["generation"], member, np.nan if score is None else score
            scored.setdefault(one, []).append(at)
    found = []
    for one, all_of_it in scored.items():
        generation, member, _ = all_of_it[-1]
        x = np.array([score for *_, score in all_of_it], float)
        x = x[np.isfinite(x)]
        found.append(
            Tried(
                dict(zip(slots, map(float, one), strict=False)),
                float(x.mean()) if len(x) else np.nan,
                float(x.std(ddof=1) / len(x) ** 0.5) if len(x) > 1 else np.nan,
                len(x),
                len(all_of_it) - len(x),
                generation,
                member,
                records[-1]["parents"][member] if lives_on else -1,
            )
        )
    return sorted(found, key=lambda x: (x.scores == 0, -x.fitness))


def table(found: Sequence[Tried], limit: int) -> str:
    """Return the first trials as a table for the terminal.

    Args:
        found: at least one.
        limit: rows at most.
    """
    lines = text.columns(cells(found, limit))
    if len(found) > limit:
        lines.append(f"{len(found) - limit} more; limit=0 shows all")
    return "\n".join(lines)


def cells(found: Sequence[Tried], limit: int) -> list[list[str]]:
    """Return the head and the first trials, a text for each cell; as `table`."""
    rows = [[f"{x:.6g}" for x in row] for row in _rows(found[:limit])]
    return [_header(found), *rows]


def csv(found: Sequence[Tried], limit: int) -> str:
    """Return the first trials as lines of comma-separated values; as `table`."""
    rows = [_header(found), *_rows(found[:limit])]
    return "\n".join(",".join(map(str, row)) for row in rows)


def _header(found: Sequence[Tried]) -> list[str]:
    """Return the names of the columns of `_rows`."""
    return [*map(printable, found[0].numbers), *COLUMNS]


def _rows(found: Sequence[Tried]) -> list[list]:
    """Return a row of values for each trial."""
    return [[*x.numbers.values(), *(getattr(x, c) for c in COLUMNS)] for x in found]


def drawing(records: Sequence[Mapping[str, Any]]) -> Drawing | None:
    """Draw the fitness of each trial against each number; None if there are none."""
    found = trials(records)[:MAX_DRAWN]
    if not found:
        return None
    names = [*found[0].numbers]
    rows = _rows(found)
    values = np.array(rows, float)
    fitness, error = values[:, len(names)], values[:, len(names) + 1]

    def draw(*panels):
        for i, (name, panel) in enumerate(zip(names, panels, strict=True)):
            x = values[:, i]
            yerr = np.nan_to_num(error)
            panel.errorbar(x, fitness, yerr, fmt="o", ms=3, lw=0.8, color=figures.INK)
            panel.plot(x[:1], fitness[:1], "o", color=figures.COLORS["solution"])
            panel.set(xlabel=name, ylabel="fitness")
            if x.min() > 0 and x.max() / x.min() > 10:
                panel.set_xscale("log")

    return Drawing(
        "trials",
        "Which numbers scored what",
        draw,
        (_header(found), rows),
        "Each point is one combination of numbers, the mean of its scores in the "
        "search with the standard error over them, if there are several. In colour "
        "the best one, which is partly luck.",
        num_panels=len(names),
    )
