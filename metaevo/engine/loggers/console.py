"""Progress on the terminal: a head, a line per generation, and the current activity.

Without a terminal the output is plain text, with at most one line per 30 s. A notebook
has one output, which is written again.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from metaevo.engine.loggers.streams import KEPT, Unbreakable
from metaevo.errors import printable
from metaevo.text import duration, score

HEAD = (
    f"{'best':>8} {'mean':>8} {'median':>8} {'sd':>7} "
    f"{'failed':>6} {'frames/s':>8} {'left':>6}"
)

STYLES = {
    r"error:": "bold red",
    r"warning:": "yellow",
    r"verdict: .* is better than": "green",
    r"verdict: .*( is worse than| fails )": "red",
    r"verdict:": "bold",
}
"""What a line begins with -> its style in a terminal that has colours."""

SHOWN = 60  # lines of a notebook's output


class ConsoleLogger:
    """Print the progress of a run to stdout, in lines of at most 80 columns.

    Output that cannot be written, as to a terminal that was closed, is dropped.

    Args:
        num_generations: horizon of the run, to estimate the time left.
        following: what follows the last generation, in units of a generation's time.
        unit: name of a generation: a training run's is a segment.
        programs: compiled after the last generation, each for as long as the search's.
    """

    def __init__(
        self,
        num_generations: int,
        following: float = 0.0,
        unit: str = "generation",
        programs: int = 0,
    ):
        self._head = f"{unit:>13} {HEAD}"
        self._programs, self._began = programs, time.monotonic()
        self.num_generations, self.following = num_generations, following
        self.console: Any = console()
        self._live: Any = None
        if self.console.is_jupyter:
            self.console = self._live = _Cell()
        self._every = 1.0 if self.console.is_terminal else 30.0
        self._times: list[float] = []
        self._last_line = -1e9
        self._status = _Status("", 0)

    def say(self, *lines: str) -> None:
        """Print lines that stay on the screen."""
        for line in lines:
            self.console.print(styled(line))

    def now(self, activity: str, total: int = 0) -> None:
        """Show an activity in the last line, with the time that it has taken.

        Args:
            activity: in words.
            total: how much `advance` will count, for a bar; 0: no bar.
        """
        self._show(_Status(activity, total))

    def now_in_search(self, activity: str, generation: int) -> None:
        """Show an activity, and a bar of the generations done."""
        left = self._left(generation)
        self._show(_Status(activity, self.num_generations, generation, left))

    def advance(self, num: int) -> None:
        """Count what ended of the current activity."""
        self._status.done += num
        self._show(self._status)

    def _show(self, status: _Status) -> None:
        self._status = status
        if self._live is not None:
            self._live.update(status)
        elif self.console.is_terminal:
            self._live = Live(status, console=self.console, transient=True)
            self._live.start()

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
        compiling = max(0.0, self._times[0] - self._began - seconds)
        return duration(seconds * left + self._programs * compiling)


class _Status:
    """A line such as `⠋ comparing ... 12s, 5/64, 52s left ━━╸────`, redrawn by rich."""

    def __init__(
        self, activity: str, total: int, done: int = 0, left: str | None = None
    ):
        self.activity, self.began = printable(activity), time.monotonic()
        self.total, self.done, self.left = total, done, left
        self.spinner = Spinner("dots")

    def __str__(self):
        spent = time.monotonic() - self.began
        text, left = f"{self.activity} ... {duration(spent)}", self.left
        if left is None and self.done:
            left = duration(spent / self.done * max(self.total - self.done, 0))
        counted = f", {self.done}/{self.total}, {left or '?'} left"
        return text + counted * bool(self.total)

    def __rich__(self):
        self.spinner.update(text=Text(str(self), style="dim"))
        if not self.total:
            return self.spinner
        line = Table.grid(padding=(0, 1))
        line.add_column(no_wrap=True, overflow="ellipsis")
        bar = ProgressBar(self.total, min(self.done, self.total), width=12)
        line.add_row(self.spinner, bar)
        return line


class _Cell:
    """The one output of a notebook's cell: lines, and the activity as the last."""

    is_terminal = True

    def __init__(self):
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        self._lines: list[str] = []
        self._output: Any = display({"text/plain": ""}, raw=True, display_id=True)

    def print(self, line: Text) -> None:
        """Add a line."""
        self._lines.append(line.plain)
        self.update("")

    def update(self, activity: object) -> None:
        """Write the output again, in the middle shortened."""
        lines, half = [*self._lines, str(activity)], SHOWN // 2
        if len(lines) > SHOWN:
            lines[half:-half] = [f"... {len(lines) - SHOWN} lines ..."]
        self._output.update({"text/plain": "\n".join(lines).rstrip()}, raw=True)

    def stop(self) -> None:
        """Remove the activity."""
        self.update("")


def console(name: str = "stdout") -> Console:
    """Return a console of rich on a stream that no reader and no terminal breaks.

    rich ends a process whose pipe breaks, and writes control characters itself. While
    it shows something live, `sys` has a stream of its own in the place of this one.
    """
    stream: Any = Unbreakable(name, getattr(sys, name), raw=True)
    return Console(file=stream, highlight=False, soft_wrap=not stream.isatty())


def styled(line: str) -> Text:
    """Return a line in the style of what it begins with, in no style for most.

    >>> styled("verdict: the solution is worse than the hand-made one").style
    'red'
    """
    found = (style for start, style in STYLES.items() if re.match(start, line))
    return Text(printable(line, KEPT), next(found, ""))


def _number(x: float | None, width: int = 8) -> str:
    return f"{'-' if x is None or x != x else score(x):>{width}}"


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
    console("stderr").print(styled(message), soft_wrap=True)
