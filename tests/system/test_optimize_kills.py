"""`metaevo.optimize` where the driver is killed, and in another environment."""

import importlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import toy_trials
from runs import records, solution_bytes

from metaevo.engine.trials import processes
from metaevo.storage import jsonl

ROOT = Path(__file__).parents[2]
SCRIPT = Path(toy_trials.__file__)
ELSEWHERE = ROOT / ".venv-torch" / "bin" / "python"


def start(directory):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(directory)],
        env=environment,
        stdout=subprocess.DEVNULL,
    )


def trials(directory):
    found = jsonl.read(directory / "trials.jsonl")
    results = {x["trial"]: (x["score"], x["seed"], x["numbers/x"]) for x in found}
    assert len(results) == len(found)  # none ran twice
    return results


def test_a_driver_that_is_killed_goes_on_with_the_same_trials(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait(100) == 0
    for ended in (3, 13):  # within the first and the second generation of 8
        driver = start(killed)
        log = killed / "trials.jsonl"
        deadline = time.monotonic() + 60
        while not (log.exists() and log.read_bytes().count(b"\n") >= ended):
            assert time.monotonic() < deadline
            assert driver.poll() is None
            time.sleep(0.01)
        driver.kill()
        driver.wait()
    assert start(killed).wait(100) == 0
    assert trials(killed) == trials(whole)
    assert solution_bytes(killed) == solution_bytes(whole)

    def timeless(directory):
        return [x | {"train/seconds": 0} for x in records(directory)]

    assert timeless(killed) == timeless(whole)


elsewhere = pytest.mark.skipif(
    not ELSEWHERE.exists(), reason="make test-system makes .venv-torch"
)


@elsewhere
@pytest.mark.parametrize(
    ("evolve", "slots"),
    [
        ("numbers", {"learning_rate", "gamma", "gae_lambda", "clip_range"}),
        ("loss", {"value_loss"}),
    ],
)
def test_the_example_trains_stable_baselines3(evolve, slots, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    example = importlib.import_module("sb3_trainer")
    result = example.main(
        evolve, ELSEWHERE, num_frames=256, num_members=2, num_generations=1,
        held_out_seeds=0, wandb="disabled", directory=tmp_path,
    )  # fmt: skip
    assert result.artifact.slots.keys() == slots
    found = jsonl.read(tmp_path / "trials.jsonl")
    assert [x["problem"] for x in found] == ["", ""]
    assert len([*tmp_path.glob("trials/*/files/agent.zip")]) == 2


def test_a_function_of_another_environment_is_not_imported_here(tmp_path):
    """And a library that is missing there is an error before any trial."""
    (tmp_path / "far.py").write_text("import nowhere\ndef score(trial): return 1\n")
    where = processes.target(f"{tmp_path / 'far.py'}:score")
    ended = processes.run(where, None, tmp_path, processes.Limits(), threading.Event())
    assert ended.problem == "ModuleNotFoundError: No module named 'nowhere'"


UNGUARDED = """
import metaevo
from metaevo import spaces
from strategies.random_search import random_search

def score(trial):
    return trial.params["x"]

space = spaces.prior(x=spaces.uniform(0.0, 1.0))
GUARD
    result = metaevo.optimize(space, random_search(space, 2), score, num_generations=1,
        directory="run", held_out_seeds=0, wandb="disabled")
    print(f"x={result.artifact.x}")
"""


def test_a_script_or_a_module_starts_a_search_below_its_guard(tmp_path):
    def printed(guard, *arguments):
        (tmp_path / "mine.py").write_text(UNGUARDED.replace("GUARD", guard))
        return subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    done = printed("if True:", "mine.py")
    assert 'put it under `if __name__ == "__main__":`' in done.stderr
    assert not (tmp_path / "run" / "manifest.json").exists()
    for arguments in (("mine.py",), ("-m", "mine")):
        done = printed('if __name__ == "__main__":', *arguments)
        assert "x=0." in done.stdout, done.stderr
