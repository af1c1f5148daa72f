"""Evidence that an artifact carries: verdicts, scores, controls and cost of its run."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

from metaevo.analysis import verdicts
from metaevo.analysis.holdout import HeldOut

__all__ = ["evidence"]


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
    rows = [
        {
            "name": name,
            "task": place.removeprefix("on "),
            "fitness": _finite(verdicts.average(runs.fitness[task])),
            "final_return": _finite(verdicts.average(runs.final_return[task])),
            "seeds": int(runs.fitness.shape[1]),
        }
        for name, runs in held_out.items()
        for task, place in enumerate(verdicts.places(facts, len(runs.fitness)))
    ]
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
        "warnings": verdicts.warnings(facts) if held_out else [],
        "scores": rows,
        "cost": cost,
        "metaevo": version,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "license": None,
    }


def _finite(x: float) -> float | None:
    """The number; None if it is not finite, which JSON cannot say."""
    return float(x) if math.isfinite(x) else None
