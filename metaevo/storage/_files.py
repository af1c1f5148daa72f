"""Files of run directories and artifacts: the functions that open them.

A crash leaves the old file or the new one. A folder may come from a stranger: what is
opened in it is a regular file. A link could lead out of the folder, and reading a pipe
or a device may never end.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from metaevo.errors import CheckpointError

MAX_DEPTH = 64  # of nested JSON
WANDB_LINKS = ("latest-run", "debug.log", "debug-internal.log", "debug-core.log")
"""Links that wandb makes in its folder. Only wandb uses them."""


# --- refusing what is no file ---------------------------------------------------------


def check_tree(directory: str | Path) -> None:
    """Check that a directory holds regular files and folders alone, at any depth.

    The directory itself may be a link, and need not exist.

    Raises:
        CheckpointError: there is a link, a pipe, a socket or a device in it.
    """
    root = Path(directory)
    waiting = [root] if root.is_dir() else []
    while waiting:
        # A running search may remove files in the meantime.
        with contextlib.suppress(FileNotFoundError):
            for entry in list(os.scandir(waiting.pop())):
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False):
                    parts = Path(entry.path).relative_to(root).parts
                    if parts[0] != "wandb" or parts[-1] not in WANDB_LINKS:
                        raise _refused(Path(entry.path))


def check_file(path: str | Path) -> None:
    """Check that a path is free or a regular file.

    Raises:
        CheckpointError: it is anything else.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise _refused(Path(path))


def check_folder(path: str | Path) -> None:
    """Check that a path is free or a folder, not a link to one.

    Raises:
        CheckpointError: it is anything else.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise _refused(Path(path), "a folder")


def _refused(path: Path, expected: str = "a regular file") -> CheckpointError:
    mode = path.lstat().st_mode
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFDIR: "a folder",
        stat.S_IFREG: "a file",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
    }
    found = kinds.get(stat.S_IFMT(mode), "a device")
    return CheckpointError(
        f"{path} is {found}, not {expected}, which is all that is used in the "
        "directory of a run; remove it"
    )


# --- reading --------------------------------------------------------------------------


def read_bytes(path: str | Path, limit: int | None = None) -> bytes:
    """Read a regular file.

    Args:
        path: the file. Folders above it may be links; it may not.
        limit: largest size in bytes; None: any.

    Raises:
        CheckpointError: it is no regular file, or larger.
        OSError: it is not there or cannot be read.
    """
    check_file(path)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise _refused(Path(path))
        if limit is not None and os.fstat(file.fileno()).st_size > limit:
            raise CheckpointError(f"{path} is larger than {limit >> 20} MiB")
        return file.read()


def parse_json(data: bytes) -> Any:
    """Parse JSON that is nested at most `MAX_DEPTH` deep.

    Raises:
        ValueError: it is not JSON, or is nested deeper.
    """
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        level = [found]
        for _ in range(MAX_DEPTH):
            level = [x for value in level for x in _inside(value)]
        if level:
            raise ValueError("nested too deeply")
    return found


def read_json(path: str | Path, limit: int | None = None) -> Any:
    """Read a regular file as JSON.

    Raises:
        CheckpointError: it is no regular file, too large, or not JSON.
        OSError: it is not there or cannot be read.
    """
    try:
        return parse_json(read_bytes(path, limit))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None


def _inside(value: Any) -> list:
    """The lists and dicts in a list or dict."""
    values = value.values() if isinstance(value, dict) else value
    return [x for x in values if isinstance(x, dict | list)]


# --- writing --------------------------------------------------------------------------


def open_append(path: str | Path) -> BinaryIO:
    """Open a regular file to append to and to read; make it if there is none.

    Raises:
        CheckpointError: it is no regular file.
    """
    check_file(path)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(path, flags | os.O_NONBLOCK, 0o666), "ab+")


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until it is on the disk."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file by a new one, or leave it as it was.

    Raises:
        CheckpointError: the path is no regular file.
    """
    check_file(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_synced(temporary, data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
