"""Evidence that an artifact carries: verdicts, scores, controls and cost of its run."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metaevo.analysis import scores, verdicts
from metaevo.analysis.holdout import HeldOut
from metaevo.errors import CheckpointError
from metaevo.storage import jsonl

__all__ = ["evidence", "kept"]

MOST = 20_000
"""Most runs whose scores are kept by seed: a manifest has at most 16 MiB."""

CLOSE = 1e-5  # share of the largest score by which two machines' means may differ
_FACTS = ("tasks", "num_searched")  # on which verdicts depend, besides the measure
_MEASURES = ("fitness", "final_return")


def evidence(
    held_out: Mapping[str, HeldOut],
    facts: Mapping[str, Any],
    judged: Sequence[verdicts.Verdict],
    environments: Sequence[str],
    records: Sequence[Mapping[str, Any]],
    version: str | None,
) -> dict[str, Any]:
    """Plain data for `evidence` in a manifest, see `metaevo.storage.card`.

    Args:
        held_out: runs on held-out seeds by name; empty if they were not made.
        facts: about them, and `measure`, the name of the fitness.
        judged: verdicts in an independent agent.
        environments: names, of the search's tasks.
        records: of `metrics.jsonl`, one a generation.
        version: of metaevo.
    """
    seconds = [x["seconds"] for x in records if x.get("seconds") is not None]
    cost = {
        "generations": len(records),
        "frames": records[-1].get("frames") if records else None,
        "seconds": _finite(math.fsum(seconds)),
    }
    return {
        "environments": [x for x in environments if x],
        "measure": facts["measure"],
        "verdicts": [x.sentence for x in verdicts.every(held_out, facts)],
        "independent": [x.sentence for x in judged],
        "warnings": verdicts.warnings(facts, held_out),
        "scores": _rows(held_out, facts),
        "facts": {key: facts[key] for key in _FACTS if key in facts},
        "cost": cost,
        "metaevo": version,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "license": None,
    }


def kept(found: Mapping[str, Any]) -> tuple[dict[str, HeldOut], dict[str, Any]]:
    """Return the runs that an artifact's evidence keeps, and the facts about them.

    Args:
        found: what `evidence` returned.

    Returns:
        runs without curves by name, and facts for `verdicts.every`; both empty if there
        are no scores by seed, as in an older artifact.

    Raises:
        CheckpointError: the scores do not fit together, or a row says another mean.
    """
    rows = found.get("scores")
    rows = rows if isinstance(rows, list) else []
    if not any(isinstance(row, Mapping) and "by_seed" in row for row in rows):
        return {}, {}
    try:
        tasks: dict[str, list[list[np.ndarray]]] = {}
        for row in rows:
            both = [scores.numbers(row["by_seed"][key]) for key in _MEASURES]
            tasks.setdefault(str(row["name"]), []).append(both)
        held_out = {}
        for name, both in tasks.items():
            fitness, final_return = np.array(both).swapaxes(0, 1)
            held_out[name] = HeldOut(fitness, final_return, ())
        shapes = {x.fitness.shape for x in held_out.values()}
        if len(shapes) > 1 or 0 in min(shapes):
            raise ValueError("no scores on the same tasks and seeds")
        facts = {**found["facts"], "measure": str(found["measure"])}
        for row, follows in zip(rows, _rows(held_out, facts), strict=True):
            if not _agree(row, follows):
                raise ValueError(f"a row of {row['name']!r} does not follow from them")
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise CheckpointError(f"its scores do not fit together: {error!r}") from None
    return held_out, facts


def _rows(
    held_out: Mapping[str, HeldOut], facts: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """A row per candidate and task: means, and the scores by seed unless too many."""
    few = sum(runs.fitness.size for runs in held_out.values()) <= MOST
    rows = []
    for name, runs in held_out.items():
        for task, place in enumerate(verdicts.places(facts, len(runs.fitness))):
            by_seed = {key: getattr(runs, key)[task] for key in _MEASURES}
            row = {"name": name, "task": place.removeprefix("on ")}
            row |= {k: _finite(verdicts.average(x)) for k, x in by_seed.items()}
            row |= {"seeds": int(runs.fitness.shape[1])}
            if few:
                plain = {k: jsonl.plain(np.float32(x)) for k, x in by_seed.items()}
                row |= {"by_seed": plain}
            rows.append(row)
    return rows


def _agree(row: Mapping[str, Any], follows: Mapping[str, Any]) -> bool:
    """True if a row says of its scores what follows from them."""
    if any(row[key] != follows[key] for key in ("name", "task", "seeds")):
        return False
    largest = max(abs(y or 0.0) for x in follows["by_seed"].values() for y in x)
    said, means = (scores.numbers([x[k] for k in _MEASURES]) for x in (row, follows))
    return np.allclose(said, means, CLOSE, CLOSE * largest, equal_nan=True)


def _finite(x: float) -> float | None:
    """The number; None if it is not finite, which JSON cannot say."""
    return float(x) if math.isfinite(x) else None
