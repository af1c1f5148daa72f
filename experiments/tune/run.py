"""`metaevo tune` beside Optuna's TPE at equal frames, with and without static choices.

    python -m experiments.tune.run ppo=true     PPO on Acrobot
    python -m experiments.tune.run dqn=true     DQN on CartPole
    python -m experiments.tune.run pqn=true     PQN on CartPole
    python -m experiments.tune.run sac=true     SAC on Pendulum
    python -m experiments.tune.run dqn=true choose=false    without static choices
    python -m experiments.tune.run pqn=true only=gp_snes    one way alone
    python -m experiments.tune.run sac=true halves=false    no solutions half-way

Each search has 256 lifetimes of 32,768 frames (SAC: of 6,144, with small networks and
minibatches): SNES as in `metaevo tune`, with 8 generations of 16 members and two seeds;
TPE with as many trials, asked in batches of 16, each the mean over two seeds; with
static choices, what their choice leaves; `gp_snes` with the members and the sigma of
SNES. TPE searches the same space, each number within a factor of e³, if wide e⁵, of the
algorithm's own, and its solution is the best trial. Of SNES and `gp_snes` the solution
after half of the generations is tested, too. All solutions learn on the same 16 seeds
that no search saw, and again for lives of twice the length. Optuna has to be installed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import metaevo
from benchmarks.measure import Results, switches
from benchmarks.outer_loops import searcher
from experiments.tune.gp_snes import gp_snes
from inner_loops import dqn, ppo, pqn, sac
from metaevo.analysis import holdout
from metaevo.cli import config, train
from metaevo.engine import choices
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Params, Proposal, Search, Strategy

FOLDER = Path(__file__).parent
MEMBERS, SEEDS, GENERATIONS = 16, 2, 8
NUM_SEARCHES, HELD_OUT = 5, 16
RANGE, WIDE = 3.0, 5.0  # of each number of TPE, in units of the space


class Problem(NamedTuple):
    """An algorithm on an environment, its lifetime and settings that differ."""

    make: Callable
    env: str
    lifetime: int = 32_768  # frames
    settings: tuple[str, ...] = ()


PROBLEMS = {
    "ppo": Problem(ppo.make, "gymnax/Acrobot-v1"),
    "dqn": Problem(dqn.make, "gymnax/CartPole-v1"),
    "pqn": Problem(pqn.make, "gymnax/CartPole-v1"),
    "sac": Problem(
        *(sac.make, "gymnax/Pendulum-v1", 6_144),
        ("inner.features=[64,64]", "inner.batch_size=64"),
    ),
}


def search(problem: Problem, changes: Sequence[str] = (), lives: int = 1) -> Search:
    """The search of `metaevo tune` under static settings."""
    tuning = train.as_tuning(problem.make)
    frames = f"inner.total_timesteps={lives * problem.lifetime}"
    argv = [f"env={problem.env}", frames, f"num_generations={GENERATIONS}"]
    argv += problem.settings
    argv += [f"choices={';'.join(changes)}"] if changes else []
    given = config.parse(tuning, argv)
    del given["run"]
    return config.call(tuning, given)


def on_process(search: Search) -> Strategy:
    """SNES on a Gaussian process, with the settings that the search gives SNES."""
    return gp_snes(search.space, MEMBERS, search.strategy.settings["sigma"])


STRATEGIES = {"snes": lambda search: search.strategy, "gp_snes": on_process}
"""Of them the solution after half of the generations is tested too."""


def by_tpe(search: Search, seed: int, generations: int, width: float) -> Params:
    """The best of TPE's trials, asked in batches of a population."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    evaluate = LocalEvaluator(search)
    start = jax.tree.map(np.asarray, search.space.init(jax.random.key(0)))
    leaves, tree = jax.tree.flatten(start)
    size = sum(x.size for x in leaves)

    def params(units: np.ndarray) -> Params:
        ends = np.cumsum([x.size for x in leaves])[:-1]
        parts = np.split(units, ends, axis=-1)
        shaped = [
            (x + part.reshape((*part.shape[:-1], *x.shape))).astype(np.float32)
            for x, part in zip(leaves, parts, strict=True)
        ]
        return jax.tree.unflatten(tree, shaped)

    def units(trial) -> list[float]:
        return [trial.suggest_float(str(i), -width, width) for i in range(size)]

    study.enqueue_trial({str(i): 0.0 for i in range(size)})
    for generation in range(1, generations + 1):
        trials = [study.ask() for _ in range(MEMBERS)]
        asked = np.array([units(trial) for trial in trials])
        key = jax.random.fold_in(jax.random.key(seed), generation)
        found, _ = evaluate(
            key, Proposal(jax.tree.map(jnp.asarray, params(asked))), None
        )
        scores = np.asarray(search.aggregate(jnp.asarray(found.fitness)))
        for trial, score in zip(trials, scores, strict=True):
            failed = optuna.trial.TrialState.FAIL
            if np.isfinite(score):
                study.tell(trial, float(score))
            else:
                study.tell(trial, state=failed)
    best = study.best_trial.params
    return params(np.array([best[str(i)] for i in range(size)]))


