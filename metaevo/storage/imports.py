"""Imports for a run or an artifact: where they look, and never below its directory.

A run directory may come from a stranger, and a user may work in it. So the current
folder never comes before another, where it would hide modules of Python's own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any


def below(path: str | Path, folder: str | Path) -> bool:
    """Return True if a path lies in a folder or is it, links followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def places(root: Path | None, apart_from: Path, trusted: bool) -> list[str]:
    """Return the folders that imports look into, as in `sys.path`.

    Args:
        root: the first one, the user's own; None: there is none.
        apart_from: the directory of the run or artifact, which is left out.
        trusted: look into the current folder, after all others.
    """
    here = os.path.realpath(".")
    others = [x for x in sys.path if x and (trusted or os.path.realpath(x) != here)]
    found = [str(root)] * (root is not None) + others + [""] * trusted
    return [x for x in found if not below(x, apart_from)]


@contextlib.contextmanager
def importing(looked_into: Sequence[str], apart_from: Path) -> Iterator[None]:
    """Let imports look into some folders, and find nothing below another.

    Args:
        looked_into: as `places` returns them.
        apart_from: the directory of the run or artifact.
    """
    finder = _NothingBelow(apart_from)
    before = sys.path[:]
    sys.path[:] = looked_into
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.path[:] = before
        sys.meta_path.remove(finder)


def source_file(module: str, looked_into: Sequence[str]) -> Path | None:
    """Return the source file of a module, and import nothing; None if there is none."""
    path, origin = looked_into, None
    for name in module.split("."):
        # Without the packages that it is in, which would have to be imported.
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path, origin = list(spec.submodule_search_locations or ()), spec.origin
    return Path(origin) if origin and origin.endswith(".py") else None


class _NothingBelow:
    """Finder of modules that refuses those below a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin and below(spec.origin, self.folder):
            raise ImportError(
                f"{name} lies in {self.folder}, from which nothing is imported"
            )
