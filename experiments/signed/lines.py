"""Train what evolved beside reluctant squares of other weights and scales.

    python -m experiments.signed.lines           three hours of a core
    python -m experiments.signed.lines table
    python -m experiments.signed.lines save 1 PATH    search 1 as an artifact

A weight of the reluctant square is what counts where Q moves away from zero. A scale
multiplies all of the loss, which matters to Adam through its ε alone. The worlds are
those in which `run.py` judges. A task that is in the results is not run again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import metaevo
from benchmarks.measure import Results
from experiments.signed import run
from inner_loops import dqn
from metaevo import envs, fitness, population, slots, spaces
from metaevo.envs import suites
from metaevo.evaluators.lift import lift
from metaevo.types import Space

FOLDER = Path(__file__).parent
LINES = ((1.0, 1.0), (0.3, 1.0), (0.4, 1.0), (1.0, 7.0), (0.3, 7.0))
"""Weight and scale of each."""
SEARCHES = (0, 1, 4)
"""Of `eight.jsonl`."""
SIZES = {"tasks": "eight", "members": 32, "worlds": 12}
"""Of the searches of `eight.jsonl`."""
NAMES = (
    *(f"weight {weight:g}, times {scale:g}" for weight, scale in LINES),
    *(f"search {i}" for i in SEARCHES),
)


def loss(params, td_error, q, target, context=None):
    """A member of the family where the weight is 0, else a reluctant square."""
    weight = jnp.where(td_error * target < 0, 1.0, params["weight"])
    line = 0.5 * params["scale"] * weight * td_error**2
    member = run.FAMILY.apply(params["member"], td_error, q, target, context)
    return jnp.where(params["weight"] > 0, line, member)


def recorded(key: str, name: str = "eight") -> list[dict]:
    """Lines of a file of results that have a key."""
    lines = map(json.loads, (FOLDER / f"{name}.jsonl").read_text().splitlines())
    return [line for line in lines if key in line]


def solutions() -> dict:
    """The members that the searches found, leaves [5, ...]."""
    found = recorded("solutions")[0]["solutions"]
    tensors = {name.split("'")[-2]: np.float32(x) for name, x in found.items()}
    return {"network": tensors}


def candidates() -> dict:
    """Params of the lines, then of the solutions, [1, P, ...]."""
    none = jnp.zeros(len(SEARCHES))
    weights, scales = jnp.float32(LINES).T
    member = jax.tree.map(
        lambda x: jnp.concatenate(
            [jnp.zeros((len(LINES), *x.shape[1:])), x[jnp.array(SEARCHES)]]
        ),
        solutions(),
    )
    params = {
        "member": member,
        "weight": jnp.concatenate([weights, none]),
        "scale": jnp.concatenate([scales, none + 1]),
    }
    return jax.tree.map(lambda x: x[None], params)


def main() -> None:
    results = Results("lines", keep=True, folder=FOLDER)
    done = {json.loads(line)["task"] for line in results.lines}
    params = candidates()
    first = jax.tree.map(lambda x: x[0, 0], params)
    space = Space(
        lambda key: first,
        lambda params, meta: slots.replace(meta, td_loss=Partial(loss, params)),
    )
    keys = jax.random.split(jax.random.key(778), run.WORLDS)
    for task in (*suites.UNTOUCHED, *suites.TRAINING):
        if task in done:
            continue
        loop = dqn.make(envs.make(task), run.LOOP, dqn.Meta(lr=1e-3))
        score = fitness.area_under_curve
        lifted = lift(loop, space, score, loop.num_segments, True, vary=run.VARY)

        @jax.jit
        def trained(keys, lifted=lifted):
            members = jax.tree.map(lambda x: x[0], params)
            ids = jnp.arange(population.size(members))
            born = lifted.init(keys, ids, members)
            return lifted.run(keys, ids, members, born)[1].fitness

        found = np.concatenate([np.asarray(trained(x)) for x in np.split(keys, 8)])
        scores = dict(zip(NAMES, found.T.round(3).tolist(), strict=True))
        results.add(task=task, scores=scores)


def table() -> str:
    """Differences from the first line, the square."""
    from metaevo.analysis import stats

    rows = []
    for line in recorded("scores", "lines"):
        scores = {name: np.array(x) for name, x in line["scores"].items()}
        square = scores.pop(NAMES[0])
        found = [stats.mean_interval(x - square) for x in scores.values()]
        columns = [
            line["task"],
            f"{square.mean():.2f}",
            *(f"{x.estimate:+.2f} [{x.low:+.2f}, {x.high:+.2f}]" for x in found),
        ]
        rows.append("| " + " | ".join(columns) + " |")
    return "\n".join(rows)


def judged(search: int) -> tuple[list[str], list[dict]]:
    """What `eight.jsonl` says of a solution: verdicts by task, and mean scores.

    Against the square in the tasks of the search, and against the best simple loss
    where no search evolves.
    """
    from metaevo.analysis import stats

    verdicts, rows = [], []
    for line in recorded("scores"):
        task, scores = line["task"], line["scores"]
        mine = np.array(scores[f"search {search}"])
        for name, x in (
            ("solution", mine),
            ("square", scores["square"]),
            ("reluctant square, 0.3", scores["reluctant 0.3"]),
        ):
            of_task = {"name": name, "task": task, "fitness": float(np.mean(x))}
            rows.append(of_task | {"final_return": None, "seeds": len(x)})
        if task not in run.EIGHT and task not in suites.UNTOUCHED:
            continue
        rival = "reluctant 0.3" if task in suites.UNTOUCHED else "square"
        found = stats.mean_interval(mine - np.array(scores[rival]))
        named = "square" if rival == "square" else "reluctant square with 0.3"
        said = "not distinguishable from"
        said = "better than" if found.low > 0 else said
        said = "worse than" if found.high < 0 else said
        where = "a task that no search touched, " if task in suites.UNTOUCHED else ""
        verdicts.append(
            f"on {task}, {where}the solution is {said} the {named}: mean return over "
            f"the lifetime {found.estimate:+.3f} [{found.low:+.3f}, {found.high:+.3f}] "
            f"(95 % interval, {len(mine)} paired worlds)"
        )
    return verdicts, rows


def save(search: int, path: str) -> None:
    """Write a solution as an artifact, with what the search was."""
    from metaevo.storage import artifacts

    space = spaces.replace(td_loss=run.FAMILY)
    member = jax.tree.map(lambda x: x[search], solutions())
    last = recorded("generation")[-1]
    generations = last["generation"] + 1
    trained = generations * SIZES["members"] * SIZES["worlds"] * len(run.EIGHT)
    verdicts, rows = judged(search)
    evidence = {
        "environments": list(run.EIGHT),
        "measure": "mean return over the lifetime",
        "verdicts": verdicts,
        "scores": rows,
        "cost": {
            "generations": generations,
            "frames": trained * run.LOOP.total_timesteps,
        },
        "metaevo": metaevo.__version__,
        "date": last["date"][:10],
        "license": "Apache-2.0",
    }
    about = {key: last[key] for key in ("device", "machine", "python", "versions")}
    about["changes"] = [f"{key}={value}" for key, value in SIZES.items()]
    about["run"] = {"seed": search, "directory": None}
    provenance = {"search": "experiments.signed.run", "run": about}
    params = {"td_loss": member}
    artifacts.save(path, params, space.spec, {}, provenance, evidence=evidence)


if __name__ == "__main__":
    if sys.argv[1:] == ["table"]:
        print(table())
    elif sys.argv[1:2] == ["save"]:
        save(int(sys.argv[2]), sys.argv[3])
    else:
        main()
