"""`metaevo watch`: runs that go on, as a page that renews itself and in a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.text import Text

from metaevo.analysis import overview
from metaevo.analysis.overview import RunRow
from metaevo.cli.overview import found, linked
from metaevo.cli.signals import on_signals
from metaevo.engine.loggers.console import console
from metaevo.errors import printable
from metaevo.storage import run_directory
from metaevo.storage._files import replace_file

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
    runs = found(places)
    if page is None:
        alone = run_directory.paths(runs[0]).report / PAGE
        page = str(alone) if len(runs) == 1 else PAGE
    run_directory.check_writable("page", page)
    Path(page).parent.mkdir(parents=True, exist_ok=True)
    stop, shown, screen = on_signals(), Pictures(), console()
    screen.print(Text(printable(f"page: {Path(page).absolute().as_uri()}")))
    with contextlib.ExitStack() as stack:
        live = None
        if screen.is_terminal:
            live = stack.enter_context(Live(console=screen, auto_refresh=False))
        states: list[str] = []
        while True:
            rows = sorted(map(overview.read, runs), key=lambda row: -row.started)
            goes_on = any(row.state == "going on" for row in rows)
            write(Path(page), rows, shown, every if goes_on else None)
            text = Text(printable(overview.table(rows), "\n"), no_wrap=True)
            if live is not None:
                live.update(text, refresh=True)
            elif states != [row.state for row in rows]:
                screen.print(text)
            states = [row.state for row in rows]
            if not goes_on or stop.wait(every):
                return
            runs = found(places)


class Pictures:
    """Pictures of runs, drawn again when their files change."""

    def __init__(self):
        self._kept: dict[str, tuple[Any, dict[str, Any]]] = {}

    def of(self, row: RunRow) -> dict[str, Any]:
        """Return `live.view` of a run."""
        from metaevo.analysis import live

        paths = run_directory.paths(row.name)
        files = (paths.metrics, paths.history, paths.trial_log, paths.newest)
        changed = *map(_changed, (*files, paths.newest / "solution")), row.state
        if changed != self._kept.get(row.name, (None,))[0]:
            self._kept[row.name] = changed, live.view(row, f"run{len(self._kept)}")
        return self._kept[row.name][1]


def write(
    page: Path, rows: Sequence[RunRow], pictures: Pictures, every: float | None
) -> None:
    """Write the page; `every` is None if it need not renew itself."""
    from metaevo.analysis.plots import figures

    first = sorted(rows, key=lambda row: row.state != "going on")[:DRAWN]
    views = [linked(row, page) | pictures.of(row) for row in first]
    text = figures.page(
        "watch.html",
        rows=[linked(row, page) for row in rows],
        views=views,
        every=every,
        written=time.strftime("%Y-%m-%d %H:%M:%S"),
    )
    replace_file(page, text.encode())


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
