"""Whole runs in which some members fall and others live: those that live win."""

import pytest
from test_survival import ENDS, tiny

import metaevo
from metaevo.analysis import results
from metaevo.storage import jsonl

# name -> steps of a generation, and generations. The longest episode has 40 steps. PPO
# sees the few steps of a generation once, so it needs many to have learned. DvD is not
# here: it selects no members.
RUNS = {
    "policy_open_es": (40, 1),
    "td3_cem_rl": (8, 20),
    "td3_pbt": (8, 20),
    "sac_pbt": (8, 20),
    "dqn_pbt": (8, 20),
    "ppo_pbt": (8, 150),
}


# The others are like one of these.
QUICK = {"policy_open_es", "td3_cem_rl", "td3_pbt"}


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in RUNS
    ],
)
def test_survival_wins(name, tmp_path):
    search = tiny(name, *RUNS[name])
    config = metaevo.RunConfig(
        directory=str(tmp_path), held_out_seeds=2, devices=1, wandb="disabled"
    )
    metaevo.run(search, config, name)
    records = jsonl.read(tmp_path / "metrics.jsonl")
    assert sum(r["failed"] for r in records) == 0
    assert records[-1]["fitness_best"] == ENDS
    scores = results.read_scores(tmp_path).evaluations
    found = scores["best agent" if "best agent" in scores else "solution"]
    assert (found == ENDS).all()
