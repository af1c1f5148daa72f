"""fastpbrl's last figure: populations of TD3 and SAC beside one torch agent.

    taskset -c 0 python -m experiments.fastpbrl.run                        80 minutes

PBT of TD3 and of SAC, CEM-RL and DvD as shipped, and TD3 of Stable-Baselines3 with the
networks, batches and step sizes of ours, on Pendulum with five seeds and
MountainCarContinuous with three. On the latter, whose goal no uncorrelated noise
reaches, PBT's agents explore by noise with a correlation of 0.9, and the torch agent by
an Ornstein-Uhlenbeck process with a sigma of 0.5, RL Zoo's setting. One line per search
or agent: return and seconds since its start by generation. `best` is the best member's
mean return in a generation, `mean` that of all. Seconds of ours hold compilation. Both
have one core. `.venv-torch` is made by `make .venv-torch/.installed`. A line that is in
the results is not made again. The figure is docs/images/fastpbrl.png.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

import metaevo
from benchmarks.measure import Results
from inner_loops import sac, td3
from searches import sac_pbt, td3_cem_rl, td3_dvd, td3_pbt

SEARCHES = {
    "PBT of TD3": td3_pbt,
    "PBT of SAC": sac_pbt,
    "CEM-RL": td3_cem_rl,
    "DvD": td3_dvd,
}
CORRELATED = {
    "PBT of TD3": td3.Meta(policy_delay=2.0, noise_correlation=0.9),
    "PBT of SAC": sac.Meta(noise_correlation=0.9),
}
TASKS: tuple[str, ...] = ("Pendulum-v1", "MountainCarContinuous-v0")
TORCH_TD3 = "TD3 of Stable-Baselines3"
SEEDS: dict[str, int] = dict(zip(TASKS, (5, 3), strict=True))
FRAMES = 20_000
WINDOWS: dict[str, int] = dict(
    zip(TASKS, (25, 10), strict=True)
)  # each holds an episode
KEYS = ("task", "seed", "way")
FOLDER = Path(__file__).parent
TORCH = FOLDER.parents[1] / ".venv-torch" / "bin" / "python"
PICTURE = FOLDER.parents[1] / "docs" / "images" / "fastpbrl.png"

PROGRAM = """
import json, sys, time
import numpy as np
from stable_baselines3 import TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import (
    NormalActionNoise, OrnsteinUhlenbeckActionNoise,
)
frames, seed, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
ended = []
class Note(BaseCallback):
    def _on_step(self):
        for info in self.locals["infos"]:
            if "episode" in info:
                seconds = time.perf_counter() - began
                ended.append((self.num_timesteps, seconds, info["episode"]["r"]))
        return True
env = make_vec_env(name, n_envs=1, seed=seed)
noise = NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))
if name.startswith("MountainCar"):
    noise = OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.5 * np.ones(1))
model = TD3("MlpPolicy", env, learning_rate=1e-3, buffer_size=20_000,
    learning_starts=1000, batch_size=64, train_freq=1, gradient_steps=1,
    action_noise=noise, seed=seed,
    device="cpu", policy_kwargs={"net_arch": [64, 64]})
began = time.perf_counter()
model.learn(frames, callback=Note())
print(json.dumps(ended))
"""


def searched(way: str, seed: int, task: str) -> dict:
    """The line of a search."""
    given = {"meta": CORRELATED[way]} if way in CORRELATED and task != TASKS[0] else {}
    search = SEARCHES[way].search(env=f"gymnax/{task}", **given)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        config = metaevo.RunConfig(
            seed=seed, directory=folder, held_out_seeds=0, wandb="disabled"
        )
        metrics = metaevo.run(search, config).metrics
    total = time.perf_counter() - began
    seconds = np.cumsum([x["seconds"] for x in metrics])
    return {
        "frames": [x["frames"] for x in metrics],
        "seconds": _rounded(seconds),
        "mean": _rounded(x["fitness_mean"] for x in metrics),
        "best": _rounded(x["fitness_best"] for x in metrics),
        "with_report": round(total, 1),
    }


def torch_agent(seed: int, task: str) -> dict:
    """The line of one agent of Stable-Baselines3."""
    command = [TORCH, "-c", PROGRAM, str(FRAMES), str(seed), task]
    done = subprocess.run(command, capture_output=True, check=True)
    ended = np.array(json.loads(done.stdout))
    windows = WINDOWS[task]
    part = np.minimum(ended[:, 0] * windows // FRAMES, windows - 1)
    groups = [ended[part == i] for i in range(windows)]
    mean = _rounded(x[:, 2].mean() for x in groups)
    return {
        "frames": [FRAMES * (i + 1) // windows for i in range(windows)],
        "seconds": _rounded(x[-1, 1] for x in groups),
        "mean": mean,
        "best": mean,
    }


def _rounded(values) -> list[float | None]:
    """Of numbers, of which some are None: no episode ended."""
    return [None if x is None else round(float(x), 2) for x in values]


def draw(lines: list[dict]) -> None:
    """Mean over seeds, by seconds: of the best member and of all members."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, rows = plt.subplots(2, 2, figsize=(9, 7), sharey="row")
    for panels, task in zip(rows, TASKS, strict=True):
        for way in (*SEARCHES, TORCH_TD3):
            chosen = [x for x in lines if (x["way"], x["task"]) == (way, task)]
            seconds = np.mean([x["seconds"] for x in chosen], 0)
            for panel, measure in zip(panels, ("best", "mean"), strict=True):
                curves = np.array([x[measure] for x in chosen], float)
                line = panel.plot(seconds, curves.mean(0), label=way)[0]
                panel.fill_between(
                    seconds,
                    curves.min(0),
                    curves.max(0),
                    alpha=0.15,
                    color=line.get_color(),
                    linewidth=0,
                )
        panels[0].set_ylabel(f"return on {task.partition('-')[0]}")
        for panel in panels:
            panel.set(xscale="log", xlabel="seconds")
    for panel, title in zip(rows[0], ("best member", "all members"), strict=True):
        panel.set_title(title, fontsize=10)
    rows[0, 1].legend(frameon=False, fontsize=8, loc="upper left")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=120)


def main() -> None:
    metaevo.configure()
    results = Results("results", keep=True, folder=FOLDER)
    known = {tuple(json.loads(x)[k] for k in KEYS) for x in results.lines}
    keys = [(task, seed) for task in TASKS for seed in range(SEEDS[task])]
    for (task, seed), way in itertools.product(keys, (*SEARCHES, TORCH_TD3)):
        key = task, seed, way
        if key not in known:
            torch = way == TORCH_TD3
            line = torch_agent(seed, task) if torch else searched(way, seed, task)
            results.add(**dict(zip(KEYS, key, strict=True)), **line)
    draw([json.loads(x) for x in results.lines])


if __name__ == "__main__":
    main()
