"""Small versions of what `docs/reliability.md` has in full; the engine's own are in
`test_engine.py`.
"""

import json

import jax
import pytest

from benchmarks import reliability
from metaevo.storage import artifacts


def test_dying_while_a_checkpoint_is_written():
    found = reliability.kills_in_checkpoint(number=3, seed=1)
    assert found["kills"] == 3
    assert found["mismatches"] == found["missing or doubled"] == 0


def test_full_and_broken_disks_leave_the_previous_checkpoint():
    found = reliability.full_disks()
    assert found["failures"] >= 10
    assert found["previous checkpoint lost"] == found["not said"] == 0


def test_corrupted_checkpoints_are_not_used():
    found = reliability.corrupt_checkpoints(100)
    assert found == {"corrupted": 100, "used": 0, "previous one not used": 0}


def test_mutated_artifacts_neither_crash_nor_run_code():
    found = reliability.mutated_artifacts(60)
    assert found["crashes"] == found["executed"] == 0
    assert found["refused"] + found["loaded"] == 60
    assert found["refused"] > 50


@pytest.mark.parametrize(
    ("name", "make"), reliability.HOSTILE, ids=[name for name, _ in reliability.HOSTILE]
)
def test_hostile_artifacts_are_refused_and_run_nothing(tmp_path, name, make):
    made = reliability._artifact(tmp_path / "made")
    make(made, tmp_path)
    outcomes = {"refused": 0, "loaded": 0, "crashes": 0, "executed": 0, "slowest_s": 0}
    reliability._tried(made, outcomes)
    assert outcomes["refused"] == 1, name
    assert outcomes["executed"] == 0
    assert not (tmp_path / "pwned").exists()


def test_what_watches_for_code_sees_it(tmp_path, monkeypatch):
    """Else the tests above could not fail."""
    made = reliability._artifact(tmp_path / "made")

    def load(path):
        import os

        os.system("true")

    monkeypatch.setattr(artifacts, "load", load)
    outcomes = {"refused": 0, "loaded": 0, "crashes": 0, "executed": 0, "slowest_s": 0}
    reliability._tried(made, outcomes)
    assert outcomes["executed"] > 0
    assert outcomes["loaded"] == 1


def test_two_starts_on_one_directory():
    found = reliability.locks(number=1)
    assert found["one ran"] == found["other exited 3"] == 1


def test_a_long_run_compiles_nothing_again():
    found = reliability.long_run(60)
    assert found["compiled after the first tenth"] == 0


def test_the_tables_are_those_of_the_results(tmp_path, monkeypatch):
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
