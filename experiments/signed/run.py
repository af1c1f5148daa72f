"""Searches of DQN's loss by a family that sees the target's sign, on one accelerator.

    python -m experiments.signed.run          4 minutes on an H100, with compilation
    python -m experiments.signed.run table

Five searches by SNES evolve `critic_losses.td_weighted_square(signed=True)` from the
square, on six tasks, with step size, discount and target rate drawn for each world, by
the sum of the ranks on the tasks. All searches are one population of a task's program.
Then their solutions, the square and four simple losses are trained in the same 64
fresh worlds of each task: those of the searches, the six of `suites.UNTOUCHED`, and the
rest of `suites.TRAINING`. `seconds` is when the searches stop, whatever `generations`.
"""

from __future__ import annotations

import concurrent.futures
import json
import sys
import time
from pathlib import Path

import metaevo

metaevo.configure()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.tree_util import Partial  # noqa: E402

from benchmarks.measure import Results, switches  # noqa: E402
from inner_loops import dqn  # noqa: E402
from metaevo import critic_losses, envs, fitness, population, slots, spaces  # noqa: E402
from metaevo.envs import suites  # noqa: E402
from metaevo.evaluators.lift import lift  # noqa: E402
from metaevo.types import Space  # noqa: E402
from strategies.snes import snes  # noqa: E402

TASKS = (
    *("gymnax/CartPole-v1", "gymnax/Acrobot-v1", "grid/maze", "grid/key_door"),
    *("grid/random_mdp", "gymnax/Catch-bsuite"),
)
REST = tuple(x for x in suites.TRAINING if x not in TASKS)
SIMPLE = ("square", "reluctant 0.1", "reluctant 0.3", "slow to rise", "slow to fall")
SEARCHES, SEEDS, WORLDS = 5, 2, 64
LOOP = dqn.Config(32_000, 1_000, num_steps=4)
VARY = spaces.prior(
    lr=spaces.log_uniform(2.5e-4, 4e-3),
    gamma=spaces.horizon_uniform(0.97, 0.995),
    target_rate=spaces.uniform(0.9, 1.0),
)
FAMILY = critic_losses.td_weighted_square((16,), max_bias=0.0, signed=True)


def loss(params, td_error, q, target, context=None):
    """Member `params["member"]` of the family, or simple loss `params["kind"]` - 1."""
    half = 0.5 * td_error**2
    slow = [
        jnp.where(here, 1.0, weight) * half
        for here, weight in (
            (td_error * target < 0, 0.1),
            (td_error * target < 0, 0.3),
            (td_error < 0, 0.1),
            (td_error > 0, 0.1),
        )
    ]
    member = FAMILY.apply(params["member"], td_error, q, target, context)
    return jnp.choose(params["kind"], [member, half, *slow], mode="clip")


def bind(params, meta):
    return slots.replace(meta, td_loss=Partial(loss, params))


SPACE = Space(lambda key: {"member": FAMILY.init(key), "kind": jnp.int32(0)}, bind)


def program(task: str, keys: jax.Array, params: dict):
    """The compiled scores [G, worlds, P] of groups [G, P] in worlds of their own."""
    loop = dqn.make(envs.make(task), LOOP, dqn.Meta(lr=1e-3))
    score = fitness.area_under_curve
    lifted = lift(loop, SPACE, score, loop.num_segments, True, vary=VARY)

    def group(keys, params):
        ids = jnp.arange(population.size(params))
        born = lifted.init(keys, ids, params)
        return lifted.run(keys, ids, params, born)[1].fitness

    return jax.jit(jax.vmap(group)).lower(keys, params).compile()


def members(params) -> dict:
    """Members of the family [G, P, ...], as params of `SPACE`."""
    shape = jax.tree.leaves(params)[0].shape[:2]
    return {"member": params["td_loss"], "kind": jnp.zeros(shape, jnp.int32)}


