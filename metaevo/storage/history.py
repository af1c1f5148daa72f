"""The history of a run: its events, and from them how far it is."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from metaevo.errors import CheckpointError
from metaevo.storage import jsonl, run_directory
from metaevo.storage._files import open_append

FINISHED = "finished"
"""Event of `history.jsonl`: solution and comparison are made."""


RESULTS = ("solution", "held_out", "independent", "agents")
"""Folders that the end of a run makes."""


def note(directory: str | Path, event: str, generation: int, **facts: Any) -> None:
    """Add a line to `history.jsonl`: the run started, stopped or finished.

    Args:
        generation: generations done.
        facts: further plain data; a start has `num_generations`, the horizon asked for.
    """
    line = {"time": time.time(), "event": event, "generation": generation, **facts}
    with open_append(run_directory.paths(directory).history) as file:
        file.write(json.dumps(line).encode() + b"\n")


def note_parts(directory: str | Path, generation: int) -> None:
    """Note in the history which results a finished run has, for `metaevo verify`."""
    folders = [Path(directory) / name for name in RESULTS]
    folders += sorted(run_directory.paths(directory).agents.glob("*/"))
    parts = [str(p.relative_to(directory)) for p in folders if p.is_dir()]
    note(directory, "reported", generation, parts=parts)


def read(directory: str | Path) -> list[dict[str, Any]]:
    """Return the lines of `history.jsonl`: `time` in seconds, event, generation.

    Raises:
        CheckpointError: a line is damaged.
    """
    path = run_directory.paths(directory).history
    lines = jsonl.read(path) if path.exists() else []
    for number, line in enumerate(lines, 1):
        time, event, parts = line.get("time"), line.get("event"), line.get("parts", [])
        if not isinstance(time, int | float) or not 0 <= time < 1e11:
            raise CheckpointError(f"{path}, line {number}: no time in seconds")
        if not isinstance(event, str) or not isinstance(parts, list):
            raise CheckpointError(f"{path}, line {number}: no event")
        counts = (line.get(key, 0) for key in ("generation", "num_generations"))
        if not all(isinstance(x, int) for x in counts):
            raise CheckpointError(f"{path}, line {number}: no number of generations")
    return lines


def generations_done(directory: str | Path) -> int:
    """Return the generations that the newest whole checkpoint holds; 0 without one.

    Raises:
        CheckpointError: there are checkpoints and none of them verifies.
    """
    from metaevo.storage import checkpoint  # imports JAX

    store = checkpoint.of_run(directory)
    manifest = store.check()
    generation = 0 if manifest is None else manifest.get("generation")
    if not isinstance(generation, int):
        raise CheckpointError(f"{store.folder}: the newest one has no generation")
    return generation


def generations_asked(directory: str | Path) -> int | None:
    """Return the horizon of a run: the largest asked for since it last finished.

    Returns:
        the number of generations; None if no file tells it.

    Raises:
        ConfigError: there is no run.
        CheckpointError: the manifest is damaged.
    """
    asked = run_directory.read_manifest(directory)["identity"]["settings"].get(
        "num_generations"
    )
    found = [asked] if isinstance(asked, int) else []
    for event in read(directory):
        if event["event"] == FINISHED:
            found = [event["generation"]]
        elif "num_generations" in event:
            found.append(event["num_generations"])
    return max(found, default=None)


def generation_finished(directory: str | Path) -> int | None:
    """Return the generations with which a run last finished; None if it never did."""
    events = read(directory)
    ends = [event["generation"] for event in events if event["event"] == FINISHED]
    return ends[-1] if ends else None


def is_reported(directory: str | Path, generation: int) -> bool:
    """Return True if a run last finished with `generation` and has its report."""
    page = run_directory.paths(directory).report / "index.html"
    return page.is_file() and generation_finished(directory) == generation
