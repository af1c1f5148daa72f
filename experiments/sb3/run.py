"""Exported losses and rewards in Stable-Baselines3, beside what it has of its own.

    metaevo export zoo:value_loss to=torch out=value_loss.py
    make .venv-torch/.installed
    .venv-torch/bin/python -m experiments.sb3.run sb3_ppo value_loss.py 16

Runs in an environment without JAX and metaevo. Each seed trains one agent with the
exported function and one without, with the settings of the example, whose name comes
first. Intervals are paired by seed. A line that is in the results is not made again.
"""

from __future__ import annotations

import datetime
import importlib
import importlib.metadata
import json
import math
import os
import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
RESULTS = Path(__file__).parent / "results.jsonl"
WINDOWS = 10
# Two-sided 95 % of Student's t by the number of pairs; scipy is not needed for three.
T = {4: 3.182, 8: 2.365, 16: 2.131}


def score(example: str, path: str | None, seed: int) -> dict[str, float]:
    """Train one agent; return its mean return over the lifetime and its final one."""
    agent, final = importlib.import_module(example).main(path, seed=seed)
    monitor = agent.get_env().envs[0]
    while not hasattr(monitor, "get_episode_lengths"):
        monitor = monitor.env
    returns, end = monitor.get_episode_rewards(), 0
    windows: list[list[float]] = [[] for _ in range(WINDOWS)]
    for length, x in zip(monitor.get_episode_lengths(), returns, strict=True):
        end += length
        windows[min(WINDOWS * end // agent.num_timesteps, WINDOWS - 1)].append(x)
    means = [statistics.mean(x) for x in windows if x]
    return {"lifetime": statistics.mean(means), "final_return": float(final)}


def interval(differences: list[float]) -> list[float]:
    """The mean and its 95 % interval."""
    mean, n = statistics.mean(differences), len(differences)
    half = T[n] * statistics.stdev(differences) / math.sqrt(n)
    return [round(x, 2) for x in (mean, mean - half, mean + half)]


def main(example: str, path: str, num_seeds: int) -> None:
    if num_seeds not in T:
        sys.exit(f"expected one of {', '.join(map(str, T))} seeds")
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    of, packages = Path(path).stem, ("stable-baselines3", "torch", "gymnasium")
    same = [
        x for x in map(json.loads, lines) if (x["example"], x["of"]) == (example, of)
    ]
    found = {(x["seed"], x["exported"]): x for x in same}
    torch.set_num_threads(1)
    for seed in range(num_seeds):
        for exported in (False, True):
            if (seed, exported) in found:
                continue
            line = {"example": example, "of": of, "seed": seed, "exported": exported}
            line |= score(example, path if exported else None, seed)
            found[seed, exported] = line
            now = datetime.datetime.now(datetime.UTC)
            line |= {
                "date": now.isoformat(timespec="seconds"),
                "load": os.getloadavg()[0],
            }
            line |= {"versions": {x: importlib.metadata.version(x) for x in packages}}
            lines.append(json.dumps(line))
            RESULTS.write_text("\n".join(lines) + "\n")
    for measure in ("lifetime", "final_return"):
        own, with_it = (
            [found[seed, x][measure] for seed in range(num_seeds)]
            for x in (False, True)
        )
        pairs = [b - a for a, b in zip(own, with_it, strict=True)]
        print(
            f"{example} with {of}, {num_seeds} seeds, {measure}: "
            f"{statistics.mean(own):.1f} by itself, {statistics.mean(with_it):.1f} "
            f"with it, difference {interval(pairs)}"
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
