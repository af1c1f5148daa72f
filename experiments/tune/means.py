"""The solutions of all generations of `metaevo tune`, on the same 32 seeds.

    python -m experiments.tune.means ppo

Does a search lose in later generations what it had? Then its solution should be chosen
among those of all generations. The problems are those of `run`. At the end comes what a
choice on 8 of the seeds gives on 16 others, over 200 ways to take them.
"""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

import metaevo
from benchmarks.measure import Results
from benchmarks.outer_loops import searcher
from experiments.tune.run import FOLDER, GENERATIONS, NUM_SEARCHES, PROBLEMS, search
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Proposal

SEEDS, DRAWS = 32, 200


def chosen(scores: np.ndarray, candidates: range, num: int) -> float:
    """Return the mean score of who is best on `num` seeds, on 16 others.

    Args:
        scores: [seeds, generations from 0].
    """
    rng, found = np.random.default_rng(0), []
    for _ in range(DRAWS):
        order = rng.permutation(SEEDS)
        looked, others = scores[order[:num]], scores[order[16:]]
        best = max(candidates, key=lambda i, looked=looked: looked[:, i].mean())
        found.append(others[:, best].mean())
    return float(np.mean(found))


def main() -> None:
    metaevo.configure()
    results = Results("means", keep=True, folder=FOLDER)
    there = {(x["problem"], x["seed"]) for x in map(json.loads, results.lines)}
    for problem in sys.argv[1:]:
        one = search(PROBLEMS[problem])
        find = searcher(one, range(1, GENERATIONS + 1))
        judge = LocalEvaluator(one._replace(num_seeds=SEEDS, chunk_size=4))
        for seed in range(NUM_SEARCHES):
            if (problem, seed) in there:
                continue
            start = one.strategy.solution(one.strategy.init(jax.random.key(seed)))
            each = [start, *find(seed)]
            members = jax.tree.map(
                lambda *x: jnp.stack(list(map(jnp.asarray, x))), *each
            )
            found, _ = judge(jax.random.key(777), Proposal(members), None)
            (scores,) = np.asarray(found.fitness, np.float64).round(1)
            results.add(problem=problem, seed=seed, fitness=scores.tolist())
    lines = [json.loads(line) for line in results.lines]
    for problem in sorted({x["problem"] for x in lines}):
        scores = [np.array(x["fitness"]) for x in lines if x["problem"] == problem]
        means = np.mean([x.mean(0) for x in scores], 0)
        print(problem, "by generation", means.round(1).tolist())
        for last in (GENERATIONS * 3 // 4, GENERATIONS):
            gains = [chosen(x, range(1, last + 1), 8) for x in scores]
            print(problem, f"chosen among {last}", round(float(np.mean(gains)), 1))


if __name__ == "__main__":
    main()
