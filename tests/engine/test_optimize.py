"""`metaevo.optimize`: searches with functions of the user's, and `AskTell`."""

import itertools
import json
from pathlib import Path

import numpy as np
import optax
import pytest
import runs
import toy_trials

import metaevo
from metaevo import losses, spaces
from metaevo.errors import ConfigError, InterruptedRunError, NumericalError
from metaevo.storage import jsonl
from strategies.pbt import pbt
from strategies.pes import pes
from strategies.random_search import random_search
from strategies.snes import snes

SPACE = spaces.prior(x=spaces.log_uniform(0.1, 10.0))
RATES = spaces.prior(rate=spaces.log_uniform(0.01, 0.5))
AROUND = spaces.tune(x=spaces.log())


@pytest.fixture(autouse=True)
def _short_reports(monkeypatch):
    runs.write_short_reports(monkeypatch)


def optimize(directory, space, strategy, score, **options):
    given = {
        "num_generations": 3,
        "workers": 2,
        "held_out_seeds": 0,
        "wandb": "disabled",
    }
    return metaevo.optimize(
        space, strategy, score, directory=directory, **given | options
    )


def trials(directory):
    """The trials of a run by name, each of which ran once."""
    found = jsonl.read(Path(directory) / "trials.jsonl")
    named = {x["trial"]: x for x in found}
    assert len(named) == len(found)
    return named


def results(directory):
    return {name: (x["score"], x["seed"]) for name, x in trials(directory).items()}


def test_a_search_learns_and_is_judged_on_held_out_seeds(tmp_path):
    result = optimize(
        tmp_path, SPACE, random_search(SPACE, 4), toy_trials.distance,
        num_seeds=2, defaults={"x": 9.0}, held_out_seeds=2,
    )  # fmt: skip
    best = result.artifact.x
    assert abs(best - 1) < 8
    assert set(result.held_out) == {"solution", "start", "hand-made"}
    scores = result.held_out["hand-made"].fitness[0]
    np.testing.assert_allclose(scores, -8, atol=2e-3)
    (verdict,) = result.verdicts
    assert verdict.measure == "score"
    noise = result.held_out["solution"].fitness[0] + abs(best - 1)
    np.testing.assert_allclose(noise, scores + 8, atol=1e-5)  # the same seeds
    record = result.metrics[-1]
    assert {"failed", "signal", "numbers/x", "train/seconds"} <= record.keys()


