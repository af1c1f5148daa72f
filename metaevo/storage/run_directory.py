"""The run directory: the one module that reads and writes its manifest and history.

manifest.json    the run: its identity, seed, chunk size, versions, device
metrics.jsonl    one record per generation
history.jsonl    when the run was started, stopped and finished
checkpoints/     the newest few
solution/        the artifact
held_out/        scores and curves of the comparison on held-out seeds
agents/          the agents trained there, and their scores
closed_form/     the result of `metaevo distill`
conclusion/      finished steps of the comparison, until all are
report/          index.html, figures and tables
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import filelock

from metaevo.config import RunConfig
from metaevo.errors import CheckpointError, ConfigError, LockedError
from metaevo.storage import jsonl
from metaevo.storage._files import replace_file

SCHEMA = 2
"""Schema of `manifest.json`. Manifests of metaevo 0.1 have no schema."""

RENAMED_SEARCHES = {
    "dpo_two_parameters": "ppo_dpo_constants",
    "es_policy": "policy_open_es",
    "learned_optimizer": "ppo_optimizer",
    "reward_shaping": "ppo_reward_potential",
}
"""Names of searches in metaevo 0.1, and their names since."""

RETIRED_SETTINGS = ("shared_critic", "num_diversity_states", "diversity_coef")
"""Settings of TD3 in metaevo 0.1 that are those of `td3_shared` since, or implied."""

_PACKAGES = ("metaevo", "jax", "jaxlib", "optax", "flax", "evosax", "gymnax")
_MAY_CHANGE = "num_generations"  # a larger value extends a run


class Paths(NamedTuple):
    """The parts of a run directory."""

    manifest: Path
    metrics: Path
    history: Path
    lock: Path
    checkpoints: Path
    solution: Path
    held_out: Path
    agents: Path
    closed_form: Path
    conclusion: Path
    report: Path


def paths(directory: str | Path) -> Paths:
    """Return the paths of the parts of a run directory; none of them need exist.

    >>> paths("runs/demo").metrics.as_posix()
    'runs/demo/metrics.jsonl'
    """
    root = Path(directory)
    return Paths(
        manifest=root / "manifest.json",
        metrics=root / "metrics.jsonl",
        history=root / "history.jsonl",
        lock=root / ".lock",
        checkpoints=root / "checkpoints",
        solution=root / "solution",
        held_out=root / "held_out",
        agents=root / "agents",
        closed_form=root / "closed_form",
        conclusion=root / "conclusion",
        report=root / "report",
    )


# --- before a run ---------------------------------------------------------------------


@contextlib.contextmanager
def lock(directory: str | Path) -> Iterator[None]:
    """Hold the directory for this process.

    Raises:
        LockedError: another process holds it.
    """
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
    """Make the run directory, if needed, and returns its path.

    Raises:
        ConfigError: it cannot be made or written to.
    """
    check_writable("run.directory", directory)
    Path(directory).mkdir(parents=True, exist_ok=True)
    return Path(directory)


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


def default_directory(
    name: str,
    seed: int,
    settings: Mapping[str, Any],
    settings_0_1: Mapping[str, Any] | None = None,
) -> Path:
    """Return `runs/NAME/seedN-DIGEST`, one directory per configuration.

    In a wandb sweep it is `runs/NAME/sweep-ID/RUN`: an agent starts many runs.

    Args:
        settings: plain data; `num_generations` is ignored.
        settings_0_1: the settings as metaevo 0.1 recorded them. If it made a run with
            them in its default directory, that directory is returned.
    """
    if settings_0_1 is not None:
        for old in (name, *(o for o, new in RENAMED_SEARCHES.items() if new == name)):
            made = default_directory(old, seed, settings_0_1)
            if has_manifest(made):
                return made
    if os.environ.get("WANDB_SWEEP_ID") and os.environ.get("WANDB_RUN_ID"):
        sweep = f"sweep-{os.environ['WANDB_SWEEP_ID']}"
        return Path("runs") / name / sweep / os.environ["WANDB_RUN_ID"]
    fixed = {k: v for k, v in settings.items() if k != _MAY_CHANGE}
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
    """Read the manifest of a run.

    Returns:
        the manifest. Searches that were renamed since the run was made appear under
        their new name.

    Raises:
        ConfigError: there is no manifest.
        CheckpointError: the manifest cannot be read or is not one of a run.
    """
    path = paths(directory).manifest
    if not path.is_file():
        raise ConfigError(
            f"{directory}: no run here (no manifest.json); give the directory that the "
            "run printed"
        )
    try:
        manifest = json.loads(path.read_bytes())
        identity = manifest["identity"]
        name, settings = identity["search"], identity["settings"]
        if not isinstance(name, str) or not isinstance(settings, dict):
            raise ValueError("the identity is damaged")
        if "seed" not in identity or "chunk_size" not in manifest:
            raise ValueError("the seed or the chunk size is missing")
        if not isinstance(manifest["changes"], list):
            raise ValueError("the changes are damaged")
        schema = manifest.get("schema", 1)
        if schema > SCHEMA:
            raise ValueError(
                f"schema {schema} is newer than this metaevo's {SCHEMA}; update metaevo"
            )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is damaged ({type(error).__name__}: {error}); restore it from a "
            "copy, or give another directory"
        ) from None
    if schema == 1:
        identity["search"] = RENAMED_SEARCHES.get(name, name)
    return manifest


def has_manifest(directory: str | Path) -> bool:
    """Return True if the directory holds a run."""
    return paths(directory).manifest.exists()


def create_manifest(
    directory: str | Path,
    name: str,
    config: RunConfig,
    settings: Mapping[str, Any],
    chunk_size: int | None,
    device: str,
    changes: Sequence[str],
    sources: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write and returns the manifest of a new run.

    Args:
        name: name of the search.
        settings: plain data by which the run is told from others.
        chunk_size: members in one vmap.
        device: description of the devices.
        changes: `key=value` of what differs from the search's defaults.
        sources: digests of the source files that the search is made of.
    """
    manifest = {
        "schema": SCHEMA,
        "identity": _identity(name, config, settings),
        "sources": dict(sources or {}),
        "chunk_size": chunk_size,
        "run": asdict(config) | {"directory": None},
        "versions": {package: _version(package) for package in _PACKAGES},
        "python": platform.python_version(),
        "device": device,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "git": _git_state(),
        "changes": list(changes),
    }
    write_json_atomic(paths(directory).manifest, manifest)
    return manifest


