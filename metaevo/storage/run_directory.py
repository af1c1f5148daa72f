"""A run's directory: what to run where, and whose run it is.

manifest.json    what the run is: settings, seed, chunks, versions, device
metrics.jsonl    one record per generation
history.jsonl    when it was started, stopped, finished
checkpoints/     the newest few
solution/        the artifact
held_out/        scores and curves of the comparison on held-out seeds
agents/          the agents trained there
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import filelock

from metaevo.config import RunConfig
from metaevo.errors import ConfigError, LockedError


@contextlib.contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Holds the directory for this process.

    Raises:
        LockedError: another process has it.
    """
    taken = filelock.FileLock(directory / ".lock")
    try:
        taken.acquire(timeout=0)
    except filelock.Timeout:
        raise LockedError(f"{directory} is in use by another process") from None
    try:
        yield
    finally:
        taken.release()


def prepare(config: RunConfig, name: str, settings: Mapping) -> Path:
    """The run directory, writable."""
    directory = Path(config.directory or default_directory(name, config, settings))
    check_writable("run.directory", directory)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def check_writable(key: str, directory: str | Path) -> None:
    """Finds out whether a directory can be made and written to, without making it.

    Raises:
        ConfigError: it cannot; names `key`.
    """
    there = Path(directory).absolute()
    try:
        while not there.exists():
            there = there.parent
        probe = there / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"{key}={directory}: cannot write there ({error.strerror}); "
            "give another directory"
        ) from None


def default_directory(name: str, config: RunConfig, settings: Mapping) -> Path:
    """`runs/NAME/seedN-DIGEST`: another configuration is another directory."""
    # An agent of a sweep starts many runs, with a directory each.
    if os.environ.get("WANDB_SWEEP_ID") and os.environ.get("WANDB_RUN_ID"):
        sweep = f"sweep-{os.environ['WANDB_SWEEP_ID']}"
        return Path("runs") / name / sweep / os.environ["WANDB_RUN_ID"]
    fixed = {k: v for k, v in settings.items() if k != "num_generations"}
    text = json.dumps(fixed, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return Path("runs") / name / f"seed{config.seed}-{digest}"


def manifest(
    directory: Path,
    name: str,
    config: RunConfig,
    settings: Mapping[str, Any],
    chunk_size: Callable[[], int | None],
    device: str,
    changes: Sequence[str],
) -> dict[str, Any]:
    """The run's manifest: made at the first start, checked at the next ones.

    Args:
        chunk_size: asked at the first start.
    """
    path = directory / "manifest.json"
    identity = {"search": name, "seed": config.seed, "settings": _jsonable(settings)}
    if path.exists():
        if not config.resume:
            raise ConfigError(
                f"run.resume=false, and {directory} holds a run; give another "
                "run.directory"
            )
        found = json.loads(path.read_text())
        changed = _differences(found["identity"], identity)
        if changed:
            raise ConfigError(
                f"{directory} holds a run with other settings: {'; '.join(changed)}. "
                "Give another run.directory"
            )
        return found
    made = {
        "identity": identity,
        "chunk_size": chunk_size(),
        "run": asdict(config) | {"directory": None},
        "versions": {
            package: metadata.version(package)
            for package in ("jax", "jaxlib", "optax", "flax", "evosax", "gymnax")
        },
        "python": platform.python_version(),
        "device": device,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "git": _git_state(),
        "changes": list(changes),
    }
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(made, indent=1))
    os.replace(temporary, path)
    return made


def note(directory: Path, event: str, generation: int) -> None:
    """Adds a line to `history.jsonl`: when the run started, stopped, finished."""
    line = {"time": time.time(), "event": event, "generation": generation}
    with open(directory / "history.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


def _git_state() -> str | None:
    """The commit one works on, `-dirty` if there are changes; None outside git."""
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


def _jsonable(tree: Any) -> Any:
    return json.loads(json.dumps(tree, default=str))


def _differences(old: Mapping, new: Mapping, prefix: str = "") -> list[str]:
    """`key: old -> new` for each that differs, `num_generations` aside."""
    found = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += _differences(a, b, f"{prefix}{key}.")
        elif a != b and key != "num_generations":
            found.append(f"{prefix}{key}: {a} -> {b}".removeprefix("settings."))
    return found
