"""Files of run directories and artifacts: the functions that open them.

A crash leaves the old file or the new one. A folder may come from a stranger: what is
opened in it is a regular file. A link could lead out of the folder, and reading a pipe
or a device may never end.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from metaevo.errors import CheckpointError
from metaevo.storage import obeyed

MAX_DEPTH = 64  # of nested JSON
MAX_BRACKETS = 1_000_000  # of JSON: an empty list takes 28 times its text
TRIALS = "trials"  # the folder in a run directory where trials write
MAX_FOLDERS = 32  # that are nested in a run directory
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_SAFELY = sum(
    getattr(os, name, 0)
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
)
"""Flags of `os.open`: no link is followed and no pipe waited for. Windows has neither
of these two; there `check_file` alone refuses links."""


# --- refusing what is no file ---------------------------------------------------------


def check_tree(directory: str | Path) -> None:
    """Check that a directory holds regular files and folders alone, at any depth.

    The directory itself may be a link, and need not exist. What is below its folder
    `trials` is left out: programs of the user write there, and nothing here opens it.

    Raises:
        CheckpointError: there is a link, a pipe, a socket or a device in it, a file
            with a second name, a file that wandb or matplotlib would obey, or folders
            are nested deeper than `MAX_FOLDERS`.
    """
    root = Path(directory)
    waiting: list[tuple[str, tuple[str, ...]]] = []
    if root.is_dir():
        waiting.append((str(root), ()))
    while waiting:
        folder, parts = waiting.pop()
        if len(parts) > MAX_FOLDERS:
            raise CheckpointError(
                f"{root}: folders nested more than {MAX_FOLDERS} deep in {parts[0]!r}, "
                "which no run has; remove it"
            )
        # A running search may remove files in the meantime.
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in list(entries):
                inside = (*parts, entry.name)
                if inside == (TRIALS,) and entry.is_dir(follow_symlinks=False):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, inside))
                    continue
                with contextlib.suppress(FileNotFoundError):
                    _check_entry(entry, inside)


def _check_entry(entry: os.DirEntry, parts: tuple[str, ...]) -> None:
    """Check an entry of a run directory that is no folder.

    Args:
        entry: the entry.
        parts: names of the folders below the run directory, and its own.

    Raises:
        CheckpointError: it is no regular file with one name, or wandb or matplotlib
            would obey it.
    """
    if program := obeyed.program_steered_by(parts):
        raise CheckpointError(
            f"{entry.path} would steer {program}, which is not allowed in the "
            "directory of a run; remove it"
        )
    if not entry.is_file(follow_symlinks=False):
        if not (entry.is_symlink() and obeyed.may_link(parts)):
            raise _refused(Path(entry.path))
    elif entry.stat(follow_symlinks=False).st_nlink > 1:
        raise _linked(Path(entry.path))


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


def _linked(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path} has a second name (it is a hard link), so writing to it changes "
        "another file; put a copy in its place"
    )


# --- reading --------------------------------------------------------------------------


def open_read(path: str | Path) -> BufferedReader:
    """Open a regular file to read.

    Args:
        path: the file. Folders above it may be links; it may not.

    Raises:
        CheckpointError: it is no regular file.
        OSError: it is not there or cannot be read.
    """
    check_file(path)
    handle = os.open(path, os.O_RDONLY | _SAFELY)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _refused(Path(path))
    return open(handle, "rb")


def read_bytes(path: str | Path, limit: int) -> bytes:
    """Read a regular file. Its size is compared before a byte is read.

    Args:
        path: as of `open_read`.
        limit: largest size in bytes. A sparse file of terabytes takes no room in an
            archive.

    Raises:
        CheckpointError: it is no regular file, or larger.
        OSError: it is not there or cannot be read.
    """
    with open_read(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise CheckpointError(f"{path} is larger than {limit >> 20} MiB")
        return file.read(limit)


def read_lines(
    path: str | Path, limit: int, size: int | None = None
) -> Iterator[bytes]:
    """Yield the whole lines of a regular file, with their line breaks.

    A last line without a line break is left out.

    Args:
        path: as of `open_read`.
        limit: most bytes of a line; no more than that is in memory at a time.
        size: leave out what follows this many bytes; None: nothing.

    Raises:
        CheckpointError: it is no regular file, or a line is longer.
        OSError: it is not there or cannot be read.
    """
    with open_read(path) as file:
        number, rest = 0, os.fstat(file.fileno()).st_size if size is None else size
        while line := file.readline(min(limit + 1, rest)):
            number += 1
            rest -= len(line)
            if len(line) > limit:
                raise CheckpointError(
                    f"{path}, line {number}: longer than {limit >> 20} MiB"
                )
            if line.endswith(b"\n"):
                yield line


def parse_json(data: bytes) -> Any:
    """Parse JSON in UTF-8 that is nested at most `MAX_DEPTH` deep.

    Raises:
        ValueError: it is not JSON, is nested deeper, has more than `MAX_BRACKETS` lists
            and objects, or holds a lone surrogate, which is no character. Those by
            which Python names the bytes of a path (U+DC80 to U+DCFF) may be there.
    """
    brackets = data.count(b"[") + data.count(b"{")
    if brackets > MAX_BRACKETS:
        raise ValueError(f"more than {MAX_BRACKETS:,} lists and objects")
    try:
        found = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if _SURROGATE.search(data):
        text = json.dumps(found, ensure_ascii=False)
        text.encode("utf-8", "surrogateescape")  # UnicodeEncodeError is a ValueError
    if brackets > MAX_DEPTH:
        level = [found]
        for _ in range(MAX_DEPTH):
            level = [x for value in level for x in _inside(value)]
        if level:
            raise ValueError("nested too deeply")
    return found


def read_json(path: str | Path, limit: int) -> Any:
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
        CheckpointError: it is no regular file, or has a second name.
    """
    check_file(path)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | _SAFELY
    handle = os.open(path, flags, 0o666)
    if os.fstat(handle).st_nlink > 1:
        os.close(handle)
        raise _linked(Path(path))
    return open(handle, "ab+")


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until it is on the disk."""
    path.unlink(missing_ok=True)
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where folders can be opened."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
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
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # writing to a full disk names none
        raise
    sync_folder(path.parent)
