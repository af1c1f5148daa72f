"""The reluctant square in the DQN of Stable-Baselines3, beside its own Huber loss.

    make .venv-torch/.installed
    .venv-torch/bin/python -m experiments.reluctant.sb3             70 minutes on a core

RL Baselines3 Zoo's settings, networks of 256 and 256 units included, on two tasks.
One line per agent, task and seed, in an environment without JAX and metaevo: the mean
return over ten windows of the lifetime, and that of ten episodes after it. A line that
is in the results is not made again.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import statistics
from pathlib import Path
from unittest import mock

import torch
from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.dqn import dqn

RESULTS = Path(__file__).with_name("sb3.jsonl")
SEEDS, WINDOWS = 8, 10
CARTPOLE = {"learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000}
CARTPOLE |= {"learning_starts": 1_000, "target_update_interval": 10, "train_freq": 256}
CARTPOLE |= {"gradient_steps": 128, "exploration_fraction": 0.16}
CARTPOLE |= {"exploration_final_eps": 0.04}
ACROBOT = {"learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000}
ACROBOT |= {"learning_starts": 0, "target_update_interval": 250, "train_freq": 4}
ACROBOT |= {"gradient_steps": -1, "exploration_fraction": 0.12}
ACROBOT |= {"exploration_final_eps": 0.1}
TASKS = {
    "CartPole-v1": (50_000, CARTPOLE),
    "Acrobot-v1": (100_000, ACROBOT),
}


def reluctant(q, target):
    error = target - q
    return 0.5 * (torch.where(error * target < 0, 1.0, 0.1) * error**2).mean()


LOSSES = {"Huber": dqn.F.smooth_l1_loss, "reluctant 0.1": reluctant}


def trained(task: str, loss: str, seed: int) -> dict[str, float]:
    """Scores of one agent."""
    frames, settings = TASKS[task]
    network = {"net_arch": [256, 256]}
    agent = DQN(
        "MlpPolicy", task, seed=seed, device="cpu", policy_kwargs=network, **settings
    )
    with mock.patch.object(dqn.F, "smooth_l1_loss", LOSSES[loss]):
        agent.learn(frames)
    monitor = agent.get_env().envs[0]
    returns, end = monitor.get_episode_rewards(), 0
    windows: list[list[float]] = [[] for _ in range(WINDOWS)]
    for length, x in zip(monitor.get_episode_lengths(), returns, strict=True):
        end += length
        windows[min(WINDOWS * end // frames, WINDOWS - 1)].append(x)
    final, _ = evaluate_policy(agent, agent.get_env(), n_eval_episodes=10)
    lifetime = statistics.mean(statistics.mean(x) for x in windows if x)
    return {"lifetime": round(lifetime, 2), "final_return": round(float(final), 2)}


def main() -> None:
    torch.set_num_threads(1)
    packages = ("stable-baselines3", "torch", "gymnasium")
    versions = {x: importlib.metadata.version(x) for x in packages}
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    known = {tuple(json.loads(x)[k] for k in ("task", "loss", "seed")) for x in lines}
    for task, seed, loss in itertools.product(TASKS, range(SEEDS), LOSSES):
        if (task, loss, seed) not in known:
            line = {"task": task, "loss": loss, "seed": seed}
            line |= trained(task, loss, seed) | {"versions": versions}
            lines.append(json.dumps(line))
            RESULTS.write_text("\n".join(lines) + "\n")
            print(lines[-1], flush=True)


if __name__ == "__main__":
    main()
