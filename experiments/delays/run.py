"""Measure final return against delay, for IMPALA and A3C on CartPole.

    python -m experiments.delays.run

16 agents a point by `metaevo.train`, 250,000 frames. IMPALA with V-trace and without a
correction of the weights, A3C with four workers; each with its own step size and with
one ten times as large, where parameters change more in as many updates. A point that is
in the results is not made again. The figure is docs/images/delays.png.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

import metaevo
from benchmarks.measure import Results
from inner_loops import a2c, impala
from metaevo import advantages, envs
from metaevo.analysis import stats
from metaevo.types import InnerLoop

DELAYS, FACTORS = (0, 1, 4, 16, 64), (1, 10)
NUM_SEEDS, FRAMES = 16, 250_000
CARTPOLE = "gymnax/CartPole-v1"
FOLDER = Path(__file__).parent
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "delays.png"
ALGORITHMS = ("IMPALA", "IMPALA without V-trace", "A3C")


def loop(algorithm: str, delay: int, factor: int) -> InnerLoop:
    """An algorithm at a delay, with `factor` times its step size."""
    sizes: dict[str, Any] = {"max_delay": max(DELAYS), "num_segments": 8}
    env = envs.make(CARTPOLE)
    if algorithm == "A3C":
        config = a2c.Config(FRAMES, num_envs=16, num_workers=4, **sizes)
        meta = a2c.Meta()
        return a2c.make(env, config, _late(meta, delay, factor))
    meta = impala.Meta()
    if algorithm == "IMPALA without V-trace":
        meta = meta._replace(correction=advantages.unweighted)
    return impala.make(env, impala.Config(FRAMES, **sizes), _late(meta, delay, factor))


def _late(meta, delay, factor):
    return meta._replace(lr=factor * meta.lr, delay=float(delay))


def point(algorithm: str, delay: int, factor: int) -> dict:
    """The line of a point of the figure."""
    training = metaevo.train(loop(algorithm, delay, factor), NUM_SEEDS)
    # An agent whose numbers are not finite has learned nothing.
    returns = np.nan_to_num(training.final_return, nan=0.0)
    interval = stats.bootstrap(returns, stats.mean)
    return {
        "algorithm": algorithm,
        "delay": delay,
        "factor": factor,
        "frames": int(training.frames[-1]),
        "seeds": NUM_SEEDS,
        "failed": int((~np.isfinite(training.final_return)).sum()),
        "return": float(interval.estimate),
        "low": float(interval.low),
        "high": float(interval.high),
        "each": [round(float(x), 1) for x in returns],
    }


def draw(lines: list[dict]) -> None:
    """One panel per step size: mean final return and 95 % interval by delay."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(FACTORS), figsize=(9, 3.6), sharey=True)
    places = range(len(DELAYS))
    for panel, factor in zip(panels, FACTORS, strict=True):
        for algorithm in ALGORITHMS:
            chosen = {
                x["delay"]: x
                for x in lines
                if (x["algorithm"], x["factor"]) == (algorithm, factor)
            }
            points = [chosen[delay] for delay in DELAYS]
            middle = [x["return"] for x in points]
            ends = [
                [x["return"] - x["low"] for x in points],
                [x["high"] - x["return"] for x in points],
            ]
            panel.errorbar(places, middle, ends, marker="o", capsize=3, label=algorithm)
        panel.set_xticks(list(places), [str(delay) for delay in DELAYS])
        panel.set_xlabel("delay (updates)")
        steps = ", ".join(
            f"{name} {factor * module.Meta().lr:g}"
            for name, module in (("IMPALA", impala), ("A3C", a2c))
        )
        panel.set_title(f"step size: {steps}", fontsize=10)
    panels[0].set_ylabel("return after 250,000 frames")
    panels[0].set_ylim(0, 520)
    panels[0].legend(frameon=False, loc="lower left")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=120)


def main() -> None:
    metaevo.configure()
    results = Results("results", keep=True, folder=FOLDER)
    for factor in FACTORS:
        for algorithm in ALGORITHMS:
            for delay in DELAYS:
                place = (algorithm, delay, factor)
                rows = map(json.loads, results.lines)
                known = {(x["algorithm"], x["delay"], x["factor"]) for x in rows}
                if place not in known:
                    results.add(**point(*place))
                    jax.clear_caches()
    draw([json.loads(line) for line in results.lines])


if __name__ == "__main__":
    main()
