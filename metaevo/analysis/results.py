"""Final results of a search: its solution, its agents, a comparison.

The results depend on the kind of search. A distribution has a solution, which is
trained and compared on held-out seeds. A population of agents that live on
(`Strategy.persistent_agents`) has a best agent, and the schedule of numbers along the
line of its ancestors, which is replayed on those seeds. Policies need no training: they
are scored as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import spaces
from metaevo.analysis import holdout, lineage
from metaevo.analysis.holdout import HeldOut
from metaevo.errors import CheckpointError
from metaevo.storage import artifacts, checkpoint, run_directory
from metaevo.storage._files import read_json
from metaevo.storage.verified import MAX_JSON
from metaevo.types import Evaluator, Key, Params, Proposal, PyTree, Search, Space

__all__ = [
    "Scores",
    "Solution",
    "best_agent",
    "breeds_policies",
    "compare",
    "noise",
    "policies",
    "read_scores",
    "save",
    "schedule",
    "write_scores",
]

BEST, AVERAGE, SOLUTION = "best agent", "population mean", "solution"


class Solution(NamedTuple):
    """The solution that a search reports.

    Attributes:
        space: binds `params`: the space of the search, or of the schedule found.
        params: params of one member.
    """

    space: Space
    params: Params


class Scores(NamedTuple):
    """Returns of agents as they are, on fresh episodes.

    Attributes:
        best: index of the best member, chosen by other episodes than these.
        evaluations: name -> [N] returns.
    """

    best: int | None
    evaluations: Mapping[str, np.ndarray]


def breeds_policies(search: Search) -> bool:
    """Return True if policies evolve, which act without training."""
    return any(op["op"] == "policy" for op in search.space.spec.values())


def schedule(search: Search, records: Sequence[Mapping], best: int) -> Solution:
    """Return the schedule of numbers along the line of the best agent.

    Args:
        records: of the whole run.
        best: index of the best member in the last generation.
    """
    loop = search.tasks[0]
    per_generation = search.segments_per_generation or loop.num_segments
    num_steps = max(loop.num_segments // per_generation, 1)
    line = lineage.schedule(records, best, num_steps)
    space = spaces.schedule_from({slot: jnp.asarray(x) for slot, x in line.items()})
    return Solution(space, jax.device_get(space.init(jax.random.key(0))))


def save(
    directory: Path, search: Search, solution: Solution, provenance: Mapping
) -> None:
    """Save the artifact of a solution in `DIRECTORY/solution`."""
    space, params = solution
    default = search.tasks[0].meta
    meta = space.bind(params, default)
    numbers = {
        name: getattr(meta, name)
        for name, op in space.spec.items()
        if op["op"] == "number"
    }
    spec = artifacts.complete(space.spec, meta, default)
    folder = run_directory.paths(directory).solution
    artifacts.save(folder, params, spec, numbers, provenance)


def compare(
    directory: Path,
    search: Search,
    space: Space,
    learned: Mapping[str, Params],
    key: Key,
    num_seeds: int,
    make: Callable[..., Evaluator],
) -> dict[str, HeldOut]:
    """Train learned and hand-made candidates on the same fresh seeds.

    The agents of the solution and of the hand-made algorithm are saved.

    Args:
        directory: the run directory.
        search: gives the inner loops and the fitness.
        space: binds the learned candidates.
        learned: params of `space` by name, `solution` among them.
        key: determines the seeds.
        num_seeds: N.
        make: makes evaluators.

    Returns:
        runs by name, those of `hand-made` among them.
    """
    hand_made = {"hand-made": holdout.NOTHING}
    held_out = {}
    for bound_by, candidates in (
        (space, learned),
        (holdout.HAND_MADE, hand_made),
    ):
        runs, agents = holdout.train(search, bound_by, candidates, key, num_seeds, make)
        held_out |= runs
        for name in agents.keys() & {SOLUTION, "hand-made"}:
            _keep(directory, name, agents[name])
    return held_out


def best_agent(
    directory: Path,
    evaluator: Evaluator,
    proposal: Proposal,
    carried: PyTree,
    key: Key,
    num_evaluations: int,
) -> Scores:
    """Choose the best agent of a population, score it on fresh episodes, and save it.

    Args:
        directory: the run directory.
        evaluator: evaluator of the search.
        proposal: the population.
        carried: agents that live on; None: newborn ones with the proposal's params.
        key: determines the episodes.
        num_evaluations: number of evaluations to choose by, and again to report. Each
            is the mean of the loop's evaluation over seeds and tasks.
    """

    def scores(role):
        keys = jax.random.split(jax.random.fold_in(key, role), num_evaluations)
        rounds = []
        for key_ in keys:
            tasks, agents = evaluator.score(key_, proposal, carried)
            returns = np.stack([np.asarray(task["return"]) for task in tasks])
            rounds.append(returns.mean((0, 1)))
        return np.stack(rounds), agents[0]

    chosen_by = scores(0)[0].mean(0)
    best = int(np.argmax(np.where(np.isfinite(chosen_by), chosen_by, -np.inf)))
    fresh, agents = scores(1)
    _keep(directory, "best", jax.tree.map(lambda x: np.asarray(x[:, best]), agents))
    return Scores(best, {BEST: fresh[:, best], AVERAGE: fresh.mean(1)})


def policies(
    directory: Path,
    search: Search,
    params: Params,
    key: Key,
    num_evaluations: int,
    make: Callable[..., Evaluator],
) -> np.ndarray:
    """Score the policy `params` as it is on fresh episodes, and save it.

    Returns:
        [N] returns.
    """
    alone = holdout.alone(search, search.space)
    copies = holdout.copies(params, num_evaluations)
    scored, agents = make(alone).score(key, Proposal(copies), None)
    _keep(directory, SOLUTION, jax.tree.map(lambda x: np.asarray(x[0, :1]), agents[0]))
    return np.stack([np.asarray(task["return"])[0] for task in scored]).mean(0)


def noise(
    search: Search, evaluator: Evaluator, proposal: Proposal, keys: Sequence[Key]
) -> dict[str, float | None]:
    """Estimate the noise of the fitness from two evaluations; see `holdout.noise`."""
    first, second = (
        np.asarray(
            search.aggregate(jnp.asarray(evaluator(key, proposal, ())[0].fitness))
        )
        for key in keys
    )
    return holdout.noise(first, second)


def write_scores(directory: Path, scores: Scores) -> None:
    """Write `agents/scores.json`, for the report."""
    folder = run_directory.paths(directory).agents
    folder.mkdir(exist_ok=True)
    plain = {name: x.tolist() for name, x in scores.evaluations.items()}
    data = {"best": scores.best, "evaluations": plain}
    run_directory.write_json_atomic(folder / "scores.json", data)


def read_scores(directory: Path) -> Scores | None:
    """Read `agents/scores.json`; None if no agents were scored."""
    path = run_directory.paths(directory).agents / "scores.json"
    if not path.exists():
        return None
    found = read_json(path, MAX_JSON)
    try:
        evaluations = {k: np.asarray(x, float) for k, x in found["evaluations"].items()}
        best = found["best"]
        if best is not None and not isinstance(best, int):
            raise ValueError("the best is no member")
        if any(x.ndim != 1 for x in evaluations.values()):
            raise ValueError("an evaluation is no list of returns")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    return Scores(best, evaluations)


def _keep(directory: Path, name: str, agents: PyTree) -> None:
    folder = run_directory.paths(directory).agents / name
    checkpoint.write(folder, checkpoint.to_arrays(agents), {})
