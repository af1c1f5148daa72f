"""Quantities as text, for terminals and reports."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """`45s`, `3m20s`, `2h05m`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"


def byte_size(n: float) -> str:
    """`45 B`, `3.2 MiB`, `1.5 GiB`."""
    for unit in ("B", "kiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.3g} {unit}"
        n /= 1024
    return f"{n:.3g} TiB"
