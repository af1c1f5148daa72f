"""Quantities as text, for terminals and reports."""

from __future__ import annotations


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
