"""Long work in steps whose results are kept, so that a stopped process continues."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from metaevo.errors import CheckpointError
from metaevo.storage import checkpoint

NamedArrays = Mapping[str, np.ndarray]


def _go_on() -> None:
    """Do not pause."""


def _uncounted(found: NamedArrays) -> None:
    """Do not count."""


class Steps(NamedTuple):
    """A folder of finished steps.

    Attributes:
        folder: a folder per step; the caller removes it when all steps are done.
        digest: of all that determines the results and is not given to `step`, such as
            the search. A step that was kept under another digest is made again.
        pause: called after each step that was made; may raise `InterruptedRunError`.
        count: called with the result of each step, before.
    """

    folder: Path
    digest: str
    pause: Callable[[], None] = _go_on
    count: Callable[[NamedArrays], None] = _uncounted

    def kept(
        self, name: str, arrays: NamedArrays, *facts: object
    ) -> NamedArrays | None:
        """Return the result of a step; None if it has to be made.

        Args:
            name: name of the step's folder.
            arrays: arrays that determine the result, too.
            facts: plain data that determine the result, too.
        """
        folder = self.folder / name
        if not folder.is_dir():
            return None
        try:
            found, manifest = checkpoint.read(folder)
        except CheckpointError:
            return None
        return found if manifest["what"] == self._what(arrays, facts) else None

    def step(
        self,
        name: str,
        make: Callable[[], NamedArrays],
        arrays: NamedArrays,
        *facts: object,
    ) -> NamedArrays:
        """Return the result of a step, made and kept unless it was kept already.

        Args:
            name: name of the step's folder.
            make: makes the result.
            arrays: arrays that determine the result, too.
            facts: plain data that determine the result, too.

        Raises:
            InterruptedRunError: `make` was interrupted and nothing is kept, or `pause`
                raised it and the result is kept.
        """
        found = self.kept(name, arrays, *facts)
        if found is not None:
            self.count(found)
            return found
        found = make()
        checkpoint.write(self.folder / name, found, {"what": self._what(arrays, facts)})
        self.count(found)
        self.pause()
        return found

    def _what(self, arrays: NamedArrays, facts: tuple) -> str:
        text = json.dumps([self.digest, facts], sort_keys=True, default=str)
        found = hashlib.sha256(text.encode())
        for name in sorted(arrays):
            x = np.asarray(arrays[name])
            found.update(f"{name} {x.dtype} {x.shape}".encode())
            found.update(np.ascontiguousarray(x).tobytes())
        return found.hexdigest()
