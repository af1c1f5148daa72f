"""Judge what was tuned over ten tasks at once, on six tasks that no search saw.

    python -m experiments.defaults.run ppo      judges what results.jsonl lacks
    python -m experiments.defaults.run table

`runs/defaults/ppo` holds runs of `metaevo tune`, as the README here makes them:
`step_size`, a grid of the step size; `numbers/seed*`, all numbers; `choice/*`, all
numbers under static settings that were chosen at that step size. The settings name the
way. Agents learn for lives of the tuned length, on the same seeds as the algorithm as
it is. A line holds scores by seed; networks are dense. Intervals of the table are each
by itself, over seeds, of the mean of the searches.
"""

from __future__ import annotations

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
SEEDS = 16
AS_IT_IS, STEP_SIZE, NUMBERS = "as it is", "step size", "numbers"


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
    return found


def judged(task: str, name: str, candidate: Candidate) -> dict[str, list]:
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
        *(search, space, {"": params}, jax.random.key(39), SEEDS),
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
    cells = [task, f"{np.nanmean(scores[AS_IT_IS]):.4g}"]
    for a, b in pairs:
        if not {a, b} <= ways:
            cells.append("")
            continue
        searched = len(scores[a]) > 1, False
        x = differences.crossed_difference(scores[a], scores[b], searched)
        cells.append(f"{x.difference:+.3g} [{x.low:+.3g}, {x.high:+.3g}]")
    return cells


def main(argv: list[str]) -> None:
    if len(argv) != 1 or argv[0] not in (*LOOPS, "table"):
        sys.exit(__doc__)
    results = Results("results", keep=True, folder=FOLDER)
    if argv != ["table"]:
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


def _plain(found: dict[str, Any]) -> dict[str, list[float]]:
    """The numbers of each slot: one, or the leaves of a function of progress."""
    return {
        name: np.concatenate([np.ravel(x) for x in jax.tree.leaves(value)]).tolist()
        for name, value in found.items()
    }


if __name__ == "__main__":
    main(sys.argv[1:])
