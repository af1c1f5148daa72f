"""A run made by `metaevo.run`, as from a notebook: all commands take it."""

import csv

import pytest

import metaevo
from metaevo.cli import commands
from searches import ppo_weighted_value_loss

ENV = "gymnax/Acrobot-v1"  # not the default
SIZES = {"num_envs": 2, "num_steps": 16, "num_segments": 2, "features": (4,)}
GIVEN = {
    "env": ENV,
    "population_size": 4,
    "num_seeds": 1,
    "hidden": 4,
    "inner": {"total_timesteps": 1024, **SIZES},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield tmp_path_factory.mktemp("python") / "run"


def options(directory):
    return metaevo.RunConfig(
        directory=str(directory), held_out_seeds=3, devices=1, wandb="disabled"
    )


def test_run_from_python_resumes_plays_compares_and_names_its_environment(directory):
    search = ppo_weighted_value_loss.search
    first = metaevo.run(search, options(directory), num_generations=1, **GIVEN)
    assert len(first.metrics) == 1
    again = metaevo.run(search, options(directory), num_generations=2, **GIVEN)
    assert [x["generation"] for x in again.metrics] == [0, 1]
    page = again.report.read_text()
    assert ENV in page
    assert "ppo_weighted_value_loss" in page
    assert ENV in str(again.artifact.manifest["evidence"])
    gif = directory / "agent.gif"
    commands.execute("play", [str(directory), f"out={gif}"])
    assert gif.read_bytes().startswith(b"GIF8")
    small = ("seeds=3", "tuned=false", "controls=0")
    commands.execute("compare", [str(directory), *small])
    scores = next((directory / "compare").glob("*.csv"))
    assert list(csv.reader(scores.open()))[1:]
