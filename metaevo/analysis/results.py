"""What a finished search comes to: a solution, its agents, a comparison.

What there is to report follows from the search. A distribution has a solution, to be
trained and compared on held-out seeds. A population whose members follow each other
(`Strategy.persistent_agents`) has a best agent, and its line's schedule of numbers, to
be replayed on those seeds. Policies need no training: they are scored as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import spaces
from metaevo.analysis import holdout, lineage
from metaevo.analysis.holdout import HeldOut
from metaevo.storage import artifacts, checkpoint, run_directory
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
    """What a search reports.

    Attributes:
        space: that binds it: the search's, or the schedule's that was found.
        params: one member's.
    """

    space: Space
    params: Params


class Scores(NamedTuple):
    """Agents as they are, on fresh episodes.

    Attributes:
        best: the member that was chosen.
        evaluations: name -> [N] returns, none of which it was chosen by.
    """

    best: int | None
    evaluations: Mapping[str, np.ndarray]


def breeds_policies(search: Search) -> bool:
    """Whether what evolves is what acts."""
    return any(op["op"] == "policy" for op in search.space.spec.values())


def schedule(search: Search, records: Sequence[Mapping], best: int) -> Solution:
    """The schedule of numbers along the best agent's line."""
    loop = search.tasks[0]
    num_steps = max(loop.num_segments // search.segments_per_generation, 1)
    space = spaces.schedule_from(lineage.schedule(records, best, num_steps))
    return Solution(space, jax.device_get(space.init(jax.random.key(0))))


def save(
    directory: Path, search: Search, solution: Solution, provenance: Mapping
) -> None:
    """The artifact of a solution, in `DIRECTORY/solution`."""
    space, params = solution
    default = search.tasks[0].meta
    meta = space.bind(params, default)
    numbers = {
        name: getattr(meta, name)
        for name, op in space.spec.items()
        if op["op"] == "number"
    }
    spec = artifacts.complete(space.spec, meta, default)
    artifacts.save(directory / "solution", params, spec, numbers, provenance)


def compare(
    directory: Path,
    search: Search,
    space: Space,
    learned: Mapping[str, Params],
    key: Key,
    num_seeds: int,
    make: Callable[..., Evaluator],
) -> dict[str, HeldOut]:
    """What was learned, and the hand-made algorithm, trained on the same fresh seeds.

    The agents of the solution and of the hand-made algorithm are saved.

    Args:
        learned: params of `space` by name, `solution` among them.
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
    """The best agent of a population, chosen and then scored on fresh episodes; saved.

    Args:
        carried: agents that live on; None: the proposal's own, newborn.
        num_evaluations: to choose by, and again as many to report; each is the mean
            of a loop's evaluation, over seeds and tasks.
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
    """[N] returns of the policy `params`, as it is, on fresh episodes; saved."""
    alone = holdout.alone(search, search.space)
    copies = holdout.copies(params, num_evaluations)
    scored, agents = make(alone).score(key, Proposal(copies), None)
    _keep(directory, SOLUTION, jax.tree.map(lambda x: np.asarray(x[0, :1]), agents[0]))
    return np.stack([np.asarray(task["return"])[0] for task in scored]).mean(0)


def noise(
    search: Search, evaluator: Evaluator, proposal: Proposal, keys: Sequence[Key]
) -> dict[str, float]:
    """How much of a population's spread is noise, from two evaluations of it."""
    first, second = (
        np.asarray(
            search.aggregate(jnp.asarray(evaluator(key, proposal, ())[0].fitness))
        )
        for key in keys
    )
    return holdout.noise(first, second)


def write_scores(directory: Path, scores: Scores) -> None:
    """`agents/scores.json`, for the report."""
    folder = directory / "agents"
    folder.mkdir(exist_ok=True)
    plain = {name: x.tolist() for name, x in scores.evaluations.items()}
    data = {"best": scores.best, "evaluations": plain}
    run_directory.write_json_atomic(folder / "scores.json", data)


def read_scores(directory: Path) -> Scores | None:
    path = directory / "agents" / "scores.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    evaluations = {k: np.asarray(x, float) for k, x in found["evaluations"].items()}
    return Scores(found["best"], evaluations)


def _keep(directory: Path, name: str, agents: PyTree) -> None:
    folder = directory / "agents" / name
    checkpoint.write(folder, checkpoint.to_arrays(agents), {})
