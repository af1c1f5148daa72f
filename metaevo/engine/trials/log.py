"""`trials.jsonl`: how each trial of a run ended."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.engine.trials.processes import Ended
from metaevo.errors import CheckpointError
from metaevo.storage import jsonl
from metaevo.storage._files import read_lines


class Given(NamedTuple):
    """All that determines a trial.

    Attributes:
        name: of the trial, a digest of the others in hexadecimal digits.
        params: slot -> number, None, or a function as plain data.
        seed: of its random numbers.
        parent: name of the trial that it continues; None: it is newborn.
    """

    name: str
    params: Mapping[str, Any]
    seed: int
    parent: str | None


class TrialLog:
    """A line for each trial, which is on the disk before the trial counts.

    Args:
        path: the file, made with the first line. A last line that was cut short is
            then removed.

    Attributes:
        ended: name -> how that trial ended, in the order of their ends.

    Raises:
        CheckpointError: the file was altered.
    """

    def __init__(self, path: Path):
        there = path.exists()
        try:
            self.ended = {
                str(x["trial"]): Ended(
                    None if x["score"] is None else float(x["score"]),
                    str(x["problem"]),
                    float(x["seconds"]),
                )
                for x in (jsonl.read(path) if there else ())
            }
        except (KeyError, TypeError, ValueError):
            raise CheckpointError(f"{path} holds a line that is no trial's") from None
        lines = read_lines(path, jsonl.MAX_LINE) if there else ()
        self._path, self._size = path, sum(map(len, lines))
        self._log: jsonl.JsonlLogger | None = None
        self._lock = threading.Lock()

    def add(
        self, given: Given, ended: Ended, notes: Mapping[str, Any] | None = None
    ) -> None:
        """Record how a trial ended.

        Args:
            given: the trial.
            ended: how it ended.
            notes: what its line says besides.
        """
        numbers = {
            f"numbers/{name}": x
            for name, x in given.params.items()
            if isinstance(x, float)
        }
        record = {"trial": given.name, **ended._asdict(), "seed": given.seed}
        with self._lock:
            if self._log is None:
                self._log = jsonl.JsonlLogger(self._path, self._size)
            self._log.log(
                {**record, "parent": given.parent, **numbers, **(notes or {})}
            )
            self.ended[given.name] = ended

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()
