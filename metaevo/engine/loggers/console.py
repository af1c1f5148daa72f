"""Progress on the terminal: a head, a line per generation, and the current activity.

Without a terminal the output is plain text, with at most one line per 30 s.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from metaevo.engine.loggers.streams import KEPT, Unbreakable
from metaevo.errors import printable
from metaevo.text import duration

HEAD = (
    f"{'best':>8} {'mean':>8} {'median':>8} {'sd':>7} "
    f"{'failed':>6} {'frames/s':>8} {'left':>6}"
)


class ConsoleLogger:
    """Print the progress of a run to stdout, in lines of at most 80 columns.

    Output that cannot be written, as to a terminal that was closed, is dropped.

    Args:
        num_generations: horizon of the run, to estimate the time left.
        following: what follows the last generation, in units of a generation's time.
        unit: name of a generation: a training run's is a segment.
    """

    def __init__(
        self, num_generations: int, following: float = 0.0, unit: str = "generation"
    ):
        self._head = f"{unit:>13} {HEAD}"
        self.num_generations, self.following = num_generations, following
        # rich ends a process whose pipe breaks, and writes control characters itself.
        stdout: Any = Unbreakable("stdout", raw=True)
        self.console = Console(
            file=stdout, highlight=False, soft_wrap=not stdout.isatty()
        )
        self._every = 1.0 if self.console.is_terminal else 30.0
        self._times: list[float] = []
        self._last_line = -1e9
        self._live: Live | None = None

    def say(self, *lines: str) -> None:
        """Print lines that stay on the screen."""
        for line in lines:
            self.console.print(printable(line, KEPT), markup=False)

    def now(self, activity: str) -> None:
        """Show an activity in the last line, with the time that it has taken."""
        if not self.console.is_terminal:
            return
        status = _Status(printable(activity))
        if self._live is None:
            self._live = Live(status, console=self.console, transient=True)
            self._live.start()
        else:
            self._live.update(status)

    def log(self, record: Mapping[str, Any]) -> None:
        """Print the line of a generation, unless another was printed just before."""
        if not self._times:
            self.say(self._head)
        self._times.append(time.monotonic())
        done = record["generation"] + 1
        last = done == self.num_generations
        if last or self._times[-1] - self._last_line >= self._every:
            self._last_line = self._times[-1]
            self.say(
                f"{done:>6}/{self.num_generations:<6} "
                f"{_number(record['fitness_best'])} "
                f"{_number(record['fitness_mean'])} "
                f"{_number(record['fitness_median'])} "
                f"{_number(record['fitness_sd'], 7)} "
                f"{record['failed']:>6} {_count(record['frames_per_second']):>8} "
                f"{self._left(done):>6}"
            )
            if waiting := record.get("not_scored", 0):
                self.say(
                    f"{'':13} {waiting} not scored: no episode of theirs has ended"
                )

    def close(self) -> None:
        """Remove the line of the current activity."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _left(self, done: int) -> str:
        # The first generation includes the compilation and predicts nothing.
        if len(self._times) < 2:
            return "?"
        recent = self._times[-11:]
        seconds = (recent[-1] - recent[0]) / (len(recent) - 1)
        left = self.num_generations - done + self.following
        return duration(seconds * left)


class _Status:
    """A line such as `⠋ compiling ... 12s`, redrawn by rich several times a second."""

    def __init__(self, activity: str):
        self.activity, self.began = activity, time.monotonic()
        self.spinner = Spinner("dots")

    def __rich__(self):
        elapsed = duration(time.monotonic() - self.began)
        self.spinner.update(text=Text(f"{self.activity} ... {elapsed}", style="dim"))
        return self.spinner


def _number(x: float | None, width: int = 8) -> str:
    return f"{'-' if x is None or x != x else format(x, '.2f'):>{width}}"


def _count(x: float) -> str:
    for unit in ("", "k", "M"):
        if x < 1000:
            return f"{x:.0f}{unit}" if unit == "" else f"{x:.3g}{unit}"
        x /= 1000
    return f"{x:.3g}G"


def error(message: str) -> None:
    """Print an error to stderr."""
    notice(f"error: {message}")


def notice(message: str) -> None:
    """Print a line to stderr."""
    stderr: Any = Unbreakable("stderr")
    print(message, file=stderr, flush=True)
