"""A record of the wandb runs that this user's own runs are sent to.

`wandb.json` in a run directory names a wandb run. It may be a stranger's file, or a
copy, and a run that continued it would write into another run of the user's project. So
a wandb run is continued only if this record names it, which lies outside of the run's
directory, beside that of `own_runs`.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from metaevo.errors import CheckpointError
from metaevo.storage import own_runs, run_directory

RUN, UNSENT = "wandb", "unsent"


def remember(directory: str | Path, name: str, kind: str = RUN) -> None:
    """Record the id of the wandb run that the run in `directory` is sent to.

    A run goes on if the cache cannot be written; the next start is a new wandb run.

    Args:
        directory: the run directory.
        name: the id.
        kind: `RUN`, or `UNSENT` for one that a push wrote for `wandb sync`.
    """
    with contextlib.suppress(OSError, CheckpointError):
        record = {"manifest": _digest(directory), "wandb": name}
        own_runs.write_record(directory, f"{kind}.json", record)


def recall(directory: str | Path, kind: str = RUN) -> str | None:
    """Return the id that was recorded; None if there is none for the run there."""
    with contextlib.suppress(OSError, CheckpointError, KeyError, TypeError):
        record = own_runs.read_record(directory, f"{kind}.json")
        if record["manifest"] == _digest(directory):
            return str(record["wandb"])
    return None


def _digest(directory: str | Path) -> str:
    """The digest of the manifest, or of nothing if there is none."""
    try:
        return run_directory.manifest_digest(directory)
    except FileNotFoundError:
        return hashlib.sha256(b"").hexdigest()
