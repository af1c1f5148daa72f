"""Trials of `metaevo.optimize` that misbehave, are killed, or are stopped early.

    python -m benchmarks.reliability hostile_trials
    python -m benchmarks.reliability stopped_trials
    python -m benchmarks.reliability stopped_loops

The first needs Stable-Baselines3: `make .venv-torch/.installed`.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import metaevo
from metaevo import spaces
from metaevo.storage import jsonl
from strategies.pbt import pbt
from strategies.random_search import random_search
from strategies.snes import snes

ROOT = Path(__file__).parents[1]
# In a folder of its own, which its interpreter imports from first.
TRAINER = Path(__file__).parent / "trainers" / "hostile.py"
LOOPS = TRAINER.with_name("loops.py")
TORCH = ROOT / ".venv-torch" / "bin" / "python"
HAND_MADE = {"learning_rate": 3e-4, "clip_range": 0.2}
KINDS = ("random search", "SNES", "ASHA", "PBT")


def searched(kind: str) -> tuple:
    """Return space, strategy of 12 members and rule of stopping.

    They are made where they are needed, since that starts JAX.
    """
    ranges = spaces.prior(
        learning_rate=spaces.log_uniform(1e-4, 1e-2),
        clip_range=spaces.uniform(0.1, 0.4),
    )
    if kind == "SNES":
        around = spaces.tune(learning_rate=spaces.log(), clip_range=spaces.log())
        return around, snes(around, 12, sigma=0.3), None
    strategy = (pbt if kind == "PBT" else random_search)(ranges, 12)
    return ranges, strategy, metaevo.Halving(3) if kind == "ASHA" else None


def hostile(kind: str, directory: str) -> None:
    """Search PPO's numbers for two generations, 12 trials at once."""
    space, strategy, stopping = searched(kind)
    metaevo.optimize(
        space, strategy, f"{TRAINER}:hostile_ppo", python=TORCH, num_generations=2,
        directory=directory, defaults=HAND_MADE, budget=512, stopping=stopping,
        workers=12, timeout=120, memory=1 << 30, held_out_seeds=0, wandb="disabled",
    )  # fmt: skip


def hostile_trials(only: str = "") -> Iterator[dict[str, Any]]:
    """Searches of PPO's numbers whose driver is killed -9 while trials misbehave.

    Args:
        only: one of `KINDS`; empty: all.
    """
    for kind in [only] if only else KINDS:
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder) / "run"
            program = [sys.executable, "-m", "benchmarks.reliability_trials", kind]
            command = [*program, str(directory)]
            began, log = time.monotonic(), directory / "trials.jsonl"
            # By this variable the processes of the run, and theirs, are found.
            given: Any = {"cwd": ROOT, "stdout": subprocess.DEVNULL}
            given["env"] = {**os.environ, "HOSTILE_TRIALS": folder}
            driver = subprocess.Popen(command, **given)
            while not (log.exists() and log.read_bytes().count(b"\n") >= 5):
                assert driver.poll() is None, "it ended by itself"
                time.sleep(0.1)
            driver.kill()
            driver.wait()
            time.sleep(2)
            left, before = _processes(folder), jsonl.read(log)
            subprocess.run(command, **given, check=True)
            found = jsonl.read(log)
            problems = [x["problem"].partition(":")[0] for x in found]
            yield {
                "strategy": kind,
                "trials": len(found),
                "before the kill": len(before),
                "kept": found[: len(before)] == before,
                "doubled": len(found) - len({x["trial"] for x in found}),
                "processes left": left,
                "processes left at the end": _processes(folder),
                "problems": dict(collections.Counter(filter(None, problems))),
                "stopped": sum(x.get("stopped", False) for x in found),
                "generations": len(jsonl.read(directory / "metrics.jsonl")),
                "seconds": round(time.monotonic() - began),
            }


def _processes(text: str) -> int:
    """Live processes in whose environment a text is."""
    found = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found += text.encode() in (entry / "environ").read_bytes()
    return found


