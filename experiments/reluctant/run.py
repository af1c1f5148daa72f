"""A square that is slow away from zero and fast back, in agents and on tasks.

    python -m experiments.reluctant.run ours           40 minutes on two cores
    python -m experiments.reluctant.run independent    40 minutes
    python -m experiments.reluctant.run table

`ours` trains this repository's DQN, paired by seed, in short lives on eight tasks, with
one-step and three-step targets, with and without double, and in long lives; beside the
square stand Huber's loss, squares that are slow to rise and slow to fall, a smaller
discount and `losses.td_reluctant`. `independent` trains the agent that shares no code
with it, at its three step sizes. One line per agent, task and loss, with scores by
seed: the mean return over the lifetime and the final return. A line that is in the
results is not made again. `table` prints and draws all differences from the square,
with intervals paired by seed. `sb3.py` trains the agents of Stable-Baselines3.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import metaevo

metaevo.configure()

import jax  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.measure import Results  # noqa: E402
from inner_loops import dqn  # noqa: E402
from metaevo import envs, fitness, losses  # noqa: E402
from metaevo.analysis import differences, holdout, rivals  # noqa: E402
from metaevo.analysis.independent import judge  # noqa: E402
from metaevo.evaluators.local import LocalEvaluator  # noqa: E402
from metaevo.types import Proposal, Search  # noqa: E402

FOLDER = Path(__file__).parent
KEYS = ("agent", "task", "setting", "loss")
SQUARE, SB3 = "square", "DQN of Stable-Baselines3"
SIMPLE = rivals.SIMPLE["td_loss"]
LOSSES: dict[str, dict[str, Any]] = {
    SQUARE: {},
    "Huber": {"td_loss": losses.td_huber},
    "slow to rise": {"td_loss": SIMPLE["slow to rise"]},
    "slow to fall": {"td_loss": SIMPLE["slow to fall"]},
    "reluctant 0.1": {"td_loss": losses.td_reluctant},
    "gamma 0.9": {"gamma": 0.9},
}


class Task(NamedTuple):
    """A life of our DQN.

    Attributes:
        env: name of the environment.
        lr: step size.
        frames: of a lifetime; None: all numbers are DQN's defaults.
        num_seeds: agents for each loss.
        sizes: what differs from the short life's sizes.
        rivals: names of what is trained; none: all.
    """

    env: str
    lr: float
    frames: int | None = 24_000
    num_seeds: int = 32
    sizes: Mapping[str, Any] = {}
    rivals: tuple[str, ...] = ()


FEW = (SQUARE, "reluctant 0.1")
THREE = {"num_step_return": 3}
DOUBLE = {"double": True}
CARTPOLE, ACROBOT = "gymnax/CartPole-v1", "gymnax/Acrobot-v1"
CAR, MAZE = "gymnax/MountainCar-v0", "grid/maze"
OURS = {
    "": [
        Task(CARTPOLE, 2e-3),
        Task(ACROBOT, 2e-3),
        Task(ACROBOT, 5e-4, 48_000),
        Task(MAZE, 1e-3, num_seeds=16),
        Task("grid/key_door", 2e-3, num_seeds=16),
        Task("gymnax/Catch-bsuite", 1e-3, num_seeds=16),
        Task("gymnax/DiscountingChain-bsuite", 1e-3, num_seeds=16),
        Task("gymnax/Asterix-MinAtar", 5e-4, 60_000, 8),
    ],
    "n = 3": [
        Task(CARTPOLE, 2e-3, sizes=THREE, rivals=FEW),
        Task(ACROBOT, 2e-3, sizes=THREE, rivals=FEW),
        Task(MAZE, 1e-3, num_seeds=16, sizes=THREE, rivals=FEW),
        Task(CAR, 2e-3, 48_000, 16, THREE, FEW),
    ],
    "double": [
        Task(CARTPOLE, 2e-3, sizes=DOUBLE, rivals=FEW),
        Task(ACROBOT, 2e-3, sizes=DOUBLE, rivals=FEW),
        Task(MAZE, 1e-3, num_seeds=16, sizes=DOUBLE, rivals=FEW),
    ],
    "long": [
        Task(CARTPOLE, dqn.Meta().lr, None, 8, rivals=FEW),
        Task(ACROBOT, dqn.Meta().lr, None, 8, rivals=FEW),
    ],
}
INDEPENDENT = (CARTPOLE, ACROBOT, CAR, "gymnax/Catch-bsuite")
INDEPENDENT_SEEDS = 8


def trained(task: Task, changes: dict[str, Any]) -> dict[str, list[float]]:
    """Scores of our DQN."""
    config = dqn.Config(**task.sizes)
    if task.frames is not None:
        config = dqn.Config(task.frames, 1_000, num_steps=4, **task.sizes)
    loop = dqn.make(envs.make(task.env), config, dqn.Meta(lr=task.lr, **changes))
    search = Search(
        loop,
        holdout.HAND_MADE,
        None,  # pyright: ignore[reportArgumentType]  # nothing is proposed
        1,
        fitness.area_under_curve,
        num_seeds=1,
        common_random_numbers=False,
        chunk_size=min(task.num_seeds, 16),
    )
    everybody = Proposal(holdout.copies(holdout.NOTHING, task.num_seeds))
    evaluate = LocalEvaluator(search, jax.devices(), True)
    outcome, _ = evaluate(jax.random.key(11), everybody, ())
    return {
        "lifetime": rounded(np.asarray(outcome.fitness)[0, 0]),
        "final_return": rounded(np.asarray(outcome.evaluation[0]["return"])[0]),
    }


def rounded(values: np.ndarray) -> list[float]:
    return np.round(np.asarray(values, float), 3).tolist()


def ours(results: Results) -> None:
    for names in (FEW, tuple(LOSSES)):  # what matters most first
        for setting, tasks in OURS.items():
            for task, loss in itertools.product(tasks, names):
                if not task.rivals or loss in task.rivals:
                    key = ("dqn", f"{task.env}, {task.lr:g}", setting, loss)
                    once(results, key, lambda t=task, x=loss: trained(t, LOSSES[x]))


def independent(results: Results) -> None:
    for env in INDEPENDENT:
        for lr in judge.AGENTS["dqn"].STEP_SIZES:
            for loss in (SQUARE, "slow to rise", "slow to fall", "reluctant 0.1"):

                def score(env=env, lr=lr, loss=loss):
                    found = judge.scores(
                        "dqn",
                        envs.make(env),
                        LOSSES[loss],
                        jax.random.key(0),
                        INDEPENDENT_SEEDS,
                        [lr],
                    )
                    return {k: rounded(x[0]) for k, x in found._asdict().items()}

                once(results, ("independent dqn", f"{env}, {lr:g}", "", loss), score)


def once(results: Results, key: tuple[str, ...], score) -> None:
    """Add a line, unless it is in the results."""
    if key not in known(results):
        results.add(**dict(zip(KEYS, key, strict=True)), **score())


def known(results: Results) -> dict[tuple[str, ...], dict]:
    lines = map(json.loads, results.lines)
    return {tuple(x[k] for k in KEYS): x for x in lines}


def everything() -> dict[tuple[str, ...], dict]:
    """Lines of all parts."""
    found: dict[tuple[str, ...], dict] = {}
    for part in PARTS:
        found |= known(Results(part, keep=True, folder=FOLDER))
    return found | of_sb3()


def draw() -> None:
    """Differences of the reluctant square over the lifetime, in % of the square's."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found, rows = everything(), []
    for (*place, loss), line in found.items():
        base = found.get((*place, "Huber" if SB3 in place else SQUARE))
        if loss == "reluctant 0.1" and base is not None:
            a, b = (np.asarray(x["lifetime"], float) for x in (line, base))
            scale = 100 / abs(b.mean())
            x = differences.paired_difference(a, b)
            rows.append((plain_name(*place), *(scale * np.array(x[:3]))))
    figure, panel = plt.subplots(figsize=(9, 0.34 * len(rows) + 1))
    for i, (_, middle, low, high) in enumerate(reversed(rows)):
        color = "#0072B2" if low > 0 else "#D55E00" if high < 0 else "#8a8a8a"
        panel.plot([low, high], [i, i], color=color)
        panel.plot(middle, i, "o", color=color)
    panel.axvline(0, color="black", linewidth=0.8)
    panel.set_yticks(range(len(rows)), [x[0] for x in reversed(rows)], fontsize=10)
    panel.set_xlabel("more return over the lifetime, % of the square's (95 %)")
    figure.tight_layout()
    figure.savefig(FOLDER.parents[1] / "docs" / "images" / "reluctant.png", dpi=120)


