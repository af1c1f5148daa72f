"""Send a run to wandb again, from its files.

A run directory may come from a stranger. So its files are checked before any server is
asked, and what was sent is what the server says that it has.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metaevo.engine.loggers import wandb as mirror
from metaevo.engine.loggers import wandb_client
from metaevo.engine.loggers.limits import Limited, line
from metaevo.errors import CheckpointError, UploadError
from metaevo.storage import jsonl, own_wandb, run_directory, verified
from metaevo.storage._files import open_read, read_bytes

MAX_PICTURE = 16 << 20  # bytes
MAX_PIXELS = 50_000_000
MAX_PICTURES = 200
MAX_CARD = 1 << 20  # bytes
CONFIRM = 60.0  # seconds to wait for the server to count what it got
_PNG = b"\x89PNG\r\n\x1a\n"


class Pushed(NamedTuple):
    """Result of a push that sent or wrote something.

    Attributes:
        generations: their number. Of an online push the server's count.
        folder: wandb's folder of it, which `wandb sync` takes.
    """

    generations: int
    folder: Path


class _Run(NamedTuple):
    """A run that may be sent: its directory, manifest and records."""

    directory: Path
    manifest: Mapping[str, Any]
    records: Sequence[Mapping[str, Any]]


def push(directory: str | Path, mode: str = "online") -> Pushed:
    """Send a run again from its files, from the first generation.

    It becomes a new wandb run, which the run continues from then on.

    Args:
        directory: the run directory.
        mode: `online`, or `offline`, which writes it for `wandb sync`.

    Raises:
        ConfigError: there is no run, it cannot be written to, or the working directory
            holds settings of wandb that are not the user's.
        CheckpointError, ArtifactError: its files are not sound; no server was asked.
        UploadError: the server has not got all of it; the message says where the data
            are.
    """
    run = checked(Path(directory))
    run_directory.check_writable("RUN", run.directory)  # wandb's folder is in it
    wandb_client.check_here()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        return _push(run, mode, said)


def checked(directory: Path) -> _Run:
    """Return a run whose files may be sent.

    Raises:
        ConfigError: there is no run.
        CheckpointError, ArtifactError: its files are not sound.
    """
    manifest = run_directory.read_manifest(directory)
    records = jsonl.read_generations(directory / "metrics.jsonl")
    solution = run_directory.paths(directory).solution
    if solution.is_dir():
        verified.read(solution, verified.MAX_ARTIFACT)
        card = solution / verified.CARD
        if card.exists():
            read_bytes(card, MAX_CARD).decode()
    files = run_directory.artifact_files(directory)
    pictures = [path for path in files if path.suffix == ".png"]
    if len(pictures) > MAX_PICTURES:
        raise CheckpointError(f"{directory}/report holds {len(pictures)} pictures")
    for path in pictures:
        _check_picture(path)
    mirror.summary(directory)
    return _Run(directory, manifest, records)


def _check_picture(path: Path) -> None:
    """Check that a file is a PNG that takes little memory to draw.

    Raises:
        CheckpointError: it is not.
    """
    head = read_bytes(path, MAX_PICTURE)[:24]
    if len(head) < 24 or not head.startswith(_PNG) or head[12:16] != b"IHDR":
        raise CheckpointError(f"{path} is no PNG")
    width, height = struct.unpack(">II", head[16:24])
    if not 0 < width * height <= MAX_PIXELS:
        raise CheckpointError(f"{path} has {width} x {height} pixels")


def _push(run: _Run, mode: str, said: list[warnings.WarningMessage]) -> Pushed:
    """Push a run that was checked; `said` receives the warnings."""
    name = os.environ.get("WANDB_RUN_ID") or f"{time.time_ns():x}"
    if mode == "offline":
        return _begun(run, name, _written(run, name, said))
    limited = Limited("wandb", "nothing is sent")
    if not limited.attempt(lambda: _sign_in(run.directory), mirror.START):
        raise _unsent(run, _reason(limited.problem, said), said)
    logger = _sent(run, mode, name)
    if logger.folder is None or not logger.complete:
        raise _unsent(run, _reason(None, said), said)
    path = f"{logger.run.entity}/{logger.run.project}/{name}"
    num = len(run.records)
    if not limited.attempt(
        lambda: _confirmed(logger.wandb, path, num), CONFIRM + mirror.START
    ):
        raise _unsent(run, _reason(limited.problem, said), said)
    if limited.value < num:
        problem = f"the server has {limited.value} of {num} generations"
        raise _unsent(run, problem, said)
    return _begun(run, name, Pushed(num, logger.folder))


def _sign_in(directory: Path) -> None:
    """Ask the user's server for the account of the user's key.

    Raises:
        UploadError: there is no key.
        wandb.Error: the server does not answer, or refuses the key.
    """
    environment = wandb_client.Environment()
    environment.set(directory, "offline")
    try:
        import wandb

        wandb.setup(wandb.Settings(mode="online"))  # whatever the user's settings say
        known = wandb.login(prompt=False, verify=True)
    finally:
        environment.restore()
    if not known:
        raise UploadError("no API key; log in with `wandb login` or set WANDB_API_KEY")


def _sent(run: _Run, mode: str, name: str) -> mirror.WandbLogger:
    """Send all records and the results as a new wandb run."""
    identity = run.manifest["identity"]
    settings = identity["settings"]
    described = settings.get("search", {}).get("space", {})
    logger = mirror.WandbLogger(
        run.directory,
        mode,
        identity["search"],
        settings | {"run.seed": identity["seed"]},
        tuple(described.get("slots", ())),
        name_of_push=name,
    )
    for record in run.records:
        logger.log({k: np.nan if v is None else v for k, v in record.items()})
    parts = run_directory.paths(run.directory)
    if parts.solution.is_dir() or parts.agents.is_dir():
        logger.finish(run.directory)
    logger.close()
    return logger


def _written(run: _Run, name: str, said: list[warnings.WarningMessage]) -> Pushed:
    """Write a run for `wandb sync`.

    Raises:
        UploadError: wandb failed.
    """
    logger = _sent(run, "offline", name)
    if logger.folder is None or not logger.complete:
        raise UploadError(f"{run.directory}: wandb failed: {_reason(None, said)}")
    limited = Limited("wandb", "it may be incomplete")
    limited.attempt(logger.wandb.teardown, mirror.PUSHED)  # its service writes late
    return Pushed(len(run.records), logger.folder)


def _begun(run: _Run, name: str, pushed: Pushed) -> Pushed:
    """Let the run continue the wandb run that was begun."""
    own_wandb.remember(run.directory, name)
    state = {"id": name, "generation": len(run.records) - 1}
    run_directory.write_json_atomic(run.directory / "wandb.json", state)
    return pushed


def _confirmed(wandb: Any, path: str, num_generations: int) -> int:
    """Return how many generations the server says that it has of a run.

    It counts with a delay, so ask again until it has all of them, or for `CONFIRM`
    seconds.
    """
    until = time.monotonic() + CONFIRM
    while True:
        found = wandb.Api().run(path)
        steps = min(found.lastHistoryStep + 1, found.historyLineCount or 0)
        if steps >= num_generations or time.monotonic() > until:
            return min(steps, num_generations)
        time.sleep(1.0)


def _unsent(
    run: _Run, problem: str, said: list[warnings.WarningMessage]
) -> UploadError:
    """Return the error of a push that failed, with where the data are.

    They are written for `wandb sync`, unless an earlier push of this user wrote them.
    A folder that the run brought along is never named: it may tell wandb to upload any
    file.
    """
    with open_read(run.directory / "metrics.jsonl") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    begins = f"push{digest[:12]}x"
    name = own_wandb.recall(run.directory, own_wandb.UNSENT) or ""
    folders = (run.directory / "wandb").glob(f"offline-run-*-{name}")
    folder = next(folders, None) if name.startswith(begins) else None
    try:
        if folder is None:
            name = f"{begins}{time.time_ns():x}"
            folder = _written(run, name, said).folder
            own_wandb.remember(run.directory, name, own_wandb.UNSENT)
    except UploadError as error:
        return UploadError(f"{run.directory}: not sent ({problem}); {error}")
    return UploadError(
        f"{run.directory}: not sent ({problem}); the data are in {folder}: "
        f"wandb sync {folder}, or metaevo wandb-push {run.directory} later"
    )


def _reason(error: BaseException | None, said: list[warnings.WarningMessage]) -> str:
    """Return the first line of an error, else of the last warning."""
    if isinstance(error, UploadError):
        return str(error)
    if error is not None:
        return line(error)
    ours = [str(x.message) for x in said if str(x.message).startswith("wandb: ")]
    text = ours[-1].removeprefix("wandb: ") if ours else "wandb failed"
    return text.splitlines()[0].partition("; wandb is off")[0]
