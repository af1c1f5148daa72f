"""Processes that are killed or asked to stop, and started again."""

import itertools
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_pbt
import tiny_search
from runs import records, solution_bytes

from metaevo.analysis import holdout
from metaevo.storage import checkpoint

TINY = Path(tiny_search.__file__)
ROOT = Path(__file__).parents[2]


def last_checkpoint(directory):
    newest = max((Path(directory) / "checkpoints").iterdir())
    return (newest / "arrays.safetensors").read_bytes()


def result_bytes(directory):
    """The arrays of the solution, or of the agents of a training run."""
    agents = Path(directory) / "agents" / "trained" / "arrays.safetensors"
    return agents.read_bytes() if agents.exists() else solution_bytes(directory)


def tiny(length):
    return [str(TINY), f"num_generations={length}"]


def training(length):
    arguments = ["-m", "inner_loops.ppo", "num_seeds=2", "inner.features=[4]"]
    arguments += ["inner.num_envs=2", "inner.num_steps=16"]
    arguments += [f"inner.total_timesteps={32 * length}"]
    return [*arguments, f"inner.num_segments={length}"]


def stop_and_resume(tmp_path, signals, seed, program=tiny):
    """Sends each signal at a random instant to a run that is started again each time.

    Args:
        program: number of generations -> arguments of Python for such a run.

    Returns:
        the exit code, the number of logged generations and the seconds to the exit,
        for each signal.
    """
    clock = random.Random(seed)
    length = 15 * len(signals) + 40

    def start(directory):
        command = [sys.executable, *program(length), f"run.directory={directory}"]
        return subprocess.Popen(
            [*command, "run.held_out_seeds=0", "run.wandb=disabled"],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def logged():
        log = stopped / "metrics.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert start(whole).wait(300) == 0
    instants = []
    for i, number in enumerate(signals):
        process = start(stopped)
        # Somewhere within a generation of the next stretch of the run.
        limit = max(logged() + 1, 15 * (i + 1))
        until = clock.randint(logged() + 1, limit)
        deadline = time.monotonic() + 120
        while logged() < until and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(clock.uniform(0.0, 0.01))
        process.send_signal(number)
        sent = time.monotonic()
        code = process.wait(60)
        instants.append((code, logged(), time.monotonic() - sent))
    assert all(n < length for _, n, _ in instants), instants
    assert start(stopped).wait(300) == 0
    assert result_bytes(whole) == result_bytes(stopped), instants
    assert records(whole) == records(stopped), instants
    assert last_checkpoint(whole) == last_checkpoint(stopped), instants
    generations = [r["generation"] for r in records(stopped)]
    assert generations == list(range(length))
    return instants


def test_training_killed_and_resumed_equals_one_that_was_not(tmp_path):
    stop_and_resume(tmp_path, [signal.SIGKILL] * 2, seed=2, program=training)


KINDS = ("SIGKILL", "SIGINT", "SIGKILL", "SIGTERM", "SIGUSR1")


@pytest.mark.parametrize("times", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_run_killed_or_asked_to_stop_and_resumed_equals_one_that_was_not(
    tmp_path, times
):
    signals = [getattr(signal, name) for name in KINDS] * times
    instants = stop_and_resume(tmp_path, signals, seed=times)
    for number, (code, _, seconds) in zip(signals, instants, strict=True):
        # Asked to stop, it saves; one generation takes milliseconds here.
        assert code == (-number if number == signal.SIGKILL else 75), instants
        assert seconds < 5, instants


def test_run_killed_again_and_again_in_its_comparison_ends_with_the_same_one(tmp_path):
    """Four kills, each some time after the process has kept more of the comparison."""
    clock = random.Random(0)

    def start(directory):
        command = [sys.executable, TINY.name, f"run.directory={directory}"]
        arguments = ["num_generations=3", "run.held_out_seeds=60", "run.devices=2"]
        return subprocess.Popen(
            [*command, *arguments, "run.wandb=disabled"],
            cwd=TINY.parent,
            stdout=subprocess.DEVNULL,
        )

    def kept():
        return len(list((killed / "conclusion").glob("*/seed*")))

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait(300) == 0
    counts = [0]
    for _ in range(4):
        process = start(killed)
        deadline = time.monotonic() + 120
        while kept() == counts[-1] and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(clock.uniform(0.0, 0.1))
        process.kill()
        assert process.wait(60) == -signal.SIGKILL, counts
        counts.append(kept())
    # Three candidates, 15 rounds each: none was made again, and all are needed.
    assert all(a < b < 45 for a, b in itertools.pairwise(counts)), counts
    assert not (killed / "held_out").exists()
    assert start(killed).wait(300) == 0
    assert not (killed / "conclusion").exists()
    for name in ("solution", "held_out", "agents/solution", "agents/hand-made"):
        arrays = [
            (x / name / "arrays.safetensors").read_bytes() for x in (whole, killed)
        ]
        assert arrays[0] == arrays[1], name
    assert holdout.load(killed / "held_out")[1] == holdout.load(whole / "held_out")[1]


@pytest.mark.slow
def test_agents_buffers_and_parents_survive_kills(tmp_path):
    """PBT over Ape-X: the checkpoint holds agents, replay buffers and their priorities,
    the log parents."""
    kills = [signal.SIGKILL] * 5

    def program(length):
        return [tiny_pbt.__file__, f"num_generations={length}"]

    instants = stop_and_resume(tmp_path, kills, 0, program=program)
    assert all(code == -signal.SIGKILL for code, _, _ in instants), instants
    assert any(
        parent != i
        for record in records(tmp_path / "stopped")
        for i, parent in enumerate(record["parents"])
    )
    newest = max((tmp_path / "stopped" / "checkpoints").iterdir())
    names = checkpoint.read(newest)[0]
    assert any("carried" in name and "experience" in name for name in names)
    assert any("priorities" in name for name in names)
