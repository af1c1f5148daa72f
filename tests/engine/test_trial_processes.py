"""Trials in processes: nothing that a function does harms the run, or outlives it."""

import functools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import toy_trials

from metaevo.engine.trials import processes
from metaevo.engine.trials.processes import Limits, run, run_all, target
from metaevo.errors import ConfigError, InterruptedRunError

HERE = Path(toy_trials.__file__)


def described(folder, **params):
    own = folder / "files"
    own.mkdir(parents=True, exist_ok=True)
    return {"params": params, "seed": 7, "budget": 3, "folder": str(own)} | {
        "parent": None
    }


def ended(folder, behaviour, monkeypatch, limits=Limits(timeout=20), stopped=None):
    """How the trial of a misbehaving function ended."""
    monkeypatch.setenv("TOY_BEHAVIOUR", behaviour)
    stopped = stopped or threading.Event()
    where = target(toy_trials.misbehave)
    return run(where, described(folder), folder, limits, stopped)


def alive(process):
    """True if a process runs; one that waits to be reaped does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_function_is_given_its_params_and_scored(tmp_path):
    where = target(toy_trials.distance)
    found = run(
        where, described(tmp_path, x=3.0), tmp_path, Limits(), threading.Event()
    )
    assert found.score == pytest.approx(-2 + 7e-6)
    assert not found.problem


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        ("raises", "ValueError: this one fails"),
        ("not_a_number", "ValueError: score returned nan; expected a finite number"),
        ("text", "ValueError: score returned 'much'; expected a finite number"),
        ("vanishes", "ended without a score: exit code 3"),
        ("is_killed", "ended without a score: SIGSEGV"),
        ("closes_its_files", "ended without a score: exit code 1"),
        ("exits", "SystemExit: enough"),
        ("writes_its_own_result", "wrote to the pipe of its result"),
    ],
)
def test_a_trial_that_fails_says_why(behaviour, problem, tmp_path, monkeypatch):
    found = ended(tmp_path, behaviour, monkeypatch)
    assert (found.score, found.problem) == (None, problem)


def test_what_a_trial_prints_is_in_its_file(tmp_path, monkeypatch, capfd):
    assert ended(tmp_path, "prints", monkeypatch).score == 1.0
    lines = (tmp_path / "output.txt").read_text().split("\n")
    assert {*lines} == {"to stdout", "to stderr", "from a child", ""}
    assert capfd.readouterr() == ("", "")


def test_the_traceback_of_a_trial_is_in_its_file(tmp_path, monkeypatch):
    ended(tmp_path, "raises", monkeypatch)
    assert "in _raises" in (tmp_path / "output.txt").read_text()


def test_a_trial_that_hangs_is_killed_with_what_it_started(tmp_path, monkeypatch):
    for i, behaviour in enumerate(("hangs", "starts_a_program")):
        folder = tmp_path / str(i)
        found = ended(folder, behaviour, monkeypatch, Limits(timeout=1.0))
        assert (found.score, found.problem) == (None, "took longer than timeout=1s")
        assert found.seconds < 5
    process = (folder / "files" / "process").read_text()
    assert not alive(process)


def test_a_child_does_not_outlive_its_trial(tmp_path, monkeypatch):
    found = ended(tmp_path, "leaves_a_child", monkeypatch)
    assert found.score == 2.0
    assert found.seconds < 5
    assert not alive((tmp_path / "files" / "process").read_text())


def test_a_forked_child_that_returns_has_no_say(tmp_path, monkeypatch):
    assert ended(tmp_path, "child_returns", monkeypatch).score == 3.0


def test_a_trial_that_does_not_exit_keeps_its_score(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 0.2)
    assert ended(tmp_path, "does_not_exit", monkeypatch).score == 4.0


def test_a_trial_reads_an_empty_input(tmp_path, monkeypatch):
    assert ended(tmp_path, "reads_its_input", monkeypatch).score == 0.0


@pytest.mark.skipif(not processes.PROC.is_dir(), reason="measured in /proc")
def test_a_trial_that_takes_too_much_memory_is_killed(tmp_path, monkeypatch):
    limits = Limits(timeout=20, memory=200 << 20)
    found = ended(tmp_path, "takes_memory", monkeypatch, limits)
    assert (found.score, found.problem) == (None, "held more than memory=200 MiB")
    assert ended(tmp_path, "prints", monkeypatch, limits).score == 1.0


def test_a_trial_is_abandoned_when_the_run_stops(tmp_path, monkeypatch):
    began, stops = time.monotonic(), iter([False, True, True, True])

    def one(name, stopped):
        found = ended(tmp_path / name, "hangs", monkeypatch, Limits(), stopped)
        assert found is None

    with pytest.raises(InterruptedRunError):
        run_all(["a", "b", "c"], one, 2, lambda: next(stops))
    assert time.monotonic() - began < 5
    assert not (tmp_path / "c").exists()


DRIVER = """
import sys, threading
from pathlib import Path
from metaevo.engine.trials.processes import Limits, run, target
folder = Path(sys.argv[1])
(folder / "files").mkdir()
trial = {"params": {}, "seed": 0, "budget": None, "folder": str(folder / "files"),
         "parent": None}
run(target(sys.argv[2]), trial, folder, Limits(), threading.Event())
"""


def test_trials_end_when_their_driver_is_killed(tmp_path):
    environment = {**os.environ, "TOY_BEHAVIOUR": "starts_a_program"}
    command = [sys.executable, "-c", DRIVER, str(tmp_path), f"{HERE}:misbehave"]
    driver = subprocess.Popen(command, env=environment, cwd=HERE.parents[2])
    told = tmp_path / "files" / "process"
    for _ in range(300):
        if told.exists() and told.read_text():
            break
        time.sleep(0.05)
    process = told.read_text()
    assert alive(process)
    driver.kill()
    driver.wait()
    for _ in range(100):
        if not alive(process):
            break
        time.sleep(0.05)
    assert not alive(process)


# --- which function -------------------------------------------------------------------


def test_a_function_is_found_by_module_file_or_itself(tmp_path):
    for given in (
        toy_trials.distance,
        "toy_trials:distance",
        f"{HERE}:distance",
    ):
        where = target(given)
        folder = tmp_path / str(len(where.module))
        trial = described(folder, x=1.0)
        found = run(where, trial, folder, Limits(), threading.Event())
        assert found.score == pytest.approx(7e-6), (given, found)
        assert where.name == "toy_trials:distance"


def test_what_a_process_cannot_find_is_refused_at_once(tmp_path):
    def local(trial):
        return 0.0

    for given, expected in (
        (lambda trial: 0.0, "a function at the top level of a file"),
        (local, "a function at the top level of a file"),
        (functools.partial(toy_trials.distance), "a function of a trial"),
        (3.0, "a function of a trial"),
        ("distance", "MODULE:FUNCTION or FILE.py:FUNCTION"),
        ("nowhere.py:distance", "a file that exists, not"),
    ):
        with pytest.raises(ConfigError, match=expected):
            target(given)
    with pytest.raises(ConfigError, match="python='nowhere/python': expected"):
        target(toy_trials.distance, "nowhere/python")


def test_a_function_typed_at_a_prompt_is_refused():
    code = (
        "from metaevo.engine.trials.processes import target\n"
        "def score(trial): return 0.0\n"
        "target(score)\n"
    )
    done = subprocess.run(
        [sys.executable, "-"], input=code, capture_output=True, text=True, check=False
    )
    assert "what was typed in a notebook or at a prompt" in done.stderr
