"""Every space in every inner loop that has its slot; `docs/spaces.md` has the table.

After a change: python tests/contracts/test_everywhere.py, which writes the table.
"""

import inspect
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from loops import SMALL

import metaevo
from metaevo import (
    activations,
    closed_forms,
    drifts,
    envs,
    exploration,
    fitness,
    losses,
    rewards,
    spaces,
)
from metaevo.config import RunConfig
from metaevo.engine import loop as engine
from metaevo.errors import ConfigError
from metaevo.learned import optimizers as learned_optimizers
from metaevo.types import Search
from strategies.open_es import open_es

DOCS = Path(__file__).parents[2] / "docs" / "spaces.md"
BEGIN, END = (
    "<!-- table of tests/contracts/test_everywhere.py -->\n",
    "<!-- end of table -->\n",
)

OF_FUNCTIONS = {
    losses.residual_network: "value_loss",
    losses.td_network: "td_loss",
    losses.policy_network: "policy_loss",
    drifts.dpo_constants: "drift",
    drifts.lpo_network: "drift",
    drifts.drift_network: "drift",
    activations.piecewise: "activation",
    learned_optimizers.adam_numbers: "optimizer",
    learned_optimizers.recurrent: "optimizer",
    rewards.potential: "reward",
    rewards.free: "reward",
    rewards.impact: "reward",
    exploration.graded: "exploration",
    closed_forms.error_loss: "value_loss",
    closed_forms.td_error_loss: "td_loss",
    closed_forms.clip_constant: "drift",
    closed_forms.rational: "activation",
}
ON_UNITS = (rewards.potential, rewards.free, rewards.impact)
ACTIONS = {"gymnax/CartPole-v1": {"num": 2}, "gymnax/Pendulum-v1": {"size": 1}}
STATISTICS = {"entropy": 1.0, "kl": 0.01, "clip_fraction": 0.1}
OF_NUMBERS: dict[str, Any] = {
    "spaces.tune": lambda slot: spaces.tune(**{slot: spaces.logit()}),
    "spaces.prior": lambda slot: spaces.prior(**{slot: spaces.uniform(0.1, 0.9)}),
    "spaces.schedule linear": lambda slot: spaces.schedule(**{slot: spaces.logit()}),
    "spaces.schedule cubic": lambda slot: spaces.schedule(
        "cubic", **{slot: spaces.logit()}
    ),
    "spaces.feedback": lambda slot: spaces.feedback(
        STATISTICS, **{slot: spaces.logit()}
    ),
}
TELL_STATISTICS = ("ppo", "ppo_rnn")  # which `spaces.feedback` sees


def name_of(builder):
    return f"{builder.__module__.removeprefix('metaevo.')}.{builder.__name__}"


def of_function(builder, slot, small):
    """The space of a learned function."""
    args = [rewards.units(envs.make(small.env))] if builder in ON_UNITS else []
    if builder is rewards.free:
        args.append(ACTIONS[small.env])
    return spaces.replace(**{slot: builder(*args)})


def pairs():
    """(space, loop) -> slot, and how the space is made, where they fit."""
    found = {}
    for loop, small in SMALL.items():
        for builder, slot in OF_FUNCTIONS.items():
            if hasattr(small.meta, slot):
                found[name_of(builder), loop] = (
                    slot,
                    lambda b=builder, slot=slot, small=small: of_function(
                        b, slot, small
                    ),
                )
        for name, make in OF_NUMBERS.items():
            if name != "spaces.feedback" or loop in TELL_STATISTICS:
                slot = small.tuned
                found[name, loop] = slot, lambda m=make, slot=slot: m(slot)
        if small.make().tunable is not None:
            found["its own TUNABLE", loop] = (
                "several",
                lambda small=small: small.make().tunable,
            )
    return found


PAIRS = pairs()


def table():
    rows = {}
    for (space, loop), (slot, _) in PAIRS.items():
        rows.setdefault(space, {})[loop] = f"`{slot}`" if slot != "several" else "yes"
    lines = [
        "| space | " + " | ".join(f"`{loop}`" for loop in SMALL) + " |",
        "|---" * (len(SMALL) + 1) + "|",
    ]
    names = [name_of(b) for b in OF_FUNCTIONS] + [*OF_NUMBERS, "its own TUNABLE"]
    for name in names:
        cells = [rows[name].get(loop, "") for loop in SMALL]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize(("space", "loop"), PAIRS, ids=lambda x: x.replace(" ", "-"))
def test_two_generations_run(space, loop, tmp_path):
    made = PAIRS[space, loop][1]()
    small = SMALL[loop]
    search = Search(
        small.make(),
        made,
        open_es(made, 4, 0.1, optax.adam(0.1)),
        num_generations=2,
        # Some lifetimes here are shorter than an episode.
        fitness=fitness.final_return,
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


def test_every_function_that_can_be_learned_is_here():
    modules = (
        activations,
        drifts,
        exploration,
        closed_forms,
        learned_optimizers,
        losses,
        rewards,
    )
    builders = {
        function
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_")
        and function.__module__ == module.__name__
        and str(inspect.signature(function).return_annotation).startswith("Learned")
    }
    assert builders == set(OF_FUNCTIONS)


def test_the_table_in_the_docs_is_of_these_pairs():
    inside = DOCS.read_text().split(BEGIN)[1].split(END)[0]
    assert inside.strip() == table().strip()


def test_a_space_of_a_slot_that_is_not_there_is_refused():
    for builder, slot in OF_FUNCTIONS.items():
        for loop, small in SMALL.items():
            if (name_of(builder), loop) in PAIRS:
                continue
            made = of_function(builder, slot, SMALL["ppo"])
            with pytest.raises(ConfigError, match="no slot"):
                made.bind(made.init(jax.random.key(0)), small.meta)


@pytest.mark.parametrize("loop", [x for x in SMALL if x not in TELL_STATISTICS])
def test_feedback_where_nothing_is_told_is_refused(loop, tmp_path):
    small = SMALL[loop]
    made = OF_NUMBERS["spaces.feedback"](small.tuned)
    strategy = open_es(made, 4, 0.1, optax.adam(0.1))
    search = Search(small.make(), made, strategy, 2, fitness.final_return)
    config = RunConfig(directory=str(tmp_path), held_out_seeds=0, wandb="disabled")
    with pytest.raises(ConfigError, match="has no 'clip_fraction'"):
        engine.run(search, config, "everywhere")


if __name__ == "__main__":
    before, rest = DOCS.read_text().split(BEGIN)
    DOCS.write_text(before + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1])
