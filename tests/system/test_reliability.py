"""Small versions of the benchmarks of `docs/reliability.md`."""

import json
import os

import jax
import pytest

from benchmarks import reliability
from benchmarks import reliability_artifacts as hostile
from benchmarks import reliability_disks as disks
from benchmarks import reliability_processes as processes
from benchmarks import reliability_sizes as sizes
from benchmarks import reliability_stops as stops
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


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
def test_run_on_a_full_tmpfs_exits_with_6_and_continues():
    found = stops.full_tmpfs(times=2, length=100)
    assert found["exit codes"] == "6, 6"
    assert found["mismatches"] == found["missing or doubled"] == 0


@pytest.mark.slow
def test_run_without_memory_ends_and_continues():
    rows = list(stops.small_memory(length=10))
    assert rows[0]["exit code"] != 0
    assert rows[-1]["exit code"] == 0
    assert not any(row["mismatches"] for row in rows)


@pytest.mark.slow
def test_another_version_of_the_code_is_refused_and_later_named():
    found = stops.two_codes(times=1)
    assert found["refused with 3"] == found["change named"] == 1
    assert found["mismatches"] == 0


@pytest.mark.slow
def test_two_starts_of_several_seeds_end_as_one():
    found = stops.seeds_twice(times=1, seeds=2)
    assert found["exit codes"] in ("0 and 0", "0 and 3")
    assert found["mismatches"] == 0


@pytest.mark.slow
def test_own_seconds_and_large_runs_are_measured():
    rows = list(sizes.own_seconds(length=12, largest=64))
    assert [row["members"] for row in rows] == [16, 64]
    assert all(0 < r["without evaluation ms"] < r["generation ms"] for r in rows)
    rows = list(sizes.large_run(length=10, size=16))
    assert [row.get("exit code", 0) for row in rows] == [0] * 6


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
