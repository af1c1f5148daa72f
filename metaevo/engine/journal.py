"""The journal of a run: its log, the terminal, and the loggers that repeat the log.

`metrics.jsonl` is the run's own record: a line is on the disk before the generation
counts as done. The loggers (wandb, TensorBoard) get a record only when a checkpoint
covers it: a generation that is run again after a crash must not be there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from metaevo.config import wandb_mode
from metaevo.engine.job import Job, Progress
from metaevo.engine.loggers.tensorboard import TensorboardLogger
from metaevo.engine.loggers.wandb import WandbLogger
from metaevo.errors import CheckpointError
from metaevo.storage import run_directory
from metaevo.storage.jsonl import JsonlLogger


class Journal:
    """Take the record of each generation.

    Args:
        job: the run; its console shows a line per record.
        progress: what the newest checkpoint says of the log. What the log holds beyond
            is cut off.

    Attributes:
        generation: number of generations recorded.
        log_bytes: length of `metrics.jsonl`.
        pending: records that no checkpoint covers yet.

    Raises:
        CheckpointError: the log is shorter than it was, or was altered.
    """

    def __init__(self, job: Job, progress: Progress):
        self.generation, self.log_bytes = progress.generation, progress.log_bytes
        self.pending: list[Mapping[str, Any]] = []
        self._loggers: list[TensorboardLogger | WandbLogger] = []
        self._job = job
        paths = run_directory.paths(job.directory)
        # The names by which others find this run, and what they name now.
        self._names = {
            path: _inode(path) for path in (job.directory, paths.lock, paths.manifest)
        }
        self._log = JsonlLogger(paths.metrics, self.log_bytes, progress.log_sha256)

    @property
    def log_sha256(self) -> str:
        """Digest of `metrics.jsonl`."""
        return self._log.sha256

    def check(self) -> None:
        """Check that the run directory is still this process's own.

        Without its lock another process could start beside this one, and what is
        written to a file that was deleted is lost.

        Raises:
            CheckpointError: the directory, its lock, manifest or log was deleted or
                replaced.
        """
        try:
            for path, inode in self._names.items():
                if _inode(path) != inode:
                    raise CheckpointError(f"{path} has vanished or was replaced")
            self._log.check()
        except CheckpointError as error:
            raise CheckpointError(
                f"{error} while the run was going, so it stops: nothing after "
                f"generation {self.generation - len(self.pending)} is saved. Put it "
                "back if it was moved, or start again in another run.directory"
            ) from None

    def open_loggers(self) -> None:
        """Open the loggers that `run.wandb` and `run.tensorboard` ask for."""
        job = self._job
        if job.config.tensorboard:
            settings = job.manifest["identity"]["settings"]
            self._loggers.append(
                TensorboardLogger(job.directory, self.generation, settings)
            )
        mode = wandb_mode(job.config)
        if mode != "disabled":
            self._loggers.append(
                WandbLogger(
                    job.directory,
                    mode,
                    job.name,
                    job.manifest["identity"]["settings"]
                    | {"run.seed": job.config.seed},
                    tuple(job.search.space.spec),
                    job.search.num_generations,
                )
            )

    def record(self, record: Mapping[str, Any]) -> None:
        """Write the record of the next generation to the log and the terminal."""
        self.log_bytes = self._log.log(record)
        self._job.console.log(record)
        self.pending.append(record)
        self.generation += 1

    def release(self, draw: Callable[[], bytes | None]) -> None:
        """Send the pending records to the loggers; a checkpoint covers them now.

        Args:
            draw: makes a PNG of the solution after the last of them.
        """
        for logger in self._loggers:
            for record in self.pending[:-1]:
                logger.log(record)
            for record in self.pending[-1:]:
                logger.log(record, draw)
        self.pending = []

    def finish(self) -> None:
        """Send the report and the artifact to the loggers."""
        for logger in self._loggers:
            logger.finish(self._job.directory)

    def close(self) -> None:
        """Close the log and the loggers."""
        self._log.close()
        for logger in self._loggers:
            logger.close()


def _inode(path: Path) -> tuple[int, int] | None:
    """The file that a path names; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
