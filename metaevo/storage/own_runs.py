"""A record of one's own runs, outside of their directories.

A run directory may come from a stranger, so what its manifest names is not imported.
The runs of this user are known by a record in the user's cache. It holds the file of
the search and the `key=value` arguments, as they were given here.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.errors import CheckpointError
from metaevo.storage import manifests
from metaevo.storage._files import read_json, replace_file

MAX_RECORD = 1 << 20  # bytes
FOLDERS = ("searches", "inner_loops")
"""Folders that are packages of searches and algorithms, wherever they lie."""


class Source(NamedTuple):
    """The place of a search function, to make the search again by.

    Attributes:
        file: source file.
        module: name under which the file was imported, such as `package.module`; None:
            it was started as a program.
        function: name of the function in it.
    """

    file: Path
    module: str | None = None
    function: str = "search"

    @property
    def name(self) -> str:
        """The name under which a program may import the file from `root`."""
        if self.module is not None:
            return self.module
        folder = self.file.parent.name
        return f"{folder}." * (folder in FOLDERS) + self.file.stem

    @property
    def root(self) -> Path:
        """The folder from which the file is imported."""
        if self.module is not None:
            depth = self.module.count(".") + (self.file.stem == "__init__")
            return self.file.parents[depth]
        folder = self.file.parent
        return folder.parent if folder.name in FOLDERS else folder

    @staticmethod
    def of(function: Callable) -> Source | None:
        """Return the place of a function; None if it has no file, as in a notebook."""
        function = inspect.unwrap(function)
        try:
            file = Path(inspect.getfile(function)).absolute()
        except (TypeError, OSError):
            return None
        if not file.is_file():
            return None
        module = str(getattr(function, "__module__", ""))
        tail = file.parent if file.stem == "__init__" else file.with_suffix("")
        parts = module.split(".")
        found = module if tail.parts[-len(parts) :] == tuple(parts) else None
        return Source(file, found, getattr(function, "__qualname__", "search"))


class OwnRun(NamedTuple):
    """A run that this user started.

    Attributes:
        source: where the search is made.
        sha256: digest of that file when the run was last started.
        changes: `key=value` of what differs from the search's defaults.
    """

    source: Source
    sha256: str
    changes: tuple[str, ...]

    @property
    def file_changed(self) -> bool:
        """The source file is not as it was when the run was last started."""
        file = self.source.file
        return file.is_file() and sha256(file) != self.sha256


def folder() -> Path:
    """Return `$XDG_CACHE_HOME/metaevo/runs`, else `~/.cache/metaevo/runs`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache") / "metaevo" / "runs"


def remember(
    directory: str | Path,
    manifest: Mapping[str, Any],
    source: Source,
    changes: Sequence[str],
) -> None:
    """Record that this user runs a search in a directory.

    The arguments of its first start are kept: those of a later one, such as a time
    limit, are its own. A run goes on if the cache cannot be written; it is then no run
    of this user's.
    """
    known = recall(directory, manifest)
    changes = changes if known is None else known.changes
    file = source.file.resolve()
    with contextlib.suppress(OSError):
        record = {
            "run": _run_digest(manifest),
            "file": str(file),
            "module": source.module,
            "function": source.function,
            "sha256": sha256(file),
            "changes": list(changes),
        }
        write_record(directory, "json", record)


def recall(directory: str | Path, manifest: Mapping[str, Any]) -> OwnRun | None:
    """Return the record of the run in a directory.

    Args:
        directory: the run directory.
        manifest: its manifest. A record of another run in that place is not returned.

    Returns:
        the record; None if this user has not started the run here.
    """
    try:
        record = read_record(directory, "json")
        if record["run"] == _run_digest(manifest):
            changes = tuple(map(str, record["changes"]))
            file, module = Path(record["file"]), record["module"]
            source = Source(file, module, record["function"])
            return OwnRun(source, record["sha256"], changes)
    except (OSError, CheckpointError, KeyError, TypeError):
        pass
    return None


def write_record(directory: str | Path, ending: str, record: Mapping) -> None:
    """Write a record of a run directory, unless the cache cannot be written.

    Args:
        directory: the run directory.
        ending: of the record's file, one for each kind of record.
        record: plain data.
    """
    with contextlib.suppress(OSError, CheckpointError):
        path = _path(directory, ending)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"directory": str(Path(directory).resolve()), **record}
        replace_file(path, json.dumps(record, indent=1).encode())


def read_record(directory: str | Path, ending: str) -> Any:
    """Read a record of a run directory.

    Args:
        directory: the run directory.
        ending: as of `write_record`.

    Raises:
        CheckpointError: it is no regular file, too large, or not JSON.
        OSError: there is none, or it cannot be read.
    """
    return read_json(_path(directory, ending), MAX_RECORD)


def _path(directory: str | Path, ending: str) -> Path:
    name = hashlib.sha256(os.fsencode(Path(directory).resolve())).hexdigest()[:32]
    return folder() / f"{name}.{ending}"


def _run_digest(manifest: Mapping[str, Any]) -> str:
    """The digest of a run's identity, the horizon aside, which may grow."""
    identity = dict(manifest["identity"])
    settings = dict(identity.pop("settings"))
    settings.pop(manifests.MAY_CHANGE, None)
    text = json.dumps([identity, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def sha256(file: Path) -> str:
    """Return the sha256 of a file, in hexadecimal digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
