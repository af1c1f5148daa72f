"""The engine's own time by the size of a population, and commands on a large run."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.reliability_disks import temporary_folder
from benchmarks.reliability_processes import ROOT, ended, start

POPULATIONS = (16, 64, 256, 1024, 4096, 16384, 65536)


def own_seconds(length: int = 40, largest: int = 65536) -> Iterator[dict[str, Any]]:
    """Measure a generation, and what of it is not evaluation, by population size.

    A lifetime is one step of three numbers. The time goes from the end of one
    generation to the end of the next, so that logs and checkpoints count.
    """
    for size in POPULATIONS:
        if size > largest:
            return
        with temporary_folder() as folder:
            options = (f"num_generations={length}", f"population_size={size}")
            few = ("steps=1", f"chunk_size={size}")
            before = _GAUGE.format(folder)
            assert ended(start(folder / "run", *options, *few, before=before)) == 0
            text = (folder / "gauge").read_text()
            gauged = [json.loads(line) for line in text.splitlines()]
            # The first generations compile.
            pairs = list(itertools.pairwise(gauged[4:]))
            walls = [b["at"] - a["at"] for a, b in pairs]
            owns = [b["at"] - a["at"] - b["evaluation"] for a, b in pairs]
            cpus = [b["cpu"] - a["cpu"] for a, b in pairs]
            log = (folder / "run" / "metrics.jsonl").stat().st_size
            yield {
                "members": size,
                "generation ms": _ms(walls),
                "without evaluation ms": _ms(owns),
                "CPU ms": _ms(cpus),
                "log kB a generation": round(log / length / 1e3, 1),
            }


def large_run(length: int = 5000, size: int = 1024) -> Iterator[dict[str, Any]]:
    """Measure commands on a long run of a large population, each in a process."""
    with temporary_folder() as folder:
        directory = folder / "run"
        program = [
            *("benchmarks.tiny", f"run.directory={directory}"),
            *(f"population_size={size}", f"chunk_size={size}"),
            *("steps=1", "run.held_out_seeds=0", "run.wandb=disabled"),
        ]
        longer = f"num_generations={length + 1}"
        rows = {
            "run": [*program, f"num_generations={length}"],
            "one generation more": [*program, longer],
            "the same again": [*program, longer],
            "report": ["metaevo", "report", str(directory)],
            "verify": ["metaevo", "verify", str(directory)],
        }
        for name, command in rows.items():
            yield {"step": name, **_measured(command)}
        log = (directory / "metrics.jsonl").stat().st_size
        yield {"step": "log", "MB": round(log / 1e6, 1)}


def _measured(command: list[str]) -> dict[str, Any]:
    """Run a module; return its exit code, seconds and peak of memory."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=Path(ROOT),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "exit code": process.returncode,
        "wall s": round(time.perf_counter() - began, 1),
        "CPU s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak MiB": round(usage.ru_maxrss / 1024),
    }


def _ms(seconds: list[float]) -> float:
    return float(f"{1e3 * statistics.median(seconds):.3g}")


# Program that notes the end of each generation, its evaluation and CPU time.
_GAUGE = """
import json, time
import jax
from metaevo.engine import journal, loop
original, record = loop.generation, journal.Journal.record
spent, file = [0.0], open("{}/gauge", "a")
def generation(job, progress):
    def evaluator(*args):
        began = time.perf_counter()
        result = jax.block_until_ready(job.evaluator(*args))
        spent[0] = time.perf_counter() - began
        return result
    return original(job._replace(evaluator=evaluator), progress)
def recorded(self, *args):
    record(self, *args)
    line = dict(at=time.perf_counter(), cpu=time.process_time(), evaluation=spent[0])
    print(json.dumps(line), file=file, flush=True)
loop.generation, journal.Journal.record = generation, recorded
"""
