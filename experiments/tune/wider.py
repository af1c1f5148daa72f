"""`metaevo tune` with a wider start, and with more members of fewer seeds.

    python -m experiments.tune.wider ppo pqn

The problems are those of `run`, with 256 lifetimes a search. The solutions learn on the
16 held-out seeds of `run`. A line that is there is not made again. At the end come the
means over the lifetime.
"""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

import numpy as np
import optax

import metaevo
from benchmarks.measure import Results
from benchmarks.outer_loops import searcher
from experiments.tune.run import FOLDER, NUM_SEARCHES, PROBLEMS, scored, search
from strategies.snes import snes

LIFETIMES = 256


class Variant(NamedTuple):
    """Members, their seeds, and SNES' sigma, step and `half_step`."""

    members: int
    seeds: int
    sigma: float
    step: float = 1.0
    half_step: float | None = None


VARIANTS = {
    "32 x 1": Variant(32, 1, 1.0),
    "32 x 1, sigma 2": Variant(32, 1, 2.0),
    "64 x 1, sigma 1.5": Variant(64, 1, 1.5),
    "64 x 1, sigma 2": Variant(64, 1, 2.0),
    "32 x 1, sigma 2, steps from 2": Variant(32, 1, 2.0, 2.0, 4.0),
}


def main() -> None:
    metaevo.configure()
    results = Results("wider", keep=True, folder=FOLDER)
    lines = [json.loads(line) for line in results.lines]
    there = {(x["problem"], x["variant"], x["seed"]) for x in lines}
    for problem in sys.argv[1:]:
        for seed in range(NUM_SEARCHES):
            for name, (members, seeds, sigma, step, half_step) in VARIANTS.items():
                if (problem, name, seed) in there:
                    continue
                one = search(PROBLEMS[problem])
                optimizer = optax.sgd(step)
                strategy = snes(
                    one.space, members, sigma, optimizer, half_step=half_step
                )
                one = one._replace(num_seeds=seeds, strategy=strategy)
                generations = LIFETIMES // (members * seeds)
                (params,) = searcher(one, [generations])(seed)
                fitness = scored(one, one.space, params)["fitness"]
                results.add(problem=problem, variant=name, seed=seed, fitness=fitness)
    lines = [json.loads(line) for line in results.lines]
    for problem, name in sorted({(x["problem"], x["variant"]) for x in lines}):
        own = [x for x in lines if (x["problem"], x["variant"]) == (problem, name)]
        by_search = [round(float(np.mean(x["fitness"])), 1) for x in own]
        print(problem, name, round(float(np.mean(by_search)), 1), by_search)


if __name__ == "__main__":
    main()
