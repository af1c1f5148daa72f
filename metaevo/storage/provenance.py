"""Versions, devices and the state of source files, as a run's manifest has them."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("metaevo", "jax", "jaxlib", "optax", "flax", "evosax", "gymnax")
_INSTALLED = Path(__file__).parents[2]


def surroundings(device: str) -> dict[str, Any]:
    """Return versions, device and compiler flags, which the bits of a run depend on.

    Args:
        device: description of the devices.
    """
    return {
        "versions": {package: _version(package) for package in PACKAGES},
        "python": platform.python_version(),
        "device": device,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def changes(
    manifest: Mapping[str, Any], device: str, sources: Mapping[str, str]
) -> list[str]:
    """Return what is not as it was when a run was started, a sentence each.

    Args:
        manifest: the run's manifest.
        device: description of the devices.
        sources: digests of the source files as they are. A manifest of metaevo 0.1
            holds none, and nothing is known to have changed.
    """
    then = manifest.get("sources") or sources
    found = [
        f"{name} has changed since this run was started"
        for name in sorted(then.keys() | sources.keys())
        if then.get(name) != sources.get(name)
    ]
    now = surroundings(device)
    versions = {f"version of {x}": v for x, v in now.pop("versions").items()}
    then = manifest.get("versions", {})
    old = {f"version of {x}": then.get(x) for x in PACKAGES if x in then} | {
        key: manifest[key] for key in now if key in manifest
    }
    found += [
        f"{key} was {old[key]!r} when this run was started, and is {x!r}; the bits "
        "may differ"
        for key, x in (versions | now).items()
        if key in old and old[key] != x
    ]
    return found


def git_state(files: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the commit checked out, and which source files are not as committed.

    Args:
        files: source files of the run.

    Returns:
        `git`: the commit, with `-dirty` if files changed or some of `files` are not
        committed; None outside git. `uncommitted`: `FILE: untracked` or `modified`,
        for each of `files` that is in no commit as it is.
    """
    commit = _git(Path.cwd(), "describe", "--always", "--dirty", "--abbrev=12")
    uncommitted = []
    for file in sorted({Path(x).absolute() for x in files}):
        status = _git(
            file.parent, "status", "--porcelain", "--ignored", "-uall", "--", file.name
        )
        if status is None:  # outside git, as installed packages are
            if not file.is_relative_to(_INSTALLED):
                uncommitted.append(f"{file.parent.name}/{file.name}: untracked")
        elif status:
            kind = "untracked" if status[:2] in ("??", "!!") else "modified"
            uncommitted.append(f"{file.parent.name}/{file.name}: {kind}")
    if commit and uncommitted and not commit.endswith("-dirty"):
        commit += "-dirty"
    return {"git": commit, "uncommitted": uncommitted}


def _version(package: str) -> str | None:
    """The version of an installed package; None if it is used without being so."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git in a folder; None if it fails, or outside git."""
    try:
        printed = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return printed.stdout.strip("\n")
