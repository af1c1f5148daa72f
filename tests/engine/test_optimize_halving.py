"""Lives of trials that `metaevo.optimize` stops early."""

import collections

import numpy as np
import pytest
import runs
import toy_trials
from own_trainers import RATES, SPACE, explained, optimize, trials

from metaevo import Halving
from metaevo.engine.trials import stopping
from metaevo.errors import ConfigError, InterruptedRunError
from strategies.pbt import pbt
from strategies.random_search import random_search

HALVES = Halving(4, factor=2)  # rungs at 1 and 2
GIVEN = RATES, random_search(RATES, 4), toy_trials.grow
OPTIONS = {"defaults": {"rate": 0.1}, "stopping": HALVES}


@pytest.fixture(autouse=True)
def _short_reports(monkeypatch):
    runs.write_short_reports(monkeypatch)


def lengths(found):
    """Numbers of trials -> how many lives had as many."""
    length = {}
    for x in found.values():
        length[x["trial"]] = 1 + (length[x["parent"]] if x["parent"] else 0)
    parents = {x["parent"] for x in found.values()}
    return collections.Counter(n for name, n in length.items() if name not in parents)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_line_at_a_rung_says_why_its_member_went_on(tmp_path, workers):
    given = RATES, random_search(RATES, 6), toy_trials.grow
    optimize(tmp_path, *given, **OPTIONS, workers=workers, num_seeds=2)
    found = trials(tmp_path)
    explained(found, HALVES, num_seeds=2, population_size=6)
    assert {*lengths(found)} >= {1, 4}
    records = runs.records(tmp_path)
    assert [record["failed"] for record in records] == [0] * len(records)
    stopped = [record["train/stopped"] for record in records]
    assert 0 < max(stopped) < 1
    # Of several workers lives may arrive from worst to best, and all go on.
    assert workers > 1 or min(stopped) > 0
    # The files of a member that was stopped or continued are removed.
    left = {x.parent.name for x in tmp_path.glob("trials/*/files")}
    assert left
    assert not left & {name for name, x in found.items() if x.get("stopped")}
    assert not left & {x["parent"] for x in found.values()}


def test_in_step_a_half_goes_on_at_each_rung(tmp_path):
    rule = HALVES._replace(wait=True)
    options = {**OPTIONS, "stopping": rule, "num_generations": 1, "held_out_seeds": 2}
    result = optimize(tmp_path, *GIVEN, **options)
    searched = dict([*trials(tmp_path).items()][: 4 + 2 + 1 * 2])
    assert lengths(searched) == {1: 2, 2: 1, 4: 1}
    (record,) = runs.records(tmp_path)
    best = int(np.argmax(record["population"]))
    rate = record["numbers/rate"][best]
    assert rate == max(record["numbers/rate"])  # who grows fast does so early
    assert record["population"][best] == pytest.approx(1 - (1 - rate) ** 4, rel=1e-4)
    # The comparison trains whole lives.
    hand_made = result.held_out["hand-made"].fitness
    np.testing.assert_allclose(hand_made, 1 - 0.9**4, rtol=1e-5)


@pytest.mark.parametrize("wait", [False, True])
def test_a_run_that_stopped_decides_as_its_log_says(tmp_path, wait):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    rule = HALVES._replace(wait=wait)
    options = {**OPTIONS, "workers": 1, "stopping": rule}
    optimize(whole, *GIVEN, **options)
    for least in (5, 12):

        def should_stop(least=least):
            log = stopped / "trials.jsonl"
            return log.exists() and log.read_bytes().count(b"\n") >= least

        with pytest.raises(InterruptedRunError):
            optimize(stopped, *GIVEN, **options, should_stop=should_stop)
    optimize(stopped, *GIVEN, **options)
    lines = [
        [{k: v for k, v in x.items() if k != "seconds"} for x in trials(d).values()]
        for d in (whole, stopped)
    ]
    assert lines[0] == lines[1]
    assert runs.solution_bytes(stopped) == runs.solution_bytes(whole)


@pytest.mark.parametrize("wait", [False, True])
def test_a_member_that_fails_is_no_rival_and_is_not_continued(tmp_path, wait):
    """Those above 5 fail, before the rung."""
    optimize(
        tmp_path, SPACE, random_search(SPACE, 6), toy_trials.sometimes,
        stopping=Halving(3, first=2, factor=2, wait=wait), defaults={"x": 2.0},
        num_generations=1,
    )  # fmt: skip
    found = trials(tmp_path)
    failed = {name for name, x in found.items() if x["score"] is None}
    assert failed
    assert not failed & {x["parent"] for x in found.values()}
    (record,) = runs.records(tmp_path)
    assert record["failed"] == len(failed)
    assert [x is None for x in record["population"]] == [
        x > 5 for x in record["numbers/x"]
    ]


def test_a_stopped_member_ranks_below_whole_lives():
    """The second had a higher score than whole lives; the third a lower one."""
    nan = np.nan
    scores = np.array([[[1, 3.0], [7, nan], [0, nan], [2, nan], [1, 4.0]]])
    ran = np.array([[[1, 1], [1, 0], [1, 0], [1, 1], [1, 1]]]) > 0
    fitness, healthy = stopping.fitness(scores, ran)
    np.testing.assert_array_equal(fitness, [[3, 3, 0, nan, 4]])
    np.testing.assert_array_equal(healthy, [[True, True, True, False, True]])
    # Without a whole life their own scores rank them.
    fitness, _ = stopping.fitness(scores[:, 1:3], ran[:, 1:3])
    np.testing.assert_array_equal(fitness, [[7, 0]])


def test_what_cannot_be_stopped_is_refused(tmp_path):
    for strategy, rule, expected in (
        (GIVEN[1], 3, "stopping=3: expected a metaevo.Halving"),
        (GIVEN[1], Halving(1), "stopping: horizon=1: expected a whole number"),
        (GIVEN[1], Halving(3, factor=1), "stopping: factor=1 needs keep"),
        (GIVEN[1], Halving(3, keep=2.0), "stopping: keep=2.0 must be in"),
        (GIVEN[1], Halving(3, first=3), "stopping: first=3 must be below horizon=3"),
        (pbt(RATES, 4), HALVES, "this strategy live on; expected a strategy such as"),
    ):
        with pytest.raises(ConfigError, match=expected):
            optimize(tmp_path, RATES, strategy, toy_trials.grow, stopping=rule)
    optimize(tmp_path, *GIVEN, num_generations=1)
    with pytest.raises(ConfigError, match="stopping: None -> "):
        optimize(tmp_path, *GIVEN, **OPTIONS, num_generations=1)
