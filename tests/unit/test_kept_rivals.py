"""Rivals that are kept with their scores, and the settings that they belong to."""

import dataclasses
import importlib
import json

import numpy as np
import pytest

from metaevo.analysis import holdout
from metaevo.cli import config, train
from metaevo.engine import kept_rivals

SEARCHES = {
    "dqn-CartPole-24000": ("dqn_td_loss", "dqn_td_loss_and_numbers"),
    "ppo-CartPole-65536": ("tune ppo",),
    "ppo-CartPole-32768": ("ppo_weighted_value_loss", "ppo_value_loss_and_numbers"),
    "ppo-MountainCar-65536": ("ppo_reward_potential",),
}
"""File -> the shipped searches of its setting, or `metaevo tune` of a loop."""


def made(name, **given):
    if name.startswith("tune "):
        make = importlib.import_module(f"inner_loops.{name[5:]}").make
        tuning = train.as_tuning(make)
        given = config.parse(tuning, [])
        return config.call(tuning, {k: x for k, x in given.items() if k != "run"})
    return importlib.import_module(f"searches.{name}").search(**given)


def test_each_file_is_of_shipped_searches():
    assert {path.stem for path in kept_rivals.FOLDER.glob("*.json")} == set(SEARCHES)


@pytest.mark.parametrize("stem", SEARCHES)
def test_searches_find_the_rivals_of_their_setting(stem):
    kept = json.loads((kept_rivals.FOLDER / f"{stem}.json").read_text())
    for name in SEARCHES[stem]:
        search = made(name)
        assert kept_rivals.of(search) == kept["rivals"]
        for rival in kept["rivals"]:
            assert set(rival["scores"]) >= {"final return"}
            for scores in rival["scores"].values():
                assert len(scores) == 32
                assert np.isfinite(scores).all()
            assert rival["tuned"] or rival["changes"]
            fields = {x.partition("=")[0].partition(".")[2] for x in rival["changes"]}
            loop = search.tasks[0]
            assert all(hasattr(loop.config, x) or hasattr(loop.meta, x) for x in fields)


def test_a_choice_is_beside_the_rivals_of_the_setting_that_it_changes():
    search = made("ppo_weighted_value_loss")
    (loop,) = search.tasks
    config = dataclasses.replace(loop.config, normalize_reward=True)
    chosen = loop._replace(config=config, hand_made=loop)
    search = search._replace(inner_loop=chosen)
    assert kept_rivals.of(search) == []
    assert kept_rivals.of(holdout.as_hand_made(search)) != []


def test_another_setting_has_none():
    (loop,) = (search := made("dqn_td_loss")).tasks
    longer = loop._replace(config=loop.config.__class__(24_001))
    assert kept_rivals.of(search._replace(inner_loop=longer)) == []
    assert kept_rivals.of(search._replace(inner_loop=(loop, loop))) == []
    assert kept_rivals.setting(search._replace(hurdles=(1.0,))) is None
