"""Verification of the files of a run or an artifact; nothing is changed."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import metaevo
from metaevo.analysis import evidence, verdicts
from metaevo.analysis.independent import judge
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
        One finding per file or folder, and per verdict on an artifact's card.

    Raises:
        ConfigError: There is neither a run nor an artifact at `path`.
        ArtifactError: The zoo has no such artifact.
    """
    if str(path).startswith(verified.ZOO_PREFIX):
        return [*_artifact(verified.artifact_folder(path), str(path))]
    path = Path(path)
    names = [p.name for p in path.iterdir()] if path.is_dir() else []
    if {"metrics.jsonl", "checkpoints", "history.jsonl"} & set(names):
        return list(_run(path))
    if {"arrays.safetensors", "manifest.json"} & set(names):
        return [*_artifact(path, path.name)]
    inside = nearby.hint(path)
    more = f"; {inside}; give one of them" if inside else ""
    raise ConfigError(f"{path}: neither a run nor an artifact here{more}")


def described(path: str | Path) -> str:
    """Return the description of an artifact, or of that of a run; empty if none."""
    try:
        return f"\n{artifacts.load(path)}\n"
    except ArtifactError:
        return ""


def _finding(
    name: str, path: Path, check: Callable[[], str], critical: bool = True
) -> Finding:
    """Return what `check` says of a file or folder, or what is wrong with it."""
    try:
        return Finding(name, True, check(), critical)
    except (ConfigError, CheckpointError, ArtifactError) as error:
        said = str(error).removeprefix(f"{path}: ").removeprefix(f"{path}, ")
        return Finding(name, False, said, critical)


def _run(directory: Path) -> Iterator[Finding]:
    try:
        run_directory.check_entries(directory)
    except CheckpointError as error:
        # A link could lead anywhere, so nothing is read.
        yield Finding("files", False, str(error))
        return
    paths = run_directory.paths(directory)

    def run() -> str:
        identity = run_directory.read_manifest(directory)["identity"]
        return f"{identity['search']}, seed {identity['seed']}"

    yield _finding("manifest.json", paths.manifest, run)
    yield from _checkpoints(directory)
    yield from _history(directory)
    if (directory / "solution").is_dir():
        yield from _artifact(directory / "solution", "solution", paths.independent)
    folders = [directory / "held_out", directory / "independent"]
    if (directory / "agents").is_dir():
        folders += sorted((directory / "agents").iterdir())
    for folder in folders:
        if folder.is_dir():
            name = str(folder.relative_to(directory))
            yield _finding(name, folder, lambda folder=folder: _arrays(folder))


def _arrays(folder: Path) -> str:
    return f"{len(verified.check(folder)['arrays'])} arrays"


def _artifact(
    path: Path, name: str, independent: Path | None = None
) -> Iterator[Finding]:
    """Check an artifact, and each verdict on its card against its scores.

    Args:
        path: Folder of the artifact.
        name: Name of the finding.
        independent: Folder of its run's scores in an independent agent.
    """
    loaded: list[artifacts.Artifact] = []

    def load() -> str:
        loaded.append(artifacts.load(path))
        return repr(loaded[0])

    yield _finding(name, path, load)
    said = loaded[0].manifest.get("evidence") if loaded else None
    if not isinstance(said, Mapping):
        return
    try:
        held_out, facts = evidence.kept(said)
    except CheckpointError as error:
        yield Finding(f"{name}: verdicts", False, str(error))
        return
    given = verdicts.every(held_out, facts) if held_out else None
    yield from _verdicts(f"{name}: verdict", said, "verdicts", given)
    judged = None
    if independent is not None:
        # If they cannot be read, a finding of their own says so.
        with contextlib.suppress(CheckpointError):
            judged = judge.load(independent).verdicts
    yield from _verdicts(f"{name}: independent verdict", said, "independent", judged)


