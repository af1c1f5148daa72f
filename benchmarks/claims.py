"""Recompute intervals of README and docs from scores that are committed.

    python -m benchmarks.claims                 check all; exit code 1 if one is wrong
    python -m benchmarks.claims docs/x.md       name the intervals of a page without any

Each line of `benchmarks/results/claims.jsonl` is an interval as a page shows it, and
where its scores are: a file, the fields that tell the lines of either side from others,
and the key of the scores; `less_file` and `less_key` where the other side has its own.
Scores are a list, or a number in the line of each seed. Several searches are lines that
differ in `search`, lines with a list each that differ in `seed`, and lists in a list;
the interval counts them. `paired` is false where the sides have seeds of their own.
A claim without `less` is a mean with its interval. Tables of `GENERATED` pages are made
again from the scores and compared. `tests/unit/test_claims.py` checks all of this.
"""

from __future__ import annotations

import csv
import functools
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import strangers, tables
from benchmarks.measure import RESULTS
from metaevo.analysis import differences, stats

ROOT = Path(__file__).parents[1]
CLAIMS = ROOT / "benchmarks" / "results" / "claims.jsonl"
_NUMBER = r"[+\-\u2212]?\d[\d,]*\.?\d*"  # either minus
GENERATED: dict[str, Callable[[], str]] = {
    "docs/log/algorithms.md": lambda: tables.algorithms(
        sorted(RESULTS.glob("*/algorithms.jsonl"))
    ),
    "docs/log/strangers.md": lambda: strangers.table(
        (RESULTS / "strangers.jsonl").read_text("utf-8").splitlines()
    ),
}
"""Page -> its tables, made again from the scores."""
EXAMPLES = ("docs/report.md", "docs/learned/closed_forms.md")
"""Pages that show what a command printed, and claim nothing by it."""
INTERVAL = re.compile(rf"({_NUMBER})\s*\[({_NUMBER}),\s*({_NUMBER})\]")


def claims() -> list[dict[str, Any]]:
    """Return all claims."""
    return [json.loads(x) for x in CLAIMS.read_text("utf-8").splitlines()]


def shown(page: str) -> list[str]:
    """Return the intervals that a page shows, `+1.2 [+0.3, +2.1]`, on one line each."""
    return _intervals((ROOT / page).read_text("utf-8"))


def _intervals(text: str) -> list[str]:
    return [" ".join(x.group().split()) for x in INTERVAL.finditer(text)]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


@functools.cache
def _lines(file: str) -> list[dict[str, Any]]:
    text = (ROOT / file).read_text("utf-8")
    if file.endswith(".csv"):
        rows = csv.DictReader(text.splitlines())
        return [{k: _number(x) for k, x in row.items()} for row in rows]
    whole = [text] if file.endswith(".json") else text.splitlines()
    return [json.loads(x) for x in whole]


_ABSENT = object()


def _at(line: Any, key: Sequence[str | int]) -> Any:
    """Return what a line has at a key, `_ABSENT` if it has no such key."""
    for part in key:
        if isinstance(line, Mapping) and part not in line:
            return _ABSENT
        line = line[part]
    return line


def scores(
    file: str, where: Mapping[str, Any], key: Sequence[str | int]
) -> dict[Any, dict[int, float]]:
    """Return the scores of one side by search and seed; None where a run failed.

    Raises:
        ValueError: no line has these fields and the key, or several have one search
            and one seed.
    """
    found = [x for x in _lines(file) if all(x.get(k) == v for k, v in where.items())]
    found = [x for x in found if _at(x, key) is not _ABSENT]
    if not found:
        raise ValueError(f"{file}: no line of {dict(where)} has {list(key)}")
    by_search: dict[Any, dict[int, float]] = {}
    for line in found:
        values, search = _at(line, key), line.get("search")
        if not isinstance(values, list):
            searches, seeds = [[values]], [line.get("seed", 0)]
        else:
            searches = values if isinstance(values[0], list) else [values]
            seeds = line.get("seeds")
            seeds = seeds if isinstance(seeds, list) else range(len(searches[0]))
            search = line.get("seed") if search is None else search
        for i, scored in enumerate(searches):
            told: dict[int, Any] = dict(zip(seeds, scored, strict=True))
            by_seed = by_search.setdefault((search, i), {})
            if told.keys() & by_seed.keys():
                where = dict(where)
                raise ValueError(f"{file}: several lines of {where} have one seed")
            by_seed |= told
    return by_search


