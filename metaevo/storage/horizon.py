"""How far a run is: generations done, asked for, and at which it finished."""

from __future__ import annotations

from pathlib import Path

from metaevo.storage import run_directory

FINISHED = "finished"
"""Event of `history.jsonl`: solution and comparison are made."""


def generations_done(directory: str | Path) -> int:
    """Return the generations that the newest whole checkpoint holds; 0 without one.

    Raises:
        CheckpointError: there are checkpoints and none of them verifies.
    """
    from metaevo.storage import checkpoint  # imports JAX

    loaded = checkpoint.Store(run_directory.paths(directory).checkpoints).load()
    return 0 if loaded is None else loaded[1]["generation"]


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
    for event in run_directory.read_history(directory):
        if event["event"] == FINISHED:
            found = [event["generation"]]
        elif "num_generations" in event:
            found.append(event["num_generations"])
    return max(found, default=None)


def generation_finished(directory: str | Path) -> int | None:
    """Return the generations with which a run last finished; None if it never did."""
    events = run_directory.read_history(directory)
    ends = [event["generation"] for event in events if event["event"] == FINISHED]
    return ends[-1] if ends else None
