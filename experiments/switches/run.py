"""Static settings of PPO on the sixteen tasks of the suites.

    python -m experiments.switches.run           trains what results.jsonl lacks
    python -m experiments.switches.run table     prints differences from PPO as it is

PPO as it is, with normalized rewards alone, and with these, no annealing, the plain
square and a target KL of 0.02: the four that `metaevo compare rivals=all` chose both on
CartPole, where normalized observations joined them, and on MountainCar, where
observations were normalized already. PPO's own step size first, then ten times as much:
65,536 frames, 16 agents each on the same seeds. A line holds scores by seed. Networks
are dense. Intervals are each by itself.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import jax
import numpy as np

import metaevo
from benchmarks.measure import Results
from inner_loops import ppo
from metaevo import envs, fitness, losses
from metaevo.analysis import differences, holdout
from metaevo.envs import suites
from metaevo.slots import function

FOLDER = Path(__file__).parent
TASKS = (*suites.TRAINING, *suites.UNTOUCHED)
STEP_SIZES = (2.5e-4, 2.5e-3)
FRAMES, SEEDS = 65_536, 16
SWITCHES = {"normalize_reward": True, "anneal_lr": False, "target_kl": 0.02}
WAYS = {
    "as it is": ({}, {}),
    "normalized rewards": ({"normalize_reward": True}, {}),
    "four settings": (SWITCHES, {"value_loss": function(losses.square)}),
}
MEASURES = {"lifetime": "fitness", "final_return": "final_return"}


def trained(task: str, lr: float, way: str) -> dict[str, list[float | None]]:
    """Scores by seed of one way on one task."""
    changes, numbers = WAYS[way]
    config = ppo.Config(total_timesteps=FRAMES, **changes)
    loop = ppo.make(envs.make(task), config, ppo.Meta(lr=lr, **numbers))
    auc, key, devices = fitness.area_under_curve, jax.random.key(28), jax.devices()
    found = holdout.train_hand_made(loop, auc, key, SEEDS, devices)
    return {
        name: [round(float(x), 4) if np.isfinite(x) else None for x in scores]
        for name, field in MEASURES.items()
        for scores in [getattr(found, field)[0]]
    }


def table(lines: list[dict]) -> None:
    """Print a row a task and step size: differences from PPO as it is."""
    scores = {(x["task"], x["lr"], x["way"]): x for x in lines}

    def of(task, lr, way, measure):
        return np.array(scores[task, lr, way][measure], np.float64)

    for measure in MEASURES:
        print(measure)
        for lr, task in itertools.product(STEP_SIZES, TASKS):
            if any((task, lr, way) not in scores for way in WAYS):
                continue
            own = of(task, lr, "as it is", measure)
            cells = [f"{task}, {lr:g}", f"{np.nanmean(own):.4g}"]
            for way in list(WAYS)[1:]:
                found = of(task, lr, way, measure)
                x = differences.paired_difference(found, own)
                cells.append(f"{x.difference:+.3g} [{x.low:+.3g}, {x.high:+.3g}]")
            print(f"| {' | '.join(cells)} |")


def main() -> None:
    results = Results("results", keep=True, folder=FOLDER)
    if "table" not in sys.argv[1:]:
        metaevo.configure()
        fields = ("task", "lr", "way")
        lines = map(json.loads, results.lines)
        done = {tuple(x[field] for field in fields) for x in lines}
        for lr, task, way in itertools.product(STEP_SIZES, TASKS, WAYS):
            if (task, lr, way) not in done:
                scores = trained(task, lr, way)
                results.add(task=task, lr=lr, way=way, **scores)
    table([json.loads(x) for x in results.lines])


if __name__ == "__main__":
    main()
