"""Judge what was tuned over ten tasks at once, on six tasks that no search saw.

    python -m experiments.defaults.run ppo      judges what results.jsonl lacks
    python -m experiments.defaults.run fresh    judges DQN's again, into fresh.jsonl
    python -m experiments.defaults.run table

`runs/defaults/ppo` holds runs of `metaevo tune`, as the README here makes them:
`step_size`, a grid of the step size; `numbers/seed*`, all numbers; `choice/*`, all
numbers under static settings that were chosen at that step size; `simple`, a grid of
the step size and of one ε under n steps. The settings name the way. Agents learn for
lives of the tuned length, on the same seeds as the algorithm as it is. A line holds
scores by seed; networks are dense. Intervals of the table are each by itself, over
seeds, of the mean of the searches.

`fresh` trains in worlds of another key, on the tasks that no search saw, what the first
search of settings and of numbers found and its simple rivals. Its measure is the return
over the lifetime, and where no episode ends while agents learn the final return.
Verdicts are corrected for the number of tasks.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import metaevo
from benchmarks.measure import Results
from inner_loops import dqn, ppo
from metaevo import slots
from metaevo.analysis import differences, holdout
from metaevo.cli import config, train
from metaevo.envs import suites
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Space

FOLDER = Path(__file__).parent
TASKS = (*suites.UNTOUCHED, *suites.TRAINING)
SEEDS, WORLD = 16, 39
FRESH_SEEDS, FRESH_WORLDS = 32, (1129, 1130)
FINAL_RETURN = {"gymnax/Freeway-MinAtar"}
"""Tasks whose episodes are longer than a life in one environment."""
AS_IT_IS, STEP_SIZE, NUMBERS = "as it is", "step size", "numbers"
SIMPLE = "step size and epsilon"


class Loop(NamedTuple):
    """An algorithm and the frames of a life."""

    make: Callable
    frames: int


LOOPS = {"ppo": Loop(ppo.make, 32_768), "dqn": Loop(dqn.make, 24_000)}


class Candidate(NamedTuple):
    """Static settings, `KEY=VALUE`, and the slots that differ from the algorithm's."""

    settings: tuple[str, ...]
    slots: dict[str, Any]


def candidates(folder: Path) -> dict[tuple[str, int], Candidate]:
    """The algorithm as it is and what each run found, by way and search."""
    found = {(AS_IT_IS, 0): Candidate((), {})}
    step_size = dict(metaevo.load(folder / "step_size").slots)
    found[STEP_SIZE, 0] = Candidate((), step_size)
    for search, run in enumerate(sorted(folder.glob("numbers/seed*"))):
        found[NUMBERS, search] = Candidate((), dict(metaevo.load(run).slots))
    for solution in sorted(folder.glob("choice/*/solution")):
        manifest = json.loads((solution.parent / "manifest.json").read_text())
        chosen = manifest["identity"]["settings"]["choices"]
        both, settings = f"{chosen} and numbers", (*chosen.split(";"),)
        found[chosen, 0] = Candidate(settings, step_size)
        search = sum(way == both for way, _ in found)
        slots_of_run = dict(metaevo.load(solution.parent).slots)
        found[both, search] = Candidate(settings, slots_of_run)
    if (folder / "simple").is_dir():
        manifest = json.loads((folder / "simple" / "manifest.json").read_text())
        steps = manifest["identity"]["settings"]["inner"]["num_step_return"]
        settings = f"inner.num_step_return={steps}"
        found[f"{settings}, {SIMPLE}", 0] = Candidate(
            (settings,), dict(metaevo.load(folder / "simple").slots)
        )
    return found


def judged(
    task: str, name: str, candidate: Candidate, world: int = WORLD, seeds: int = SEEDS
) -> dict[str, list]:
    """Scores by seed of an algorithm as a candidate has it."""
    loop, tuning = LOOPS[name], train.as_tuning(LOOPS[name].make)
    argv = [f"env={task}", f"inner.total_timesteps={loop.frames}"]
    given = config.parse(tuning, [*argv, *candidate.settings])
    del given["run"]
    search = config.call(tuning, given)
    space = Space(
        lambda key: jax.tree.map(np.float32, candidate.slots),
        lambda params, meta: slots.replace(meta, **params),
    )
    if not candidate.slots:
        space = holdout.HAND_MADE
    params = space.init(jax.random.key(0))
    runs, _ = holdout.train(
        *(search, space, {"": params}, jax.random.key(world), seeds),
        lambda one, **options: LocalEvaluator(one, devices=jax.devices(), **options),
    )
    scores = {"lifetime": runs[""].fitness[0], "final_return": runs[""].final_return[0]}
    return {
        name: [round(float(y), 4) if np.isfinite(y) else None for y in x]
        for name, x in scores.items()
    }


