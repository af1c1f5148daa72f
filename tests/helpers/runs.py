"""Read the files of a run directory."""

from pathlib import Path

from metaevo.storage import jsonl


def solution_bytes(directory) -> bytes:
    """The arrays of the solution, as they lie on disk."""
    return (Path(directory) / "solution" / "arrays.safetensors").read_bytes()


def records(directory) -> list[dict]:
    """The log without the fields that depend on the wall clock."""
    timed = ("seconds", "frames_per_second")
    found = jsonl.read(Path(directory) / "metrics.jsonl")
    return [{k: v for k, v in r.items() if k not in timed} for r in found]
