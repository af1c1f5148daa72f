"""`metaevo.optimize` with what must not harm it: failures, links, wrong arguments."""

import optax
import pytest
import runs
import toy_trials
from own_trainers import AROUND, RATES, SPACE, optimize, trials

import metaevo
from metaevo.cli import runs as cli
from metaevo.errors import ConfigError
from strategies.pes import pes
from strategies.random_search import random_search
from strategies.snes import snes


@pytest.fixture(autouse=True)
def _short_reports(monkeypatch):
    runs.write_short_reports(monkeypatch)


def test_a_failed_trial_ranks_last_and_harms_no_record(tmp_path, monkeypatch):
    given = SPACE, random_search(SPACE, 6), toy_trials.sometimes
    monkeypatch.setenv("TOY_BEHAVIOUR", "writes_to_neighbours")
    optimize(tmp_path, *given)
    found = trials(tmp_path).values()
    failed = [x for x in found if x["score"] is None]
    assert {x["problem"] for x in failed} == {"ValueError: too large"}
    assert all((x["numbers/x"] > 5) == (x["score"] is None) for x in found)
    assert any(x["score"] == 6.0 or x["numbers/x"] < 0.5 for x in found)
    assert sum(x["failed"] for x in runs.records(tmp_path)) == len(failed) > 0
    # Links and pipes that trials made do not keep a run from going on.
    assert list(tmp_path.glob("trials/*/files/link"))
    optimize(tmp_path, *given, num_generations=4)
    assert len(runs.records(tmp_path)) == 4


def test_a_link_in_place_of_the_trials_is_refused(tmp_path):
    given = SPACE, random_search(SPACE, 2), toy_trials.distance
    optimize(tmp_path / "run", *given, num_generations=1)
    (tmp_path / "run" / "trials").rename(tmp_path / "elsewhere")
    (tmp_path / "run" / "trials").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(metaevo.CheckpointError, match="a symbolic link"):
        optimize(tmp_path / "run", *given, num_generations=2)


def test_wrong_arguments_are_refused_before_a_trial(tmp_path):
    space, strategy = SPACE, random_search(SPACE, 2)
    for options, expected in (
        ({"workers": 0}, "workers=0: expected a whole number"),
        ({"timeout": -1}, "timeout=-1 must be > 0"),
        ({"memory": "4GB"}, "memory='4GB': expected a finite number"),
        ({"num_seeds": 0}, "num_seeds=0: expected"),
        ({"num_generations": 1.5}, "num_generations=1.5: expected"),
        ({"budget": float("inf")}, "budget=inf: expected a finite number"),
        ({"defaults": {"x": "1"}}, "defaults\\['x'\\]='1': expected a finite number"),
        ({"defaults": {"a b": 1.0}}, "defaults={'a b': 1.0}"),
        ({"distributed": True}, "distributed=True is not used here"),
        ({"sed": 1}, "no argument 'sed'. Did you mean 'seed'"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": "one"}, "seed"),
        ({"held_out_seeds": 1}, "held_out_seeds=1"),
    ):
        with pytest.raises(ConfigError, match=expected):
            optimize(tmp_path / "no", space, strategy, toy_trials.distance, **options)
    for given, expected in (
        ((SPACE, random_search(RATES, 2)), "strategy: its members have other numbers"),
        ((AROUND, snes(AROUND, 2, 0.1)), "slot 'x' holds no number; give it in defau"),
        ((3, strategy), "space=3: expected a metaevo.Space"),
        ((SPACE, None), "strategy=None: expected a metaevo.Strategy"),
        (
            (SPACE, pes(SPACE, 2, 0.1, optax.sgd(0.1), 2)),
            "its members live on in pairs",
        ),
    ):
        with pytest.raises(ConfigError, match=expected):
            optimize(tmp_path / "no", *given, toy_trials.distance)
    with pytest.raises(ConfigError, match="whose draws are all the same"):
        metaevo.AskTell(AROUND, random_search(AROUND, 2), {"x": 1.0})
    with pytest.raises(
        ConfigError, match=r"cannot be imported by .*no attribute 'nope'"
    ):
        optimize(tmp_path / "no", space, strategy, "toy_trials:nope")
    assert not list(tmp_path.glob("no/*.json*"))


def test_another_search_in_the_directory_is_refused(tmp_path):
    given = tmp_path, SPACE, random_search(SPACE, 2)
    optimize(*given, toy_trials.distance, num_generations=1)
    with pytest.raises(ConfigError, match="budget: None -> 5"):
        optimize(*given, toy_trials.distance, num_generations=1, budget=5)
    with pytest.raises(ConfigError, match="goes on by the call that started it"):
        cli.opened(tmp_path)
    with pytest.raises(ConfigError, match="distance -> slow_distance"):
        optimize(*given, toy_trials.slow_distance, num_generations=1)
