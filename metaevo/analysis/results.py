"""Final results of a search: its solution, its agents, a comparison.

The results depend on the kind of search. A distribution has a solution, which is
trained and compared on held-out seeds. A population of agents that live on
(`Strategy.persistent_agents`) has a best agent, and the schedule of numbers along the
line of its ancestors, which is replayed on those seeds. Policies need no training: they
are scored as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import spaces
from metaevo.analysis import holdout, lineage, verdicts
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.steps import Steps
from metaevo.analysis.verdicts import HAND_MADE, SOLUTION
from metaevo.errors import CheckpointError
from metaevo.fitness import with_hurdles
from metaevo.storage import artifacts, checkpoint, run_directory
from metaevo.storage._files import read_json
from metaevo.storage.verified import MAX_JSON
from metaevo.types import Evaluator, Key, Params, Proposal, PyTree, Search, Space

FRONT_LOOKS = 4  # of a member of the front, unless none has as many
BEST, AVERAGE = "best agent", "population mean"
_RETURNS = "returns"

Agents = Mapping[str, Mapping[str, np.ndarray]]
"""Trained agents by name: arrays by path, with an axis of seeds before all others."""


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
    """Return True if policies evolve that act without training, in the slot `actor`."""
    return search.space.spec.get("actor", {}).get("op") == "policy"


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


def settled(space: Space, params: Params) -> Solution:
    """Return a member as a solution: programs as the formulas that they stand for."""
    if space.programs is None:
        return Solution(space, params)
    return Solution(*space.programs.settled(params))


def texts(space: Space, params: Params) -> dict[str, str]:
    """Return the formulas of a member by slot."""
    spec = settled(space, params).space.spec
    return {slot: op["text"] for slot, op in spec.items() if "text" in op}


def formulas(
    search: Search, state: PyTree, earlier: Mapping[int, Params]
) -> dict[str, Any]:
    """Return what a report says of programs, as plain data; empty if none evolve.

    Args:
        state: of the strategy, in the end.
        earlier: solutions by the number of generations done.

    Returns:
        `front`, the members that no shorter one is as good as, shortest first, each
        with its `length`, `mean`, `error` and `looks`; `path`, the solutions on the
        way; and `genealogy`, the solution's ancestors, oldest first, each with the
        generation of its first score. All have formulas by slot.
    """
    if search.space.programs is None or search.strategy.front is None:
        return {}
    kept = jax.device_get(jax.jit(search.strategy.front)(state))
    front, best = [], -np.inf
    looks = kept.looks >= min(FRONT_LOOKS, kept.looks.max(initial=0))
    order = np.lexsort((-kept.mean, kept.length))
    for i in order[looks[order] & (kept.looks[order] > 0)]:
        if kept.mean[i] <= best:
            continue
        best = kept.mean[i]
        member = jax.tree.map(lambda x, i=i: x[i], kept.params)
        row = {x: getattr(kept, x)[i].item() for x in ("length", "mean", "error")}
        row |= {"looks": int(kept.looks[i]), "formulas": texts(search.space, member)}
        front.append(row)
    path = [
        {"generation": number, "formulas": texts(search.space, params)}
        for number, params in sorted(earlier.items())
    ]
    line: list[dict[str, Any]] = []
    for i in reversed(np.flatnonzero(kept.born >= 0)):
        member = jax.tree.map(lambda x, i=i: x[i], kept.ancestors)
        found = texts(search.space, member)
        if not line or line[-1]["formulas"] != found:
            line.append({"generation": int(kept.born[i]), "formulas": found})
    return {"front": front, "path": path, "genealogy": line}


def save(
    directory: Path,
    search: Search,
    solution: Solution,
    held_out: Mapping[str, HeldOut],
    provenance: Mapping,
    evidence: Mapping,
) -> None:
    """Save the artifact of a solution in `DIRECTORY/solution`.

    Args:
        held_out: its runs on held-out seeds, for the inputs that it visited.
        evidence: of `evidence.evidence`.
    """
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
    visited = verdicts.visited(held_out, spec, {"num_searched": len(search.tasks)})
    artifacts.save(folder, params, spec, numbers, provenance, visited, evidence)


def compare(
    steps: Steps,
    search: Search,
    learned: Mapping[str, Solution],
    key: Key,
    num_seeds: int,
    make: Callable[..., Evaluator],
) -> tuple[dict[str, HeldOut], Agents]:
    """Train learned and hand-made candidates on the same fresh seeds.

    The hand-made ones are the default and the `baselines` of the inner loops.

    Args:
        steps: keeps the runs as they finish.
        search: gives the inner loops and the fitness.
        learned: candidates by name, `solution` among them. Those of one space share
            a program.
        key: determines the seeds.
        num_seeds: N.
        make: makes evaluators.

    Returns:
        runs by name, those of `hand-made` and of baselines among them; and the agents
        of the solution and of the hand-made algorithm.
    """
    held_out, agents = {}, {}
    by_space: dict[int, tuple[Space, dict[str, Params]]] = {}
    for name, (space, params) in learned.items():
        by_space.setdefault(id(space), (space, {}))[1][name] = params
    usual = holdout.as_hand_made(search)
    for setting, bound_by, candidates in (
        *((search, *each) for each in by_space.values()),
        (usual, holdout.HAND_MADE, {HAND_MADE: holdout.NOTHING}),
        *(
            (usual, holdout.fixed(values), {name: holdout.NOTHING})
            for name, values in holdout.baselines(search).items()
        ),
    ):
        runs, trained = holdout.train_kept(
            steps,
            setting,
            bound_by,
            candidates,
            key,
            num_seeds,
            make,
            keep_agents=(SOLUTION, HAND_MADE),
        )
        held_out |= runs
        agents |= trained
    return held_out, agents


def best_agent(
    steps: Steps,
    evaluator: Evaluator,
    proposal: Proposal,
    carried: PyTree,
    key: Key,
    num_evaluations: int,
) -> tuple[Scores, Agents]:
    """Choose the best agent of a population, and score it on fresh episodes.

    Args:
        steps: keeps the evaluations as they finish.
        evaluator: evaluator of the search.
        proposal: the population.
        carried: agents that live on; None: newborn ones with the proposal's params.
        key: determines the episodes.
        num_evaluations: number of evaluations to choose by, and again to report. Each
            is the mean of the loop's evaluation over seeds and tasks.

    Returns:
        the scores, and the agents of the best member.
    """

    def scored(role, i, best=None):
        def evaluate():
            key_ = jax.random.split(jax.random.fold_in(key, role), num_evaluations)[i]
            tasks, agents = evaluator.score(key_, proposal, carried)
            returns = np.stack([np.asarray(task["return"]) for task in tasks])
            arrays = {_RETURNS: returns.mean((0, 1))}
            if best is not None:
                taken = jax.tree.map(lambda x: np.asarray(x[:, best]), agents[0])
                arrays |= checkpoint.to_arrays(taken)
            return arrays

        named = checkpoint.to_arrays(key)
        return steps.step(
            f"{BEST}/{role}-{i}", evaluate, named, i, num_evaluations, best
        )

    def rounds(role):
        return np.stack([scored(role, i)[_RETURNS] for i in range(num_evaluations)])

    chosen_by = rounds(0).mean(0)
    best = int(np.argmax(np.where(np.isfinite(chosen_by), chosen_by, -np.inf)))
    fresh = [dict(scored(1, i, best)) for i in range(num_evaluations)]
    returns = np.stack([x.pop(_RETURNS) for x in fresh])
    scores = Scores(best, {BEST: returns[:, best], AVERAGE: returns.mean(1)})
    return scores, {"best": fresh[-1]}


def policies(
    steps: Steps,
    search: Search,
    params: Params,
    key: Key,
    num_evaluations: int,
    make: Callable[..., Evaluator],
) -> tuple[np.ndarray, Agents]:
    """Score the policy `params` as it is on fresh episodes.

    Returns:
        [N] returns, and the policy as an agent.
    """

    def evaluate():
        copies = holdout.copies(params, num_evaluations)
        alone = make(holdout.alone(search, search.space))
        tasks, agents = alone.score(key, Proposal(copies), None)
        taken = jax.tree.map(lambda x: np.asarray(x[0, :1]), agents[0])
        returns = np.stack([np.asarray(task["return"])[0] for task in tasks])
        return {_RETURNS: returns.mean(0), **checkpoint.to_arrays(taken)}

    given = checkpoint.to_arrays((params, key))
    found = dict(steps.step(f"{SOLUTION}/policy", evaluate, given, num_evaluations))
    return found.pop(_RETURNS), {SOLUTION: found}


def scored(
    search: Search, evaluator: Evaluator, proposal: Proposal, key: Key
) -> np.ndarray:
    """Evaluate newborn members once; return their fitness, [P]."""
    evaluated, _ = evaluator(key, proposal, ())
    evaluated = with_hurdles(search, evaluated)
    return np.asarray(search.aggregate(jnp.asarray(evaluated.fitness)))


def noise(
    steps: Steps,
    search: Search,
    evaluator: Evaluator,
    proposal: Proposal,
    keys: Sequence[Key],
) -> dict[str, float | None]:
    """Estimate the noise of the fitness from two evaluations; see `verdicts.noise`.

    Args:
        steps: keeps the evaluations as they finish.
    """

    def fitness(key):
        return {"fitness": scored(search, evaluator, proposal, key)}

    first, second = (
        steps.step(f"noise/{i}", partial(fitness, key), checkpoint.to_arrays(key))
        for i, key in enumerate(keys)
    )
    return verdicts.noise(first["fitness"], second["fitness"])


def write_agents(directory: Path, agents: Agents) -> None:
    """Write `agents/NAME` for each name."""
    for name, arrays in agents.items():
        checkpoint.write(run_directory.paths(directory).agents / name, arrays, {})


def write_scores(directory: Path, scores: Scores) -> None:
    """Write `agents/scores.json`, for the report."""
    folder = run_directory.paths(directory).agents
    folder.mkdir(parents=True, exist_ok=True)
    plain = {
        name: [float(y) if np.isfinite(y) else None for y in x]
        for name, x in scores.evaluations.items()
    }
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
