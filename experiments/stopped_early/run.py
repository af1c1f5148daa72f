"""Whole lives and lives that are stopped early, and averages of solutions.

    python -m experiments.stopped_early.run [PROBLEM ...]

The problems are those of `benchmarks.outer_loops`, SNES with the sigma that is better
on each. A search that is in the results is not made again. At the end come, by problem,
how early scores agree with whole lives, and the differences from whole lives.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import spearmanr

import metaevo
from benchmarks.outer_loops import PROBLEMS
from metaevo import fitness
from metaevo.analysis import holdout
from metaevo.evaluators.local import LocalEvaluator
from metaevo.fitness import Halving
from strategies.snes import snes

RESULTS = Path(__file__).parent / "results.jsonl"
SIGMA = {
    "numbers": 1.0,
    "potential": 1.0,
    "td_loss": 0.3,
    "value_loss": 0.3,
    "drift": 0.3,
}
SIZE, GENERATIONS, SEARCHES, SEEDS = 32, 12, 5, 32
RULES = {"whole lives": None, "halving=4": Halving(4, factor=2)}  # half of the frames
CUT = 7 / 12  # of the frames


def searched(search, strategy, generations, seed):
    """Return the solution after each generation, and how early scores agree."""
    evaluate = LocalEvaluator(search)
    ask, tell = jax.jit(strategy.ask), jax.jit(strategy.tell)
    root = jax.random.key(seed)
    state = jax.jit(strategy.init)(root)
    found, agree = [jax.device_get(strategy.solution(state))], []
    for generation in range(1, generations + 1):
        keys = jax.random.split(jax.random.fold_in(root, generation), 3)
        proposal, state = ask(keys[0], state)
        evaluated, _ = evaluate(keys[1], proposal, None)
        raw = np.asarray(search.aggregate(jnp.asarray(evaluated.fitness)))
        waiting = fitness.not_scored(evaluated)
        scores, failed = fitness.sanitize(raw, strategy.mirrored, waiting)
        if not failed.all():
            state = tell(keys[2], state, proposal, jnp.asarray(scores))
        found.append(jax.device_get(strategy.solution(state)))
        if search.stopping is None:
            returns = np.asarray(evaluated.train[0]["return"]).mean(0)
            agree.append([early(returns, raw, part) for part in (0.25, 0.5, 0.75)])
    return found, agree


def early(returns, scores, part):
    """Return Spearman's correlation of a life's first part with the whole of it.

    And the share of the better quarter by whole lives in the better half by the part.
    """
    with np.errstate(invalid="ignore"):
        first = np.nanmean(returns[:, : round(returns.shape[1] * part)], 1)
    there = np.isfinite(first) & np.isfinite(scores)
    first, scores = first[there], scores[there]
    if len(first) < 8 or np.ptp(first) == 0:
        return np.nan, np.nan
    half = {*np.argsort(-first)[: len(first) // 2]}
    quarter = {*np.argsort(-scores)[: len(first) // 4]}
    return spearmanr(first, scores)[0], len(half & quarter) / len(quarter)


def candidates(found):
    """Return the last solution and an average, with all frames and with 7/12."""
    total, named = len(found) - 1, {}
    for share in (CUT, 1.0):
        done = round(total * share)
        for name, first in (
            ("last", done - 1),
            ("mean of a third", done - round(done / 3)),
        ):
            own = found[first + 1 : done + 1]
            average = jax.tree.map(lambda *x: np.mean(x, 0, dtype=np.float32), *own)
            named[f"{name}, {share:.2f}"] = average
    return named


def main() -> None:
    metaevo.configure()
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    rows = [json.loads(x) for x in lines]
    done = {(x["problem"], x["rule"], x["seed"]) for x in rows}
    for problem in sys.argv[1:] or PROBLEMS:
        make, space = PROBLEMS[problem]
        search = make()
        search = search._replace(space=space or search.space)
        space, strategy = search.space, snes(search.space, SIZE, SIGMA[problem])
        judge = LocalEvaluator(
            holdout.alone(search, space), evaluate=True, keep_agents=True
        )
        for seed in range(SEARCHES):
            for rule, stopping in RULES.items():
                if (problem, rule, seed) in done:
                    continue
                began = time.monotonic()
                generations = GENERATIONS * (1 if stopping is None else 2)
                found, agree = searched(
                    search._replace(stopping=stopping), strategy, generations, seed
                )
                seconds = time.monotonic() - began
                runs, _ = holdout.train(
                    search,
                    space,
                    candidates(found),
                    jax.random.key(1_000 + seed),
                    SEEDS,
                    lambda *args, judge=judge, **options: judge,
                )
                row = {
                    "problem": problem,
                    "rule": rule,
                    "seed": seed,
                    "scores": {
                        k: x.fitness[0].round(2).tolist() for k, x in runs.items()
                    },
                    "agreement": np.nanmean(agree, 0).round(3).tolist()
                    if agree
                    else None,
                    "seconds": round(seconds, 1),
                }
                rows.append(row)
                with RESULTS.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    print(table(rows))


def table(rows) -> str:
    """Return the differences from the last solution of whole lives, all frames."""
    lines = []
    for problem in PROBLEMS:
        own = [x for x in rows if x["problem"] == problem]
        means = {
            (x["rule"], name, x["seed"]): np.nanmean(scores)
            for x in own
            for name, scores in x["scores"].items()
        }
        agreement = [x["agreement"] for x in own if x["agreement"]]
        if agreement:
            lines.append(
                f"{problem}: agreement {np.mean(agreement, 0).round(2).tolist()}"
            )
        seeds = sorted({x["seed"] for x in own})
        for rule, name in dict.fromkeys(key[:2] for key in means):
            pairs = [
                (means[rule, name, s], means["whole lives", "last, 1.00", s])
                for s in seeds
                if (rule, name, s) in means
            ]
            values, base = np.array(pairs).T
            less = values - base
            error = less.std(ddof=1) / len(less) ** 0.5 if len(less) > 1 else np.nan
            shown = f"{values.mean():.1f}, {less.mean():+.1f} ± {error:.1f}"
            lines.append(f"  {rule}, {name}: {shown}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
