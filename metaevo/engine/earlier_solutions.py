"""Earlier solutions of a search, scored on held-out seeds for the report."""

from __future__ import annotations

import jax
import numpy as np

from metaevo.analysis import holdout
from metaevo.analysis.results import Solution
from metaevo.analysis.steps import Steps
from metaevo.engine import costs
from metaevo.engine.job import Job, Progress
from metaevo.errors import CheckpointError
from metaevo.storage import checkpoint, run_directory


def keep(job: Job, progress: Progress) -> None:
    """Keep the solution as it is now, to be scored on held-out seeds at the end."""
    folder = run_directory.paths(job.directory).earlier
    params = jax.device_get(job.programs.solution(progress.state.strategy))
    arrays = checkpoint.to_arrays(params)
    checkpoint.write(folder / f"generation-{progress.generation:08d}", arrays, {})


def scores(job: Job, solution: Solution, steps: Steps) -> dict[str, list[float | None]]:
    """Score earlier solutions on some of the held-out seeds, for the report.

    Returns:
        generations done -> the first task's scores, None of runs that failed.
    """
    folder = run_directory.paths(job.directory).earlier
    candidates = {}
    # Of the horizons that were asked for, which the run may have stopped before.
    kept = sorted(folder.glob("generation-*")) if costs.compares(job.search) else []
    for path in kept:
        number = path.name.removeprefix("generation-")
        if not number.isdecimal() or int(number) >= job.search.num_generations:
            continue
        try:
            arrays, _ = checkpoint.read_tree(path, solution.params)
            params = checkpoint.from_arrays(solution.params, arrays)
        except CheckpointError:
            continue  # of an earlier space, or altered: the report has a gap
        candidates[f"generation {int(number)}"] = params
    runs, _ = holdout.train_kept(
        steps,
        job.search,
        solution.space,
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
