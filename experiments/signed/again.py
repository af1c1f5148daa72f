"""Judge search 1 of `eight.jsonl` again, on worlds that nobody has seen.

    python -m experiments.signed.again lines        the rival, on the training tasks
    python -m experiments.signed.again untouched    the judgement
    python -m experiments.signed.again table

The search was picked for what it was worth on the six tasks of `suites.UNTOUCHED`. It
is trained there in worlds of another key, beside the reluctant square of 0.3 and the
*best line*: of seven reluctant squares and the square, the one whose runs rank highest
on the ten training tasks, in 32 of the worlds of `run.py`. A task that is in the
results is not run again.
"""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jax.tree_util import Partial

from benchmarks.measure import Results
from experiments.signed import lines, run
from inner_loops import dqn
from metaevo import envs, fitness, population, slots
from metaevo.analysis import differences
from metaevo.engine import choices
from metaevo.envs import suites
from metaevo.evaluators.lift import lift
from metaevo.types import Space

SEARCH = 1
"""`zoo:td_signed`."""
LINES = ((0.4, 1), (0.5, 1), (0.6, 1), (0.3, 7), (0.5, 7))
"""Weight and scale of each line beside those of `eight.jsonl`."""
KEPT = {"square": (1.0, 1), "reluctant 0.1": (0.1, 1), "reluctant 0.3": (0.3, 1)}
NUM_WORLDS, NUM_FRESH, CHUNK = 32, 128, 32
FRESH = 39
"""Seed of the worlds of the judgement."""


class Line(NamedTuple):
    """A reluctant square: what counts where Q moves away from zero, times a scale."""

    weight: float
    scale: float

    @property
    def name(self) -> str:
        return f"weight {self.weight:g}, times {self.scale:g}"


def members(candidates: list[Line | int]) -> dict:
    """Params of lines and of solutions by number, leaves [P, ...]."""
    solved = jax.tree.map(jnp.asarray, lines.solutions())
    none = jax.tree.map(lambda x: jnp.zeros_like(x[0]), solved)
    each = [
        jax.tree.map(lambda leaf, i=x: leaf[i], solved) if isinstance(x, int) else none
        for x in candidates
    ]
    drawn = [(0.0, 1.0) if isinstance(x, int) else x for x in candidates]
    weights, scales = jnp.float32(drawn).T
    member = jax.tree.map(lambda *x: jnp.stack(x), *each)
    return {"member": member, "weight": weights, "scale": scales}


def trained(task: str, params: dict, keys: jax.Array) -> np.ndarray:
    """Mean return over the lifetime of each candidate in each world, [P, worlds]."""
    space = Space(
        lambda key: jax.tree.map(lambda x: x[0], params),
        lambda one, meta: slots.replace(meta, td_loss=Partial(lines.loss, one)),
    )
    loop = dqn.make(envs.make(task), run.LOOP, dqn.Meta(lr=1e-3))
    score = fitness.area_under_curve
    lifted = lift(loop, space, score, loop.num_segments, True, vary=run.VARY)

    def scores(keys, params):
        ids = jnp.arange(population.size(params))
        born = lifted.init(keys, ids, params)
        return lifted.run(keys, ids, params, born)[1].fitness

    mesh = Mesh(np.array(jax.devices()), ("worlds",))
    here = PartitionSpec("worlds"), PartitionSpec()
    options = {"mesh": mesh, "in_specs": here, "out_specs": here[0]}
    scores = jax.jit(jax.shard_map(scores, check_vma=False, **options))
    chunks = jnp.split(keys, len(keys) // CHUNK)
    return np.concatenate([np.asarray(scores(x, params)) for x in chunks]).T


def scores_of_lines() -> dict[Line, np.ndarray]:
    """Scores of each line on the training tasks, [tasks, worlds]."""
    of = {x["task"]: x["scores"] for x in lines.recorded("scores")}
    mine = {x["task"]: x["scores"] for x in lines.recorded("scores", "again")}
    rows = {Line(*x): [mine[t][Line(*x).name] for t in suites.TRAINING] for x in LINES}
    for name, x in KEPT.items():
        rows[Line(*x)] = [of[t][name][:NUM_WORLDS] for t in suites.TRAINING]
    return {line: np.array(x, np.float64) for line, x in rows.items()}


def mean_shares() -> dict[Line, float]:
    """Which share of a task's runs those of a line are above, mean over tasks."""
    found = scores_of_lines()
    pool = np.concatenate([*found.values()], 1)
    return {line: float(choices.shares(pool, x).mean()) for line, x in found.items()}


def best_line() -> Line:
    """The line whose runs rank highest on the training tasks."""
    found = mean_shares()
    return max(found, key=lambda line: found[line])


def main(what: str) -> None:
    results = Results("again", keep=True, folder=lines.FOLDER)
    done = {json.loads(line)["task"] for line in results.lines}
    if what == "lines":
        tasks, candidates = suites.TRAINING, [Line(*x) for x in LINES]
        keys = jax.random.split(jax.random.key(778), run.WORLDS)[:NUM_WORLDS]
    else:
        tasks = suites.UNTOUCHED
        rivals = Line(0.3, 1), best_line()
        candidates = [*dict.fromkeys(rivals), SEARCH]
        keys = jax.random.split(jax.random.key(FRESH), NUM_FRESH)
    params = members(candidates)
    names = [f"search {x}" if isinstance(x, int) else x.name for x in candidates]
    for task in tasks:
        if task not in done:
            found = trained(task, params, keys).round(3).tolist()
            results.add(task=task, scores=dict(zip(names, found, strict=True)))


def table() -> str:
    """Ranks of the lines, then what search 1 is worth beside each rival."""
    rows = [f"{line.name}: {share:.3f}" for line, share in mean_shares().items()]
    judged: dict[str, list] = {}
    for line in lines.recorded("scores", "again"):
        scores = {name: np.array(x) for name, x in line["scores"].items()}
        mine = scores.pop(f"search {SEARCH}", None)
        if mine is not None:
            for name, x in scores.items():
                verdict = differences.paired_difference(mine, x)
                judged.setdefault(name, []).append((line["task"], verdict))
    for name, pairs in judged.items():
        corrected = differences.holm([verdict for _, verdict in pairs])
        for (task, _), x in zip(pairs, corrected, strict=True):
            interval = f"{x.difference:+.3f} [{x.low:+.3f}, {x.high:+.3f}]"
            rows.append(f"{task} | less {name} | {interval} | {x.verdict}")
    return "\n".join(rows)


if __name__ == "__main__":
    if sys.argv[1:] == ["table"]:
        print(table())
    elif sys.argv[1:] in (["lines"], ["untouched"]):
        main(sys.argv[1])
    else:
        sys.exit(__doc__)