def plain_name(agent: str, task: str, setting: str) -> str:
    """Return the name of a row of the picture.

    >>> plain_name("dqn", "gymnax/Acrobot-v1, 0.002", "double")
    'double DQN, Acrobot, step size 0.002'
    """
    env, _, lr = task.partition(", ")
    env = env.rpartition("/")[2].partition("-")[0].replace("_", " ")
    agent = agent.replace("dqn", "DQN")
    size = f"step size {lr}" if lr else ""
    if setting == "long":
        size = "500,000 frames"
    elif setting:
        agent = f"{setting} {agent}"
    return ", ".join(filter(None, (agent, env, size)))


def table() -> None:
    """Print each loss's difference from the square, a row each, as Markdown."""
    found = everything()
    print("| agent | task | setting | loss | lifetime | final return |")
    print("|---|---|---|---|---|---|")
    for (*place, loss), line in found.items():
        base = "Huber" if SB3 in place else SQUARE
        cells = [
            f"{np.mean(line[x]):.4g}"
            if loss == base
            else difference(line, found[*place, base], x)
            for x in ("lifetime", "final_return")
        ]
        print("| " + " | ".join([*place, loss, *cells]) + " |")


def of_sb3() -> dict[tuple[str, ...], dict]:
    """Lines of `sb3.py`, the seeds that both losses have joined."""
    path = FOLDER / "sb3.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found: dict[tuple[str, ...], dict[int, dict]] = {}
    for x in map(json.loads, lines):
        found.setdefault((SB3, x["task"], "", x["loss"]), {})[x["seed"]] = x
    joined = {}
    for key, seeds in found.items():
        of_task = [y for k, y in found.items() if k[1] == key[1]]
        both = sorted(set.intersection(*map(set, of_task)))
        joined[key] = {
            x: [seeds[i][x] for i in both] for x in ("lifetime", "final_return")
        }
    return joined


def difference(line: dict, base: dict, measure: str) -> str:
    a, b = (np.asarray(x[measure], float) for x in (line, base))
    found = differences.paired_difference(a, b)
    text = f"{found.difference:+.4g} [{found.low:+.4g}, {found.high:+.4g}]"
    return f"**{text}**" if found.low > 0 or found.high < 0 else text


def main(which: str) -> None:
    if which == "table":
        table()
        draw()
    else:  # parts may run at once, so each has a file
        PARTS[which](Results(which, keep=True, folder=FOLDER))


PARTS = {"ours": ours, "independent": independent}

if __name__ == "__main__":
    main(*sys.argv[1:])