def scored(search: Search, space, params: Params) -> dict[str, list[float]]:
    """Scores on the held-out seeds, over the lifetime and at its end."""
    runs, _ = holdout.train(
        *(search, space, {"": params}, jax.random.key(2_000), HELD_OUT),
        lambda one, **options: LocalEvaluator(one, **options),
    )
    found = runs[""]
    return {
        "fitness": np.round(found.fitness[0], 2).tolist(),
        "final": np.round(found.final_return[0], 2).tolist(),
    }


def main() -> None:
    options = switches(
        dict.fromkeys(PROBLEMS, False) | {"choose": True, "halves": True, "only": ""},
        sys.argv[1:],
    )
    half_way = options.pop("halves")
    methods = ["snes", "tpe", "gp_snes", "wide tpe"]
    if options.pop("choose"):
        methods += ["choice", "choice, snes", "choice, tpe"]
    if only := options.pop("only"):
        methods = [only]
    if not any(options.values()):
        sys.exit(__doc__)
    metaevo.configure()
    results = Results("results", keep=True, folder=FOLDER)
    lines = [json.loads(line) for line in results.lines]
    there = {(x["problem"], x["method"], x["seed"]) for x in lines}

    def add(problem: str, method: str, seed: int, changes, params, spent) -> None:
        """Train a solution, for one and for two lifetimes, and write its line."""
        tests = {}
        for lives, name in ((1, ""), (2, "_twice")):
            one = search(PROBLEMS[problem], changes, lives)
            space = holdout.HAND_MADE if params is None else one.space
            given = holdout.NOTHING if params is None else params
            tests |= {k + name: x for k, x in scored(one, space, given).items()}
        told = {} if params is None else jax.tree.map(np.ravel, params)
        results.add(
            problem=problem,
            method=method,
            seed=seed,
            choices=list(changes),
            search_seconds=spent,
            params={
                k: [round(float(u), 3) for u in np.ravel(x)] for k, x in told.items()
            },
            **tests,
        )
        there.add((problem, method, seed))

    for name in (name for name, asked in options.items() if asked):
        problem = PROBLEMS[name]
        if (name, "default", 0) not in there:
            add(name, "default", 0, (), None, 0)
        for seed in range(NUM_SEARCHES):
            tried: list = []
            chosen: tuple[str, ...] | None = None

            def choice(seed=seed, tried=tried):
                folder = Path("build") / f"tune-{name}-{seed}"
                score = choices.scorer(
                    lambda changes: search(problem, changes),
                    *(folder, seed, jax.devices(), lambda: False),
                )

                def counted(changes):
                    tried.append(changes)
                    return score(changes)

                offered = choices.valid(lambda changes: search(problem, changes))
                return choices.choose(offered, counted, lambda x: print(x, flush=True))

            for method in methods:
                halves = f"{method}, half", method
                asked = halves if half_way and method in STRATEGIES else halves[1:]
                if all((name, x, seed) in there for x in asked):
                    continue
                began = time.perf_counter()
                changes, left = (), GENERATIONS
                if method.startswith("choice"):
                    chosen = choice() if chosen is None else chosen
                    changes = chosen
                    lives = MEMBERS * SEEDS * GENERATIONS - choices.NUM_SEEDS * len(
                        tried
                    )
                    left = lives // (MEMBERS * SEEDS)
                one = search(problem, changes)._replace(num_generations=left)
                if method == "choice":
                    found = {method: None}
                elif "tpe" in method:
                    width = WIDE if method.startswith("wide") else RANGE
                    found = {method: by_tpe(one, seed, left, width)}
                elif method == "choice, snes":
                    found = {method: searcher(one, [left])(seed)[0]}
                else:
                    one = one._replace(strategy=STRATEGIES[method](one))
                    after = searcher(one, [left // 2, left])(seed)
                    found = dict(zip(halves, after, strict=True))
                    found = {other: found[other] for other in asked}
                spent = round(time.perf_counter() - began)
                for other, params in found.items():
                    if (name, other, seed) not in there:
                        add(name, other, seed, changes, params, spent)


if __name__ == "__main__":
    main()