def _verdicts(
    name: str,
    said: Mapping[str, Any],
    key: str,
    given: Sequence[verdicts.Verdict] | None,
) -> Iterator[Finding]:
    """Compare the verdicts on a card with those that its scores give.

    Args:
        name: Name of the findings.
        said: Evidence of the card, which has the sentences under `key`.
        given: The verdicts that the scores give; None: there are no scores.
    """
    listed = said.get(key)
    on_card = [str(x) for x in listed] if isinstance(listed, list) else []
    if given is None:
        if on_card:
            message = "its verdicts cannot be recomputed: it keeps no scores"
            yield Finding(f"{name}s", True, message)
        return
    ours, theirs = metaevo.__version__, said.get("metaevo")
    by = "" if ours == theirs else f" (by metaevo {ours}; the card is of {theirs})"
    sentences = [x.sentence for x in given]
    others = iter([x for x in sentences if x not in on_card])
    for number, sentence in enumerate(on_card, 1):
        message = f"agrees with its scores: {sentence}"
        if sentence not in sentences:
            instead = next(others, "no such verdict")
            message = f"its scores give{by}: {instead}; its card says: {sentence}"
        yield Finding(f"{name} {number}", sentence in sentences, message)
    for sentence in others:
        # Another version may have had fewer verdicts.
        message = f"its card leaves out what its scores give{by}: {sentence}"
        yield Finding(name, False, message, critical=not by)


def _history(directory: Path) -> Iterator[Finding]:
    """Find the results that a finished run had, and has no longer."""
    try:
        events = history.read(directory)
    except CheckpointError as error:
        path = run_directory.paths(directory).history
        said = str(error).removeprefix(f"{path}: ")
        yield Finding("history.jsonl", False, said)
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


def _checkpoints(directory: Path) -> Iterator[Finding]:
    """Check each checkpoint, and the log against the newest one that is whole."""
    store = checkpoint.Store(directory / "checkpoints")
    try:
        manifest_digest = run_directory.manifest_digest(directory)
    except (OSError, CheckpointError):
        manifest_digest = None  # a finding of its own
    whole: list[dict] = []
    found = []
    for generation in store.generations():
        folder = store.folder / f"generation-{generation:08d}"
        name = str(folder.relative_to(directory))

        def check(folder=folder, generation=generation) -> str:
            whole.append(verified.check(folder))
            return f"before generation {generation}"

        found.append(_finding(name, folder, check))
        first = found[-1].ok and len(whole) == 1
        if first and manifest_digest not in (None, whole[0].get("run_manifest")):
            yield Finding("manifest.json", False, "altered since " + name)
    for finding in found:
        yield finding._replace(critical=not whole)
    log = directory / "metrics.jsonl"
    further = ("checkpoints/*", "solution", "agents", "held_out")
    began = any(next(directory.glob(x), None) is not None for x in further)
    yield _finding(log.name, log, lambda: _log(log, next(iter(whole), None), began))


def _log(path: Path, newest: dict | None, began: bool) -> str:
    """Describe a log in which each generation before the checkpoint `newest` is once.

    Args:
        began: True if the run has files that a generation leaves.

    Raises:
        CheckpointError: It is another.
    """
    try:
        length = path.stat().st_size
    except OSError as error:
        raise CheckpointError(str(error.strerror)) from None
    if newest is None and not length and not began:
        return "no generation yet"
    if newest is None:
        raise CheckpointError("no checkpoint says how long it must be")
    size, generation = newest.get("log_bytes"), newest.get("generation")
    if not isinstance(size, int) or not isinstance(generation, int):
        raise CheckpointError("the newest checkpoint does not describe it")
    if length < size:
        raise CheckpointError(
            f"{length} bytes, shorter than the {size} of the checkpoint"
        )
    digest, read, covered = hashlib.sha256(), 0, not size
    # The lines after the checkpoint's part must be further generations.
    for number, (_, line) in enumerate(jsonl.generations(path), 1):
        read += len(line)
        if read <= size:
            digest.update(line)
        covered = covered or (read == size and number == generation)
    if newest.get("log_sha256") != digest.hexdigest():
        raise CheckpointError("altered since it was checkpointed")
    if not covered:
        raise CheckpointError("generations are missing or doubled")
    next_bytes = (
        f", and {length - size} bytes of the next, which a resumed run writes again"
    )
    return f"{generation} generations{next_bytes if length > size else ''}"
