"""`metrics.jsonl`: one JSON object per generation, the run's own record."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.errors import CheckpointError


class JsonlLogger:
    """Append records to a file.

    Args:
        path: the file, made if it does not exist.
        offset: length in bytes that the checkpoint recorded. The rest of the file is
            cut off, so that a generation that was logged but not checkpointed is not
            there twice.

    Raises:
        CheckpointError: the file is shorter than `offset`.
    """

    def __init__(self, path: Path, offset: int = 0):
        # Appending makes the file; truncation never extends it.
        self._file = open(path, "ab")  # noqa: SIM115
        if os.path.getsize(path) < offset:
            raise CheckpointError(f"{path} is shorter than when it was checkpointed")
        self._file.truncate(offset)
        self._file.seek(0, os.SEEK_END)

    def log(self, record: Mapping[str, Any]) -> int:
        """Write and sync one record, and return the file's length in bytes."""
        line = json.dumps({k: _plain(v) for k, v in record.items()}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """Return all records of a file, without a last line that was not written whole.

    Raises:
        ValueError: a line is not JSON.
    """
    with open(path, "rb") as file:
        return [json.loads(line) for line in file if line.endswith(b"\n")]


def _plain(x: Any) -> Any:
    """Convert arrays to lists, and NaN and infinity, which JSON lacks, to None."""
    if isinstance(x, int | str | bool) or x is None:
        return x
    x = np.asarray(x)
    if x.dtype == np.float32:
        x = _shortest(x)
    if x.ndim:
        return [_plain(y) for y in x.tolist()]
    x = float(x)
    return x if math.isfinite(x) else None


def _shortest(x: np.ndarray) -> np.ndarray:
    """Float32 as float64 of few digits that become the same float32 again.

    >>> _shortest(np.float32([0.1, 1 / 3])).tolist()
    [0.1, 0.33333334]
    """
    short = x.astype(str).astype(np.float64)
    return np.where(short.astype(np.float32) == x, short, x.astype(np.float64))