def check_same_run(
    directory: str | Path,
    manifest: Mapping[str, Any],
    name: str,
    config: RunConfig,
    settings: Mapping[str, Any],
    settings_0_1: Mapping[str, Any] | None = None,
) -> None:
    """Check that the run in a directory is the one that is asked for.

    Args:
        settings_0_1: the settings as metaevo 0.1 recorded them, compared with the runs
            that it made.

    Raises:
        ConfigError: `run.resume` is False, or the search, the seed or the settings
            differ; names the keys that do. `num_generations` may differ.
    """
    if not config.resume:
        raise ConfigError(
            f"run.resume=false, and {directory} holds a run; give another run.directory"
        )
    then = manifest["identity"]
    if manifest.get("schema", 1) == 1 and settings_0_1 is not None:
        settings = settings_0_1
        then = _without_retired(then, _identity(name, config, settings))
    changed = _differences(then, _identity(name, config, settings))
    if changed:
        raise ConfigError(
            f"{directory} holds a run with other settings: {'; '.join(changed)}. "
            "Give another run.directory"
        )


def changed_sources(
    manifest: Mapping[str, Any], sources: Mapping[str, str]
) -> list[str]:
    """Return the source files that are not as they were when the run was started.

    Args:
        sources: digests of the files as they are; see `create_manifest`. A manifest of
            metaevo 0.1 holds none, and nothing is known to have changed.
    """
    then = manifest.get("sources") or sources
    names = sorted(then.keys() | sources.keys())
    return [name for name in names if then.get(name) != sources.get(name)]


def require_finished(directory: str | Path) -> None:
    """Check that a run has finished at least once.

    Raises:
        ConfigError: there is no run, or it has no solution yet.
        CheckpointError: the manifest cannot be read.
    """
    read_manifest(directory)
    if not paths(directory).solution.is_dir():
        raise ConfigError(
            f"{directory}: no finished run here (no solution/); finish it with: "
            f"metaevo resume {directory}"
        )


def _identity(
    name: str, config: RunConfig, settings: Mapping[str, Any]
) -> dict[str, Any]:
    plain = json.loads(json.dumps(settings, default=str))
    return {"search": name, "seed": config.seed, "settings": plain}


def _without_retired(old: Any, new: Any) -> Any:
    """Leave out settings of metaevo 0.1 that are retired, where `new` has none."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {
            key: _without_retired(x, new.get(key))
            for key, x in old.items()
            if key in new or key not in RETIRED_SETTINGS
        }
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [_without_retired(a, b) for a, b in zip(old, new, strict=True)]
    return old


def _differences(old: Mapping, new: Mapping, prefix: str = "") -> list[str]:
    """`key: old -> new` for each key that differs, `num_generations` aside."""
    found = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += _differences(a, b, f"{prefix}{key}.")
        elif a != b and key != _MAY_CHANGE:
            found.append(f"{prefix}{key}: {a} -> {b}".removeprefix("settings."))
    return found


def _version(package: str) -> str | None:
    """The version of an installed package; None if it is used without being so."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_state() -> str | None:
    """The commit checked out, with `-dirty` if files changed; None outside git."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()


# --- history and other files ----------------------------------------------------------


def note(directory: str | Path, event: str, generation: int, **facts: Any) -> None:
    """Add a line to `history.jsonl`: the run started, stopped or finished.

    Args:
        generation: generations done.
        facts: further plain data; a start has `num_generations`, the horizon asked for.
    """
    line = {"time": time.time(), "event": event, "generation": generation, **facts}
    with open(paths(directory).history, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_history(directory: str | Path) -> list[dict[str, Any]]:
    """Return the lines of `history.jsonl`: `time` in seconds, event, generation."""
    path = paths(directory).history
    return jsonl.read(path) if path.exists() else []


def write_json_atomic(path: str | Path, data: Any) -> None:
    """Write a JSON file under a temporary name, syncs it and renames it.

    A crash leaves the old file or the new one, never a part.
    """
    replace_file(Path(path), json.dumps(data, indent=1).encode())
