"""Searches by name, and the searches of finished runs."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metaevo.cli import config, listing
from metaevo.errors import ConfigError
from metaevo.storage.run_directory import read_manifest, require_finished
from metaevo.types import Search


def known_search(name: str) -> str:
    """Return `name` if there is such a search.

    Raises:
        ConfigError: There is none; the message names the nearest one.
    """
    names = listing.search_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"no search {name!r}.{hint} Try: metaevo list searches")
    return name


def finished(directory: str) -> dict[str, Any]:
    """Return the manifest of the finished run in `directory`.

    Raises:
        ConfigError: There is no run, or it has no solution yet.
        CheckpointError: The manifest is damaged.
    """
    manifest = read_manifest(directory)
    require_finished(directory)
    return manifest


def remade(directory: str | Path, changes: Sequence[str] = ()) -> Search:
    """Return the search of a run, made again with further changes.

    Args:
        directory: Directory of the run.
        changes: `key=value` arguments that come after those of the run.

    Raises:
        ConfigError: There is no run, its search is not there, or a change is wrong.
    """
    manifest = read_manifest(directory)
    name = known_search(manifest["identity"]["search"])
    search = getattr(importlib.import_module(f"searches.{name}"), "search", None)
    if search is None:
        raise ConfigError(f"searches/{name}.py has no function `search` to make it by")
    arguments = config.parse(search, [*manifest["changes"], *changes])
    del arguments["run"]
    return search(**arguments)
