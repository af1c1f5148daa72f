"""Runs near a path that holds none, for the message that says so."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from metaevo.errors import CheckpointError
from metaevo.storage._files import read_json
from metaevo.storage.verified import MAX_JSON

DEPTH = 3  # runs/NAME/sweep-ID/RUN
MOST_LOOKED_AT = 2_000  # entries of folders
MOST_READ = 16 << 20  # bytes of manifests
MOST_NAMED = 4


def is_run(folder: str | Path, unreadable: bool = False) -> bool:
    """Return True if the manifest in a folder is a run's.

    Args:
        folder: the folder.
        unreadable: what to return if there is one that cannot be read, cut short say.
    """
    try:
        manifest = read_json(Path(folder) / "manifest.json", MAX_JSON)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (CheckpointError, OSError):
        return unreadable
    return isinstance(manifest, dict) and "identity" in manifest


def below(folder: str | Path) -> list[Path]:
    """Return the runs in a folder and in its folders, to `DEPTH`, by name.

    Links are not followed. A folder of very many entries, or of very large manifests,
    is looked at in part.
    """
    return sorted(_below(Path(folder)))


def hint(folder: str | Path) -> str:
    """Return which runs a folder holds, as the end of a message; empty if none."""
    found = below(folder)
    if not found:
        return ""
    number = "1 run" if len(found) == 1 else f"{len(found)} runs"
    named = ", ".join(map(str, found[:MOST_NAMED]))
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"{folder} holds {number}: {named}{more}"


def _below(folder: Path) -> Iterator[Path]:
    level, left, unread = [folder], MOST_LOOKED_AT, MOST_READ
    for _ in range(DEPTH):
        following = []
        for place in level:
            with contextlib.suppress(OSError), os.scandir(place) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        return
                    if entry.is_dir(follow_symlinks=False):
                        path = place / entry.name
                        unread -= _size(path / "manifest.json")
                        if unread < 0:
                            return
                        if is_run(path):
                            yield path
                        else:
                            following.append(path)
        level = following


def _size(path: Path) -> int:
    """The bytes of a file; 0 if there is none."""
    with contextlib.suppress(OSError):
        return os.lstat(path).st_size
    return 0
