"""SNES with steps of equal length and with steps that shrink, and members or seeds.

    python -m experiments.steps.run                    all problems, seed by seed
    python -m experiments.steps.run only=td_loss searches=3
    python -m experiments.steps.run table=true

Each problem is a shipped search, or `metaevo tune`, with equal frames for each variant.
The solution after six tenths of the generations and after all learns on seeds that no
search saw, the same for each variant. A line that is in the results is not made
again. At the end it prints means, and differences paired by search.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

import metaevo
from benchmarks.measure import Results, switches
from benchmarks.outer_loops import searcher
from inner_loops import ppo
from metaevo import fitness
from metaevo.analysis import holdout
from metaevo.cli import config, train
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Search
from searches import dqn_td_loss, ppo_drift, ppo_reward_potential
from strategies.snes import snes

FOLDER = Path(__file__).parent
NUM_SEARCHES = 5


class Problem(NamedTuple):
    """A search.

    Attributes:
        make: makes the search; its strategy, seeds and horizon are not used.
        sigma: of SNES.
        generations: a multiple of five.
        variants: names of `VARIANTS`.
        held_out: seeds of the comparison.
    """

    make: Callable[[], Search]
    sigma: float
    generations: int
    variants: tuple[str, ...] = ("32 x 1", "32 x 1, shrinking")
    held_out: int = 16


# name -> members, seeds of each, `half_step` of SNES
VARIANTS = {
    "16 x 2": (16, 2, None),
    "32 x 1": (32, 1, None),
    "32 x 1, shrinking": (32, 1, 16.0),
}


def drift(frames: int) -> Search:
    """PPO's drift on CartPole, from its clip, by the mean return over a lifetime."""
    search = ppo_drift.search(
        ("gymnax/CartPole-v1",),
        form="free",
        inner=ppo.Config(frames, num_steps=64, features=(32, 32)),
        meta=ppo.Meta(lr=2.5e-3),
    )
    return search._replace(fitness=fitness.area_under_curve)


def numbers(env: str) -> Search:
    """The search of `metaevo tune ppo`, with lives of 32,768 frames."""
    tuning = train.as_tuning(ppo.make)
    given = config.parse(tuning, [f"env={env}", "inner.total_timesteps=32768"])
    del given["run"]
    return config.call(tuning, given)


PROBLEMS = {
    "drift": Problem(lambda: drift(32_768), 0.3, 20),
    "drift, short lives": Problem(lambda: drift(16_384), 0.3, 20, held_out=48),
    "drift, long search": Problem(lambda: drift(16_384), 0.3, 60, held_out=48),
    "td_loss": Problem(lambda: dqn_td_loss.search(family="weighted"), 0.3, 40),
    "numbers": Problem(
        lambda: numbers("gymnax/CartPole-v1"),
        *(1.0, 20, ("16 x 2", "32 x 1", "32 x 1, shrinking")),
    ),
    "potential": Problem(ppo_reward_potential.search, 1.0, 30),
}


def table(lines: list[dict]) -> str:
    """Means of the variants, and differences by search, ± standard error."""
    rows = ["| problem | searches | variant | 0.6 of the frames | all |"]
    rows += ["|---" * 5 + "|"]
    for name, problem in PROBLEMS.items():
        own = {
            (x["variant"], x["seed"]): x["mean"] for x in lines if x["problem"] == name
        }
        names = problem.variants
        both = [s for s in range(99) if all((k, s) in own for k in names)]
        if len(both) < 2:
            print(f"{name}: {len(both)} searches of each, left out")
            continue
        found = {k: np.array([own[k, s] for s in both]) for k in names}
        rows += [_row(name, k, x) for k, x in found.items()]
        first, *others = names
        for k in others:
            usual = found[first]
            rows += [_row(name, f"{k}, less {first}", found[k] - usual)]
            rows += [
                _row(name, "the same, less all frames of it", found[k] - usual[:, 1:])
            ]
    return "\n".join(rows)


def _row(name: str, label: str, scores: np.ndarray) -> str:
    error = scores.std(0, ddof=1) / len(scores) ** 0.5
    cells = [f"{m:+.1f} ± {e:.1f}" for m, e in zip(scores.mean(0), error, strict=True)]
    return f"| {name} | {len(scores)} | {label} | {' | '.join(cells)} |"


def main() -> None:
    chosen = switches(
        {"only": "", "searches": NUM_SEARCHES, "table": False}, sys.argv[1:]
    )
    metaevo.configure()
    results = Results("results", keep=True, folder=FOLDER)
    done = {
        (x["problem"], x["variant"], x["seed"]) for x in map(json.loads, results.lines)
    }
    made: dict = {}
    for seed in range(int(str(chosen["searches"]))):
        for name, problem in PROBLEMS.items():
            for variant in problem.variants:
                size, seeds, half = VARIANTS[variant]
                wanted = chosen["only"] in ("", name) and not chosen["table"]
                if not wanted or (name, variant, seed) in done:
                    continue
                began = time.monotonic()
                if (name, variant) not in made:
                    search = problem.make()
                    strategy = snes(search.space, size, problem.sigma, half_step=half)
                    search = search._replace(strategy=strategy, num_seeds=seeds)
                    judge = LocalEvaluator(
                        holdout.alone(search, search.space),
                        evaluate=True,
                        keep_agents=True,
                    )
                    num = problem.generations
                    find = searcher(search, (num * 3 // 5, num))
                    made[name, variant] = search, find, judge
                search, find, judge = made[name, variant]
                runs, _ = holdout.train(
                    search,
                    search.space,
                    {str(i): params for i, params in enumerate(find(seed))},
                    jax.random.key(1_000 + seed),
                    problem.held_out,
                    lambda *args, judge=judge, **options: judge,
                )
                judged = np.stack([x.fitness[0] for x in runs.values()]).astype(float)
                finals = [x.final_return[0] for x in runs.values()]
                final = np.stack(finals).astype(float)
                results.add(
                    problem=name,
                    variant=variant,
                    seed=seed,
                    generations=problem.generations,
                    lifetimes=size * seeds * problem.generations,
                    mean=judged.mean(1).round(2).tolist(),
                    each=judged.round(2).tolist(),
                    final=final.mean(1).round(2).tolist(),
                    seconds=round(time.monotonic() - began, 1),
                )
    print(table([json.loads(x) for x in results.lines]))


if __name__ == "__main__":
    main()
