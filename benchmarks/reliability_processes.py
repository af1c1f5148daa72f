"""Runs that are killed, that share a directory, and that are long.

A tiny search runs in a process of its own, which is killed with SIGKILL at random
instants or by itself, and is then started again.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.reliability_disks import STEPS, temporary_folder
from metaevo.storage import jsonl

ROOT = Path(__file__).parent.parent
QUIET = ["run.held_out_seeds=0", "run.wandb=disabled"]


# --- processes ------------------------------------------------------------------------


def start(
    directory: Path,
    *options: str,
    before: str = "",
    module: str = "benchmarks.tiny",
    root: Path = ROOT,
    **environment: str,
) -> subprocess.Popen:
    """Start a search in a process of its own, without a comparison and wandb.

    Args:
        directory: Run directory.
        options: `key=value` arguments; they replace those of `QUIET`.
        before: Python that runs first, in the same process.
        module: Module of the search.
        root: Folder in which Python looks for the module first.
        environment: Additional environment variables.
    """
    keys = {option.partition("=")[0] for option in options}
    quiet = [option for option in QUIET if option.partition("=")[0] not in keys]
    arguments = [f"run.directory={directory}", *quiet, *options]
    program = (
        f"{before}\nimport sys; sys.argv = ['search', *{arguments!r}]\n"
        f"import runpy; runpy.run_module({module!r}, run_name='__main__')"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=root,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def ended(process: subprocess.Popen, seconds: float = 600) -> int:
    """Wait for the end of a process, and return its exit code."""
    process.communicate(timeout=seconds)
    return process.returncode


def digest(directory: Path) -> str:
    """Return a digest of the last checkpoint, which is the whole state of a search."""
    newest = max((directory / "checkpoints").glob("generation-*"))
    data = (newest / "arrays.safetensors").read_bytes()
    return hashlib.sha256(data).hexdigest()[:16]


def generations(directory: Path) -> list[int]:
    """Return the generations in the log."""
    return [r["generation"] for r in jsonl.read(directory / "metrics.jsonl")]


def logged(directory: Path) -> int:
    """Return the number of lines in the log."""
    log = directory / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


# --- kill -9 --------------------------------------------------------------------------


def kills(number: int = 50, length: int = 300, seed: int = 0) -> dict[str, Any]:
    """Kill one run at random instants, and start it again after each."""
    clock = random.Random(seed)
    with temporary_folder() as folder:
        assert ended(start(folder / "whole", f"num_generations={length}")) == 0
        killed = 0
        while killed < number:
            process = start(folder / "killed", f"num_generations={length}")
            # At least one more generation, so that the run ends.
            goal = logged(folder / "killed") + clock.randint(
                1, max(1, length // number)
            )
            while logged(folder / "killed") < goal and process.poll() is None:
                time.sleep(0.001)
            time.sleep(clock.uniform(0.0, 0.02))
            process.send_signal(signal.SIGKILL)
            if ended(process) == 0:
                break  # it ended before it was killed
            killed += 1
        return {"kills": killed, **compared(folder, "killed", length)}


def kills_in_checkpoint(number: int = 20, seed: int = 0) -> dict[str, Any]:
    """Let a run kill itself before a random step of writing a checkpoint."""
    clock = random.Random(seed)
    most = 6
    length = most * number + most  # the run does not end before the last kill
    with temporary_folder() as folder:
        assert ended(start(folder / "whole", f"num_generations={length}")) == 0
        killed = []
        while len(killed) < number:
            step = clock.choice(STEPS)
            nth = clock.randint(2, most)
            process = start(
                folder / "killed",
                f"num_generations={length}",
                before="from benchmarks import reliability_disks as r; "
                f"r.die_at({step!r}, {nth})",
            )
            code = ended(process)
            if code == 0:
                break  # it ended before it was killed
            assert code == -signal.SIGKILL, code
            killed.append(step)
        return {"kills": len(killed), **compared(folder, "killed", length)}


def compared(folder: Path, name: str, length: int) -> dict[str, Any]:
    """End a run that was stopped, and compare it with the one in `whole`."""
    assert ended(start(folder / name, f"num_generations={length}")) == 0
    found, wanted = generations(folder / name), list(range(length))
    return {
        "mismatches": int(digest(folder / name) != digest(folder / "whole")),
        "missing or doubled": len(set(wanted) ^ set(found))
        + len(found)
        - len(set(found)),
    }


# --- locks ----------------------------------------------------------------------------


def locks(number: int = 20) -> dict[str, Any]:
    """Start two processes on one directory, and kill the one that owns it."""
    ran = refused = 0
    slowest_refusal = slowest_takeover = 0.0
    for _ in range(number):
        with temporary_folder() as folder:
            directory = folder / "run"
            long = "num_generations=100000"
            both = [start(directory, long, before=_MARK.format(i)) for i in range(2)]
            while all(process.poll() is None for process in both):
                time.sleep(0.002)
            now = time.time()
            loser = 0 if both[0].poll() is not None else 1
            refused += both[loser].returncode == 3
            owner = both[1 - loser]
            reached = float((folder / f"reached{loser}").read_text())
            slowest_refusal = max(slowest_refusal, now - reached)
            before = logged(directory)
            while logged(directory) < before + 2 and owner.poll() is None:
                time.sleep(0.005)
            ran += owner.poll() is None
            owner.kill()
            ended(owner), ended(both[loser])
            third = start(directory, long, before=_MARK.format(2))
            reached = folder / "reached2"
            while not reached.exists() and third.poll() is None:
                time.sleep(0.002)
            began, taken = time.time(), directory / "history.jsonl"
            starts = taken.read_text().count("started")
            while taken.read_text().count("started") == starts:
                assert third.poll() is None, third.communicate()[1]
                time.sleep(0.005)
            slowest_takeover = max(slowest_takeover, time.time() - began)
            third.kill()
            ended(third)
    return {
        "starts": number,
        "one ran": ran,
        "other exited 3": refused,
        "slowest refusal_s": round(slowest_refusal, 2),
        "slowest takeover_s": round(slowest_takeover, 2),
    }


# Program that notes the time at which the process reaches the lock.
_MARK = """
import time, pathlib
from metaevo.storage import run_directory
lock = run_directory.lock
def marked(directory):
    (pathlib.Path(directory).parent / "reached{}").write_text(str(time.time()))
    return lock(directory)