def test_a_run_that_stops_goes_on_with_the_same_trials(tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    given = AROUND, snes(AROUND, 4, 0.5), toy_trials.distance
    options = {"defaults": {"x": 2.0}, "num_seeds": 2, "seed": 3}
    optimize(whole, *given, **options)

    def should_stop():
        log = stopped / "trials.jsonl"
        return log.exists() and log.read_bytes().count(b"\n") > 10

    with pytest.raises(InterruptedRunError):
        optimize(stopped, *given, **options, should_stop=should_stop)
    done = results(stopped)
    assert 10 < len(done) < 16  # within a generation of 8
    with (stopped / "trials.jsonl").open("a") as log:
        log.write('{"trial": "cut sh')
    optimize(stopped, *given, **options, workers=1)
    assert results(stopped) == results(whole)
    assert runs.solution_bytes(stopped) == runs.solution_bytes(whole)
    logs = [
        [x | {"train/seconds": 0} for x in runs.records(d)] for d in (whole, stopped)
    ]
    assert logs[0] == logs[1]


def test_agents_live_on_in_folders(tmp_path):
    optimize(tmp_path, RATES, pbt(RATES, 4), toy_trials.grow, num_generations=4)
    found = trials(tmp_path)
    assert len(found) == 16
    for x in found.values():
        before = 0.0 if x["parent"] is None else found[x["parent"]]["score"]
        expected = before + x["numbers/rate"] * (1 - before)
        assert x["score"] == pytest.approx(expected)
    assert sum(x["parent"] is None for x in found.values()) == 4
    # Members follow the parents of the log.
    records = runs.records(tmp_path)
    for last, record in itertools.pairwise(records):
        for i, parent in enumerate(record["parents"]):
            before = last["population"][parent]
            expected = before + record["numbers/rate"][i] * (1 - before)
            assert record["population"][i] == pytest.approx(expected, rel=1e-5)
    # Of those that nobody will continue nothing is left.
    left = {x.parent.name for x in tmp_path.glob("trials/*/files")}
    assert left == set(list(found)[-4:])


def test_the_schedule_of_the_best_line_is_replayed(tmp_path):
    result = optimize(
        tmp_path, RATES, pbt(RATES, 4), toy_trials.grow,
        num_generations=2, defaults={"rate": 0.01}, held_out_seeds=2,
    )  # fmt: skip
    first, second = np.asarray(result.solution["rate"], float)
    expected = first + second * (1 - first)
    np.testing.assert_allclose(result.held_out["solution"].fitness, expected, rtol=1e-5)
    np.testing.assert_allclose(result.held_out["hand-made"].fitness, 0.0199, rtol=1e-5)


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


def test_a_run_in_which_all_fail_ends_and_says_why(tmp_path):
    with pytest.raises(NumericalError, match=r"never.*output\.txt"):
        optimize(
            tmp_path, SPACE, random_search(SPACE, 2), toy_trials.never,
            num_generations=9,
        )  # fmt: skip
    assert len(runs.records(tmp_path)) == 3


def test_an_evolved_function_is_one_of_numpy_there(tmp_path):
    space = spaces.replace(td_loss=losses.td_network(features=(2,)))
    result = optimize(
        tmp_path, space, snes(space, 2, 0.3), toy_trials.loss_at_two,
        num_generations=1, held_out_seeds=2,
    )  # fmt: skip
    assert set(result.held_out) == {"solution", "start", "hand-made"}
    loss = metaevo.load(tmp_path).td_loss
    expected = float(loss(2.0, 0.0, 0.0))
    scores = result.held_out["solution"].fitness
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    np.testing.assert_allclose(result.held_out["hand-made"].fitness, 2.0)


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
    with pytest.raises(ConfigError, match="distance -> slow_distance"):
        optimize(*given, toy_trials.slow_distance, num_generations=1)


# --- one's own loop -------------------------------------------------------------------


def test_members_that_are_asked_for_are_those_of_a_run(tmp_path):
    given = RATES, pbt(RATES, 4)
    optimize(tmp_path, *given, toy_trials.grow, seed=2, defaults={"c": 1.5})
    study = metaevo.AskTell(*given, {"c": 1.5}, seed=2)
    for record in runs.records(tmp_path):
        members = study.ask()
        assert study.ask() == members
        assert [x.params["rate"] for x in members] == record["numbers/rate"]
        assert [x.params["c"] for x in members] == [1.5] * 4
        parents = [-1 if x.parent is None else x.parent for x in members]
        assert parents == record["parents"]
        study.tell(record["population"])
    assert study.generation == 3
    assert study.solution["rate"] in record["numbers/rate"]


def test_scores_that_are_told_are_checked_and_failures_rank_last():
    study = metaevo.AskTell(AROUND, snes(AROUND, 4, 0.5), {"x": 2.0})
    with pytest.raises(ConfigError, match="call ask first"):
        study.tell([1.0])
    for _ in range(20):
        members = study.ask()
        with pytest.raises(ConfigError, match="3 scores; expected one for each of 4"):
            study.tell([0.0] * 3)
        scores = [-abs(m.params["x"] - 4) for m in members]
        study.tell(
            [
                s if m.params["x"] < 5 else None
                for s, m in zip(scores, members, strict=True)
            ]
        )
    assert study.solution["x"] == pytest.approx(4, abs=1)
    before = json.dumps(study.solution)
    study.ask()
    study.tell([None] * 4)
    assert json.dumps(study.solution) == before
    with pytest.raises(ConfigError, match="seed=-1"):
        metaevo.AskTell(AROUND, snes(AROUND, 4, 0.5), {"x": 2.0}, seed=-1)
