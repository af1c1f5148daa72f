"""Generations in which every member failed."""

from __future__ import annotations

from metaevo.engine.job import Job, Progress
from metaevo.errors import ConfigError, NumericalError
from metaevo.storage import jsonl, run_directory

MAX = 3
"""Generations in a row in which every member failed, after which a run ends."""


def hopeless(job: Job, progress: Progress) -> bool:
    """Return True after `MAX` generations without a score, or a whole run without."""
    whole = progress.failures == progress.generation >= job.search.num_generations
    return progress.failures >= MAX or whole


def error(job: Job, progress: Progress) -> NumericalError | ConfigError:
    """The error that ends a hopeless run."""
    num = progress.failures
    row = f"{num} generations in a row" if num > 1 else "the only generation"
    paths = run_directory.paths(job.directory)
    saved = f"the state before generation {progress.generation} is in "
    saved += str(paths.checkpoints)
    if jsonl.read(paths.metrics)[-1].get("not_scored", 0):
        return ConfigError(
            f"no episode ended within the lifetime in {row}, so that no member was "
            "scored: lengthen inner.total_timesteps or lower inner.num_envs; "
            f"{saved}"
        )
    return NumericalError(f"every member failed in {row}; {saved}")


def unsaved() -> NumericalError:
    """The error that ends training of which nothing is written."""
    return NumericalError(f"every agent failed in {MAX} segments in a row")


def forgiven(job: Job, progress: Progress) -> Progress:
    """Let a run that every member's failure had stopped try from the same state.

    Raises:
        NumericalError: it stopped so, and no generations are left.
    """
    if not hopeless(job, progress):
        return progress
    if progress.generation >= job.search.num_generations:
        raise error(job, progress)
    return progress._replace(failures=0)
