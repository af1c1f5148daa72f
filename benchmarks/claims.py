"""Recompute intervals of README and docs from scores that are committed.

    python -m benchmarks.claims                 check all, and count what has no scores
    python -m benchmarks.claims docs/x.md       name the intervals of a page without any

Each line of `benchmarks/results/claims.jsonl` is an interval as a page shows it, and
where its scores are: a file, the fields that tell the lines of either side from others,
and the key of the scores. These are a list, or a number in the line of each seed.
`tests/unit/test_claims.py` checks them too.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.analysis import differences

ROOT = Path(__file__).parents[1]
CLAIMS = ROOT / "benchmarks" / "results" / "claims.jsonl"
_NUMBER = r"[+-]?\d[\d,]*\.?\d*"
INTERVAL = re.compile(rf"({_NUMBER})\s*\[({_NUMBER}),\s*({_NUMBER})\]")


def claims() -> list[dict[str, Any]]:
    """Return all claims."""
    return [json.loads(x) for x in CLAIMS.read_text("utf-8").splitlines()]


def shown(page: str) -> list[str]:
    """Return the intervals that a page shows, `+1.2 [+0.3, +2.1]`, on one line each."""
    text = (ROOT / page).read_text("utf-8")
    return [" ".join(x.group().split()) for x in INTERVAL.finditer(text)]


@functools.cache
def _lines(file: str) -> list[dict[str, Any]]:
    text = (ROOT / file).read_text("utf-8")
    whole = [text] if file.endswith(".json") else text.splitlines()
    return [json.loads(x) for x in whole]


def scores(
    file: str, where: Mapping[str, Any], key: Sequence[str | int]
) -> dict[int, float]:
    """Return the scores of one side by seed; NaN where a run failed.

    Raises:
        ValueError: several lines have these fields and one seed.
    """
    found = [x for x in _lines(file) if all(x.get(k) == v for k, v in where.items())]
    by_seed: dict[int, float] = {}
    for line in found:
        values: Any = line
        for part in key:
            values = values[part]
        if not isinstance(values, list):
            values = [values]
        seeds = line.get("seeds", [line.get("seed", 0)])
        if len(found) == 1 and len(values) != len(seeds):
            seeds = range(len(values))
        told: dict[int, Any] = dict(zip(seeds, values, strict=True))
        if told.keys() & by_seed.keys():
            raise ValueError(f"{file}: several lines of {dict(where)} have one seed")
        by_seed |= told
    return by_seed


def recomputed(claim: Mapping[str, Any]) -> str:
    """Return the interval of a claim, with as many digits as the page shows.

    Both sides are paired by seed, as in a run's report.
    """
    sides = [
        scores(claim["file"], claim[side], claim["key"]) for side in ("of", "less")
    ]
    seeds = sorted(sides[0].keys() & sides[1].keys())
    of, less = (np.array([x[s] for s in seeds], np.float64) for x in sides)
    found = differences.paired_difference(of, less)
    numbers = found.difference, found.low, found.high
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
    """Return the intervals of a page for which there is no claim."""
    there = {x["claim"] for x in claims() if x["page"] == page}
    return [x for x in shown(page) if x not in there]


def pages() -> list[str]:
    """Return README and the pages of the documentation."""
    docs = sorted((ROOT / "docs").rglob("*.md"))
    return ["README.md", *(x.relative_to(ROOT).as_posix() for x in docs)]


def main() -> None:
    for page in sys.argv[1:]:
        print(*without_scores(page), sep="\n")
    if sys.argv[1:]:
        return
    for page in pages():
        if num := len(shown(page)):
            told = num - len(without_scores(page))
            print(f"{page}: {told} of {num} intervals recomputed")
    if problems := list(filter(None, map(wrong, claims()))):
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
