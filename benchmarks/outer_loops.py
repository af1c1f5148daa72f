"""Strategies on five meta-problems, at equal frames.

    python -m benchmarks.outer_loops only=value_loss

Each problem is a shipped search at the size of a minute: PPO's value loss, its drift,
five of its numbers, a potential for MountainCar, and DQN's temporal-difference loss.
All strategies have the same frames on it, from the same start. What counts is the
solution, trained again on 16 seeds that no search saw, after each third of the frames.
A line that is in the results is not made again, so a benchmark that was stopped
continues. At the end it prints the table and draws the curves of
docs/log/strategies.md, from the seeds that all strategies have.
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
import optax

import metaevo
from benchmarks.measure import Results, switches
from inner_loops import ppo
from metaevo import fitness, spaces
from metaevo.analysis import holdout
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Params, Search, Space, Strategy
from searches import (
    dqn_td_loss,
    ppo_drift,
    ppo_hyperparameters,
    ppo_reward_potential,
    ppo_weighted_value_loss,
)
from strategies.cma_es import cma_es
from strategies.open_es import open_es
from strategies.pgpe import pgpe
from strategies.snes import snes

NUM_SEARCHES, NUM_SEEDS = 5, 16
LIFETIMES = 32 * 12  # of a search
THIRDS = (1, 2, 3)
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "outer_loops.png"


class Problem(NamedTuple):
    """What evolves, and where.

    Attributes:
        search: makes the search; its strategy and horizon are not used.
        space: what evolves if not the search's own space.
    """

    search: Callable[[], Search]
    space: Space | None = None


SHORT = ppo.Config(32_768, num_steps=64, features=(32, 32))
NUMBERS = spaces.tune(
    lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    gae_lambda=spaces.one_minus_log(),
    ent_coef=spaces.log(),
    clip_eps=spaces.log(),
)

PROBLEMS = {
    "value_loss": Problem(lambda: ppo_weighted_value_loss.search(num_seeds=1)),
    "numbers": Problem(
        lambda: ppo_hyperparameters.search(meta=ppo.Meta(lr=2.5e-4)), NUMBERS
    ),
    "drift": Problem(
        lambda: ppo_drift.search(
            ("gymnax/CartPole-v1",),
            form="free",
            inner=SHORT,
            meta=ppo.Meta(lr=2.5e-3),
        )._replace(fitness=fitness.area_under_curve)
    ),
    "potential": Problem(ppo_reward_potential.search),
    "td_loss": Problem(lambda: dqn_td_loss.search(family="weighted")),
}

# name -> population, and the strategy of that size.
STRATEGIES: dict[str, tuple[int, Callable[[Space, int], Strategy]]] = {
    "snes 0.3": (32, lambda space, size: snes(space, size, 0.3)),
    "snes 1": (32, lambda space, size: snes(space, size, 1.0)),
    "snes 1, 64 members": (64, lambda space, size: snes(space, size, 1.0)),
    "open_es 0.3": (32, lambda s, size: open_es(s, size, 0.3, optax.adam(0.1))),
    "open_es 1": (32, lambda s, size: open_es(s, size, 1.0, optax.adam(0.3))),
    "cma_es 0.3": (32, lambda space, size: cma_es(space, size, 0.3)),
    "cma_es 1": (32, lambda space, size: cma_es(space, size, 1.0)),
    "pgpe 1": (32, lambda s, size: pgpe(s, size, 1.0, optax.adam(0.3))),
}


def solutions(
    search: Search, strategy: Strategy, generations: int, seed: int
) -> list[Params]:
    """Search, and return the solution after each third of the generations."""
    kept = [g for g in range(1, generations + 1) if g * len(THIRDS) % generations == 0]
    return searcher(search._replace(strategy=strategy), kept)(seed)


def searcher(search: Search, kept: Sequence[int]) -> Callable[[int], list[Params]]:
    """Compile a search; `seed -> solutions` after the generations `kept`, from 1."""
    strategy, evaluate = search.strategy, LocalEvaluator(search)
    ask, tell, init = map(jax.jit, (strategy.ask, strategy.tell, strategy.init))

    def solutions(seed: int) -> list[Params]:
        root = jax.random.key(seed)
        state, found = init(root), []
        for generation in range(1, max(kept) + 1):
            keys = jax.random.split(jax.random.fold_in(root, generation), 3)
            proposal, state = ask(keys[0], state)
            evaluated, _ = evaluate(keys[1], proposal, None)
            raw = np.asarray(search.aggregate(jnp.asarray(evaluated.fitness)))
            scores, failed = fitness.sanitize(raw, strategy.mirrored)
            if not failed.all():
                state = tell(keys[2], state, proposal, jnp.asarray(scores))
            if generation in kept:
                found.append(strategy.solution(state))
        return found

    return solutions


def scores(lines: Sequence[dict], problem: str) -> dict[str, np.ndarray]:
    """The solutions' held-out scores on a problem, [searches, thirds] by strategy.

    Only seeds count that the start and every strategy have; the start has one third.
    Empty if there are none.
    """
    own = [x for x in lines if x["problem"] == problem]
    found = {(x["strategy"], x["seed"]): x["mean"] for x in own}
    names = ("start", *STRATEGIES)
    seeds = [s for s in range(NUM_SEARCHES) if all((k, s) in found for k in names)]
    return {k: np.asarray([found[k, s] for s in seeds]) for k in names if seeds}


def table(lines: Sequence[dict]) -> str:
    """Final scores as markdown, mean ± standard error over searches."""
    shown = {}
    for problem in PROBLEMS:
        own = scores(lines, problem)
        if own:
            shown[problem] = {k: v[:, -1] for k, v in own.items()}
    rows = [
        ["", *shown],
        ["---"] * (len(shown) + 1),
        ["searches", *(str(len(x["start"])) for x in shown.values())],
    ]
    rows += [
        [name, *(_cell(x[name]) for x in shown.values())]
        for name in ("start", *STRATEGIES)
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(finals: np.ndarray) -> str:
    if len(finals) < 2:
        return f"{finals.mean():.1f}"
    return f"{finals.mean():.1f} ± {finals.std(ddof=1) / len(finals) ** 0.5:.1f}"


def draw(lines: Sequence[dict]) -> None:
    """One panel per problem: mean score of the solution by lifetimes spent.

    A strategy has a color, and a sigma of 0.3 is dashed.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(PROBLEMS), figsize=(14, 3.6))
    kinds = list(dict.fromkeys(name.split()[0] for name in STRATEGIES))
    spent = [0, *(LIFETIMES * i // len(THIRDS) for i in THIRDS)]
    for panel, problem in zip(panels, PROBLEMS, strict=True):
        own = scores(lines, problem)
        panel.set_title(problem.replace("_", " "), fontsize=10)
        panel.set_xlabel("lifetimes")
        panel.set_xticks(spent)
        for name in STRATEGIES if own else ():
            curve = [own["start"].mean(), *own[name].mean(0)]
            kind, *_, last = name.split()
            panel.plot(
                spent,
                curve,
                color=f"C{kinds.index(kind)}",
                linestyle={"0.3": "--", "members": ":"}.get(last, "-"),
                marker="o",
                markersize=3,
                label=name,
            )
    panels[0].set_ylabel("mean return over the lifetime")
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        frameon=False,
        loc="lower center",
        ncol=len(STRATEGIES),
        fontsize=8,
    )
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(PICTURE, dpi=120)


def main() -> None:
    chosen = switches(
        {"only": "", "strategy": "", "searches": NUM_SEARCHES}, sys.argv[1:]
    )
    for key, known in (("only", PROBLEMS), ("strategy", STRATEGIES)):
        if chosen[key] and chosen[key] not in known:
            sys.exit(f"{key}={chosen[key]}: expected one of {', '.join(known)}")
    metaevo.configure()
    results = Results("outer_loops", keep=True)
    done = {
        (x["problem"], x["strategy"], x["seed"]) for x in map(json.loads, results.lines)
    }
    # Seed by seed, so that a benchmark that was stopped compares like with like.
    for seed in range(int(str(chosen["searches"]))):
        for problem, (make, space) in PROBLEMS.items():
            search = make()
            space = space or search.space
            search = search._replace(space=space)
            judge = LocalEvaluator(
                holdout.alone(search, space), evaluate=True, keep_agents=True
            )
            for name, (size, strategy) in {"start": (0, None), **STRATEGIES}.items():
                wanted = chosen["only"] in ("", problem)
                wanted &= chosen["strategy"] in ("", name)
                if not wanted or (problem, name, seed) in done:
                    continue
                began = time.monotonic()
                if strategy is None:
                    found = [space.init(jax.random.key(seed))]
                else:
                    found = solutions(
                        search, strategy(space, size), LIFETIMES // size, seed
                    )
                searched = time.monotonic() - began
                runs, _ = holdout.train(
                    search,
                    space,
                    {str(i): params for i, params in enumerate(found)},
                    jax.random.key(1_000 + seed),
                    NUM_SEEDS,
                    lambda *args, judge=judge, **options: judge,
                )
                judged = np.stack([x.fitness[0] for x in runs.values()]).astype(float)
                results.add(
                    problem=problem,
                    strategy=name,
                    population=size,
                    parameters=sum(map(np.size, jax.tree.leaves(found[0]))),
                    seed=seed,
                    lifetimes=LIFETIMES if size else 0,
                    mean=judged.mean(1).round(2).tolist(),
                    each=judged[-1].round(2).tolist(),
                    failed=int((~np.isfinite(judged)).sum()),
                    seconds=round(searched, 1),
                )
    lines = [json.loads(x) for x in results.lines]
    print(table(lines))
    draw(lines)


if __name__ == "__main__":
    main()
