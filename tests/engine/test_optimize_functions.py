"""Evolved functions in the hands of a trainer outside of JAX."""

import numpy as np
import pytest
import runs
import toy_trials
from own_trainers import optimize, trials

import metaevo
from metaevo import losses, spaces
from metaevo.errors import ConfigError
from metaevo.learned import optimizers
from strategies.snes import snes


def test_an_evolved_function_is_one_of_numpy_there(tmp_path, monkeypatch):
    runs.write_short_reports(monkeypatch)
    space = spaces.replace(td_loss=losses.td_network(features=(2,)))
    given = space, snes(space, 2, 0.3)
    optimize(tmp_path, *given, toy_trials.loss_at_two, num_generations=1)
    members = metaevo.AskTell(*given).ask()
    expected = [float(x.params["td_loss"](2.0, 0.0, 0.0)) for x in members]
    (record,) = runs.records(tmp_path)
    np.testing.assert_allclose(record["population"], expected, rtol=1e-5)
    assert all("td_loss" not in "".join(x) for x in trials(tmp_path).values())
    assert metaevo.load(tmp_path).td_loss(2.0, 0.0, 0.0) > 0


def test_a_learned_optimizer_is_refused_before_a_trial(tmp_path):
    space = spaces.replace(optimizer=optimizers.adam_numbers())
    with pytest.raises(ConfigError, match="'optimizer'"):
        optimize(tmp_path / "no", space, snes(space, 2, 0.3), toy_trials.distance)
    assert not (tmp_path / "no").exists()
