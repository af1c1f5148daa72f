"""Searches of DQN's loss by a family that sees the target's sign, on one accelerator.

    python -m experiments.signed.run tasks=four
    python -m experiments.signed.run tasks=eight members=32 worlds=12
    python -m experiments.signed.run table four
    python -m experiments.signed.run table eight 'reluctant 0.3'

Five searches by SNES evolve `critic_losses.td_weighted_square(signed=True)` from the
square, on four or eight tasks, with step size, discount and target rate drawn for each
world. Both squares are trained beside each generation in the same worlds, and fitness
counts what is above one of them. All searches are one population of a task's program.
The solution is the mean of the last third of the generations. Solutions, the square
and four simple losses are then trained in the same 64 fresh worlds of each task: those
of the searches, the six of `suites.UNTOUCHED`, and the rest of `suites.TRAINING`.
`seconds` is when the searches stop.
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

SQUARE, RELUCTANT = 1, 2  # their `kind`
# The unit of a task is what the reluctant square changes there, by `results.jsonl`. A
# member is compared with the reluctant square, or with the better one of the two.
FOUR = {
    "gymnax/CartPole-v1": (30.7, RELUCTANT),
    "gymnax/Acrobot-v1": (109.9, RELUCTANT),
    "grid/maze": (0.23, RELUCTANT),
    "gymnax/Catch-bsuite": (0.03, RELUCTANT),
}
EIGHT = FOUR | {
    "grid/key_door": (0.12, RELUCTANT),
    "gymnax/Catch-bsuite": (0.03, SQUARE),
    "grid/random_mdp": (0.68, SQUARE),
    "gymnax/DeepSea-bsuite": (0.15, SQUARE),
    "sparse/gymnax/CartPole-v1": (2.19, SQUARE),
}
SETS = {"four": FOUR, "eight": EIGHT}
SIMPLE = ("square", "reluctant 0.1", "reluctant 0.3", "slow to rise", "slow to fall")
SEARCHES, WORLDS = 5, 64
LOOP = dqn.Config(32_000, 1_000, num_steps=4)
VARY = spaces.prior(
    lr=spaces.log_uniform(2.5e-4, 4e-3),
    gamma=spaces.horizon_uniform(0.97, 0.995),
    target_rate=spaces.uniform(0.9, 1.0),
)
FAMILY = critic_losses.td_weighted_square((8,), max_bias=0.0, signed=True)


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
    """Members of the family [G, P, ...] and both squares, as params."""
    two = jax.tree.map(
        lambda x: jnp.concatenate([x, jnp.zeros_like(x[:, :2])], 1), params["td_loss"]
    )
    kind = jnp.zeros(jax.tree.leaves(two)[0].shape[:2], jnp.int32)
    return {"member": two, "kind": kind.at[:, -2:].set([SQUARE, RELUCTANT])}


def above_rivals(tasks: dict, scores: jax.Array) -> jax.Array:
    """Differences from tasks' rivals: [tasks, G, worlds, P + 2] -> [tasks, G, P]."""
    rivals = jnp.array([rival for _, rival in tasks.values()]) - 3  # -2 or -1
    rival = jax.vmap(lambda x, i: x[..., i])(scores, rivals)
    return (scores[..., :-2] - rival[..., None]).mean(2)


def fitness_of(tasks: dict, above: jax.Array) -> jax.Array:
    """Mean over tasks in units, of which more than 0.1 does not count: [G, P].

    So one task does not pay for another.
    """
    units = jnp.float32([unit for unit, _ in tasks.values()])[:, None, None]
    share = jnp.where(jnp.isnan(above), -9.0, jnp.minimum(above / units, 0.1))
    return share.mean(0)


def candidates(solutions) -> dict:
    """Simple losses and solutions [SEARCHES, ...] as one group."""
    solved = solutions["td_loss"]
    none = jax.tree.map(lambda x: jnp.zeros((len(SIMPLE), *x.shape[1:])), solved)
    member = jax.tree.map(lambda *x: jnp.concatenate(x)[None], none, solved)
    kind = jnp.int32([*range(1, len(SIMPLE) + 1), *[0] * SEARCHES])
    return {"member": member, "kind": kind[None]}


