"""A run made by `metaevo.run`, as from a notebook: all commands take it."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import metaevo
from metaevo.analysis import distill
from metaevo.cli import commands
from searches import ppo_weighted_value_loss

ROOT = Path(__file__).parents[2]
ENV = "gymnax/MountainCar-v0"  # not the default
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
    found = again.compare(seeds=3, tuned=False, controls=0)  # it is there
    assert found.sentences
    assert found.page == directory / "compare" / "index.html"


SESSION = """
import metaevo
from inner_loops import ppo
from metaevo import critic_losses, envs, fitness, spaces
from strategies.snes import snes

SIZES = dict(num_envs=2, num_steps=16, num_segments=2, features=(4,))


def mine(inner: ppo.Config = ppo.Config(1024, **SIZES)) -> metaevo.Search:
    space = spaces.replace(value_loss=critic_losses.weighted_square((4,)))
    loop = ppo.make(envs.make("gymnax/CartPole-v1"), inner)
    strategy = snes(space, 4, 0.3)
    return metaevo.Search(loop, space, strategy, 1, fitness.area_under_curve, 1)


config = metaevo.RunConfig(directory="run", held_out_seeds=3, wandb="disabled")
result = metaevo.run(mine, config)
print("played", result.play().path)
print("compared", result.compare(seeds=3, tuned=False, controls=0).sentences[0])
print("distilled", result.distill(seeds=16).sentences[-1])
"""


def test_a_search_typed_at_a_prompt_plays_compares_and_distills_there(tmp_path):
    def python(*arguments, **options):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            **options,
        )
        return done.returncode, done.stdout, done.stderr

    code, out, err = python("-", input=SESSION)
    assert code == 0, err
    assert "warning" not in err
    assert "played run/play/solution-0.gif" in out
    assert "compared mine: " in out
    kept = "distilled kept: " in out
    assert kept or "distilled refused: " in out
    assert (tmp_path / "run" / "closed_form" / "manifest.json").exists() == kept
    if kept:
        loss = metaevo.load(tmp_path / "run" / "closed_form").value_loss
        found = loss(*np.ones((3, 2)), metaevo.Context(return_std=1.0))
        assert np.isfinite(found).all()
    form = distill.read(tmp_path / "run")["forms"]["value_loss"]["formula"]
    page = (tmp_path / "run" / "report" / "index.html").read_text()
    assert "Closed form" in page
    assert form.split(",")[0] in page
    code, out, err = python("-m", "metaevo", "play", "run")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "its search 'mine' is none of the installed ones" in err
