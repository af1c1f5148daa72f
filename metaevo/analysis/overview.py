"""An overview of runs, from their manifests, histories and last records.

Each run is read in part, whatever its length, and one that cannot be read has a line
that says so. Files may come from a stranger: they are shown as text.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.config import flat
from metaevo.errors import MetaevoError
from metaevo.storage import (
    _files,
    history,
    manifests,
    owner,
    provenance,
    run_directory,
    verified,
)
from metaevo.text import columns, duration

__all__ = ["RunRow", "apart", "read", "table"]

TAIL = 1 << 20  # bytes at the end of a log that are looked at
MAX_TEXT = 300
GOING_ON = 600.0  # seconds since the last record
PATIENCE = 10  # times the last generation's seconds, if these are more


class RunRow(NamedTuple):
    """A run in an overview.

    Attributes:
        name: its directory.
        search: name of the search.
        seed: of the run.
        state: `finished`, `stopped`, `going on`, `broken off` or `unreadable`.
        generation: generations logged.
        asked: generations asked for; None if no file tells it.
        started: seconds since 1970; 0: not known.
        seconds: of all its parts.
        frames: environment steps.
        fitness: mean of the last generation.
        left: seconds until the last generation, if it goes on and that is known.
        verdict: the first of the solution's, or why there is none.
        changes: settings that differ from their defaults, by dotted key.
    """

    name: str
    search: str = ""
    seed: int | None = None
    state: str = "unreadable"
    generation: int = 0
    asked: int | None = None
    started: float = 0.0
    seconds: float = 0.0
    frames: int | None = None
    fitness: float | None = None
    left: float | None = None
    verdict: str = ""
    changes: Mapping[str, Any] = {}


def read(directory: Path, now: float | None = None) -> RunRow:
    """Read a run's row; one that is damaged has the reason as its verdict.

    Args:
        directory: of the run.
        now: seconds since 1970; None: the clock's.
    """
    try:
        return _row(directory, time.time() if now is None else now)
    except (MetaevoError, OSError, ValueError, KeyError, TypeError) as error:
        return RunRow(str(directory), verdict=str(error)[:MAX_TEXT])


def _row(directory: Path, now: float) -> RunRow:
    identity = run_directory.read_manifest(directory)["identity"]
    settings = manifests.Settings(identity["settings"], identity.get("defaults", {}))
    events, last = history.read(directory), _last_record(directory)
    paths = run_directory.paths(directory)
    log = paths.metrics
    written = log.stat().st_mtime if log.exists() else 0.0
    each = last.get("seconds")
    each = float(each) if isinstance(each, int | float) else 0.0
    # Changes noted on resume, and the report, do not end a run.
    ends = [x for x in events if not provenance.is_change(x["event"])]
    ends = [x for x in ends if x["event"] != "reported"]
    seconds, began = 0.0, None
    for event in ends:
        if event["event"] == "started":
            began = event["time"]
        elif began is not None:
            seconds, began = seconds + event["time"] - began, None
    if began is not None:
        seconds += max(written - began, 0.0)
    state = ends[-1]["event"] if ends else "started"
    reason = "" if state in ("started", history.FINISHED) else state[:MAX_TEXT]
    if state == "started":
        noted = events[-1]["time"] if events else 0.0
        newest = max(written, noted, _last_step(paths.conclusion))
        fresh = now - newest < max(GOING_ON, PATIENCE * each)
        fresh &= not (ends and owner.gone(ends[-1]))
        state = "going on" if fresh else "broken off"
    mean, frames = (last.get(key) for key in ("fitness_mean", "frames"))
    done, asked = last.get("generation", -1) + 1, history.generations_asked(directory)
    return RunRow(
        str(directory),
        str(identity["search"]),
        identity["seed"],
        "stopped" if reason else state,
        done,
        asked,
        events[0]["time"] if events else 0.0,
        seconds,
        frames if isinstance(frames, int) else None,
        float(mean) if isinstance(mean, int | float) else None,
        max(asked - done, 0) * each if asked and each and state == "going on" else None,
        _verdict(directory) or reason,
        flat(manifests.not_default(settings)),
    )


def _last_step(conclusion: Path) -> float:
    """Time of the comparison's last step, each of which makes a folder; 0: none."""
    with contextlib.suppress(OSError):  # all are removed at the end
        return max(x.stat().st_mtime for x in (conclusion, *conclusion.glob("*")))
    return 0.0


