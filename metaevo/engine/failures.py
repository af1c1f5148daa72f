"""Generations in which every member failed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from metaevo.engine import costs
from metaevo.engine.job import Job, Progress
from metaevo.envs import not_finite
from metaevo.errors import ConfigError, NumericalError
from metaevo.storage import jsonl, run_directory
from metaevo.types import InnerLoop

MAX = 3
"""Generations in a row in which every member failed, after which a run ends."""


def hopeless(job: Job, progress: Progress) -> bool:
    """Return True after `MAX` generations without a score, or a whole run without."""
    whole = progress.failures == progress.generation >= job.search.num_generations
    return progress.failures >= MAX or whole


def error(job: Job, progress: Progress) -> NumericalError | ConfigError:
    """The error that ends a hopeless run."""
    num = progress.failures
    unit, member = "generation", "member"
    if costs.trains(job.search):
        unit, member = "segment", "agent"
    row = f"{num} {unit}s in a row" if num > 1 else f"the only {unit}"
    paths = run_directory.paths(job.directory)
    saved = f"the state before {unit} {progress.generation} is in "
    saved += str(paths.checkpoints)
    if jsonl.read(paths.metrics)[-1].get("not_scored", 0):
        return ConfigError(
            f"no episode ended within the lifetime in {row}, so that no {member} was "
            "scored: lengthen inner.total_timesteps or lower inner.num_envs; "
            f"{saved}"
        )
    cause = _environments(job.search.tasks)
    return NumericalError(f"every {member} failed in {row}{cause}; {saved}")


def unsaved(loop: InnerLoop) -> NumericalError:
    """The error that ends training of which nothing is written."""
    cause = _environments([loop])
    return NumericalError(f"every agent failed in {MAX} segments in a row{cause}")


def _environments(loops: Sequence[InnerLoop]) -> str:
    """Return what is not finite in the environments; empty if that is nothing."""
    for env in (loop.env for loop in loops if loop.env is not None):
        said = None
        with contextlib.suppress(Exception):  # what failed before is what is said
            said = not_finite(env)
        if said:
            return f": in {env.name or 'the environment'} {said}"
    return ""


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
