"""A record of one's own runs, outside of their directories.

A run directory may come from a stranger, so what its manifest names is not imported.
The runs of this user are known by a record in the user's cache. It holds the file of
the search and the `key=value` arguments, as they were given here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.errors import CheckpointError
from metaevo.storage import manifests
from metaevo.storage._files import read_json, replace_file

MAX_RECORD = 1 << 20  # bytes


class OwnRun(NamedTuple):
    """A run that this user started.

    Attributes:
        file: source file of the search.
        sha256: digest of that file when the run was last started.
        changes: `key=value` of what differs from the search's defaults.
    """

    file: Path
    sha256: str
    changes: tuple[str, ...]

    @property
    def file_changed(self) -> bool:
        """The source file is not as it was when the run was last started."""
        return self.file.is_file() and _sha256(self.file) != self.sha256


def folder() -> Path:
    """Return `$XDG_CACHE_HOME/metaevo/runs`, else `~/.cache/metaevo/runs`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache") / "metaevo" / "runs"


def remember(
    directory: str | Path,
    manifest: Mapping[str, Any],
    file: str | Path,
    changes: Sequence[str],
) -> None:
    """Record that this user runs a search in a directory.

    The arguments of its first start are kept: those of a later one, such as a time
    limit, are its own. A run goes on if the cache cannot be written; it is then no run
    of this user's.
    """
    known = recall(directory, manifest)
    changes = changes if known is None else known.changes
    file = Path(file).resolve()
    with contextlib.suppress(OSError, CheckpointError):
        path = _path(directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "directory": str(Path(directory).resolve()),
            "run": _run_digest(manifest),
            "file": str(file),
            "sha256": _sha256(file),
            "changes": list(changes),
        }
        replace_file(path, json.dumps(record, indent=1).encode())


def recall(directory: str | Path, manifest: Mapping[str, Any]) -> OwnRun | None:
    """Return the record of the run in a directory.

    Args:
        directory: the run directory.
        manifest: its manifest. A record of another run in that place is not returned.

    Returns:
        the record; None if this user has not started the run here.
    """
    try:
        record = read_json(_path(directory), MAX_RECORD)
        if record["run"] == _run_digest(manifest):
            changes = tuple(map(str, record["changes"]))
            return OwnRun(Path(record["file"]), record["sha256"], changes)
    except (OSError, CheckpointError, KeyError, TypeError):
        pass
    return None


def _path(directory: str | Path) -> Path:
    name = hashlib.sha256(os.fsencode(Path(directory).resolve())).hexdigest()[:32]
    return folder() / f"{name}.json"


def _run_digest(manifest: Mapping[str, Any]) -> str:
    """The digest of a run's identity, the horizon aside, which may grow."""
    identity = dict(manifest["identity"])
    settings = dict(identity.pop("settings"))
    settings.pop(manifests.MAY_CHANGE, None)
    text = json.dumps([identity, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