def _last_record(directory: Path) -> dict[str, Any]:
    """The last whole record of `metrics.jsonl`, without reading the others."""
    path = run_directory.paths(directory).metrics
    if not path.exists():
        return {}
    with _files.open_read(path) as file:
        before = max(path.stat().st_size - TAIL, 0)
        file.seek(before)
        # What precedes the first line break is the end of a line, unless all is read.
        lines = file.read(TAIL).split(b"\n")[1 if before else 0 : -1]
    found = _files.parse_json(lines[-1]) if lines else {}
    if not isinstance(found, dict) or not isinstance(found.get("generation", 0), int):
        raise ValueError(f"{path}: the last line is no record")
    return found


def _verdict(directory: Path) -> str:
    path = run_directory.paths(directory).solution / "manifest.json"
    if not path.exists():
        return ""
    found = _files.read_json(path, verified.MAX_JSON)
    evidence = found.get("evidence") if isinstance(found, dict) else None
    told = evidence.get("verdicts") if isinstance(evidence, dict) else None
    if isinstance(told, list) and told:
        return str(told[0])[:MAX_TEXT]
    return "no comparison on held-out seeds"


def apart(rows: Sequence[RunRow]) -> dict[str, list[str]]:
    """Settings in which runs differ: by key, a text for each run.

    What a search was made into, `search.*`, counts only where nothing else differs.

    >>> a, b = RunRow("a", changes={"lr": 0.1, "n": 3}), RunRow("b", changes={"n": 3})
    >>> apart([a, b])
    {'lr': ['0.1', 'default']}
    """
    keys = sorted({key for row in rows for key in row.changes})
    found = {
        key: [str(row.changes.get(key, "default"))[:MAX_TEXT] for row in rows]
        for key in keys
    }
    found = {key: texts for key, texts in found.items() if len(set(texts)) > 1}
    given = {key: x for key, x in found.items() if not key.startswith("search.")}
    return given or found


def done(row: RunRow) -> str:
    """Generations done, of those asked for.

    >>> done(RunRow("a", generation=3, asked=64)), done(RunRow("a", generation=3))
    ('3/64', '3')
    """
    return f"{row.generation}" + (f"/{row.asked}" if row.asked else "")


def table(rows: Sequence[RunRow], beside: Mapping[str, Sequence[str]] = {}) -> str:
    """The runs as text, in this order, their verdicts on lines of their own.

    Args:
        rows: of the runs.
        beside: further columns, such as those of `apart`.
    """
    head = ("run", *beside, "state", "generation", "time", "frames", "mean")
    timed = any(row.left is not None for row in rows)
    width = 24 if timed else 32
    head += ("left",) * timed
    cells = [
        (
            row.name if len(row.name) <= width else "…" + row.name[1 - width :],
            *(texts[i] for texts in beside.values()),
            row.state,
            done(row),
            duration(row.seconds),
            "?" if row.frames is None else f"{row.frames:.2g}",
            "?" if row.fitness is None else f"{row.fitness:.4g}",
            *(["" if row.left is None else duration(row.left)] if timed else []),
        )
        for i, row in enumerate(rows)
    ]
    first, *lines = columns([head, *cells])
    told = [first]
    for row, line in zip(rows, lines, strict=True):
        told += [line, *([f"    {row.verdict}"] if row.verdict else [])]
    return "\n".join(told)
