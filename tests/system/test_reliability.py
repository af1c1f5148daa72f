"""Small versions of the benchmarks of `docs/reliability.md`."""

import json

import jax
import pytest

from benchmarks import reliability
from benchmarks import reliability_artifacts as hostile
from benchmarks import reliability_disks as disks
from benchmarks import reliability_processes as processes
from metaevo.storage import artifacts


def test_run_killed_while_it_writes_a_checkpoint_continues_with_the_same_bits():
    found = processes.kills_in_checkpoint(number=2, seed=1)
    assert found["kills"] == 2
    assert found["mismatches"] == found["missing or doubled"] == 0


def test_full_and_broken_disks_leave_the_previous_checkpoint():
    found = disks.full_disks()
    assert found["failures"] >= 10
    assert found["previous checkpoint lost"] == found["not said"] == 0


def test_corrupted_checkpoints_are_not_used():
    found = disks.corrupt_checkpoints(100)
    assert found == {"corrupted": 100, "used": 0, "previous one not used": 0}


def test_mutated_artifacts_neither_crash_nor_run_code():
    found = hostile.mutated_artifacts(60)
    assert found["crashes"] == found["executed"] == 0
    assert found["refused"] + found["loaded"] == 60
    assert found["refused"] > 50


@pytest.mark.parametrize(
    ("name", "make"), hostile.HOSTILE, ids=[name for name, _ in hostile.HOSTILE]
)
def test_hostile_artifacts_are_refused_and_run_nothing(tmp_path, name, make):
    made = hostile.make_artifact(tmp_path / "made")
    make(made, tmp_path)
    outcomes = hostile.no_outcomes()
    hostile.try_to_load(made, outcomes)
    assert outcomes["refused"] == 1, name
    assert outcomes["executed"] == 0
    assert not (tmp_path / "pwned").exists()


def test_code_that_an_artifact_runs_would_be_noticed(tmp_path, monkeypatch):
    """Without this the tests above could not fail."""
    made = hostile.make_artifact(tmp_path / "made")

    def load(path):
        import os

        os.system("true")

    monkeypatch.setattr(artifacts, "load", load)
    outcomes = hostile.no_outcomes()
    hostile.try_to_load(made, outcomes)
    assert outcomes["executed"] > 0
    assert outcomes["loaded"] == 1


def test_second_start_on_one_directory_exits_with_3():
    found = processes.locks(number=1)
    assert found["one ran"] == found["other exited 3"] == 1


def test_long_run_compiles_nothing_again():
    found = processes.long_run(60)
    assert found["compiled after the first tenth"] == 0


def test_tables_have_the_last_results_of_each_command(tmp_path, monkeypatch):
    path = tmp_path / "results.jsonl"
    rows = [
        {"command": "a", "x": 1, "took_s": 3, "machine": "m", "run": 1},
        {"command": "b", "layout": "p", "took_s": 1, "machine": "m", "run": 2},
        {
            "command": "b",
            "layout": "q",
            "y_s": 3,
            "took_s": 1,
            "machine": "m",
            "run": 2,
        },
        {"command": "a", "x": 5, "took_s": 2, "machine": "m", "run": 3},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(reliability, "RESULTS", path)
    text = reliability.table()
    assert "| 5 |" in text
    assert "| 1 |" not in text
    assert "| p |  |\n| q | 3 |" in text
    assert jax.__version__
