"""PPO's and SAC's numbers by strategies that stop members early, and by others.

    python -m experiments.schedulers.run ppo=true    PPO on Acrobot
    python -m experiments.schedulers.run sac=true    SAC on Pendulum

All have the frames of 256 lifetimes and the same fitness, the return in the last eighth
of a life. SNES starts at the algorithm's own numbers. The others draw from ranges
around them, within a factor of e³ of each; a clip is at most 1, and what a discount
lacks of 1 at most .99. With `halving` a generation trains half of
the frames of whole lives, so there are twice as many. ASHA has rungs at an eighth and
at three eighths of a life. PBT has 128 members that live once, and its solution is the
schedule of its best agent. All solutions learn on the same 16 seeds that no search saw.
A line that is there is not made again. At the end comes the table.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import metaevo
from benchmarks.measure import Results, switches
from inner_loops import ppo, sac
from metaevo import envs, fitness, spaces
from metaevo.analysis import holdout
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import InnerLoop, Search, Space
from strategies.asha import asha
from strategies.pbt import pbt
from strategies.random_search import random_search
from strategies.snes import snes

FOLDER = Path(__file__).parent
SEARCHES, HELD_OUT = 5, 16
MEMBERS, SEEDS, LIFETIMES, PIECES = 16, 2, 256, 8
KINDS = "last", "lifetime", "final"
FACTOR = math.exp(3)  # of each number, to both sides


class Problem(NamedTuple):
    """An algorithm on a task, its own numbers and those of them that are searched."""

    loop: InnerLoop
    meta: Any
    factors: tuple[str, ...]
    discounts: tuple[str, ...]


def of_ppo() -> Problem:
    meta = ppo.Meta()
    inner = ppo.Config(32_768, num_segments=PIECES, anneal_lr=False)
    loop = ppo.make(envs.make("gymnax/Acrobot-v1"), inner, meta)
    return Problem(loop, meta, ("lr", "clip_eps", "ent_coef"), ("gamma", "gae_lambda"))


def of_sac() -> Problem:
    meta = sac.Meta()
    inner = sac.Config(6_144, num_segments=PIECES, batch_size=64, features=(64, 64))
    loop = sac.make(envs.make("gymnax/Pendulum-v1"), inner, meta)
    rates = "actor_lr", "critic_lr", "temperature_lr"
    return Problem(loop, meta, (*rates, "tau", "reward_scale"), ("gamma",))


PROBLEMS = {"ppo": of_ppo, "sac": of_sac}


def around(problem: Problem) -> Space:
    """Return the space of SNES: each number's logarithm around the algorithm's own."""
    logs = dict.fromkeys(problem.factors, spaces.log())
    rest = dict.fromkeys(problem.discounts, spaces.one_minus_log())
    return spaces.tune(**logs, **rest)


def within(problem: Problem) -> Space:
    """Return the ranges that the others draw from."""
    ranges = {}
    for name in problem.factors:
        own = getattr(problem.meta, name)
        most = 1.0 if name == "clip_eps" else math.inf
        ranges[name] = spaces.log_uniform(own / FACTOR, min(own * FACTOR, most))
    for name in problem.discounts:
        rest = 1 - getattr(problem.meta, name)
        low = 1 - min(rest * FACTOR, 0.99)
        ranges[name] = spaces.horizon_uniform(low, 1 - rest / FACTOR)
    return spaces.prior(**ranges)


def of(problem: Problem, space: Space, strategy, generations: int, **more) -> Search:
    """Return a search."""
    return Search(
        inner_loop=problem.loop,
        space=space,
        strategy=strategy,
        num_generations=generations,
        fitness=fitness.last_segments(1),
        num_seeds=SEEDS,
        **more,
    )


WHOLE = LIFETIMES // (MEMBERS * SEEDS)  # generations of whole lives
HALVING = fitness.Halving(4, factor=2)


def by_snes(problem: Problem, generations=WHOLE, **more) -> Search:
    space = around(problem)
    return of(problem, space, snes(space, MEMBERS, 1.0), generations, **more)


def by_random(problem: Problem, generations=WHOLE, **more) -> Search:
    space = within(problem)
    return of(problem, space, random_search(space, MEMBERS), generations, **more)


def by_asha(problem: Problem) -> Search:
    space = within(problem)
    strategy = asha(space, MEMBERS, PIECES)
    return of(problem, space, strategy, WHOLE * PIECES, segments_per_generation=1)


def by_pbt(problem: Problem) -> Search:
    space = within(problem)
    strategy = pbt(space, LIFETIMES // SEEDS)
    return of(problem, space, strategy, PIECES, segments_per_generation=1)


METHODS: dict[str, Callable[[Problem], Search]] = {
    "snes": by_snes,
    "snes, halving": lambda x: by_snes(x, 2 * WHOLE, stopping=HALVING),
    "random_search": by_random,
    "random_search, halving": lambda x: by_random(x, 2 * WHOLE, stopping=HALVING),
    "asha": by_asha,
    "pbt": by_pbt,
}


def found(search: Search, seed: int) -> dict[str, Any]:
    """Search, and return what comes into slots, as an importer has it."""
    with tempfile.TemporaryDirectory() as folder:
        run = metaevo.RunConfig(
            seed=seed, directory=f"{folder}/run", held_out_seeds=0, wandb="disabled"
        )
        result = metaevo.run(search, run, name="schedulers")
        assert result is not None
        names = search.space.spec
        return {name: getattr(result.artifact, name) for name in names}


def tested(problem: Problem, values: dict[str, Any]) -> dict[str, list[float]]:
    """Return scores on the held-out seeds: last eighth, lifetime, policy in the end."""
    space = holdout.fixed(values)
    search = of(problem, space, snes(around(problem), MEMBERS, 1.0), 1)
    runs, _ = holdout.train(
        *(search, space, {"": holdout.NOTHING}, jax.random.key(2_000), HELD_OUT),
        lambda one, **options: LocalEvaluator(one, **options),
    )
    kept = runs[""]
    life = np.nanmean(np.asarray(kept.train[0]["return"]), 1)
    scores = kept.fitness[0], life, kept.final_return[0]
    return {
        kind: np.asarray(x, np.float64).round(2).tolist()
        for kind, x in zip(KINDS, scores, strict=True)
    }


def numbers(values: dict[str, Any]) -> dict[str, Any]:
    """Return what was found as plain data: of a schedule its numbers by progress."""
    at = (np.arange(PIECES) + 0.5) / PIECES
    return {
        name: [float(f"{x(metaevo.Context(progress=p)):.4g}") for p in at]
        if callable(x)
        else float(f"{x:.4g}")
        for name, x in values.items()
    }


def table(lines: list[dict], problem: str) -> None:
    """Print the means over searches, each ± its standard error."""
    for method in ("default", *METHODS):
        own = [x for x in lines if (x["problem"], x["method"]) == (problem, method)]
        found = np.array([[np.mean(x[kind]) for kind in KINDS] for x in own])
        if len(found) < 2:
            shown = [f"{x:8.1f}" for x in found.ravel()]
        else:
            errors = found.std(0, ddof=1) / len(found) ** 0.5
            pairs = zip(found.mean(0), errors, strict=True)
            shown = [f"{x:8.1f} ± {error:5.1f}" for x, error in pairs]
        print(problem, method, len(found), *shown)


def main() -> None:
    options = switches(dict.fromkeys(PROBLEMS, False) | {"only": ""}, sys.argv[1:])
    only = options.pop("only")
    if not any(options.values()):
        sys.exit(__doc__)
    metaevo.configure()
    results = Results("results", keep=True, folder=FOLDER)
    there = {
        (x["problem"], x["method"], x["seed"]) for x in map(json.loads, results.lines)
    }
    for name in (name for name, asked in options.items() if asked):
        problem = PROBLEMS[name]()
        asked = [("default", 0)]
        asked += [(x, s) for s in range(SEARCHES) for x in METHODS if only in ("", x)]
        for method, seed in asked:
            if (name, method, seed) in there:
                continue
            began = time.perf_counter()
            default = method == "default"
            values = {} if default else found(METHODS[method](problem), seed)
            spent = round(time.perf_counter() - began)
            results.add(
                problem=name,
                method=method,
                seed=seed,
                search_seconds=spent,
                numbers=numbers(values),
                **tested(problem, values),
            )
        table([json.loads(line) for line in results.lines], name)


if __name__ == "__main__":
    main()
