"""Verification of the files of a run or an artifact; nothing is changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from metaevo.cli import findings
from metaevo.cli.findings import Finding
from metaevo.errors import ArtifactError, CheckpointError, ConfigError
from metaevo.storage import (
    artifacts,
    checkpoint,
    history,
    jsonl,
    nearby,
    run_directory,
    verified,
)


def verify(path: str | Path) -> list[Finding]:
    """Read and check all files of a run's directory or of an artifact.

    Args:
        path: A run's directory, an artifact, or `zoo:NAME`.

    Returns:
        One finding per file or folder.

    Raises:
        ConfigError: There is neither a run nor an artifact at `path`.
        ArtifactError: The zoo has no such artifact.
    """
    if str(path).startswith(verified.ZOO_PREFIX):
        return [_artifact(verified.artifact_folder(path), str(path))]
    path = Path(path)
    names = [p.name for p in path.iterdir()] if path.is_dir() else []
    if {"metrics.jsonl", "checkpoints", "history.jsonl"} & set(names):
        return list(_run(path))
    if {"arrays.safetensors", "manifest.json"} & set(names):
        return [_artifact(path, path.name)]
    inside = nearby.hint(path)
    more = f"; {inside}; give one of them" if inside else ""
    raise ConfigError(f"{path}: neither a run nor an artifact here{more}")


def text(found: list[Finding]) -> str:
    """Return a line per finding, and a summary."""
    lost = findings.failures(found)
    return findings.text(found, f"not whole: {', '.join(lost)}" if lost else "whole")


def described(path: str | Path) -> str:
    """Return the description of an artifact, or of that of a run; empty if none."""
    try:
        return f"\n{artifacts.load(path)}\n"
    except ArtifactError:
        return ""


def _run(directory: Path) -> Iterator[Finding]:
    try:
        run_directory.check_entries(directory)
    except CheckpointError as error:
        # A link could lead anywhere, so nothing is read.
        yield Finding("files", False, str(error))
        return
    yield _manifest(directory)
    yield from _checkpoints(directory)
    yield from _history(directory)
    if (directory / "solution").is_dir():
        yield _artifact(directory / "solution", "solution")
    folders = [directory / "held_out", directory / "independent"]
    if (directory / "agents").is_dir():
        folders += sorted(p for p in (directory / "agents").iterdir() if p.is_dir())
    for folder in folders:
        if folder.is_dir():
            name = str(folder.relative_to(directory))
            try:
                arrays = verified.check(folder)["arrays"]
                yield Finding(name, True, f"{len(arrays)} arrays")
            except CheckpointError as error:
                yield Finding(name, False, _short(error, folder))


def _history(directory: Path) -> Iterator[Finding]:
    """Find the results that a finished run had, and has no longer."""
    try:
        events = history.read(directory)
    except CheckpointError as error:
        path = run_directory.paths(directory).history
        yield Finding("history.jsonl", False, _short(error, path))
        return
    if not events:
        yield Finding("history.jsonl", False, "missing: it may have finished or not")
        return
    finished = any(line["event"] == history.FINISHED for line in events)
    had = ["solution"] if finished else []
    for line in events:
        had = [str(part) for part in line.get("parts", had)]
    for part in had:
        known = part.startswith(history.RESULTS) and ".." not in part
        # It may be no name of a folder at all.
        if known and not os.path.isdir(directory / part):
            yield Finding(
                part, False, "missing, though the run finished; start it again"
            )


def _manifest(directory: Path) -> Finding:
    try:
        identity = run_directory.read_manifest(directory)["identity"]
    except (ConfigError, CheckpointError) as error:
        path = run_directory.paths(directory).manifest
        return Finding("manifest.json", False, _short(error, path))
    message = f"{identity['search']}, seed {identity['seed']}"
    return Finding("manifest.json", True, message)


def _checkpoints(directory: Path) -> Iterator[Finding]:
    """Check each checkpoint, and the log against the newest one that is whole."""
    store = checkpoint.Store(directory / "checkpoints")
    try:
        manifest_digest = run_directory.manifest_digest(directory)
    except (OSError, CheckpointError):
        manifest_digest = None  # a finding of its own
    newest = None
    found = []
    for generation in store.generations():
        folder = store.folder / f"generation-{generation:08d}"
        name = str(folder.relative_to(directory))
        try:
            manifest = verified.check(folder)
            signed = manifest.get("run_manifest")
            if newest is None and manifest_digest not in (None, signed):
                yield Finding("manifest.json", False, "altered since " + name)
            newest = newest or manifest
            found.append((name, True, "before generation " + str(generation)))
        except CheckpointError as error:
            found.append((name, False, _short(error, folder)))
    for name, ok, message in found:
        yield Finding(name, ok, message, critical=newest is None)
    yield _log(directory / "metrics.jsonl", newest)


def _log(path: Path, newest: dict | None) -> Finding:
    """Check that each generation before the checkpoint `newest` is logged once."""
    try:
        length = path.stat().st_size
    except OSError as error:
        return Finding(path.name, False, str(error.strerror))
    if newest is None:
        return Finding(path.name, False, "no checkpoint says how long it must be")
    size, generation = newest.get("log_bytes"), newest.get("generation")
    if not isinstance(size, int) or not isinstance(generation, int):
        return Finding(path.name, False, "the newest checkpoint does not describe it")
    if length < size:
        message = f"{length} bytes, shorter than the {size} of the checkpoint"
        return Finding(path.name, False, message)
    digest, read, covered = hashlib.sha256(), 0, not size
    try:
        # The lines after the checkpoint's part must be further generations.
        for number, (_, line) in enumerate(jsonl.generations(path), 1):
            read += len(line)
            if read <= size:
                digest.update(line)
            covered = covered or (read == size and number == generation)
    except CheckpointError as error:
        return Finding(path.name, False, str(error).removeprefix(f"{path}, "))
    if newest.get("log_sha256") != digest.hexdigest():
        return Finding(path.name, False, "altered since it was checkpointed")
    if not covered:
        return Finding(path.name, False, "generations are missing or doubled")
    message = f"{generation} generations"
    if length > size:
        message += (
            f", and {length - size} bytes of the next, which a resumed run writes again"
        )
    return Finding(path.name, True, message)


def _artifact(path: Path, name: str) -> Finding:
    try:
        return Finding(name, True, repr(artifacts.load(path)))
    except ArtifactError as error:
        return Finding(name, False, _short(error, path))


def _short(error: Exception, folder: Path) -> str:
    """Return the message without the folder's name at its start."""
    return str(error).removeprefix(f"{folder}: ")
