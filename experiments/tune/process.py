"""SNES on a Gaussian process beside SNES on five meta-problems, at equal frames.

    python -m experiments.tune.process [PROBLEM ...]

Problems, members, sigma, seeds and held-out seeds are those of
`experiments.stopped_early`, whose whole lives are the searches by SNES. The strategy
was chosen on `numbers`, and on PPO's numbers on Acrobot in `experiments.tune.run`. The
solutions after 4, 7 and 12 generations of 32 members are trained again. A search that
is in the results is not made again. At the end come the means and the differences from
SNES with all frames.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import jax
import numpy as np

import metaevo
from benchmarks.measure import Results
from benchmarks.outer_loops import PROBLEMS, searcher
from experiments.tune.gp_snes import gp_snes
from metaevo.analysis import holdout
from metaevo.evaluators.local import LocalEvaluator

FOLDER = Path(__file__).parent
WHOLE_LIVES = FOLDER.parent / "stopped_early" / "results.jsonl"
SIZE, GENERATIONS, SEARCHES, SEEDS = 32, 12, 5, 32
SIGMA = {
    "numbers": 1.0,
    "potential": 1.0,
    "td_loss": 0.3,
    "value_loss": 0.3,
    "drift": 0.3,
}
KEPT = 4, 7, GENERATIONS


def main() -> None:
    metaevo.configure()
    results = Results("process", keep=True, folder=FOLDER)
    done = {(x["problem"], x["seed"]) for x in map(json.loads, results.lines)}
    for problem in sys.argv[1:] or PROBLEMS:
        make, space = PROBLEMS[problem]
        search = make()
        space = space or search.space
        strategy = gp_snes(space, SIZE, SIGMA[problem])
        search = search._replace(space=space, strategy=strategy)
        judge = LocalEvaluator(
            holdout.alone(search, space), evaluate=True, keep_agents=True
        )
        solve = searcher(search, KEPT)
        for seed in range(SEARCHES):
            if (problem, seed) in done:
                continue
            began = time.monotonic()
            found = dict(zip(map(str, KEPT), solve(seed), strict=True))
            seconds = time.monotonic() - began
            runs, _ = holdout.train(
                *(search, space, found, jax.random.key(1_000 + seed), SEEDS),
                lambda *args, judge=judge, **options: judge,
            )
            scores = {k: x.fitness[0].round(2).tolist() for k, x in runs.items()}
            results.add(
                problem=problem, seed=seed, scores=scores, seconds=round(seconds, 1)
            )
    snes = [json.loads(x) for x in WHOLE_LIVES.read_text().splitlines()]
    print(table([json.loads(x) for x in results.lines], snes))


def table(rows, snes) -> str:
    """Return means, and differences from SNES with all frames, ± standard error."""
    lines = []
    for problem in PROBLEMS:
        own = {x["seed"]: x["scores"] for x in rows if x["problem"] == problem}
        whole = {
            x["seed"]: x["scores"]
            for x in snes
            if x["problem"] == problem and x["rule"] == "whole lives"
        }
        cells = {f"SNES, {k}": (whole, f"last, {k}") for k in ("0.58", "1.00")}
        cells |= {f"on a process, {k}": (own, str(k)) for k in KEPT}
        base = np.array([np.nanmean(whole[s]["last, 1.00"]) for s in sorted(own)])
        for name, (scores, key) in cells.items() if len(own) > 1 else ():
            values = np.array([np.nanmean(scores[s][key]) for s in sorted(own)])
            less = values - base
            error = less.std(ddof=1) / len(less) ** 0.5
            shown = f"{values.mean():.1f}, {less.mean():+.1f} ± {error:.1f}"
            lines.append(f"{problem}: {name}: {shown}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
