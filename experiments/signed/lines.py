"""What evolved beside reluctant squares of other weights and scales.

    python -m experiments.signed.lines           an hour of two cores
    python -m experiments.signed.lines table

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

from benchmarks.measure import Results
from experiments.signed import run
from inner_loops import dqn
from metaevo import envs, fitness, population, slots
from metaevo.envs import suites
from metaevo.evaluators.lift import lift
from metaevo.types import Space

FOLDER = Path(__file__).parent
LINES = ((1.0, 1.0), (0.3, 1.0), (0.4, 1.0), (1.0, 7.0), (0.3, 7.0))
"""Weight and scale of each."""
SEARCHES = (0, 1, 4)
"""Of `eight.jsonl`."""
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


def solutions(name: str = "eight") -> dict:
    """The members that the searches found, leaves [5, ...]."""
    lines = map(json.loads, (FOLDER / f"{name}.jsonl").read_text().splitlines())
    (found,) = (x["solutions"] for x in lines if "solutions" in x)
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
    for line in map(json.loads, (FOLDER / "lines.jsonl").read_text().splitlines()):
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


if __name__ == "__main__":
    if sys.argv[1:] == ["table"]:
        print(table())
    else:
        main()