run_directory.lock = marked
"""


# --- long runs ------------------------------------------------------------------------


def long_run(length: int = 2000) -> dict[str, Any]:
    """Measure memory and compilations of a long search in a process of its own."""
    with temporary_folder() as folder:
        process = start(
            folder / "run", f"num_generations={length}", before=_GAUGE.format(folder)
        )
        assert ended(process, 36_000) == 0
        gauged = [json.loads(x) for x in (folder / "gauge").read_text().splitlines()]
        # In the first tenth caches and pools are filled.
        early, late = gauged[len(gauged) // 10], gauged[-1]
        return {
            "generations": length,
            "grown_MiB": round((late["bytes"] - early["bytes"]) / 2**20, 1),
            "compiled after the first tenth": late["compiled"] - early["compiled"],
            "generations_per_s": round(length / (late["at"] - gauged[0]["at"]), 1),
        }


# Program that notes memory and compilations after each checkpoint.
_GAUGE = """
import json, time
import psutil, jax
from metaevo.storage import checkpoint
compiled = [0]
def on(event, seconds, **_):
    compiled[0] += event == "/jax/core/compile/backend_compile_duration"
jax.monitoring.register_event_duration_secs_listener(on)
save, me = checkpoint.Store.save, psutil.Process()
file = open("{}/gauge", "a")
def gauged(self, *args):
    save(self, *args)
    line = dict(at=time.time(), bytes=me.memory_info().rss, compiled=compiled[0])
    print(json.dumps(line), file=file, flush=True)
checkpoint.Store.save = gauged
"""
