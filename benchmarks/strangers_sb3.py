"""One agent of Stable-Baselines3, with an exported function or with its own.

    .venv-torch/bin/python -m benchmarks.strangers_sb3 DQN CartPole-v1 own 0
    .venv-torch/bin/python -m benchmarks.strangers_sb3 DQN CartPole-v1 evolved.py 0

Runs in an environment without JAX and metaevo; `benchmarks.strangers` calls it. It
prints the mean return over ten windows of the lifetime, the mean return of ten episodes
after it, and the versions of the packages, as JSON. DQN and PPO have RL Baselines3
Zoo's settings, for shorter lives of PPO than there. A reward is given to a PPO of
default settings as `examples/sb3_reward.py` does.
"""

from __future__ import annotations

import importlib.metadata
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecNormalize

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import sb3_dqn
import sb3_ppo
import sb3_reward

WINDOWS, EPISODES = 10, 10
PACKAGES = ("stable-baselines3", "torch", "gymnasium")
NETWORK = {"policy_kwargs": {"net_arch": [256, 256]}}


def falling(start: float) -> Callable[[float], float]:
    """A number that falls linearly to zero; it is given the share that remains."""
    return lambda remaining: remaining * start


# Task -> frames, and settings of RL Baselines3 Zoo.
OF_DQN: dict[str, tuple[int, dict[str, Any]]] = {
    "CartPole-v1": (
        50_000,
        NETWORK
        | {"learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000}
        | {"learning_starts": 1_000, "target_update_interval": 10, "train_freq": 256}
        | {"gradient_steps": 128, "exploration_fraction": 0.16}
        | {"exploration_final_eps": 0.04},
    ),
    "Acrobot-v1": (
        100_000,
        NETWORK
        | {"learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000}
        | {"learning_starts": 0, "target_update_interval": 250, "train_freq": 4}
        | {"gradient_steps": -1, "exploration_fraction": 0.12}
        | {"exploration_final_eps": 0.1},
    ),
}
# Task -> frames, environments, whether they are normalized, and settings.
OF_PPO: dict[str, tuple[int, int, bool, dict[str, Any]]] = {
    "CartPole-v1": (
        51_200,
        8,
        False,
        {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98}
        | {"n_epochs": 20, "learning_rate": falling(1e-3), "clip_range": falling(0.2)},
    ),
    "Acrobot-v1": (
        102_400,
        16,
        True,
        {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4},
    ),
}
SHAPED_FRAMES = 51_200


def dqn(task: str, path: str | None, seed: int) -> tuple[Any, int]:
    """A trained DQN with a loss of the temporal difference, and its frames."""
    frames, settings = OF_DQN[task]
    make = sb3_dqn.evolved(path) if path else DQN
    agent = make("MlpPolicy", task, seed=seed, device="cpu", **settings)
    return agent.learn(frames), frames


def ppo(task: str, path: str | None, seed: int) -> tuple[Any, int]:
    """A trained PPO with a value loss, and its frames."""
    frames, num_envs, normalized, settings = OF_PPO[task]
    env = make_vec_env(task, num_envs, seed)
    if normalized:
        env = VecNormalize(env, gamma=settings["gamma"])
    # Its squared error has no factor 1/2: 0.5 there is 1 with a loss that has it.
    make, vf_coef = (sb3_ppo.evolved(path), 1.0) if path else (PPO, 0.5)
    settings = {"ent_coef": 0.0, "vf_coef": vf_coef, "device": "cpu"} | settings
    agent = make("MlpPolicy", env, seed=seed, **settings).learn(frames)
    if normalized:
        env.training, env.norm_reward = False, False
    return agent, frames


def shaped_ppo(task: str, path: str | None, seed: int) -> tuple[Any, int]:
    """A trained PPO with a reward, observations normalized, and its frames."""
    env = Monitor(gymnasium.make(task))  # inside, so that its log has the own reward
    if path:
        reward = sb3_reward.evolved(path, sb3_reward.GAMMA)
        env = sb3_reward.EvolvedReward(env, reward)
    env = gymnasium.wrappers.NormalizeObservation(env)
    gamma = sb3_reward.GAMMA
    agent = PPO("MlpPolicy", env, seed=seed, gamma=gamma, device="cpu")
    agent.learn(SHAPED_FRAMES)
    env.update_running_mean = False
    return agent, SHAPED_FRAMES


AGENTS = {"DQN": dqn, "PPO": ppo, "PPO, observations normalized": shaped_ppo}


def lifetime(agent: Any, frames: int) -> float:
    """The mean over windows of the mean return of the episodes that end in each.

    It is asked before the agent is evaluated, whose episodes are logged, too.
    """
    env = agent.get_env()
    windows: list[list[float]] = [[] for _ in range(WINDOWS)]
    episodes = zip(
        env.env_method("get_episode_lengths"),
        env.env_method("get_episode_rewards"),
        strict=True,
    )
    for lengths, returns in episodes:
        end = 0
        for length, x in zip(lengths, returns, strict=True):
            end += length * env.num_envs
            windows[min(WINDOWS * end // frames, WINDOWS - 1)].append(x)
    return statistics.mean(statistics.mean(x) for x in windows if x)


def scores(agent: str, task: str, path: str | None, seed: int) -> dict[str, float]:
    """Train one agent.

    Args:
        agent: `DQN`, which takes a `td_loss`; `PPO`, a `value_loss`; or
            `PPO, observations normalized`, a `reward`.
        task: its name in Gymnasium.
        path: an exported file; None: what the agent has by itself.
        seed: of the agent and the environment.
    """
    trained, frames = AGENTS[agent](task, path, seed)
    found = {"lifetime": lifetime(trained, frames)}
    final, _ = evaluate_policy(trained, trained.get_env(), n_eval_episodes=EPISODES)
    found |= {"final_return": float(final)}
    return {name: round(x, 3) for name, x in found.items()}


def main(agent: str, task: str, path: str, seed: str) -> None:
    torch.set_num_threads(1)
    found = scores(agent, task, None if path == "own" else path, int(seed))
    versions = {x: importlib.metadata.version(x) for x in PACKAGES}
    print(json.dumps(found | {"packages": versions}))


if __name__ == "__main__":
    main(*sys.argv[1:])
