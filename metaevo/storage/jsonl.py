"""`metrics.jsonl`: one JSON object per generation, the run's own record."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.errors import CheckpointError
from metaevo.storage._files import open_append, parse_json, read_bytes

_RESTORE = (
    "restore it from a copy; without one the run cannot go on, but its solution can "
    "still be loaded, played and compared, and another run can start from it "
    "(run.start_from)"
)
_FITNESS = ("best", "mean", "median", "sd", "worst", "q25", "q75")


class JsonlLogger:
    """Append records to a file.

    Args:
        path: the file, made if it does not exist.
        offset: length in bytes that the checkpoint recorded. The rest of the file is
            cut off, so that a generation that was logged but not checkpointed is not
            there twice.
        sha256: digest of these bytes that the checkpoint recorded; None: it has none.

    Attributes:
        sha256: digest of what the file holds.

    Raises:
        CheckpointError: the file is shorter than `offset`, or was altered.
    """

    def __init__(self, path: Path, offset: int = 0, sha256: str | None = None):
        self._path = Path(path)
        if offset and not os.path.lexists(path):
            raise CheckpointError(f"{path} is missing; {_RESTORE}")
        self._file = open_append(path)
        try:
            self._digest = self._verified(offset, sha256)
        except BaseException:
            self._file.close()
            raise
        self._file.truncate(offset)
        self._size = offset

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def _verified(self, offset: int, sha256: str | None) -> Any:
        """The digest of the first `offset` bytes, which must be `sha256`."""
        size = os.fstat(self._file.fileno()).st_size
        if size < offset:
            raise CheckpointError(
                f"{self._path} is shorter than when it was checkpointed: {size} of "
                f"{offset} bytes; {_RESTORE}"
            )
        self._file.seek(0)
        digest = hashlib.sha256(self._file.read(offset))
        if sha256 is not None and digest.hexdigest() != sha256:
            raise CheckpointError(
                f"{self._path} was altered since it was checkpointed; {_RESTORE}"
            )
        return digest

    def log(self, record: Mapping[str, Any]) -> int:
        """Write and sync one record, and return the file's length in bytes."""
        line = json.dumps({k: _plain(v) for k, v in record.items()}, allow_nan=False)
        data = line.encode() + b"\n"
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._digest.update(data)
        self._size += len(data)
        return self._size

    def check(self) -> None:
        """Check that the file is still the one under its name, and ours alone.

        Raises:
            CheckpointError: it was deleted or replaced, or another process wrote to it.
        """
        mine = os.fstat(self._file.fileno())
        try:
            there = os.lstat(self._path)
        except FileNotFoundError:
            raise CheckpointError(f"{self._path} has vanished") from None
        if (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino):
            raise CheckpointError(f"{self._path} was replaced by another file")
        if mine.st_size != self._size:
            raise CheckpointError(f"{self._path} was written to by another process")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """Return all records of a file; a last line that was cut short is left out.

    Raises:
        CheckpointError: the file is missing, no regular file, or a line is not JSON.
    """
    try:
        *lines, _ = read_bytes(path).split(b"\n")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; {_RESTORE}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            record = parse_json(line)
        except ValueError as error:
            raise CheckpointError(f"{path}, line {number}: {error}") from None
        if not isinstance(record, dict):
            raise CheckpointError(f"{path}, line {number}: not a record")
        found.append(record)
    return found


def read_generations(path: Path) -> list[dict[str, Any]]:
    """Return the record of each generation, none missing and none doubled.

    Raises:
        CheckpointError: as `read`; or there are none, or one is no record of a
            generation.
    """
    records = read(path)
    if not records:
        raise CheckpointError(f"{path} holds no generation yet")
    for number, record in enumerate(records):
        problem = _problem(number, record)
        if problem:
            raise CheckpointError(f"{path}, line {number + 1}: {problem}")
    return records


def count(path: Path) -> int:
    """Return the number of whole lines of a file; 0 if there is none."""
    return read_bytes(path).count(b"\n") if os.path.lexists(path) else 0


def _problem(number: int, record: Mapping[str, Any]) -> str | None:
    """The first thing that makes `record` no record of generation `number`."""
    if record.get("generation") != number or record["generation"] is True:
        return f"expected generation {number}"
    for key, x in record.items():
        if not (_is_number(x) or _are_numbers(x)):
            return f"{key!r} is neither a number nor a list of numbers"
    scalars = (*(f"fitness_{x}" for x in _FITNESS), "failed")
    missing = [k for k in scalars if k not in record or isinstance(record[k], list)]
    if missing or record["failed"] is None:
        return f"{', '.join(missing) or 'failed'} is not a number"
    if not isinstance(record.get("population"), list):
        return "'population' is not a list"
    return _problem_of_lineage(record) if "parents" in record else None


def _problem_of_lineage(record: Mapping[str, Any]) -> str | None:
    """The first thing that makes a member's line unreadable in `record`."""
    parents = record["parents"]
    size = len(parents) if isinstance(parents, list) else 0
    if not size or not all(isinstance(x, int) and -1 <= x < size for x in parents):
        return "'parents' is not a list of members"
    for key, x in record.items():
        if key.startswith("numbers/") and not (_are_numbers(x) and len(x) == size):
            return f"{key!r} has not one number for each member"
    return None


def _is_number(x: Any) -> bool:
    return x is None or isinstance(x, int | float)


def _are_numbers(x: Any) -> bool:
    return isinstance(x, list) and all(_is_number(y) or _are_numbers(y) for y in x)


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
