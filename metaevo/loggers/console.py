"""Progress on the terminal: a head, one line per generation, messages between."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any


class ConsoleLogger:
    """Prints to stdout.

    Args:
        num_generations: for the estimate of the time left.
    """

    def __init__(self, num_generations: int):
        self.num_generations = num_generations
        self._times: list[float] = []

    def say(self, *lines: str) -> None:
        print(*lines, sep="\n", flush=True)

    def log(self, record: Mapping[str, Any]) -> None:
        """One generation's line, with a head before the first."""
        if not self._times:
            self.say(
                f"{'generation':>14} {'best':>9} {'mean':>9} {'median':>9} "
                f"{'sd':>8} {'failed':>6} {'frames/s':>9} {'left':>7}"
            )
        self._times.append(time.monotonic())
        done = record["generation"] + 1
        self.say(
            f"{done:>7}/{self.num_generations:<6} "
            f"{_number(record['fitness_best'])} {_number(record['fitness_mean'])} "
            f"{_number(record['fitness_median'])} {_number(record['fitness_sd'], 8)} "
            f"{record['failed']:>6} {_count(record['frames_per_second']):>9} "
            f"{self._left(done):>7}"
        )

    def _left(self, done: int) -> str:
        # The first generation holds the compilation: it says nothing about the rest.
        if len(self._times) < 2:
            return "?"
        recent = self._times[-11:]
        seconds = (recent[-1] - recent[0]) / (len(recent) - 1)
        return duration(seconds * (self.num_generations - done))


def duration(seconds: float) -> str:
    """`45s`, `3m20s`, `2h05m`."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"


def _number(x: float | None, width: int = 9) -> str:
    return f"{'-' if x is None or x != x else format(x, '.2f'):>{width}}"


def _count(x: float) -> str:
    for unit in ("", "k", "M"):
        if x < 1000:
            return f"{x:.0f}{unit}" if unit == "" else f"{x:.3g}{unit}"
        x /= 1000
    return f"{x:.3g}G"


def error(message: str) -> None:
    print(f"error: {message}", file=sys.stderr, flush=True)
