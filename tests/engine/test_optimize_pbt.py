"""Agents that live on in folders (PBT), and `AskTell`."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import runs
import toy_trials
from own_trainers import AROUND, RATES, optimize, trials

import metaevo
from metaevo.engine.trials import evaluator
from metaevo.errors import ConfigError
from strategies.asha import asha
from strategies.pbt import pbt
from strategies.snes import snes

PBT = pbt(RATES, 4)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 3 generations, with its result and its trials."""
    directory = tmp_path_factory.mktemp("pbt")
    with pytest.MonkeyPatch.context() as patch:
        runs.write_short_reports(patch)
        result = optimize(
            directory, RATES, PBT, toy_trials.grow, num_generations=3,
            defaults={"rate": 0.01, "c": 1.5}, held_out_seeds=2, seed=2,
        )  # fmt: skip
    return SimpleNamespace(
        directory=directory, result=result, trials=trials(directory),
        records=runs.records(directory),
    )  # fmt: skip


def test_a_trial_reads_the_folder_of_its_parent(run):
    assert len(run.trials) == 3 * 4 + 3 * 2 * 2  # the comparison's after the search's
    for x in run.trials.values():
        before = 0.0 if x["parent"] is None else run.trials[x["parent"]]["score"]
        expected = before + x["numbers/rate"] * (1 - before)
        assert x["score"] == pytest.approx(expected)
    assert sum(x["parent"] is None for x in run.trials.values()) == 4 + 4


def test_members_follow_the_parents_of_the_log(run):
    assert run.records[0]["parents"] == [-1] * 4
    for last, record in itertools.pairwise(run.records):
        for i, parent in enumerate(record["parents"]):
            before = last["population"][parent]
            expected = before + record["numbers/rate"][i] * (1 - before)
            assert record["population"][i] == pytest.approx(expected, rel=1e-5)


def test_folders_that_nobody_will_continue_are_removed(run):
    left = {x.parent.name for x in run.directory.glob("trials/*/files")}
    parents = {x["parent"] for x in run.trials.values()}
    assert not left & parents
    assert left >= set(list(run.trials)[8:12])  # the last generation of the search


def test_asha_stops_trials_and_judges_whole_lives(tmp_path, monkeypatch):
    """Slow growers are stopped at their first trial; a life is three trials."""
    runs.write_short_reports(monkeypatch)
    strategy = asha(RATES, 4, 3, factor=2)
    result = optimize(
        tmp_path, RATES, strategy, toy_trials.grow, num_generations=4,
        defaults={"rate": 0.01, "c": 1.5}, held_out_seeds=2, seed=2,
    )  # fmt: skip
    records, found = runs.records(tmp_path), trials(tmp_path)
    assert records[0]["stopped_early"] == 2
    assert records[-1]["whole_lives"] >= 1
    in_search = list(found.values())[:16]
    newborn = [x for x in in_search if x["parent"] is None]
    assert len(newborn) == records[-1]["trials"] - sum(
        x["stopped_early"] for x in records[-1:]
    ) - (records[-1]["whole_lives"] - records[-2]["whole_lives"])
    rate = float(np.asarray(result.artifact.rate))
    np.testing.assert_allclose(
        result.held_out["solution"].fitness, 1 - (1 - rate) ** 3, rtol=1e-4
    )


def test_chains_that_begin_alike_share_no_trial():
    """The first one removes what its trials left once they were continued."""
    one, same, other = (
        evaluator.chain([{"x": 1.0}, {"x": x}], [5, 6], None, None)
        for x in (2.0, 2.0, 3.0)
    )
    assert one == same
    assert one[1].parent == one[0].name
    assert not {x.name for x in one} & {x.name for x in other}


def test_the_best_agent_is_in_its_folder(run):
    assert run.result.agent is not None
    weight = json.loads((run.result.agent / "weight.json").read_text())
    best = max(x for x in run.records[-1]["population"])
    assert weight == pytest.approx(best, rel=1e-6)


def test_another_process_reads_the_result(run):
    read = metaevo.result(run.directory)
    assert read.scores == run.result.scores
    assert read.verdicts == run.result.verdicts
    np.testing.assert_array_equal(read.solution["rate"], run.result.solution["rate"])
    with pytest.raises(ConfigError, match="is not known here"):
        read.compare()


def test_the_schedule_of_the_best_line_is_replayed(run):
    expected = 0.0
    for rate in np.asarray(run.result.solution["rate"], float):
        expected += rate * (1 - expected)
    found = run.result.held_out
    np.testing.assert_allclose(found["solution"].fitness, expected, rtol=1e-5)
    np.testing.assert_allclose(found["hand-made"].fitness, 1 - 0.99**3, rtol=1e-5)
    assert run.result.artifact.rate is not None


def test_members_that_are_asked_for_are_those_of_a_run(run):
    study = metaevo.AskTell(RATES, PBT, {"c": 1.5}, seed=2)
    for record in run.records:
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
