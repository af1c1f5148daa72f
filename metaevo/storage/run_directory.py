"""The run directory: the one module that reads and writes its manifest and history.

manifest.json    the run: its identity, seed, chunk size, versions, device
metrics.jsonl    one record per generation
history.jsonl    when the run was started, stopped and finished
checkpoints/     the newest few
earlier_solutions/  of some generations, scored at the end for the report
newest/          the functions of the solution as it is now, and of the start
solution/        the artifact
held_out/        scores and curves of the comparison on held-out seeds
independent/     scores in an independent agent
agents/          the agents trained there, and their scores
closed_form/     the result of `metaevo distill`
conclusion/      finished steps of the comparison, until all are
report/          index.html, figures and tables
trials.jsonl     how each trial of `metaevo.optimize` ended
trials/          what each of them wrote and printed; nothing here opens it
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import filelock

from metaevo.config import RunConfig
from metaevo.errors import CheckpointError, ConfigError, LockedError
from metaevo.storage import manifests, nearby, provenance
from metaevo.storage._files import (
    TRIALS,
    check_file,
    check_folder,
    check_tree,
    read_bytes,
    read_json,
    replace_file,
)
from metaevo.storage.verified import CARD, FILES, MAX_ARTIFACT, MAX_JSON, ZOO_PREFIX

if TYPE_CHECKING:  # it imports JAX, which commands that read runs need not
    from metaevo.types import Search

_FOLDERS_OF_OTHERS = ("wandb", "tensorboard", "play", "compare")
_BEFORE_THE_MANIFEST = re.compile(r"\.lock|\.probe-\d+|\..*\.tmp")


class Paths(NamedTuple):
    """The parts of a run directory, as paths below it."""

    manifest: Path = Path("manifest.json")
    metrics: Path = Path("metrics.jsonl")
    history: Path = Path("history.jsonl")
    lock: Path = Path(".lock")
    trial_log: Path = Path("trials.jsonl")
    proposed: Path = Path("proposed.jsonl")
    checkpoints: Path = Path("checkpoints")
    earlier: Path = Path("earlier_solutions")
    newest: Path = Path("newest")
    solution: Path = Path("solution")
    held_out: Path = Path("held_out")
    independent: Path = Path("independent")
    agents: Path = Path("agents")
    closed_form: Path = Path("closed_form")
    conclusion: Path = Path("conclusion")
    report: Path = Path("report")
    trials: Path = Path(TRIALS)


@functools.lru_cache(1024)  # an overview of many runs asks often
def paths(directory: str | Path) -> Paths:
    """Return the paths of the parts of a run directory; none of them need exist.

    >>> paths("runs/demo").metrics.as_posix()
    'runs/demo/metrics.jsonl'
    """
    return Paths(*(Path(directory) / name for name in Paths()))


# --- before a run ---------------------------------------------------------------------


@contextlib.contextmanager
def lock(directory: str | Path) -> Iterator[None]:
    """Hold the directory for this process.

    Raises:
        LockedError: another process holds it.
        CheckpointError: the lock file is a link or no file.
    """
    check_file(paths(directory).lock)
    taken = filelock.FileLock(paths(directory).lock)
    try:
        taken.acquire(timeout=0)
    except filelock.Timeout:
        raise LockedError(f"{directory} is in use by another process") from None
    try:
        yield
    finally:
        taken.release()


def prepare(directory: str | Path) -> Path:
    """Make the run directory, if needed, and return its path.

    A directory without a manifest must be empty, but for what a start that was cut
    short leaves.

    Raises:
        ConfigError: it cannot be made or written to, or it holds files and no run.
        CheckpointError: a link, a pipe or a device is in it.
    """
    directory = Path(directory)
    check_free(directory)
    check_writable("run.directory", directory)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def check_free(directory: str | Path) -> None:
    """Check that a run may be made or continued in a directory, without a change.

    Raises:
        ConfigError: it holds files and no run.
        CheckpointError: the run's manifest is damaged, or a link, a pipe or a device is
            in the directory.
    """
    directory = Path(directory)
    names = sorted(p.name for p in directory.iterdir()) if directory.is_dir() else []
    foreign = [x for x in names if not _BEFORE_THE_MANIFEST.fullmatch(x)]
    if not foreign:
        check_entries(directory)
    elif nearby.is_run(directory, unreadable=True):
        read_manifest(directory)
    else:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise ConfigError(
            f"run.directory={directory} holds {', '.join(foreign[:3])}{more}, and no "
            "run (no manifest.json of one); give an empty or a new directory"
        )


def check_entries(directory: str | Path) -> None:
    """Check that a run directory holds files where files belong, and folders alike.

    Raises:
        CheckpointError: it does not, or there is a link, a pipe or a device in it.
    """
    check_tree(directory)
    first_folder = Paths._fields.index("checkpoints")
    for name in (*Paths()[:first_folder], "wandb.json"):
        check_file(Path(directory) / name)
    for name in (*Paths()[first_folder:], *_FOLDERS_OF_OTHERS):
        check_folder(Path(directory) / name)


def check_writable(key: str, directory: str | Path) -> None:
    """Check that a directory can be made and written to, without making it.

    Args:
        key: the option that named the directory, for the message.

    Raises:
        ConfigError: it cannot.
    """
    try:
        probe = existing_parent(directory) / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"{key}={directory}: cannot write there ({error.strerror}); "
            "give another directory"
        ) from None


def chosen_directory(
    config: RunConfig, name: str, settings: manifests.Settings
) -> Path:
    """Return the directory of a run: that of its options, else the default one."""
    return Path(config.directory or default_directory(name, config.seed, settings))


def default_directory(name: str, seed: int, settings: manifests.Settings) -> Path:
    """Return `runs/NAME/seedN-DIGEST`, one directory per configuration.

    In a wandb sweep it is `runs/NAME/sweep-ID/RUN`: an agent starts many runs.

    Args:
        settings: those that differ from their defaults name the directory, but for
            `num_generations`.
    """
    if os.environ.get("WANDB_SWEEP_ID") and os.environ.get("WANDB_RUN_ID"):
        sweep = f"sweep-{os.environ['WANDB_SWEEP_ID']}"
        return Path("runs") / name / sweep / os.environ["WANDB_RUN_ID"]
    fixed = manifests.not_default(settings)
    fixed.pop(manifests.MAY_CHANGE, None)
    text = json.dumps(fixed, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return Path("runs") / name / f"seed{seed}-{digest}"


def existing_parent(path: str | Path) -> Path:
    """Return the innermost folder of a path that exists, as an absolute path."""
    path = Path(path).absolute()
    while not path.exists():
        path = path.parent
    return path


# --- the manifest ---------------------------------------------------------------------


def read_manifest(directory: str | Path) -> dict[str, Any]:
    """Read the manifest of a run, and check that its directory can be used.

    Every command begins with it.

    Raises:
        ConfigError: there is no manifest.
        CheckpointError: the manifest cannot be read or is not one of a run, or a link,
            a pipe or a device is in the directory.
    """
    path = paths(directory).manifest
    if not has_manifest(directory):
        raise ConfigError(_no_run(directory))
    check_entries(directory)
    remedy = "restore it from a copy, or give another directory"
    try:
        manifest = read_json(path, MAX_JSON)
        if isinstance(manifest, dict) and "artifact_schema" in manifest:
            raise ConfigError(_no_run(directory))
        manifests.check(manifest)
    except ConfigError:
        raise
    except CheckpointError as error:  # it names the file
        raise CheckpointError(f"{error}; {remedy}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is damaged ({type(error).__name__}: {error}); {remedy}"
        ) from None
    return manifest


def _no_run(directory: str | Path) -> str:
    """Return the message that there is no run, with those that may be meant."""
    place = Path(directory)
    text = f"{directory}: no run here (no manifest.json)"
    if str(directory).startswith(ZOO_PREFIX) or has_manifest(directory):
        text = f"{directory}: an artifact, and no run"
    elif inside := nearby.hint(directory):
        return f"{text}; {inside}; give one of them"
    elif choices_folder(place).is_dir():
        return (
            f"{text}; if metaevo tune was stopped while it chose static settings, the "
            "same command again continues that"
        )
    above = (p for p in place.parents[:-1] if nearby.is_run(p, unreadable=True))
    run = next(above, None)
    meant = "the directory that the run printed" if run is None else str(run)
    return f"{text}; give {meant}"


def choices_folder(directory: Path) -> Path:
    """Return the folder beside a run in which `choose=true` keeps its scores."""
    return directory.parent / f"{directory.name}-choices"


def manifest_digest(directory: str | Path) -> str:
    """Return the sha256 of `manifest.json`, which checkpoints hold."""
    data = read_bytes(paths(directory).manifest, MAX_JSON)
    return hashlib.sha256(data).hexdigest()


def check_manifest_digest(directory: str | Path, digest: Any) -> None:
    """Check that the manifest is the one under which a checkpoint was written.

    Args:
        digest: the digest in the checkpoint.

    Raises:
        CheckpointError: the manifest was edited or replaced.
    """
    if digest != manifest_digest(directory):
        raise CheckpointError(
            f"{paths(directory).manifest} is not the manifest under which the "
            "checkpoints were written; restore it from a copy, or start again in "
            "another run.directory"
        )


def has_manifest(directory: str | Path) -> bool:
    """Return True if the directory holds a run."""
    return os.path.lexists(paths(directory).manifest)


def create_manifest(
    directory: str | Path,
    name: str,
    config: RunConfig,
    settings: manifests.Settings,
    search: Search,
    device: str,
    changes: Sequence[str],
    source_files: Sequence[Path] = (),
) -> dict[str, Any]:
    """Write and return the manifest of a new run. It is never written again.

    Args:
        name: name of the search.
        settings: by which the run is told from others.
        search: search, with its members and seeds in one vmap.
        device: description of the devices.
        changes: `key=value` of what differs from the search's defaults.
        source_files: the source files that the search is made of.
    """
    manifest = {
        "schema": manifests.SCHEMA,
        "identity": manifests.identity(name, config, settings),
        "sources": provenance.digests(source_files),
        "chunk_size": search.chunk_size,
        "seeds_at_once": search.seeds_at_once,
        "run": json.loads(json.dumps(asdict(config))) | {"directory": None},
        **provenance.surroundings(device),
        **provenance.git_state(source_files),
        "changes": list(changes),
    }
    write_json_atomic(paths(directory).manifest, manifest)
    return manifest


def check_same_run(
    directory: str | Path,
    manifest: Mapping[str, Any],
    name: str,
    config: RunConfig,
    settings: manifests.Settings,
) -> None:
    """Check that the run in a directory is the one that is asked for.

    Raises:
        ConfigError: `run.resume` is False, or the search, the seed or the settings
            differ; names the keys that do. `num_generations` may differ.
    """
    if not config.resume:
        raise ConfigError(
            f"run.resume=false, and {directory} holds a run; give another run.directory"
        )
    now = manifests.identity(name, config, settings)
    changed = manifests.describe_changes(manifest["identity"], now)
    if changed:
        raise ConfigError(
            f"{directory} holds a run with other settings: {'; '.join(changed)}. "
            "Give another run.directory"
        )


def require_finished(directory: str | Path) -> None:
    """Check that a run has finished at least once.

    Raises:
        ConfigError: there is no run, or it has no solution yet.
        CheckpointError: the manifest cannot be read.
    """
    read_manifest(directory)
    if (paths(directory).agents / "trained").is_dir():
        raise ConfigError(
            f"{directory}: a training run, in which nothing evolved; metaevo play "
            "plays its agents, and report/learning_curve.csv is their curve"
        )
    if not paths(directory).solution.is_dir():
        raise ConfigError(
            f"{directory}: no finished run here (no solution/); finish it with: "
            f"metaevo resume {directory}"
        )


# --- other files ----------------------------------------------------------------------


def artifact_files(directory: str | Path) -> list[Path]:
    """Return the files of a finished run that may be sent elsewhere.

    These are the pictures of its report and the files of its solution.

    Raises:
        CheckpointError: one is larger than any that a run makes.
    """
    parts = paths(directory)
    solution = [parts.solution / name for name in (*FILES, CARD)]
    found = [*sorted(parts.report.glob("*.png")), *solution]
    found = [path for path in found if path.is_file() and not path.is_symlink()]
    for path in found:
        if path.stat().st_size > MAX_ARTIFACT:
            raise CheckpointError(f"{path} is larger than {MAX_ARTIFACT >> 20} MiB")
    return found


def write_json_atomic(path: str | Path, data: Any) -> None:
    """Write a JSON file under a temporary name, sync it and rename it.

    A crash leaves the old file or the new one, never a part.
    """
    replace_file(Path(path), json.dumps(data, indent=1).encode())
