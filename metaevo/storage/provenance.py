"""Versions, devices and the state of source files, as a run's manifest has them."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from metaevo.errors import printable

SAFE_GIT = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "submodule.recurse": "false",
}
"""Settings under which git runs no program that a repository names."""

PACKAGES = (
    *("metaevo", "jax", "jaxlib", "numpy", "scipy"),
    *("optax", "flax", "evosax", "gymnax"),
)
# Of its own repository; a submodule's settings are others, and `.gitmodules` and the
# repository's settings have the last word on it unless an option says so.
_STATUS = ("status", "--porcelain", "--ignore-submodules=all")
_INSTALLED = Path(__file__).parents[2]


def surroundings(device: str) -> dict[str, Any]:
    """Return versions, device, flags and settings that the bits of a run depend on.

    Args:
        device: description of the devices.
    """
    from metaevo.evaluators import surroundings as of_jax  # imports JAX

    return {
        "versions": {package: _version(package) for package in PACKAGES},
        "python": platform.python_version(),
        "device": device,
        "processor": processor(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "jax_settings": of_jax.settings(),
    }


def processor() -> str:
    """Return the model of this machine's processor, as far as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def changes(
    manifest: Mapping[str, Any], device: str, sources: Mapping[str, str]
) -> list[str]:
    """Return what is not as it was when a run was started, a sentence each.

    Args:
        manifest: the run's manifest. What it does not hold is not known to have
            changed.
        device: description of the devices.
        sources: digests of the source files as they are.
    """
    then = manifest["sources"]
    found = [
        f"{printable(name)} has changed since this run was started"
        for name in sorted(then.keys() | sources.keys())
        if then.get(name) != sources.get(name)
    ]
    old, now = _flat(manifest), _flat(surroundings(device))
    found += [
        f"{key} was {old[key]!r} when this run was started, and is {x!r}; the bits "
        "may differ"
        for key, x in now.items()
        if key in old and old[key] != x
    ]
    return found


def is_change(event: str) -> bool:
    """Return True if an event of a history is one of `changes`.

    >>> is_change("a.py has changed since this run was started"), is_change("started")
    (True, False)
    """
    return "this run was started" in event


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a manifest or `surroundings` holds, each fact under a name."""
    versions = facts.get("versions", {})
    named = {f"version of {package}": x for package, x in versions.items()}
    nested = ("versions", "jax_settings")
    plain = {key: x for key, x in facts.items() if key not in nested}
    return named | plain | facts.get("jax_settings", {})


def digests(files: Iterable[Path]) -> dict[str, str]:
    """Return `FOLDER/FILE` -> the first 16 digits of each file's sha256."""
    return {
        f"{file.parent.name}/{file.name}": hashlib.sha256(
            file.read_bytes()
        ).hexdigest()[:16]
        for file in files
    }


def git_state(files: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the commit checked out, and which source files are not as committed.

    Args:
        files: source files of the run.

    Returns:
        `git`: the commit of the folder in which the run was started or, outside git, of
        metaevo's own checkout, with `-dirty` if files changed or some of `files` are
        not committed; None without either. `uncommitted`: `FILE: untracked` or
        `modified`, for each of `files` that is in no commit as it is.
    """
    here = Path.cwd()
    commit = _git(here, "describe", "--always", "--abbrev=12")
    if commit is None and (_INSTALLED / ".git").exists():
        here = _INSTALLED
        commit = _git(here, "describe", "--always", "--abbrev=12")
    changed = commit is not None and _git(here, *_STATUS, "--untracked-files=no") != ""
    uncommitted = []
    for file in sorted({Path(x).absolute() for x in files}):
        status = _git(file.parent, *_STATUS, "--ignored", "-uall", "--", file.name)
        if status is None:  # outside git, as installed packages are
            if not file.is_relative_to(_INSTALLED):
                uncommitted.append(f"{file.parent.name}/{file.name}: untracked")
        elif status:
            kind = "untracked" if status[:2] in ("??", "!!") else "modified"
            uncommitted.append(f"{file.parent.name}/{file.name}: {kind}")
    if commit and (changed or uncommitted):
        commit += "-dirty"
    return {"git": commit, "uncommitted": uncommitted}


def _version(package: str) -> str | None:
    """The version of an installed package; None if it is used without being so."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git in a folder; None if it fails, or outside git.

    The repository may be a stranger's: nothing that its configuration names is run.
    """
    settings = dict.fromkeys(_filters(folder), "") | SAFE_GIT
    return _printed(folder, settings, arguments)


def _filters(folder: Path) -> list[str]:
    """Return the settings of a repository that name programs which filter files."""
    listed = ("config", "--list", "--show-scope", "--name-only", "-z")
    fields = (_printed(folder, SAFE_GIT, listed) or "").split("\0")
    pairs = zip(fields[::2], fields[1::2], strict=False)
    here = [name for scope, name in pairs if scope in ("local", "worktree")]
    kinds = (".clean", ".smudge", ".process")
    return [x for x in here if x.startswith("filter.") and x.endswith(kinds)]


def _printed(
    folder: Path, settings: Mapping[str, str], arguments: Sequence[str]
) -> str | None:
    """Return the output of git under some settings; None if it fails."""
    # No lock, no network, and the user's own settings of the environment before ours.
    known = {"GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "none"}
    known |= {"GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
    there = os.environ.get("GIT_CONFIG_COUNT", "0")
    count = int(there) if there.isdecimal() else 0
    for number, (name, value) in enumerate(settings.items(), count):
        known |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    known["GIT_CONFIG_COUNT"] = str(count + len(settings))
    try:
        printed = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env=os.environ | known,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=5,
            check=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return printed.stdout.strip("\n")
