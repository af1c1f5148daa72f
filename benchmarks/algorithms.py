"""Every algorithm on standard tasks, beside published figures or another algorithm.

    python -m benchmarks.algorithms only=dqn-Acrobot

A row is what `metaevo train NAME env=ENV ARGUMENTS num_seeds=N` trains. One that is
in the results is not run again, so a run that was stopped continues; `again=true`
replaces it. Without `only` all rows take some eight hours on 2 cores, beside
those that were trained on a GPU, which nobody has tried on a CPU.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import NamedTuple

import numpy as np

import metaevo
from benchmarks.measure import Results, switches
from metaevo.analysis import stats
from metaevo.cli import config, presets, train
from metaevo.types import InnerLoop

CLEANRL = "CleanRL, docs.cleanrl.dev"
BLINES = "gymnax-blines, github.com/RobertTLange/gymnax-blines"
RLLIB = "RLlib, tuned_examples, github.com/ray-project/ray"


class Row(NamedTuple):
    """An algorithm on a task.

    Attributes:
        name: of the algorithm.
        env: name of the environment.
        arguments: `key=value` and presets, for what differs from the defaults.
        num_seeds: agents.
        published: figure of others, with frames where theirs differ; empty if none.
        source: whose it is.
        beside: name of a row of an algorithm that it is compared with here.
    """

    name: str
    env: str
    arguments: tuple[str, ...] = ()
    num_seeds: int = 8
    published: str = ""
    source: str = ""
    beside: str = ""


CARTPOLE, ACROBOT = "gymnax/CartPole-v1", "gymnax/Acrobot-v1"
PENDULUM, BREAKOUT = "gymnax/Pendulum-v1", "gymnax/Breakout-MinAtar"
INVADERS, CAR = "gymnax/SpaceInvaders-MinAtar", "gymnax/MountainCar-v0"
REACHER, POLE = "brax/reacher/spring", "brax/inverted_pendulum/spring"
CHAIN = "gymnax/MemoryChain-bsuite"

CONTROL, MINATAR, BRAX = ("preset=control",), ("preset=minatar",), ("preset=brax",)
MLP = (*MINATAR, "inner.torso=mlp", "inner.features=[64,64]")
FOUR = (*MINATAR, "inner.num_envs=4", "inner.num_steps=10", "meta.lr=0.0005")
CNN = (
    *("inner.total_timesteps=1000000", "inner.torso=cnn", "inner.features=[128]"),
    "inner.activation=relu",
)
ADAM = ("meta.optimizer=metaevo.optimizers:adam", "meta.lr=0.001")
ONCE = (*MINATAR, "inner.num_epochs=1")
SLOW = (*MINATAR, "meta.lr=0.0001")
ONE_PLAYER, SHORT = ("preset=one_player",), ("inner.total_timesteps=20000",)
TEN = "(at 10,000,000 frames)"

ROWS = {
    "ppo-CartPole": Row("ppo", CARTPOLE, (), 8, "490 ± 6", CLEANRL),
    "ppo_rnn-CartPole": Row("ppo_rnn", CARTPOLE, beside="ppo-CartPole"),
    "a2c-CartPole": Row("a2c", CARTPOLE, beside="ppo-CartPole"),
    "a3c-CartPole": Row("a2c", CARTPOLE, ("preset=a3c",), beside="a2c-CartPole"),
    "impala-CartPole": Row("impala", CARTPOLE, beside="a2c-CartPole"),
    "dqn-CartPole": Row("dqn", CARTPOLE, (), 8, "498.4 ± 2.3", CLEANRL),
    "pqn-CartPole": Row("pqn", CARTPOLE, (), 8, "495 ± 7", CLEANRL),
    "apex-CartPole": Row("apex", CARTPOLE, beside="dqn-CartPole"),
    "gorila-CartPole": Row("gorila", CARTPOLE, beside="dqn-CartPole"),
    "gorila-CartPole-double": Row(
        "gorila", CARTPOLE, ("inner.double=true",), beside="gorila-CartPole"
    ),
    "r2d2-CartPole": Row("r2d2", CARTPOLE, beside="dqn-CartPole"),
    "sac-CartPole": Row("sac", CARTPOLE, ("preset=discrete",), beside="dqn-CartPole"),
    "gumbel_alphazero-CartPole": Row(
        "gumbel_alphazero", CARTPOLE, ONE_PLAYER, 4, beside="ppo-CartPole"
    ),
    "alphazero-CartPole": Row(
        "alphazero", CARTPOLE, ONE_PLAYER, 4, beside="ppo-CartPole"
    ),
    "ppo-Acrobot": Row("ppo", ACROBOT, (), 8, "-86.4 ± 1.3", CLEANRL),
    "ppo_rnn-Acrobot": Row("ppo_rnn", ACROBOT, beside="ppo-Acrobot"),
    "ppo_rnn-Acrobot-unscaled": Row(
        "ppo_rnn", ACROBOT, ("inner.normalize_reward=false",), beside="ppo-Acrobot"
    ),
    "a2c-Acrobot": Row("a2c", ACROBOT, beside="ppo-Acrobot"),
    "impala-Acrobot": Row("impala", ACROBOT, beside="a2c-Acrobot"),
    "dqn-Acrobot": Row("dqn", ACROBOT, (), 8, "-88.9 ± 1.6", CLEANRL),
    "pqn-Acrobot": Row("pqn", ACROBOT, (), 8, "-95.6 ± 5.7", CLEANRL),
    "sac-Acrobot": Row("sac", ACROBOT, ("preset=discrete",), beside="dqn-Acrobot"),
    "ppo-Pendulum": Row("ppo", PENDULUM, CONTROL, 8, "-130", BLINES),
    "td3-Pendulum": Row("td3", PENDULUM, CONTROL, 8, "-160", RLLIB),
    "sac-Pendulum": Row("sac", PENDULUM, CONTROL, 8, "-150", RLLIB),
    "td3-Pendulum-default": Row("td3", PENDULUM, SHORT, beside="td3-Pendulum"),
    "sac-Pendulum-default": Row("sac", PENDULUM, SHORT, beside="sac-Pendulum"),
    "apex_ddpg-Pendulum": Row("apex_ddpg", PENDULUM, CONTROL, beside="td3-Pendulum"),
    "qtopt-Pendulum": Row("qtopt", PENDULUM, CONTROL, beside="td3-Pendulum"),
    "dqn-MountainCar": Row("dqn", CAR, ("preset=mountain_car",)),
    "r2d3-MountainCar": Row("r2d3", CAR, ("preset=demonstrations",)),
    "r2d2-MemoryChain": Row("r2d2", CHAIN, ("inner.total_timesteps=200000",)),
    "ppo-Breakout": Row("ppo", BREAKOUT, MLP, 8, f"28 {TEN}", BLINES),
    "ppo-Breakout-cnn": Row("ppo", BREAKOUT, MINATAR, 8, f"28 {TEN}", BLINES),
    "pqn-Breakout": Row("pqn", BREAKOUT, MINATAR, beside="ppo-Breakout"),
    "impala-Breakout": Row("impala", BREAKOUT, MINATAR, beside="ppo-Breakout-cnn"),
    "impala-Breakout-many": Row(
        "impala", BREAKOUT, (*MINATAR, "inner.num_envs=32"), 4, beside="impala-Breakout"
    ),
    "impala-Breakout-slow": Row(
        "impala", BREAKOUT, (*MINATAR, "meta.lr=0.0005"), beside="impala-Breakout"
    ),
    "impala-Breakout-prompt": Row(
        "impala", BREAKOUT, (*MINATAR, "meta.delay=0.0"), beside="impala-Breakout"
    ),
    "impala-Breakout-bonus": Row(
        "impala", BREAKOUT, (*MINATAR, "meta.ent_coef=0.05"), beside="impala-Breakout"
    ),
    "impala-Breakout-random": Row(
        "impala", BREAKOUT, (*MINATAR, "meta.ent_coef=0.2"), beside="impala-Breakout"
    ),
    "impala-Breakout-advantage": Row(
        "impala",
        BREAKOUT,
        (*MINATAR, "inner.normalize_advantage=true"),
        beside="impala-Breakout",
    ),
    "impala-Breakout-trace": Row(
        "impala", BREAKOUT, (*MINATAR, "meta.gae_lambda=0.95"), beside="impala-Breakout"
    ),
    "impala-Breakout-clip": Row(
        "impala",
        BREAKOUT,
        (*MINATAR, "meta.max_grad_norm=40.0"),
        beside="impala-Breakout",
    ),
    "impala-Breakout-adam": Row(
        "impala", BREAKOUT, (*MINATAR, *ADAM), beside="impala-Breakout"
    ),
    "impala-Breakout-four": Row("impala", BREAKOUT, FOUR, beside="impala-Breakout"),
    "ppo-Breakout-once": Row("ppo", BREAKOUT, ONCE, beside="ppo-Breakout-cnn"),
    "ppo-Breakout-whole": Row(
        "ppo", BREAKOUT, (*ONCE, "inner.num_minibatches=1"), beside="ppo-Breakout-cnn"
    ),
    "a2c-Breakout": Row("a2c", BREAKOUT, CNN, beside="impala-Breakout"),
    "dqn-Breakout": Row("dqn", BREAKOUT, MINATAR, beside="ppo-Breakout-cnn"),
    "apex-Breakout": Row("apex", BREAKOUT, MINATAR, beside="dqn-Breakout"),
    "gorila-Breakout": Row("gorila", BREAKOUT, MINATAR, beside="dqn-Breakout"),
    "gorila-Breakout-double": Row(
        "gorila", BREAKOUT, (*MINATAR, "inner.double=true"), beside="gorila-Breakout"
    ),
    "gorila-Breakout-slow": Row("gorila", BREAKOUT, SLOW, beside="gorila-Breakout"),
    "gorila-Breakout-large": Row(
        "gorila",
        BREAKOUT,
        (*SLOW, "inner.batch_size=64"),
        beside="gorila-Breakout-slow",
    ),
    "r2d2-Breakout": Row("r2d2", BREAKOUT, MINATAR, beside="dqn-Breakout"),
    "ppo-SpaceInvaders": Row("ppo", INVADERS, MLP, 8, f"131 {TEN}", BLINES),
    "ppo-SpaceInvaders-cnn": Row("ppo", INVADERS, MINATAR, 8, f"131 {TEN}", BLINES),
    "ppo-reacher": Row("ppo", REACHER, BRAX),
    "sac-reacher": Row("sac", REACHER, BRAX, beside="ppo-reacher"),
    "ppo-inverted_pendulum": Row("ppo", POLE, (*BRAX, "meta.gamma=0.97")),
    "ppo-inverted_pendulum-far": Row("ppo", POLE, BRAX, beside="ppo-inverted_pendulum"),
}


def loop_of(row: Row) -> InnerLoop:
    """The algorithm of a row, as `metaevo train` makes it."""
    module = importlib.import_module(f"inner_loops.{row.name}")
    search = train.as_search(module.make)
    arguments = presets.expanded([f"env={row.env}", *row.arguments], search)
    given = config.parse(search, arguments)
    given.pop("run")
    return config.call(search, given).tasks[0]


def run(name: str, row: Row) -> dict:
    """Train the agents of a row, and return its line."""
    loop = loop_of(row)
    began = time.perf_counter()
    training = metaevo.train(loop, row.num_seeds)
    seconds = time.perf_counter() - began
    returns = training.final_return[np.isfinite(training.final_return)]
    estimate, low, high, _ = stats.mean_interval(returns)
    return {
        "row": name,
        "env": row.env,
        "arguments": row.arguments,
        "frames": int(training.frames[-1]),
        "seeds": row.num_seeds,
        "failed": row.num_seeds - len(returns),
        "return": float(estimate),
        "low": float(low),
        "high": float(high),
        "each": [round(float(x), 2) for x in training.final_return],
        "curve": _curve(training.metrics["return"]),
        "seconds": round(seconds, 1),
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
