"""Every space in every inner loop that has its slot; `docs/spaces.md` has the table.

After a change: python tests/helpers/learned.py, which writes the table.
"""

import json

import jax
import jax.numpy as jnp
import learned
import numpy as np
import optax
import pytest

import metaevo
from metaevo import fitness
from metaevo.config import RunConfig
from metaevo.engine import loop as engine
from metaevo.errors import ConfigError
from metaevo.types import FitnessFn, Search
from strategies.open_es import open_es

PAIRS = learned.pairs()


def _told_apart(train, evaluation):
    """Returns less the error of values, since tiny lifetimes often end alike."""
    error = train.get("value_error_rms", jnp.zeros(1))
    on_the_way = jnp.where(train["episodes"] > 0, train["return"], 0.0)
    return evaluation["return"] + on_the_way.mean() - error.mean()


TOLD_APART = FitnessFn(_told_apart, True, "returns less the error of values")


@pytest.mark.slow
@pytest.mark.parametrize(("space", "loop"), PAIRS, ids=lambda x: x.replace(" ", "-"))
def test_two_generations_run(space, loop, tmp_path):
    made = PAIRS[space, loop][1]()
    small = learned.LOOPS[loop]
    search = Search(
        small.make(),
        made,
        open_es(made, 4, 0.1, optax.adam(0.1)),
        num_generations=2,
        # Some lifetimes here are shorter than an episode.
        fitness=TOLD_APART,
    )
    config = RunConfig(directory=str(tmp_path), held_out_seeds=0, wandb="disabled")
    found = engine.run(search, config, "everywhere").solution
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["generation"] for record in records] == [0, 1]
    assert all(np.isfinite(record["fitness_mean"]) for record in records)
    # It was moved, and what was found is an artifact.
    start = jax.tree.leaves(made.init(jax.random.key(0)))
    moved = jax.tree.leaves(found)
    assert any(not np.array_equal(a, b) for a, b in zip(start, moved, strict=True))
    assert set(metaevo.load(tmp_path).slots) == set(made.spec)


def test_the_table_in_the_docs_is_of_these_pairs():
    inside = learned.DOCS.read_text().split(learned.BEGIN)[1].split(learned.END)[0]
    assert inside.strip() == learned.table().strip()


def test_a_space_of_a_slot_that_is_not_there_is_refused():
    for title, operation in learned.functions().items():
        fitting = next(loop for space, loop in PAIRS if space == title)
        made = learned.of_function(operation, fitting)
        for loop, small in learned.LOOPS.items():
            if (title, loop) in PAIRS:
                continue
            with pytest.raises(ConfigError, match="no slot"):
                made.bind(made.init(jax.random.key(0)), small.meta)


@pytest.mark.parametrize("loop", ["dqn", "a2c"])
def test_feedback_where_nothing_is_told_is_refused(loop, tmp_path):
    small = learned.LOOPS[loop]
    made = learned.OF_NUMBERS["spaces.feedback"](small.tuned)
    strategy = open_es(made, 4, 0.1, optax.adam(0.1))
    search = Search(small.make(), made, strategy, 2, fitness.final_return)
    config = RunConfig(directory=str(tmp_path), held_out_seeds=0, wandb="disabled")
    with pytest.raises(ConfigError, match="has no 'clip_fraction'"):
        engine.run(search, config, "everywhere")
