"""`metaevo runs`: the runs in folders, in a terminal and as a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
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
        run_directory.check_writable("page", page)
    named = [Path(x) for x in places]
    found = {
        run: None
        for place in named
        for run in ([place] if nearby.is_run(place, True) else nearby.below(place))
    }
    if not found:
        raise ConfigError(f"no runs in {', '.join(places)}")
    rows = sorted(map(rows_of.read, found), key=lambda row: -row.started)
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


def _write(page: Path, rows: Sequence, beside: dict) -> None:
    from metaevo.analysis.plots import figures

    def shown(row):
        report = run_directory.paths(row.name).report / "index.html"
        there = report.is_file()
        link = quote(os.path.relpath(report, page.parent)) if there else None
        given = {k: x for k, x in row.changes.items() if not k.startswith("search.")}
        more = {"done": rows_of.done(row), "time": duration(row.seconds), "link": link}
        return row._asdict() | more | {"changes": given}

    text = figures.page("runs.html", rows=[*map(shown, rows)], apart=beside)
    replace_file(page, text.encode())