def _mean(claim: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the mean of one side with its interval."""
    (by_seed,) = scores(claim["file"], claim["of"], claim["key"]).values()
    found = stats.mean_interval(np.array([*by_seed.values()], float))
    return found.estimate, found.low, found.high


def _difference(claim: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the difference of two sides with its interval.

    Both are paired by seed, as in a run's report, and a side of several searches varies
    with them.
    """
    file, key = claim["file"], claim["key"]
    other = claim.get("less_file", file), claim["less"], claim.get("less_key", key)
    sides = [[*scores(*x).values()] for x in ((file, claim["of"], key), other)]
    if claim.get("paired", True):
        seeds = sorted(set.intersection(*(set(x) for side in sides for x in side)))
        of, less = (np.array([[x[s] for s in seeds] for x in y], float) for y in sides)
        found = differences.crossed_difference(of, less, (len(of) > 1, len(less) > 1))
    else:
        of, less = (np.array([*x.values()], float) for (x,) in sides)
        found = differences.unpaired_difference(of, less)
    return found.difference, found.low, found.high


def recomputed(claim: Mapping[str, Any]) -> str:
    """Return the interval of a claim, with as many digits as the page shows."""
    numbers = _mean(claim) if "less" not in claim else _difference(claim)
    written = INTERVAL.fullmatch(claim["claim"])
    if written is None:
        raise ValueError(f"{claim['claim']!r}: expected x [low, high]")
    told = [
        f"{x:{'+' if text[0] in '+-' else ''}.{len(text.partition('.')[2])}f}"
        for x, text in zip(numbers, written.groups(), strict=True)
    ]
    return "{} [{}, {}]".format(*told)


def wrong(claim: Mapping[str, Any]) -> str | None:
    """Say what is wrong with a claim; None: nothing is."""
    where = f"{claim['page']}: {claim['claim']}"
    if claim["claim"] not in shown(claim["page"]):
        return f"{where} is not on the page"
    found = recomputed(claim)
    return None if found == claim["claim"] else f"{where}, but the scores say {found}"


def without_scores(page: str) -> list[str]:
    """Return the intervals of a page for which there is no claim, nor a table."""
    there = {x["claim"] for x in claims() if x["page"] == page}
    if page in GENERATED:
        there |= {*_intervals(GENERATED[page]())}
    return [x for x in shown(page) if x not in there]


def changed_rows(page: str) -> list[str]:
    """Return the rows of a generated page's tables that it does not show."""
    written = (ROOT / page).read_text("utf-8")
    rows = GENERATED[page]().splitlines()
    return [x for x in rows if x.startswith("|") and x not in written]


def pages() -> list[str]:
    """Return README and the pages of the documentation."""
    docs = sorted((ROOT / "docs").rglob("*.md"))
    return ["README.md", *(x.relative_to(ROOT).as_posix() for x in docs)]


def main() -> None:
    for page in sys.argv[1:]:
        print(*without_scores(page), sep="\n")
    if sys.argv[1:]:
        return
    problems = list(filter(None, map(wrong, claims())))
    for page in pages():
        if num := len(shown(page)):
            missing = [] if page in EXAMPLES else without_scores(page)
            example = ", an example" * (page in EXAMPLES)
            print(f"{page}: {num - len(missing)} of {num} intervals{example}")
            problems += [f"{page}: {x} has no scores" for x in missing]
    for page in GENERATED:
        problems += [f"{page}: this row is made: {x}" for x in changed_rows(page)]
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
