"""Quantities as text, for terminals and reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def duration(seconds: float) -> str:
    """Format seconds with at most two units.

    >>> duration(45), duration(200), duration(7500)
    ('45s', '3m20s', '2h05m')
    """
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"


def byte_size(n: float) -> str:
    """Format a number of bytes with a binary unit and three digits.

    >>> byte_size(45), byte_size(3 << 20), byte_size(1.5 * 2**30)
    ('45 B', '3 MiB', '1.5 GiB')
    """
    for unit in ("B", "kiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.3g} {unit}"
        n /= 1024
    return f"{n:.3g} TiB"


def score(x: float) -> str:
    """Return a score with two decimals, a small one with two digits that count.

    >>> score(314.159), score(-0.5), score(0.0), score(-0.00123), score(float("nan"))
    ('314.16', '-0.50', '0.00', '-0.0012', 'nan')
    """
    return f"{x:.2g}" if 0 < abs(x) < 0.095 else f"{x:.2f}"


def with_interval(x: float, low: float, high: float, sign: str = "") -> str:
    """Format an estimate and its interval, with decimals as the interval's width wants.

    Args:
        x: the estimate.
        low: lower end of the interval.
        high: upper end of the interval.
        sign: "+" to give every number its sign.

    >>> with_interval(27.433, 1.991, 52.86, "+")
    '+27.43 [+1.99, +52.86]'
    >>> with_interval(-3.21e-4, -4.3e-4, -2.1e-4)
    '-0.00032 [-0.00043, -0.00021]'
    """
    width = abs(high - low) or abs(x)
    decimals = 2
    if 0 < width < 0.1:
        decimals = 1 - math.floor(math.log10(width))
    form = f"{sign}.{decimals}f" if decimals <= 8 else f"{sign}.2e"
    return f"{x:{form}} [{low:{form}}, {high:{form}}]"


def joined_tasks(aggregate: Any, num_tasks: int) -> str:
    """Say how scores of tasks become a fitness; empty for one task.

    Args:
        aggregate: as a run's manifest describes the function.
        num_tasks: number of tasks.

    >>> joined_tasks("rank_sum", 3), joined_tasks("mean", 1)
    ('rank sum over 3 tasks', '')
    >>> joined_tasks({"function": "normalized", "values": [0.0, 9.0]}, 2)
    'normalized over 2 tasks'
    """
    name = aggregate.get("function") if isinstance(aggregate, Mapping) else aggregate
    said = f"{str(name).strip('<>').replace('_', ' ')} over {num_tasks} tasks"
    return said if num_tasks > 1 else ""


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line per row, its cells aligned to the right.

    >>> columns([["seed", "a"], ["0", "-1.5"]])
    ['seed     a', '   0  -1.5']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(x.rjust(width) for x, width in zip(row, widths, strict=True))
        for row in rows
    ]
