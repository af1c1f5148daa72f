"""Returns of the independent agents on CartPole by themselves.

    python -m experiments.independent.run short    what a comparison trains, in minutes
    python -m experiments.independent.run cleanrl  at CleanRL's sizes and step size

CleanRL reports 492.40 ± 13.05 for ppo.py and 488.69 ± 16.11 for dqn.py after 500,000
frames (https://docs.cleanrl.dev/rl-algorithms/ppo/, .../dqn/).
"""

from __future__ import annotations

import os
import sys
import time

from metaevo.evaluators.devices import configure

configure()

import jax  # noqa: E402

from metaevo import envs  # noqa: E402
from metaevo.analysis.independent import dqn, judge, ppo  # noqa: E402

CLEANRL = {
    "ppo": (
        ppo.Config(500_000, 4, 128, 4, 4, anneal=True),
        (2.5e-4,),
    ),
    "dqn": (
        dqn.Config(
            500_000, 10, 10_000, 10_000, 128, features=(120, 84), last_epsilon=0.05
        ),
        (2.5e-4,),
    ),
}


def main(which: str, names: str = "ppo,dqn", num_seeds: int = 32) -> None:
    env = envs.make("gymnax/CartPole-v1")
    for name in names.split(","):
        module = judge.AGENTS[name]
        settings, step_sizes = module.Config(), module.STEP_SIZES
        if which == "cleanrl":
            settings, step_sizes = CLEANRL[name]
        began = time.perf_counter()
        found = judge.scores(
            name, env, {}, jax.random.key(0), num_seeds, step_sizes, settings
        )
        seconds = time.perf_counter() - began
        for lr, lifetime, final in zip(step_sizes, *found, strict=True):
            print(
                f"{name} {settings.num_frames:,} frames, lr {lr:g}, {num_seeds} seeds: "
                f"final return {final.mean():.1f} ± {final.std(ddof=1):.1f} "
                f"(least {final.min():.1f}), over the lifetime {lifetime.mean():.1f}"
            )
        print(f"{seconds:.0f} s at a load of {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
