"""`metaevo watch`: runs that go on, as a page that renews itself and in a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.text import Text

from metaevo.analysis import live, overview
from metaevo.analysis.overview import RunRow
from metaevo.cli.overview import found, linked
from metaevo.cli.signals import on_signals
from metaevo.engine.loggers.console import console
from metaevo.errors import ConfigError, printable
from metaevo.evaluators.devices import configure
from metaevo.storage import run_directory
from metaevo.storage._files import replace_file

SHARE = 19  # time without drawing, in units of that with it
DRAWN = 4  # runs whose figures a page has
PAGE = "watch.html"


def watch(places: Sequence[str], page: str | None, every: float) -> None:
    """Write the page again and again, until all runs have ended or on a signal.

    Args:
        places: runs, and folders of runs.
        page: HTML file; None: `RUN/report/watch.html` of one run, else `watch.html`.
        every: seconds between two writings.

    Raises:
        ConfigError: there is no run, or the page cannot be written.
    """
    stop, screen = on_signals(), console()
    runs = _first(places, stop, screen)
    if page is None:
        alone = run_directory.paths(runs[0]).report / PAGE
        page = str(alone) if len(runs) == 1 else PAGE
    run_directory.check_writable("page", Path(page).parent)
    Path(page).parent.mkdir(parents=True, exist_ok=True)
    shown, kept = Pictures(), KeptRows()
    screen.print(Text(printable(f"page: {Path(page).absolute().as_uri()}")))
    with contextlib.ExitStack() as stack:
        display = None
        if screen.is_terminal:
            display = stack.enter_context(Live(console=screen, auto_refresh=False))
        states: list[str] = []
        while True:
            rows = sorted(map(kept.read, runs), key=lambda row: -row.started)
            rows.sort(key=lambda row: row.state != "going on")
            shown.draw_one(rows[:DRAWN])
            goes_on = rows[0].state == "going on" or not shown.has(rows[:DRAWN])
            write(Path(page), rows, shown, every if goes_on else None)
            text = Text(printable(overview.table(rows), "\n"))
            if display is not None:
                display.update(text, refresh=True)
            elif states != [row.state for row in rows]:
                screen.print(text)
            states = [row.state for row in rows]
            if not goes_on or stop.wait(every):
                return
            runs = found(places)


def _first(places: Sequence[str], stop: Any, screen: Any) -> list[Path]:
    """Return the runs, for whose first files it waits if one has just been started."""
    told = False
    while True:
        try:
            return found(places)
        except ConfigError:
            if not any(run_directory.paths(x).lock.exists() for x in places):
                raise
            if not told:
                screen.print(Text(printable(f"waiting for {', '.join(places)}")))
            told = True
            if stop.wait(1.0):
                raise


class KeptRows:
    """Rows of runs that do not go on, read again where their files have changed."""

    def __init__(self):
        self._kept: dict[Path, tuple[tuple, RunRow]] = {}

    def read(self, run: Path) -> RunRow:
        """Return the row of a run."""
        written = _written(run)
        before, row = self._kept.get(run, ((), None))
        if row is None or before != written or row.state == "going on":
            row = overview.read(run)
            self._kept[run] = written, row
        return row


class Pictures:
    """Pictures of runs, drawn one at a time, when their files have changed.

    A twentieth of the time is spent here.
    """

    def __init__(self):
        self._kept: dict[str, tuple[tuple, dict[str, Any], float]] = {}
        self._rest_until = 0.0
        configure(1, driver=True)  # accelerators are the runs'

    def draw_one(self, rows: Sequence[RunRow]) -> None:
        """Draw the run whose picture is the oldest, one without a picture first."""
        began = time.monotonic()
        old = [row for row in rows if self.of(row)[0] != _files(row)]
        if old and (began > self._rest_until or not self.has(rows)):
            row = min(old, key=lambda row: self.of(row)[2])
            self._kept[row.name] = _files(row), live.view(row), began
            now = time.monotonic()
            self._rest_until = now + SHARE * (now - began)

    def of(self, row: RunRow) -> tuple[tuple, dict[str, Any], float]:
        """Return the files of a run when it was drawn, `live.view`, and the time."""
        return self._kept.get(row.name, ((), {}, 0.0))

    def has(self, rows: Sequence[RunRow]) -> bool:
        """Return True if all are drawn in the state that they are in."""
        return all(self.of(row)[0][:1] == (row.state,) for row in rows)


def _files(row: RunRow) -> tuple:
    """The state of a run, and when its files were written."""
    return row.state, *_written(row.name)


def _written(run: Path | str) -> tuple[float, ...]:
    """When the files of a run were written."""
    paths = run_directory.paths(run)
    files = *paths[:5], paths.newest / "solution"
    return tuple(x.stat().st_mtime for x in files if x.exists())


def write(
    page: Path, rows: Sequence[RunRow], pictures: Pictures, every: float | None
) -> None:
    """Write the page; `every` is None if it need not renew itself."""
    from metaevo.analysis.plots import figures

    drawn = [row for row in rows[:DRAWN] if pictures.of(row)[0]]
    text = figures.page(
        "watch.html",
        rows=[linked(row, page) for row in rows],
        views=[linked(row, page) | pictures.of(row)[1] for row in drawn],
        every=every,
        written=time.strftime("%Y-%m-%d %H:%M:%S"),
    )
    replace_file(page, text.encode())
