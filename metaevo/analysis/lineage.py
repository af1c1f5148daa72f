"""Lines of agents that live on over generations, read from a run's log.

For a strategy with `Strategy.persistent_agents`, each record of `metrics.jsonl` holds
`parents` [P], the member whose agent each member continued in that generation, -1 for a
newborn, and `numbers/SLOT` [P], the numbers that it trained with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["fittest", "line", "numbers", "schedule"]

Records = Sequence[Mapping[str, Any]]
_NUMBERS = "numbers/"


def numbers(record: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the numbers of one generation, slot -> [P]."""
    return {
        name.removeprefix(_NUMBERS): np.asarray(x, float)
        for name, x in record.items()
        if name.startswith(_NUMBERS)
    }


def fittest(record: Mapping[str, Any]) -> int:
    """Return the member of the highest fitness, as measured once, with noise."""
    scores = [-np.inf if x is None else x for x in record["population"]]
    return int(np.argmax(scores))


def line(records: Records, member: int) -> list[tuple[int, int]]:
    """Return the ancestors of a member of the last generation.

    Args:
        records: of the whole run.
        member: index in the last generation.

    Returns:
        pairs (index of the record, member), from birth to the last generation.

    >>> line([{"parents": [-1, -1]}, {"parents": [1, 1]}], 0)
    [(0, 1), (1, 0)]
    """
    found = []
    for i in reversed(range(len(records))):
        found.append((i, member))
        member = records[i]["parents"][member]
        if member < 0:
            break
    return found[::-1]


def schedule(records: Records, member: int, num_steps: int) -> dict[str, np.ndarray]:
    """Return the numbers that a member's line trained with, from birth on.

    Args:
        records: of the whole run.
        member: index in the last generation.
        num_steps: generations in a lifetime. A shorter line holds its last numbers.

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