def main() -> None:
    sizes = switches(
        {"tasks": "four", "members": 48, "worlds": 8, "seconds": 260}, sys.argv[1:]
    )
    tasks = SETS[sizes["tasks"]]
    results = Results(sizes["tasks"], folder=Path(__file__).parent)
    began = time.perf_counter()
    space = spaces.replace(td_loss=FAMILY)
    strategy = snes(space, sizes["members"], 0.3)
    split = jax.random.split
    states = jax.jit(jax.vmap(strategy.init))(split(jax.random.key(5), SEARCHES))
    ask = jax.jit(lambda key, x: jax.vmap(strategy.ask)(split(key, SEARCHES), x))
    tell = jax.jit(lambda key, *x: jax.vmap(strategy.tell)(split(key, SEARCHES), *x))
    shape = SEARCHES, sizes["worlds"]
    worlds = split(jax.random.key(1), shape)
    fresh = split(jax.random.key(778), (1, WORLDS))
    proposal, _ = ask(jax.random.key(0), states)
    pool = concurrent.futures.ThreadPoolExecutor()
    train = [pool.submit(program, x, worlds, members(proposal.params)) for x in tasks]
    train = [x.result() for x in train]
    shown = candidates(jax.vmap(strategy.solution)(states))
    rest = [x for x in suites.TRAINING if x not in tasks]
    judged = (*tasks, *suites.UNTOUCHED, *rest)
    judge = [pool.submit(program, x, fresh, shown) for x in judged]
    means = []
    while time.perf_counter() - began < sizes["seconds"]:
        generation = len(means)
        key = jax.random.fold_in(jax.random.key(42), generation)
        proposal, states = ask(jax.random.fold_in(key, 0), states)
        worlds = split(jax.random.fold_in(key, 1), shape)
        params = members(proposal.params)
        scores = jnp.stack([run(worlds, params) for run in train])
        above = above_rivals(tasks, scores)
        found = fitness_of(tasks, above)
        means.append(jax.vmap(strategy.solution)(states))
        states = tell(jax.random.fold_in(key, 2), states, proposal, found)
        results.add(
            generation=generation,
            fitness=np.asarray(found.mean(1)).round(3).tolist(),
            above_rivals=np.asarray(above.mean(2)).round(3).tolist(),
        )
    kept = means[-max(len(means) // 3, 1) :]
    solutions = jax.tree.map(lambda *x: jnp.stack(x).mean(0), *kept)
    leaves = jax.tree_util.tree_leaves_with_path(solutions["td_loss"])
    results.add(
        solutions={
            jax.tree_util.keystr(path): np.asarray(x).round(6).tolist()
            for path, x in leaves
        }
    )
    for task, run in zip(judged, judge, strict=True):
        scores = np.asarray(run.result()(fresh, candidates(solutions)))[0].T
        names = [*SIMPLE, *(f"search {i}" for i in range(SEARCHES))]
        scores = dict(zip(names, scores.round(3).tolist(), strict=True))
        results.add(task=task, trained_on=task in tasks, scores=scores)


def table(name: str, rival: str = "reluctant 0.1") -> str:
    """Differences from the square and from a simple loss, for the documentation."""
    from metaevo.analysis import stats

    rows = []
    for line in (Path(__file__).parent / f"{name}.jsonl").read_text().splitlines():
        found = json.loads(line)
        if "scores" not in found:
            continue
        scores = {name: np.array(x) for name, x in found["scores"].items()}
        square = scores["square"]
        solved = [scores[f"search {i}"] for i in range(SEARCHES)]
        against = [stats.mean_interval(x - scores[rival]) for x in solved]
        better = sum(x.low > 0 for x in against)
        worse = sum(x.high < 0 for x in against)
        columns = [
            *(found["task"], f"{square.mean():.2f}"),
            *(f"{(scores[x] - square).mean():+.2f}" for x in SIMPLE[1:3]),
            ", ".join(f"{(x - square).mean():+.2f}" for x in solved),
            f"{better} better, {worse} worse",
        ]
        rows.append("| " + " | ".join(columns) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["table"]:
        print(table(*sys.argv[2:]))
    else:
        main()
