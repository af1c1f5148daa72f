"""Small runs of `metaevo.optimize`."""

import math
import statistics
from pathlib import Path

import metaevo
from metaevo import spaces
from metaevo.storage import jsonl

SPACE = spaces.prior(x=spaces.log_uniform(0.1, 10.0))
RATES = spaces.prior(rate=spaces.log_uniform(0.01, 0.5))
AROUND = spaces.tune(x=spaces.log())
OPTIONS = {"num_generations": 2, "workers": 2, "held_out_seeds": 0}


def optimize(directory, space, strategy, score, **options):
    given = {**OPTIONS, "wandb": "disabled", "directory": directory, **options}
    return metaevo.optimize(space, strategy, score, **given)


def trials(directory):
    """The trials of a run by name, each of which ran once."""
    found = jsonl.read(Path(directory) / "trials.jsonl")
    named = {x["trial"]: x for x in found}
    assert len(named) == len(found)
    return named


def explained(found, halving, num_seeds, population_size):
    """Check each decision of a log against the lines before it, and what it led to.

    A member is told by its numbers, and a generation by the seeds that its newborn
    members have in common.
    """
    age, first, scores, rungs, stopped = {}, {}, {}, {}, {}
    seeds = list(dict.fromkeys(x["seed"] for x in found.values() if not x["parent"]))
    for name, x in found.items():
        parent = x["parent"]
        assert not stopped.get(parent)
        age[name] = 1 if parent is None else age[parent] + 1
        first[name] = x["seed"] if parent is None else first[parent]
        generation = seeds.index(first[name]) // num_seeds
        numbers = tuple(v for k, v in x.items() if k.startswith("numbers/"))
        mine = scores.setdefault((generation, numbers, age[name]), [])
        mine.append(-math.inf if x["score"] is None else x["score"])
        if age[name] not in halving.ages or len(mine) < num_seeds:
            assert "rung" not in x
            continue
        there = rungs.setdefault((generation, age[name]), [])
        there.append(statistics.fmean(mine))
        assert x["rung"] == age[name]
        assert x["seen"] == len(there) <= population_size
        assert x["better"] == sum(score > there[-1] for score in there)
        assert x["stopped"] == halving.stops(x["better"], x["seen"])
        stopped[name] = x["stopped"]
    assert {*stopped.values()} == {True, False}
