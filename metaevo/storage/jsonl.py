"""`metrics.jsonl`: one JSON object per generation; the run's true record."""

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
    """Appends records to a file.

    Args:
        path: the file; what lies behind `offset` is cut off, so that a generation
            that was logged but not checkpointed is not there twice.

    Raises:
        CheckpointError: the file is shorter than that.
        offset: bytes that the checkpoint vouches for.
    """

    def __init__(self, path: Path, offset: int = 0):
        # Appending makes the file; truncation never extends it.
        self._file = open(path, "ab")  # noqa: SIM115
        if os.path.getsize(path) < offset:
            raise CheckpointError(f"{path} is shorter than when it was checkpointed")
        self._file.truncate(offset)
        self._file.seek(0, os.SEEK_END)

    def log(self, record: Mapping[str, Any]) -> int:
        """Writes and syncs one record; returns the file's length."""
        line = json.dumps({k: _plain(v) for k, v in record.items()}, allow_nan=False)
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """All records of a file."""
    with open(path, "rb") as file:
        return [json.loads(line) for line in file]


def _plain(x: Any) -> Any:
    """Arrays as lists; JSON has no NaN and no infinity: null."""
    if isinstance(x, int | str | bool) or x is None:
        return x
    if np.ndim(x):
        return [_plain(y) for y in np.asarray(x).tolist()]
    x = float(x)
    return x if math.isfinite(x) else None
