"""`metrics.jsonl`: one JSON object per generation, the run's own record."""

from __future__ import annotations

import collections
import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.errors import CheckpointError, ConfigError
from metaevo.storage._files import open_append, parse_json, read_lines

MAX_LINE = 32 << 20
"""Most bytes of a record: the fitness of 2.7 million members, or that and ten numbers
each of 250,000."""

MOST_PARSED = 16 << 20
"""Most bytes that `sample` parses of evenly spaced records."""

MOST_LAST = 4 << 20
"""Most bytes that `sample` parses of the last ones, but for the very last."""

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
        digest = hashlib.sha256()
        for line in read_lines(self._path, MAX_LINE, offset):
            digest.update(line)
            offset -= len(line)
        if offset:
            raise CheckpointError(
                f"{self._path} was not checkpointed at the end of a line; {_RESTORE}"
            )
        if sha256 is not None and digest.hexdigest() != sha256:
            raise CheckpointError(
                f"{self._path} was altered since it was checkpointed; {_RESTORE}"
            )
        return digest

    def log(self, record: Mapping[str, Any]) -> int:
        """Write and sync one record, and return the file's length in bytes.

        Raises:
            ConfigError: the record is larger than `MAX_LINE`.
        """
        line = json.dumps({k: plain(v) for k, v in record.items()}, allow_nan=False)
        data = line.encode() + b"\n"
        if len(data) > MAX_LINE:
            raise ConfigError(
                f"population_size: the record of a generation has {len(data) >> 20} "
                f"MiB, of at most {MAX_LINE >> 20}; give fewer members"
            )
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
        CheckpointError: the file is missing, no regular file, or a line is not JSON or
            longer than `MAX_LINE`.
    """
    return [*_records(path)]


def read_generations(path: Path, num: int | None = None) -> list[dict[str, Any]]:
    """Return the record of each generation, none missing and none doubled.

    Args:
        num: return that many, the first ones, and leave what follows unread; None: all.

    Raises:
        CheckpointError: as `read`; or there are none, fewer than `num`, or one is no
            record of a generation.
    """
    records = [x for x, _ in itertools.islice(generations(path), num)]
    if len(records) < (num or 1):
        held = f"{len(records)} of {num} generations" if num else "no generation yet"
        raise CheckpointError(f"{path} holds {held}")
    return records


def generations(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield the record of each generation, and its line.

    Raises:
        CheckpointError: as `read`; or one is no record of a generation.
    """
    for number, line in enumerate(_lines(path)):
        yield _generation(path, number, line), line


def sample(
    path: Path, spaced: int, last: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Read some generations of a log of any length, in little time and memory.

    Args:
        spaced: evenly spaced ones that are enough. There are fewer than twice as many.
        last: how many of the last ones.

    Returns:
        evenly spaced records without their lists, the last one among them; and the last
        ones whole, fewer if they are long. Both are empty without a record.

    Raises:
        CheckpointError: as `generations`, for those that are read.
    """
    found: dict[int, dict[str, Any]] = {}
    newest: collections.deque[tuple[int, bytes]] = collections.deque(maxlen=last)
    size = path.stat().st_size if os.path.lexists(path) else 0
    every = 0
    for number, line in enumerate(read_lines(path, MAX_LINE) if size else ()):
        every = every or max(1, size // len(line) // spaced, size // MOST_PARSED)
        if number % every == 0:
            found[number] = _generation(path, number, line)
        while newest and sum(len(x) for _, x in newest) > MOST_LAST:
            newest.popleft()
        newest.append((number, line))
    whole = {number: _generation(path, number, line) for number, line in newest}
    found |= dict([*whole.items()][-1:])
    scalars = [
        {key: x for key, x in record.items() if not isinstance(x, list)}
        for record in found.values()
    ]
    return scalars, [*whole.values()]


def count(path: Path) -> int:
    """Return the number of whole lines of a file; 0 if there is none.

    Raises:
        CheckpointError: it is no regular file, or a line is longer than `MAX_LINE`.
    """
    if not os.path.lexists(path):
        return 0
    return sum(1 for _ in read_lines(path, MAX_LINE))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file."""
    for number, line in enumerate(_lines(path)):
        yield _record(path, number, line)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        yield from read_lines(path, MAX_LINE)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; {_RESTORE}") from None


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """Parse a line, of which `number` precede."""
    try:
        record = parse_json(line)
    except ValueError as error:
        raise CheckpointError(f"{path}, line {number + 1}: {error}") from None
    if not isinstance(record, dict):
        raise CheckpointError(f"{path}, line {number + 1}: not a record")
    return record


def _generation(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """Parse a line as the record of a generation."""
    record = _record(path, number, line)
    problem = _problem(number, record)
    if problem:
        raise CheckpointError(f"{path}, line {number + 1}: {problem}")
    return record


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
    return _problem_of_members(record)


def _problem_of_members(record: Mapping[str, Any]) -> str | None:
    """The first thing that makes numbers or the line of a member unreadable."""
    size = len(record["population"])
    parents = record.get("parents", [-1] * size)
    lists = isinstance(parents, list) and len(parents) == size
    if not lists or not all(isinstance(x, int) and -1 <= x < size for x in parents):
        return "'parents' is not a list of members"
    for key, x in record.items():
        if key.startswith("numbers/") and not (_are_numbers(x) and len(x) == size):
            return f"{key!r} has not one number for each member"
    return None


def _is_number(x: Any) -> bool:
    return x is None or isinstance(x, int | float)


def _are_numbers(x: Any) -> bool:
    return isinstance(x, list) and all(_is_number(y) or _are_numbers(y) for y in x)


def plain(x: Any) -> Any:
    """Convert arrays to lists, and NaN and infinity, which JSON lacks, to None.

    Numbers of float32 have the fewest digits that become the same float32 again.
    """
    if isinstance(x, int | str | bool) or x is None:
        return x
    x = np.asarray(x)
    if x.dtype == np.float32:
        x = _shortest(x)
    if x.ndim:
        return [plain(y) for y in x.tolist()]
    x = float(x)
    return x if math.isfinite(x) else None


def _shortest(x: np.ndarray) -> np.ndarray:
    """Float32 as float64 of few digits that become the same float32 again.

    >>> _shortest(np.float32([0.1, 1 / 3])).tolist()
    [0.1, 0.33333334]
    """
    short = x.astype(str).astype(np.float64)
    return np.where(short.astype(np.float32) == x, short, x.astype(np.float64))
