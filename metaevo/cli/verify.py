"""`metaevo verify`: whether a run or an artifact is whole; changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from metaevo.errors import ArtifactError, CheckpointError, ConfigError
from metaevo.storage import artifacts, checkpoint, run_directory

__all__ = ["Finding", "text", "verify"]


class Finding(NamedTuple):
    """One file or folder.

    Attributes:
        what: its name.
        good: whether it can be used.
        matters: whether its loss is a loss: an older checkpoint's is not.
        says: what it holds, or what is wrong.
    """

    what: str
    good: bool
    matters: bool
    says: str


def verify(path: str | Path) -> list[Finding]:
    """Reads everything in a run's directory, or an artifact, and checks it.

    Raises:
        ConfigError: there is neither at `path`.
    """
    path = Path(path)
    if (path / "metrics.jsonl").is_file() or (path / "checkpoints").is_dir():
        return list(_run(path))
    if (path / "arrays.safetensors").is_file() or (path / "manifest.json").is_file():
        return [_artifact(path, path.name)]
    raise ConfigError(f"{path}: neither a run nor an artifact here")


def text(findings: list[Finding]) -> str:
    """A line each, and a sentence."""
    width = max(len(f.what) for f in findings)
    lines = [
        f"{'ok ' if f.good else 'BAD'}  {f.what:{width}}  {f.says}" for f in findings
    ]
    lost = [f.what for f in findings if f.matters and not f.good]
    return "\n".join([*lines, f"not whole: {', '.join(lost)}" if lost else "whole"])


def _run(directory: Path) -> Iterator[Finding]:
    yield _manifest(directory)
    yield from _checkpoints(directory)
    for name in ("solution",):
        if (directory / name).is_dir():
            yield _artifact(directory / name, name)
    folders = [directory / "held_out"]
    if (directory / "agents").is_dir():
        folders += sorted(p for p in (directory / "agents").iterdir() if p.is_dir())
    for folder in folders:
        if folder.is_dir():
            name = str(folder.relative_to(directory))
            try:
                arrays, _ = checkpoint.read(folder)
                yield Finding(name, True, True, f"{len(arrays)} arrays")
            except CheckpointError as error:
                yield Finding(name, False, True, _short(error, folder))


def _manifest(directory: Path) -> Finding:
    try:
        identity = run_directory.read_manifest(directory)["identity"]
        says = f"{identity['search']}, seed {identity['seed']}"
        return Finding("manifest.json", True, True, says)
    except (ConfigError, CheckpointError) as error:
        path = run_directory.paths(directory).manifest
        return Finding("manifest.json", False, True, _short(error, path))


def _checkpoints(directory: Path) -> Iterator[Finding]:
    """Each of them, and the log against the newest that is good."""
    store = checkpoint.Store(directory / "checkpoints")
    newest = None
    found = []
    for generation in store.generations():
        folder = store.folder / f"generation-{generation:08d}"
        name = str(folder.relative_to(directory))
        try:
            _, manifest = checkpoint.read(folder)
            newest = newest or manifest
            found.append((name, True, "before generation " + str(generation)))
        except CheckpointError as error:
            found.append((name, False, _short(error, folder)))
    for name, good, says in found:
        yield Finding(name, good, newest is None, says)
    yield _log(directory / "metrics.jsonl", newest)


def _log(path: Path, newest: dict | None) -> Finding:
    """Whether each generation is there once, as far as the checkpoint vouches."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return Finding(path.name, False, True, str(error.strerror))
    if newest is None:
        return Finding(path.name, False, True, "no checkpoint vouches for it")
    vouched = data[: newest["log_bytes"]]
    if len(vouched) < newest["log_bytes"]:
        says = f"{len(data)} bytes, shorter than the {newest['log_bytes']} vouched for"
        return Finding(path.name, False, True, says)
    try:
        numbers = [json.loads(line)["generation"] for line in vouched.splitlines()]
    except (ValueError, KeyError, TypeError) as error:
        return Finding(path.name, False, True, f"a line is damaged: {error}")
    if numbers != list(range(newest["generation"])):
        return Finding(path.name, False, True, "generations are missing or doubled")
    rest = len(data) - len(vouched)
    says = f"{len(numbers)} generations"
    if rest:
        says += f", and {rest} bytes of the next, which a resumed run writes again"
    return Finding(path.name, True, True, says)


def _artifact(path: Path, name: str) -> Finding:
    try:
        return Finding(name, True, True, str(artifacts.load(path)))
    except ArtifactError as error:
        return Finding(name, False, True, _short(error, path))


def _short(error: Exception, folder: Path) -> str:
    return str(error).removeprefix(f"{folder}: ")
