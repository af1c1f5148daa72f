"""`metaevo.optimize` goes on where it stopped."""

import pytest
import runs
import toy_trials
from own_trainers import AROUND, optimize, trials

from metaevo.errors import InterruptedRunError
from strategies.snes import snes


@pytest.fixture(autouse=True)
def _short_reports(monkeypatch):
    runs.write_short_reports(monkeypatch)


def results(directory):
    return {name: (x["score"], x["seed"]) for name, x in trials(directory).items()}


def test_a_run_that_stopped_has_the_same_trials(tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    given = AROUND, snes(AROUND, 3, 0.5), toy_trials.distance
    options = {"defaults": {"x": 2.0}, "num_seeds": 2, "seed": 3}
    optimize(whole, *given, **options)

    def should_stop():
        log = stopped / "trials.jsonl"
        return log.exists() and log.read_bytes().count(b"\n") >= 7

    with pytest.raises(InterruptedRunError):
        optimize(stopped, *given, **options, should_stop=should_stop)
    assert 7 <= len(results(stopped)) < 12  # within a generation of 6
    with (stopped / "trials.jsonl").open("a") as log:
        log.write('{"trial": "cut sh')
    optimize(stopped, *given, **options | {"workers": 1})
    assert results(stopped) == results(whole)
    assert runs.solution_bytes(stopped) == runs.solution_bytes(whole)
    logs = [
        [x | {"train/seconds": 0} for x in runs.records(directory)]
        for directory in (whole, stopped)
    ]
    assert logs[0] == logs[1]