def candidates(solutions) -> dict:
    """Simple losses and solutions [SEARCHES, ...] as one group."""
    solved = solutions["td_loss"]
    none = jax.tree.map(lambda x: jnp.zeros((len(SIMPLE), *x.shape[1:])), solved)
    member = jax.tree.map(lambda *x: jnp.concatenate(x)[None], none, solved)
    kind = jnp.int32([*range(1, len(SIMPLE) + 1), *[0] * SEARCHES])
    return {"member": member, "kind": kind[None]}


def main() -> None:
    sizes = switches({"members": 64, "generations": 120, "seconds": 215}, sys.argv[1:])
    results = Results("results", folder=Path(__file__).parent)
    began = time.perf_counter()
    space = spaces.replace(td_loss=FAMILY)
    strategy = snes(space, sizes["members"], 0.3)
    split = jax.random.split
    states = jax.jit(jax.vmap(strategy.init))(split(jax.random.key(5), SEARCHES))
    ask = jax.jit(lambda key, x: jax.vmap(strategy.ask)(split(key, SEARCHES), x))
    tell = jax.jit(lambda key, *x: jax.vmap(strategy.tell)(split(key, SEARCHES), *x))
    worlds = split(jax.random.key(1), (SEARCHES, SEEDS))
    fresh = split(jax.random.key(777), (1, WORLDS))
    proposal, _ = ask(jax.random.key(0), states)
    pool = concurrent.futures.ThreadPoolExecutor()
    train = [pool.submit(program, x, worlds, members(proposal.params)) for x in TASKS]
    train = [x.result() for x in train]
    shown = candidates(jax.vmap(strategy.solution)(states))
    judged = (*TASKS, *suites.UNTOUCHED, *REST)
    judge = [pool.submit(program, x, fresh, shown) for x in judged]
    for generation in range(sizes["generations"]):
        if time.perf_counter() - began > sizes["seconds"]:
            break
        key = jax.random.fold_in(jax.random.key(42), generation)
        proposal, states = ask(jax.random.fold_in(key, 0), states)
        worlds = split(jax.random.fold_in(key, 1), (SEARCHES, SEEDS))
        params = members(proposal.params)
        scores = jnp.stack([run(worlds, params) for run in train])
        ranks = jax.vmap(fitness.rank_sum, 1)(scores)  # [SEARCHES, P]
        ranks = jnp.where(jnp.isnan(ranks), jnp.nanmin(ranks), ranks)
        states = tell(jax.random.fold_in(key, 2), states, proposal, ranks)
        means = np.asarray(scores.mean((2, 3))).round(3).tolist()
        results.add(generation=generation, mean_by_task_and_search=means)
    solutions = jax.vmap(strategy.solution)(states)
    for task, run in zip(judged, judge, strict=True):
        scores = np.asarray(run.result()(fresh, candidates(solutions)))[0].T
        names = [*SIMPLE, *(f"search {i}" for i in range(SEARCHES))]
        scores = dict(zip(names, scores.round(3).tolist(), strict=True))
        results.add(task=task, trained_on=task in TASKS, scores=scores)
    leaves = jax.tree_util.tree_leaves_with_path(solutions["td_loss"])
    results.add(
        solutions={
            jax.tree_util.keystr(path): np.asarray(x).round(6).tolist()
            for path, x in leaves
        }
    )


def table() -> str:
    """Differences from the square and from the reluctant one, for the README."""
    from metaevo.analysis import stats

    rows = []
    for line in (Path(__file__).parent / "results.jsonl").read_text().splitlines():
        found = json.loads(line)
        if "scores" not in found:
            continue
        scores = {name: np.array(x) for name, x in found["scores"].items()}
        square, reluctant = scores["square"], scores["reluctant 0.1"]
        solved = [scores[f"search {i}"] for i in range(SEARCHES)]
        against = [stats.mean_interval(x - reluctant) for x in solved]
        better = sum(x.low > 0 for x in against)
        worse = sum(x.high < 0 for x in against)
        columns = [
            *(found["task"], f"{square.mean():.2f}"),
            f"{(reluctant - square).mean():+.2f}",
            ", ".join(f"{(x - square).mean():+.2f}" for x in solved),
            f"{better} better, {worse} worse",
        ]
        rows.append("| " + " | ".join(columns) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    if sys.argv[1:] == ["table"]:
        print(table())
    else:
        main()