def stopped_trials(members: int = 27, repeats: int = 3) -> Iterator[dict[str, Any]]:
    """Lives of nine trials of unlike length on eight workers, stopped or not."""
    space = spaces.prior(rate=spaces.log_uniform(0.01, 0.5))
    rules = {
        "whole lives": metaevo.Halving(9, first=8, keep=1.0),  # all go on
        "successive halving": metaevo.Halving(9, wait=True),
        "ASHA": metaevo.Halving(9),
    }
    for seed in range(repeats):
        for name, rule in rules.items():
            with tempfile.TemporaryDirectory() as folder:
                metaevo.optimize(
                    space, random_search(space, members), f"{TRAINER}:waits",
                    num_generations=1, directory=folder, seed=seed, stopping=rule,
                    workers=8, held_out_seeds=0, wandb="disabled",
                )  # fmt: skip
                found = jsonl.read(Path(folder) / "trials.jsonl")
                (record,) = jsonl.read(Path(folder) / "metrics.jsonl")
                rates, seconds = record["numbers/rate"], record["seconds"]
                busy = sum(x["seconds"] for x in found) / seconds / 8
                best = max(range(members), key=record["population"].__getitem__)
                yield {
                    "rule": name,
                    "seed": seed,
                    "trials": len(found),
                    "seconds": round(seconds, 1),
                    "workers busy": round(busy, 3),
                    "rank of the one found": sorted(rates)[::-1].index(rates[best]) + 1,
                }


def stopped_loops(members: int = 12, repeats: int = 5) -> Iterator[dict[str, Any]]:
    """ASHA, as they arrive, of PPO's step size: two workers here, or three Ray hosts.

    One of the hosts is lost with all that runs on it, and every 30 seconds the process
    in which Ray runs a trial is killed -9.
    """
    from benchmarks.reliability_hosts import cluster

    space = spaces.prior(lr=spaces.log_uniform(1e-5, 1e-1))
    rule = metaevo.Halving(4, factor=2)
    given: dict[str, Any] = {
        "num_generations": 1, "stopping": rule, "budget": 1, "held_out_seeds": 0,
        "wandb": "disabled",
    }  # fmt: skip
    for seed in range(repeats):
        for layout in ("two workers", "three hosts"):
            with contextlib.ExitStack() as stack:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                over, lost = threading.Event(), []
                stack.callback(over.set)
                options: dict[str, Any] = {"workers": 2}
                if layout == "three hosts":
                    hosts = stack.enter_context(cluster(3))
                    options = {
                        "workers": 3, "evaluator": "ray", "ray_address": hosts.address,
                    }  # fmt: skip
                    last = [x for x in hosts.list_all_nodes() if not x.head][-1]

                    def disturb(hosts=hosts, last=last, over=over, lost=lost):
                        while not over.wait(30):
                            if not lost:
                                hosts.remove_node(last, allow_graceful=False)
                                lost.append("host")
                            elif pids := busy_workers():
                                with contextlib.suppress(ProcessLookupError):
                                    os.kill(pids[0], signal.SIGKILL)
                                    lost.append("worker")

                    threading.Thread(target=disturb, daemon=True).start()
                metaevo.optimize(
                    space, random_search(space, members), f"{LOOPS}:short_ppo",
                    directory=folder, seed=seed, **given, **options,
                )  # fmt: skip
                over.set()
                found = jsonl.read(Path(folder) / "trials.jsonl")
                (record,) = jsonl.read(Path(folder) / "metrics.jsonl")
                best = np.argmax(
                    [-np.inf if x is None else x for x in record["population"]]
                )
                yield {
                    "layout": layout,
                    "seed": seed,
                    "trials": len(found),
                    "doubled": len(found) - len({x["trial"] for x in found}),
                    "explained": unexplained(found, rule) == 0,
                    "hosts lost": lost.count("host"),
                    "workers killed": lost.count("worker"),
                    "failed": sum(x["score"] is None for x in found),
                    "seconds": round(record["seconds"], 1),
                    "best score": round(record["population"][best], 1),
                    "its lr": record["numbers/lr"][best],
                }


def busy_workers() -> list[int]:
    """Processes in which Ray runs a trial."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (entry / "cmdline").read_bytes().startswith(b"ray::_trial"):
                found.append(int(entry.name))
    return found


def unexplained(found: list[dict], rule: metaevo.Halving) -> int:
    """Lines at a rung whose decision does not follow from the lines before them."""
    age, there, wrong = {}, {}, 0
    for x in found:
        parent = x["parent"]
        age[x["trial"]] = mine = 1 if parent is None else age[parent] + 1
        if mine not in rule.ages or "rung" not in x:
            continue
        seen = there.setdefault(mine, [])
        seen.append(-np.inf if x["score"] is None else x["score"])
        better = sum(y > seen[-1] for y in seen)
        told = x["seen"], x["better"], x["stopped"]
        wrong += told != (len(seen), better, rule.stops(better, len(seen)))
    return wrong


if __name__ == "__main__":
    hostile(*sys.argv[1:])
