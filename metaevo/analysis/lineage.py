"""Who came from whom: the lines of agents that live on, read from a run's log.

Each record of `metrics.jsonl` holds, for a strategy whose members follow each other
(`Strategy.persistent_agents`), `parents` [P], whose agent each member continued in that
generation, -1 for a newborn, and `numbers/SLOT` [P], the numbers it trained with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["fittest", "line", "numbers", "schedule"]

Records = Sequence[Mapping[str, Any]]
_NUMBERS = "numbers/"


def numbers(record: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Slot -> [P], of one generation."""
    return {
        name.removeprefix(_NUMBERS): np.asarray(x, float)
        for name, x in record.items()
        if name.startswith(_NUMBERS)
    }


def fittest(record: Mapping[str, Any]) -> int:
    """The member of the highest fitness: noisy, for want of a second look."""
    scores = [-np.inf if x is None else x for x in record["population"]]
    return int(np.argmax(scores))


def line(records: Records, member: int) -> list[tuple[int, int]]:
    """The (record, member) pairs from birth to the last generation of one member."""
    found = []
    for i in reversed(range(len(records))):
        found.append((i, member))
        member = records[i]["parents"][member]
        if member < 0:
            break
    return found[::-1]


def schedule(records: Records, member: int, num_steps: int) -> dict[str, np.ndarray]:
    """The numbers that a member's line trained with, from birth on.

    Args:
        num_steps: generations in a lifetime; a shorter line holds its last numbers.

    Returns:
        slot -> [num_steps] float32.
    """
    lived = line(records, member)
    lived += lived[-1:] * (num_steps - len(lived))
    return {
        slot: np.array(
            [numbers(records[i])[slot][m] for i, m in lived[:num_steps]], np.float32
        )
        for slot in numbers(records[-1])
    }
