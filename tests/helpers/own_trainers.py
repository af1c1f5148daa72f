"""Small runs of `metaevo.optimize`."""

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
