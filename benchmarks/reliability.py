"""Reliability of runs that are killed, full, corrupted, shared and long.

    python -m benchmarks.reliability COMMAND [key=value ...]

appends JSON lines to `benchmarks/results/reliability.jsonl`; `table` makes the tables
of `docs/log/reliability.md` from them. Commands are the functions of `commands()`;
their parameters are the keys. The tests run small versions.

The commands are in `reliability_processes` (kills, locks, long runs),
`reliability_stops` (signals, full file systems, small memory, other starts),
`reliability_sizes` (large populations and long logs), `reliability_disks` (disks and
checkpoints), `reliability_artifacts`, `reliability_trials` (trials of a trainer of the
user's) and `reliability_hosts` (a Ray cluster).
"""

from __future__ import annotations

import inspect
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.reliability_artifacts import hostile_artifacts, mutated_artifacts
from benchmarks.reliability_disks import corrupt_checkpoints, full_disks
from benchmarks.reliability_processes import (
    kills,
    kills_in_checkpoint,
    locks,
    long_run,
)
from benchmarks.reliability_sizes import large_run, own_seconds
from benchmarks.reliability_stops import (
    full_tmpfs,
    kills_of_ppo,
    seeds_twice,
    signals,
    small_memory,
    two_codes,
)
from benchmarks.reliability_trials import (
    hostile_trials,
    stopped_loops,
    stopped_trials,
)

RESULTS = Path(__file__).parent / "results" / "reliability.jsonl"


def commands() -> dict[str, Callable]:
    found = {
        f.__name__: f
        for f in (
            kills,
            kills_in_checkpoint,
            full_disks,
            corrupt_checkpoints,
            mutated_artifacts,
            hostile_artifacts,
            locks,
            long_run,
            signals,
            full_tmpfs,
            small_memory,
            two_codes,
            seeds_twice,
            kills_of_ppo,
            own_seconds,
            large_run,
            hostile_trials,
            stopped_trials,
            stopped_loops,
        )
    }
    try:
        from benchmarks import reliability_hosts
    except ImportError:
        return found  # without Ray
    return found | reliability_hosts.COMMANDS


def machine() -> str:
    import jax

    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, {platform.system()}, jax {jax.__version__}"


def main(arguments: list[str]) -> None:
    from metaevo.evaluators.devices import configure

    configure(driver=True)
    if arguments == ["table"]:
        print(table())
        return
    name, *settings = arguments
    command = commands()[name]
    kinds = {
        k: type(p.default) for k, p in inspect.signature(command).parameters.items()
    }
    given = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        given[key] = kinds[key](value)
    began = time.time()
    for found in _rows(command(**given)):
        record = {"command": " ".join(arguments), **found}
        record |= {"took_s": round(time.time() - began), "machine": machine()}
        record["run"] = round(began)
        print(json.dumps(record), flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        with open(RESULTS, "a") as file:
            file.write(json.dumps(record) + "\n")


def _rows(found: Any) -> Iterable[dict]:
    return [found] if isinstance(found, dict) else found


def table() -> str:
    """Markdown: per command a table of its last results."""
    last: dict[str, list[dict]] = {}
    for line in RESULTS.read_text().splitlines():
        record = json.loads(line)
        rows = last.setdefault(record["command"], [])
        if rows and rows[-1]["run"] != record["run"]:
            rows.clear()  # it was run again
        rows.append(record)
    parts = []
    for command, rows in last.items():
        hidden = ("command", "machine", "took_s", "run")
        names = list(dict.fromkeys(k for row in rows for k in row if k not in hidden))
        parts += [
            f"`python -m benchmarks.reliability {command}` "
            f"({rows[-1]['took_s']} s; {rows[-1]['machine']})",
            "",
            "| " + " | ".join(x.replace("_", " ") for x in names) + " |",
            "|" + "---|" * len(names),
            *(
                "| " + " | ".join(str(row.get(x, "")) for x in names) + " |"
                for row in rows
            ),
            "",
        ]
    return "\n".join(parts)


if __name__ == "__main__":
    main(sys.argv[1:])
