"""Every algorithm as it is on standard tasks, beside published figures.

    python -m benchmarks.algorithms only=dqn-Acrobot

Eight agents a row, with different seeds, by `metaevo.train`. A row that is
in the results is not run again, so a run that was stopped continues; `again=true`
replaces it. Without `only` all rows take some four hours on 2 cores.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

import metaevo
from benchmarks.measure import Results, switches
from inner_loops import dqn, ppo, ppo_rnn, pqn, sac, td3
from metaevo import envs
from metaevo.analysis import stats

NUM_SEEDS = 8

CLEANRL = "CleanRL, docs.cleanrl.dev"
BLINES = "gymnax-blines, github.com/RobertTLange/gymnax-blines"
RLLIB = "RLlib, tuned_examples, github.com/ray-project/ray"


class Row(NamedTuple):
    """An algorithm on a task.

    Attributes:
        module: inner loop.
        env: name of the environment.
        config, meta: what differs from the defaults.
        published: figure of others, with frames where theirs differ; empty if none.
        source: whose it is.
    """

    module: Any
    env: str
    config: Mapping = {}
    meta: Mapping = {}
    published: str = ""
    source: str = ""


CARTPOLE, ACROBOT = "gymnax/CartPole-v1", "gymnax/Acrobot-v1"
PENDULUM, BREAKOUT = "gymnax/Pendulum-v1", "gymnax/Breakout-MinAtar"
INVADERS = "gymnax/SpaceInvaders-MinAtar"

CONTROL = {"total_timesteps": 150_000, "num_envs": 8, "num_epochs": 10}
CONTROL |= {"num_minibatches": 16, "normalize_reward": True}
CONTROL |= {"normalize_observation": True}
CONTROL_META = {"lr": 1e-3, "gamma": 0.95, "ent_coef": 0.0}
SMALL = {"total_timesteps": 20_000, "features": (64, 64), "batch_size": 64}
FAST = {"actor_lr": 1e-3, "critic_lr": 1e-3}
MINATAR = {"total_timesteps": 1_000_000, "num_envs": 64, "num_steps": 32}
MINATAR |= {"num_minibatches": 8, "activation": "relu"}
MINATAR_LR = {"lr": 2.5e-3}
PQN_MINATAR = {"total_timesteps": 1_000_000, "num_envs": 128, "num_steps": 32}
PQN_MINATAR |= {"num_minibatches": 32, "num_epochs": 2}
PQN_LR = {"lr": 5e-4, "q_lambda": 0.65}

CNN = MINATAR | {"torso": "cnn", "features": (128,)}
DISCRETE_SAC = {"total_timesteps": 50_000, "features": (64, 64), "batch_size": 64}

ROWS = {
    "ppo-CartPole": Row(ppo, CARTPOLE, {}, {}, "490 ± 6", CLEANRL),
    "ppo_rnn-CartPole": Row(ppo_rnn, CARTPOLE),
    "dqn-CartPole": Row(dqn, CARTPOLE, {}, {}, "498.4 ± 2.3", CLEANRL),
    "pqn-CartPole": Row(pqn, CARTPOLE, {}, {}, "495 ± 7", CLEANRL),
    "ppo-Acrobot": Row(ppo, ACROBOT, {}, {}, "-86.4 ± 1.3", CLEANRL),
    "ppo_rnn-Acrobot": Row(ppo_rnn, ACROBOT),
    "dqn-Acrobot": Row(dqn, ACROBOT, {}, {}, "-88.9 ± 1.6", CLEANRL),
    "pqn-Acrobot": Row(pqn, ACROBOT, {}, {}, "-95.6 ± 5.7", CLEANRL),
    "ppo-Pendulum": Row(ppo, PENDULUM, CONTROL, CONTROL_META, "-130", BLINES),
    "td3-Pendulum": Row(td3, PENDULUM, SMALL, FAST, "-160", RLLIB),
    "sac-Pendulum": Row(
        sac, PENDULUM, SMALL, FAST | {"temperature_lr": 1e-3}, "-150", RLLIB
    ),
    "ppo-Breakout": Row(
        ppo, BREAKOUT, MINATAR, MINATAR_LR, "28 (at 10,000,000 frames)", BLINES
    ),
    "ppo-Breakout-cnn": Row(
        ppo, BREAKOUT, CNN, MINATAR_LR, "28 (at 10,000,000 frames)", BLINES
    ),
    "pqn-Breakout": Row(pqn, BREAKOUT, PQN_MINATAR, PQN_LR),
    "ppo-SpaceInvaders": Row(
        ppo, INVADERS, MINATAR, MINATAR_LR, "131 (at 10,000,000 frames)", BLINES
    ),
    "ppo-SpaceInvaders-cnn": Row(
        ppo, INVADERS, CNN, MINATAR_LR, "131 (at 10,000,000 frames)", BLINES
    ),
    "sac-CartPole": Row(sac, CARTPOLE, DISCRETE_SAC, FAST | {"temperature_lr": 1e-3}),
    "sac-Acrobot": Row(sac, ACROBOT, DISCRETE_SAC, FAST | {"temperature_lr": 1e-3}),
    "td3-Pendulum-default": Row(td3, PENDULUM, {"total_timesteps": 20_000}),
    "sac-Pendulum-default": Row(sac, PENDULUM, {"total_timesteps": 20_000}),
    "ppo_rnn-Acrobot-unscaled": Row(ppo_rnn, ACROBOT, {"normalize_reward": False}),
}


def run(name: str, row: Row) -> dict:
    """Train the agents of a row, and return its line."""
    config, meta = row.module.Config(**row.config), row.module.Meta(**row.meta)
    loop = row.module.make(envs.make(row.env), config, meta)
    began = time.perf_counter()
    training = metaevo.train(loop, NUM_SEEDS)
    seconds = time.perf_counter() - began
    returns = training.final_return[np.isfinite(training.final_return)]
    estimate, low, high, _ = stats.bootstrap(returns, stats.mean)
    return {
        "row": name,
        "env": row.env,
        "settings": {**row.config, **row.meta},
        "frames": int(training.frames[-1]),
        "seeds": NUM_SEEDS,
        "failed": NUM_SEEDS - len(returns),
        "return": float(estimate),
        "low": float(low),
        "high": float(high),
        "each": [round(float(x), 2) for x in training.final_return],
        "curve": _curve(training.metrics["return"]),
        "seconds": round(seconds, 1),
        "published": row.published,
        "source": row.source,
    }


def _curve(returns: np.ndarray) -> list[float | None]:
    """Mean over agents of each segment's return; None where no episode ended."""
    means = [
        x[np.isfinite(x)].mean() if np.isfinite(x).any() else None for x in returns.T
    ]
    return [None if x is None else round(float(x), 2) for x in means]


def main() -> None:
    chosen = switches({"only": "", "again": False}, sys.argv[1:])
    if chosen["only"] and chosen["only"] not in ROWS:
        sys.exit(f"only={chosen['only']}: expected one of {', '.join(ROWS)}")
    metaevo.configure()
    results = Results("algorithms", keep=True)
    for name, row in ROWS.items():
        known = {json.loads(line)["row"] for line in results.lines}
        wanted = name == chosen["only"] or not chosen["only"]
        if not wanted or (name in known and not chosen["again"]):
            continue
        line = run(name, row)
        results.lines = [x for x in results.lines if json.loads(x)["row"] != name]
        results.add(**line)


if __name__ == "__main__":
    main()