def table(lines: list[dict]) -> None:
    """Print a row a task: what it has as it is, and differences of `PAIRS`."""
    for name in LOOPS:
        of_loop = [x for x in lines if x["loop"] == name]
        ways = [*dict.fromkeys(x["way"] for x in of_loop)]
        pairs = [(way, AS_IT_IS) for way in ways if way != AS_IT_IS]
        pairs += [(way, STEP_SIZE) for way in ways if way not in (AS_IT_IS, STEP_SIZE)]
        for measure in ("lifetime", "final_return"):
            print(name, measure, *(f"{a} less {b}" for a, b in pairs), sep=" | ")
            for task in TASKS:
                here = [x for x in of_loop if x["task"] == task]
                print("|", " | ".join(_row(here, pairs, task, measure)), "|")


def _row(
    here: list[dict], pairs: list[tuple[str, str]], task: str, measure: str
) -> list[str]:
    ways = {x["way"] for x in here}
    if AS_IT_IS not in ways:
        return [task]
    scores = {
        way: np.array([x[measure] for x in here if x["way"] == way], np.float64)
        for way in ways
    }
    mean = scores[AS_IT_IS].mean()
    cells = [task, f"{mean:.4g}" if np.isfinite(mean) else "no episode ended"]
    for a, b in pairs:
        if not {a, b} <= ways:
            cells.append("")
            continue
        searched = len(scores[a]) > 1, False
        x = differences.crossed_difference(scores[a], scores[b], searched)
        told = f"{x.difference:+.3g} [{x.low:+.3g}, {x.high:+.3g}]"
        cells.append(told if np.isfinite(x.low) else "")
    return cells


def judge_fresh() -> None:
    """Judge what the first search of DQN found, and its rivals, in other worlds."""
    results = Results("fresh", keep=True, folder=FOLDER)
    lines = map(json.loads, results.lines)
    done = {(x["task"], x["way"]) for x in lines}
    for task in suites.UNTOUCHED:
        for (way, search), one in candidates(Path("runs/defaults/dqn")).items():
            if not search and (task, way) not in done:
                parts = [
                    judged(task, "dqn", one, world, FRESH_SEEDS)
                    for world in FRESH_WORLDS
                ]
                scores = {k: [y for x in parts for y in x[k]] for k in parts[0]}
                told = {"settings": one.settings, "slots": _plain(one.slots)}
                results.add(task=task, way=way, **told, **scores)


def fresh_table(lines: list[dict]) -> None:
    """Print what tuned numbers and their simple rival are worth beside each way."""
    scores = {
        (x["task"], x["way"]): np.array(
            x["final_return" if x["task"] in FINAL_RETURN else "lifetime"], np.float64
        )
        for x in lines
    }
    ways = [*dict.fromkeys(x["way"] for x in lines)]
    for found, rival in itertools.product(ways[3:], ways):
        if found == rival:
            continue
        print(f"fresh: {found} less {rival}")
        pairs = [
            differences.paired_difference(scores[task, found], scores[task, rival])
            for task in suites.UNTOUCHED
        ]
        for task, x in zip(suites.UNTOUCHED, differences.holm(pairs), strict=True):
            mean = f"{np.nanmean(scores[task, rival]):.4g}"
            interval = f"{x.difference:+.3g} [{x.low:+.3g}, {x.high:+.3g}]"
            print("|", " | ".join([task, mean, interval, x.verdict]), "|")


def main(argv: list[str]) -> None:
    if len(argv) != 1 or argv[0] not in (*LOOPS, "fresh", "table"):
        sys.exit(__doc__)
    if argv == ["fresh"]:
        metaevo.configure()
        judge_fresh()
    results = Results("results", keep=True, folder=FOLDER)
    if argv[0] in LOOPS:
        metaevo.configure()
        (name,) = argv
        lines = map(json.loads, results.lines)
        done = {(x["loop"], x["task"], x["way"], x["search"]) for x in lines}
        for task in TASKS:
            for key, one in candidates(Path("runs/defaults") / name).items():
                if (name, task, *key) not in done:
                    where = {"loop": name, "task": task, "way": key[0]}
                    told = {"settings": one.settings, "slots": _plain(one.slots)}
                    scores = judged(task, name, one)
                    results.add(**where, search=key[1], **told, **scores)
    table([json.loads(x) for x in results.lines])
    fresh = Results("fresh", keep=True, folder=FOLDER)
    fresh_table([json.loads(x) for x in fresh.lines])


def _plain(found: dict[str, Any]) -> dict[str, list[float]]:
    """The numbers of each slot: one, or the leaves of a function of progress."""
    return {
        name: np.concatenate([np.ravel(x) for x in jax.tree.leaves(value)]).tolist()
        for name, value in found.items()
    }


if __name__ == "__main__":
    main(sys.argv[1:])
