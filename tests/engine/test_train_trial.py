"""Inner loops of metaevo as the trainers of `metaevo.optimize`."""

import loop_trials
import numpy as np
import pytest
import runs
import toys
from own_trainers import explained, optimize, trials

import metaevo
from metaevo import Halving, Trial, spaces
from metaevo.errors import CheckpointError, ConfigError
from metaevo.storage.checkpoint import Store
from strategies.random_search import random_search

LOOP = toys.quadratic(num_segments=4)


def trial(tmp_path, name, budget=None, parent=None, **params):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    return Trial(params or {"lr": 0.1}, 7, budget, folder, parent)


def left(folder):
    found = Store(folder).load()
    assert found is not None
    return found


def test_two_halves_of_a_life_are_a_whole_one(tmp_path):
    whole = metaevo.train_trial(LOOP, trial(tmp_path, "whole"))
    metaevo.train_trial(LOOP, trial(tmp_path, "half", 2))
    second = trial(tmp_path, "second", 2, tmp_path / "half")
    assert metaevo.train_trial(LOOP, second) == whole
    arrays = [left(tmp_path / name) for name in ("whole", "second")]
    for name, x in arrays[0][0].items():
        np.testing.assert_array_equal(x, arrays[1][0][name])
    assert [about["segments"] for _, about in arrays] == [4, 4]
    with pytest.raises(ConfigError, match=r"budget=2: .* 4 of the 4 of a life"):
        metaevo.train_trial(LOOP, trial(tmp_path, "third", 2, tmp_path / "second"))


def test_numbers_reach_their_slots_and_none_leaves_one_alone(tmp_path):
    found = [
        metaevo.train_trial(LOOP, trial(tmp_path, str(i), lr=lr))
        for i, lr in enumerate((0.5, 0.01, None, float(LOOP.meta.lr)))
    ]
    assert found[0] > found[1]
    assert found[2] == found[3]


def test_what_cannot_be_trained_is_refused(tmp_path):
    def refused(words, *given, loop=LOOP, **params):
        made = trial(tmp_path, words, *given, **params)
        with pytest.raises((ConfigError, CheckpointError), match=words):
            metaevo.train_trial(loop, made)

    refused("coupled", loop=toys.shared_critic())
    refused("gamma: expected numbers of the loop's slots, ", gamma=0.9)
    refused("lr: expected numbers", lr=np.sin)
    refused("budget=0.5", 0.5)
    metaevo.train_trial(LOOP, trial(tmp_path, "born", 1))
    refused("shape", 1, tmp_path / "born", loop=toys.quadratic(dim=5))


def test_lives_of_a_loop_are_stopped_as_they_arrive(tmp_path, monkeypatch):
    runs.write_short_reports(monkeypatch)
    space = spaces.prior(lr=spaces.log_uniform(1e-3, 0.5))
    rule = Halving(2, factor=2)
    # The second of these two learns more slowly.
    optimize(
        tmp_path, space, random_search(space, 2), loop_trials.score, budget=2,
        stopping=rule, num_generations=1, workers=1, seed=5,
    )  # fmt: skip
    found = trials(tmp_path)
    explained(found, rule, num_seeds=1, population_size=2)
    (record,) = runs.records(tmp_path)
    assert record["failed"] == 0
    assert 0 < record["train/stopped"] < 1
