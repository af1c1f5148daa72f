"""`metaevo runs`: the runs in folders, in a terminal and as a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from metaevo.analysis import overview as rows_of
from metaevo.errors import ConfigError, printable
from metaevo.storage import nearby, run_directory
from metaevo.storage._files import replace_file
from metaevo.text import duration

MOST_BESIDE = 6  # runs whose settings are set beside each other


def overview(places: Sequence[str], limit: int, page: str | None) -> str:
    """The runs at or below some places, as text.

    Args:
        places: runs, and folders of runs.
        limit: most rows, the newest; 0: all.
        page: HTML file to write; None: none.

    Raises:
        ConfigError: there is no run, or the page cannot be written.
    """
    if page is not None:
        run_directory.check_writable("page", Path(page).parent)
    rows = sorted(map(rows_of.read, found(places)), key=lambda row: -row.started)
    rows = rows[: limit or None]
    one_search = len({row.search for row in rows}) == 1
    several = one_search and 2 <= len(rows) <= MOST_BESIDE
    beside = rows_of.apart(rows) if several else {}
    told = [rows_of.table(rows)]
    if beside:
        told.append(
            f"settings in which they differ, of {', '.join(x.name for x in rows)}:"
        )
    told += [f"  {key}: {' | '.join(texts)}" for key, texts in beside.items()]
    if page is not None:
        _write(Path(page), rows, beside)
        told.append(f"page: {page}")
    return printable("\n".join(told), "\n")


def found(places: Sequence[str]) -> list[Path]:
    """Return the runs at or below some places, each once.

    Raises:
        ConfigError: there is none.
    """
    named = [Path(x) for x in places]
    runs = {
        run: None
        for place in named
        for run in ([place] if nearby.is_run(place, True) else nearby.below(place))
    }
    if not runs:
        raise ConfigError(f"no runs in {', '.join(places)}")
    return [*runs]


def linked(row: rows_of.RunRow, page: Path) -> dict[str, Any]:
    """Return what a page says of a run, with links to its report and its own page."""
    folder = run_directory.paths(row.name).report
    links = {
        name: quote(os.path.relpath(file, page.parent))
        for name, file in {
            "report": folder / "index.html",
            "watch": folder / "watch.html",
        }.items()
        if file.is_file() and file.resolve() != page.resolve()
    }
    given = {k: x for k, x in row.changes.items() if not k.startswith("search.")}
    told = {"done": rows_of.done(row), "time": duration(row.seconds), "changes": given}
    left = "" if row.left is None else duration(row.left)
    return row._asdict() | links | told | {"left": left}


def _write(page: Path, rows: Sequence, beside: dict) -> None:
    from metaevo.analysis.plots import figures

    shown = [linked(row, page) for row in rows]
    text = figures.page("runs.html", rows=shown, apart=beside)
    replace_file(page, text.encode())
