"""Memory: what a search needs, what this process holds, and what is free."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.text import byte_size

__all__ = [
    "ACCELERATOR",
    "COMPARISON",
    "SEARCH",
    "MemoryNeed",
    "available",
    "free",
    "give_back",
    "resident",
    "share_arenas",
]

# Bytes of what a process compiles and imports after the plan: during the search, and
# until the end of the comparison and the report. Measured with PPO, DQN, SAC, Ape-X and
# R2D2.
SEARCH, COMPARISON = 128 << 20, 300 << 20

# Bytes of an accelerator beside its programs: what a compilation tries, and libraries.
# On an H200, PPO and DQN peaked 75 to 324 MiB above their programs.
ACCELERATOR = 384 << 20
M_ARENA_MAX = -8  # of malloc.h
ROOT = Path("/")


class MemoryNeed(NamedTuple):
    """Bytes that a search needs at its peak, on all of its devices.

    Attributes:
        process: What the process holds before the first generation, the interpreter,
            libraries and compiled programs, and what will be compiled later. On an
            accelerator, what it holds there beside its programs.
        training: A round of training: arguments, results and temporary arrays.
        carried: Copies of the members that live on from generation to generation.
    """

    process: int
    training: int
    carried: int

    @property
    def peak(self) -> int:
        """Sum of all, the peak of the process on a CPU."""
        return sum(self)

    def __str__(self) -> str:
        """Return the peak and its parts.

        >>> str(MemoryNeed(300 << 20, 1 << 20, 0))
        '301 MiB at its peak: 300 MiB the process, 1 MiB a round of training'
        """
        parts = [f"{byte_size(self.process)} the process"] if self.process else []
        parts.append(f"{byte_size(self.training)} a round of training")
        if self.carried:
            parts.append(f"{byte_size(self.carried)} members that live on")
        return f"{byte_size(self.peak)} at its peak: {', '.join(parts)}"


def resident(root: Path = ROOT) -> int:
    """Return the bytes of memory that this process holds; 0 if that is not known."""
    status = root / "proc/self/status"
    return _field(status, "VmRSS:") or 0


def give_back() -> None:
    """Give free memory of this process back to the system, where that is glibc.

    Compilation leaves hundreds of MiB in pieces, which XLA's arrays do not fit into.
    """
    _glibc("malloc_trim", 0)


def share_arenas(num_arenas: int) -> None:
    """Let all threads of this process allocate from few arenas, where that is glibc.

    By default each thread of XLA's compiler gets its own, up to eight a core, and what
    it frees serves no other. `$MALLOC_ARENA_MAX` has precedence.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        _glibc("mallopt", M_ARENA_MAX, num_arenas)


def _glibc(name: str, *args: int) -> None:
    """Call a function of the C library if it has one of that name."""
    if sys.platform == "linux":
        function = getattr(ctypes.CDLL(None), name, None)
        if function is not None:
            function(*args)


def available(device: Any) -> int | None:
    """Return the bytes that are free on a JAX device.

    For a CPU these are the free bytes of the machine or of a control group.

    Returns:
        The bytes; None if the platform does not report them.
    """
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return free()


def free(root: Path = ROOT) -> int | None:
    """Return the bytes that this process may still take from the machine.

    A process can be in several nested control groups, of version 1 or 2, each with a
    limit. Pages of files that were not read of late count as free.

    Args:
        root: Folder that has `proc` and `sys`.

    Returns:
        The least of what is free; None if nothing is known.
    """
    found = [_field(root / "proc/meminfo", "MemAvailable:")]
    for folder, version in _groups(root):
        names = _FILES[version]
        limit, used = (_number(folder / name) for name in names[:2])
        if limit is not None and used is not None:
            cached = _field(folder / "memory.stat", names[2], unit=1) or 0
            found.append(max(0, limit - used + cached))
    return min((x for x in found if x is not None), default=None)


# Limit, use, and the entry of memory.stat for pages of files, by version.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def _groups(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield the folders of the memory groups of this process, and their versions."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        mounts = root / "sys/fs/cgroup"
        if not controllers:
            version, tops = 2, [mounts, mounts / "unified"]
        elif "memory" in controllers.split(","):
            version, tops = 1, [mounts / "memory"]
        else:
            continue
        # A container may show its own group as the root, and the host's path.
        parts = Path(path).relative_to("/").parts
        for top in tops:
            for depth in range(len(parts), -1, -1):
                folder = top.joinpath(*parts[:depth])
                if folder.is_dir():
                    yield folder, version


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None  # `max`: there is no limit


def _field(path: Path, name: str, unit: int = 1024) -> int | None:
    """Return the number that follows `name` at the start of a line, in bytes."""
    for line in _text(path).splitlines():
        words = line.split()
        if words and words[0] == name:
            return unit * int(words[1])
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
