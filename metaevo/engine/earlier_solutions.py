"""Earlier solutions of a search, scored on held-out seeds for the report."""

from __future__ import annotations

import time
from collections.abc import Mapping

import jax
import numpy as np

from metaevo.analysis import holdout, newest, results
from metaevo.analysis.steps import Steps
from metaevo.engine import costs
from metaevo.engine.job import Job, Progress, State, initial_state
from metaevo.errors import CheckpointError
from metaevo.storage import checkpoint, run_directory
from metaevo.types import Params


def keep(job: Job, progress: Progress) -> None:
    """Keep the solution as it is now, to be scored on held-out seeds at the end."""
    folder = run_directory.paths(job.directory).earlier
    params = jax.device_get(job.programs.solution(progress.state.strategy))
    arrays = checkpoint.to_arrays(params)
    checkpoint.write(folder / f"generation-{progress.generation:08d}", arrays, {})


def keep_newest(
    job: Job, state: State, place: str = "solution", every: float = 0.0
) -> None:
    """Keep the functions of the solution as it is now, for `metaevo watch`.

    Args:
        place: `solution`, or `start` before generation 0.
        every: leave what was kept less than so many seconds ago.
    """
    folder = run_directory.paths(job.directory).newest / place
    if not newest.has_functions(job.search.space.spec):
        return
    if folder.is_dir() and time.time() - folder.stat().st_mtime < every:
        return
    params = jax.device_get(job.programs.solution(state.strategy))
    newest.write(folder, job.search, results.settled(job.search.space, params))


def kept(job: Job) -> dict[int, Params]:
    """Return the earlier solutions by the number of generations done."""
    if not costs.compares(job.search) or job.search.strategy.persistent_agents:
        return {}
    folder = run_directory.paths(job.directory).earlier
    template = jax.device_get(job.programs.solution(initial_state(job).strategy))
    found = {}
    # Of the horizons that were asked for, which the run may have stopped before.
    for path in sorted(folder.glob("generation-*")):
        number = path.name.removeprefix("generation-")
        if not number.isdecimal() or int(number) >= job.search.num_generations:
            continue
        try:
            arrays, _ = checkpoint.read_tree(path, template)
            found[int(number)] = checkpoint.from_arrays(template, arrays)
        except CheckpointError:
            continue  # of an earlier space, or altered: the report has a gap
    return found


def scores(
    job: Job, steps: Steps, earlier: Mapping[int, Params]
) -> dict[str, list[float | None]]:
    """Score earlier solutions on some of the held-out seeds, for the report.

    Args:
        earlier: of `kept`.

    Returns:
        generations done -> the first task's scores, None of runs that failed.
    """
    candidates: Mapping[str, Params] = {
        f"generation {number}": params for number, params in earlier.items()
    }
    runs, _ = holdout.train_kept(
        steps,
        job.search,
        job.search.space,
        candidates,
        job.keys.held_out,
        costs.milestone_seeds(job.config),
        job.factory.make_after,
    )
    return {
        name.removeprefix("generation "): [
            float(x) if np.isfinite(x) else None for x in found.fitness[0]
        ]
        for name, found in runs.items()
    }
