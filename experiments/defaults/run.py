"""Numbers of PPO that were tuned over ten tasks at once, on six that no search saw.

    python -m experiments.defaults.run runs/defaults     judges what results.jsonl lacks
    python -m experiments.defaults.run table

`runs/defaults` holds runs of `metaevo tune`, as the README here makes them: `numbers*`,
of seven numbers, and `step_size`, of the step size alone by a grid of as many frames.
All learn for lives of the tuned length, 16 agents each on the same seeds, beside PPO as
it is. A line holds scores by seed; networks are dense. Intervals of the table are each
by itself, over seeds, of the mean of the searches.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy as np

import metaevo
from benchmarks.measure import Results
from inner_loops import ppo
from metaevo import envs, fitness, slots
from metaevo.analysis import differences, holdout
from metaevo.envs import suites
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Search, Space

FOLDER = Path(__file__).parent
TASKS = (*suites.UNTOUCHED, *suites.TRAINING)
FRAMES, SEEDS = 32_768, 16
NUMBERS = ("lr", "gamma", "gae_lambda", "ent_coef", "vf_coef", "clip_eps")
NUMBERS += ("max_grad_norm",)
AS_IT_IS, STEP_SIZE, TUNED = "as it is", "step size", "seven numbers"
SPACE = Space(
    lambda key: candidate({}), lambda params, meta: slots.replace(meta, **params)
)


def candidate(changes: dict[str, float]) -> dict[str, float]:
    """PPO's numbers, some of them changed."""
    meta = ppo.Meta()
    return {name: float(changes.get(name, getattr(meta, name))) for name in NUMBERS}


def candidates(folder: Path) -> dict[tuple[str, int], dict[str, float]]:
    """PPO as it is and with the numbers of each run, by way and search."""
    found = {(AS_IT_IS, 0): candidate({})}
    runs = {(STEP_SIZE, 0): folder / "step_size"}
    runs |= {(TUNED, i): x for i, x in enumerate(sorted(folder.glob("numbers/seed*")))}
    for way, run in runs.items():
        if (run / "solution").is_dir():
            found[way] = candidate(metaevo.load(run).slots)
    return found


def judged(task: str, numbers: dict[str, float]) -> dict[str, list[float | None]]:
    """Scores by seed of PPO with these numbers."""
    loop = ppo.make(envs.make(task), ppo.Config(total_timesteps=FRAMES))
    search = Search(loop, SPACE, holdout.NO_STRATEGY, 1, fitness.area_under_curve)
    runs, _ = holdout.train(
        *(search, SPACE, {"": numbers}, jax.random.key(39), SEEDS),
        lambda one, **options: LocalEvaluator(one, devices=jax.devices(), **options),
    )
    scores = {"lifetime": runs[""].fitness[0], "final_return": runs[""].final_return[0]}
    return {
        name: [round(float(y), 4) if np.isfinite(y) else None for y in x]
        for name, x in scores.items()
    }


def table(lines: list[dict]) -> None:
    """Print a row a task: differences from PPO as it is, and between the others."""
    for measure in ("lifetime", "final_return"):
        print(measure)
        for task in TASKS:
            of = {way: [] for way in (AS_IT_IS, STEP_SIZE, TUNED)}
            for line in lines:
                if line["task"] == task:
                    of[line["way"]].append(line[measure])
            if not all(of.values()):
                continue
            scores = {way: np.array(x, np.float64) for way, x in of.items()}
            cells = [task, f"{np.nanmean(scores[AS_IT_IS]):.4g}"]
            for a, b in ((STEP_SIZE, AS_IT_IS), (TUNED, AS_IT_IS), (TUNED, STEP_SIZE)):
                searched = len(scores[a]) > 1, False
                x = differences.crossed_difference(scores[a], scores[b], searched)
                cells.append(f"{x.difference:+.3g} [{x.low:+.3g}, {x.high:+.3g}]")
            print(f"| {' | '.join(cells)} |")


def main(argv: list[str]) -> None:
    if len(argv) != 1:
        sys.exit(__doc__)
    results = Results("results", keep=True, folder=FOLDER)
    if argv != ["table"]:
        metaevo.configure()
        lines = map(json.loads, results.lines)
        done = [(x["task"], x["numbers"]) for x in lines]
        for task in TASKS:
            for (way, search), numbers in candidates(Path(argv[0])).items():
                if (task, numbers) not in done:
                    where = {"task": task, "way": way, "search": search}
                    results.add(**where, numbers=numbers, **judged(task, numbers))
    table([json.loads(x) for x in results.lines])


if __name__ == "__main__":
    main(sys.argv[1:])
