"""EVO's comparison: exploitation rules of PBT, and PBT of PPO beside one SAC agent.

    python -m experiments.evo.run                                          20 minutes

On CartPole and Pendulum, `searches.ppo_pbt` with each rule and five seeds: 16 agents
of some 256,000 frames, in 16 generations. On Pendulum, five agents of SAC. One line per
search or agent with its curve: for a search the mean and the best return of its members
by generation. A line that is in the
results is not made again. The figure is docs/images/evo.png.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import numpy as np

import metaevo
from benchmarks.measure import Results
from inner_loops import ppo, sac
from metaevo import envs
from metaevo.analysis import stats
from searches import ppo_pbt

RULES = ("winner", "truncation", "tournament")
NUM_SEARCHES, GENERATIONS = 5, 16
INNER = {
    "CartPole-v1": ppo.Config(256_000, num_segments=GENERATIONS, anneal_lr=False),
    # The settings of docs/log/algorithms.md.
    "Pendulum-v1": ppo.Config(
        256_000,
        num_envs=8,
        num_epochs=10,
        num_minibatches=16,
        num_segments=GENERATIONS,
        anneal_lr=False,
        normalize_observation=True,
        normalize_reward=True,
    ),
}
SAC = sac.Config(20_000, batch_size=64, features=(64, 64))
FOLDER = Path(__file__).parent
PICTURE = FOLDER.parents[1] / "docs" / "images" / "evo.png"


def searched(task: str, rule: str, seed: int) -> dict:
    """The line of a search by PBT."""
    search = ppo_pbt.search(env=f"gymnax/{task}", inner=INNER[task], exploit=rule)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        config = metaevo.RunConfig(
            seed=seed, directory=folder, held_out_seeds=0, wandb="disabled"
        )
        metrics = metaevo.run(search, config).metrics
    return {
        "frames": [x["frames"] for x in metrics],
        "mean": _rounded(x["fitness_mean"] for x in metrics),
        "best": _rounded(x["fitness_best"] for x in metrics),
        "seconds": round(time.perf_counter() - began, 1),
    }


def trained(task: str) -> list[dict]:
    """The lines of SAC's agents."""
    loop = sac.make(envs.make(f"gymnax/{task}"), SAC, sac.Meta())
    training = metaevo.train(loop, NUM_SEARCHES)
    curves = training.metrics["return"]
    return [
        {
            "frames": [int(x) for x in training.frames],
            "mean": _rounded(curve),
            "final": round(float(final), 2),
        }
        for curve, final in zip(curves, training.final_return, strict=True)
    ]


def _rounded(values) -> list[float]:
    return [round(float(x), 2) for x in values]


def draw(lines: list[dict]) -> None:
    """Mean return of the members by frames of one agent, and 95 % intervals."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(INNER), figsize=(9, 3.6))
    for panel, task in zip(panels, INNER, strict=True):
        for way in (*RULES, "SAC"):
            chosen = [x for x in lines if (x["task"], x["way"]) == (task, way)]
            if not chosen:
                continue
            members = 1 if way == "SAC" else 16
            frames = np.array(chosen[0]["frames"]) / members
            curves = np.array([x["mean"] for x in chosen])
            ends = [stats.bootstrap(x, stats.mean) for x in curves.T]
            label = "one SAC agent" if way == "SAC" else f"PBT of PPO, {way}"
            drawn = panel.plot(frames, curves.mean(0), label=label)
            low, high = [x.low for x in ends], [x.high for x in ends]
            panel.fill_between(
                frames, low, high, alpha=0.2, color=drawn[0].get_color(), linewidth=0
            )
        panel.set_title(task, fontsize=10)
        panel.set_xlabel("frames of one agent")
        panel.legend(frameon=False, fontsize=8, loc="lower right")
    panels[0].set_ylabel("mean return of the members")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=120)


def main() -> None:
    metaevo.configure()
    results = Results("results", keep=True, folder=FOLDER)

    def known() -> set:
        rows = map(json.loads, results.lines)
        return {(x["task"], x["way"], x["seed"]) for x in rows}

    if ("Pendulum-v1", "SAC", 0) not in known():
        for seed, line in enumerate(trained("Pendulum-v1")):
            results.add(task="Pendulum-v1", way="SAC", seed=seed, **line)
    for seed in range(NUM_SEARCHES):
        for task in INNER:
            for rule in RULES:
                if (task, rule, seed) not in known():
                    line = searched(task, rule, seed)
                    results.add(task=task, way=rule, seed=seed, **line)
    draw([json.loads(x) for x in results.lines])


if __name__ == "__main__":
    main()
