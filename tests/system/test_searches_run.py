"""Searches of the folder from end to end: run, artifact, comparison, report."""

import dataclasses
import importlib
import inspect
import json

import numpy as np
import pytest

import metaevo

# Settings with which each search runs in seconds.
TINY = {
    "dqn_td_loss": {},
    "dqn_td_loss_and_numbers": {},
    "ppo_hyperparameters": {},
    "ppo_value_loss_and_numbers": {},
    "ppo_schedules": {"kind": "cubic"},
    "ppo_reward_potential": {},
    "sac_hyperparameters": {},
    "ppo_drift": {"envs": ("gymnax/CartPole-v1", "gymnax/Catch-bsuite")},
    "ppo_dpo_constants": {},
    "ppo_optimizer": {"kind": "recurrent"},
    "sac_target_entropy": {},
    "td3_td_loss": {},
}
# The rest are like one of these.
QUICK = {"dqn_td_loss", "ppo_optimizer", "ppo_schedules"}
DRAWS_A_LOSS = {"dqn_td_loss", "dqn_td_loss_and_numbers", "td3_td_loss"}
DRAWS_SCHEDULES = {"ppo_schedules", "sac_target_entropy", "dqn_td_loss_and_numbers"}


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in TINY
    ],
)
def test_a_search_runs_from_end_to_end(name, tmp_path):
    module = importlib.import_module(f"searches.{name}")
    search = module.search
    # More than 500 steps of each environment: CartPole's longest episode.
    sizes = {"total_timesteps": 1152, "num_envs": 2, "num_steps": 16}
    sizes |= {"num_segments": 2, "features": (8,)}
    sizes |= {"learning_starts": 128, "batch_size": 16}
    config = type(inspect.signature(search).parameters["inner"].default)
    known = {field.name for field in dataclasses.fields(config)}
    inner = config(**{name: x for name, x in sizes.items() if name in known})
    made = search(population_size=4, num_generations=2, inner=inner, **TINY[name])
    config = metaevo.RunConfig(
        directory=str(tmp_path / name), held_out_seeds=2, wandb="disabled"
    )
    metaevo.run(made, config, name)
    records = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
    assert len(records) == 2
    assert all(np.isfinite(json.loads(x)["fitness_mean"]) for x in records)
    artifact = metaevo.load(tmp_path / name)
    assert set(artifact.slots) == set(made.space.spec)
    page = (tmp_path / name / "report" / "index.html").read_text()
    assert "Held-out seeds" in page
    assert ("The evolved td loss" in page) == (name in DRAWS_A_LOSS)
    assert ("The evolved schedules" in page) == (name in DRAWS_SCHEDULES)
