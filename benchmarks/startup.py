"""From a process's start to its first generation, by part, in CPU seconds.

    python -m benchmarks.startup                                    5 minutes

Starts `searches.ppo_weighted_value_loss` in a process of its own, and ends it after its
first generation: with an empty compilation cache (cold), and with what that left
(warm).

    imports               the interpreter, JAX, metaevo and the search
    parse                 the command line
    make                  the search from its arguments
    trace, lower          programs, in Python
    compile or fetch      programs, by XLA or from the cache
    first generation      training and what goes with it
    the rest              checks, the plan of memory, manifest, console

What is nested counts once, for the innermost part. Other programs disturb CPU seconds
less than the clock on the wall, which the row `wall` has. `before training` is all but
the first generation. The other rows are commands that start nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import measure

DEFAULTS = {"repeats": 5, "cold_repeats": 2, "population_size": 32}
COMMANDS = ("--help", "list searches", "runs benchmarks", "run ppo_drift --help")

# The process runs this. Its last line on stdout has the time of each part.
CHILD = """
import collections, json, os, sys, time
from searches import ppo_weighted_value_loss as chosen
from metaevo.cli import config, program, strategies
from metaevo.engine import loop, preparation
import jax

EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile or fetch",
}
spent, stack, last = collections.Counter(), ["imports"], 0.0

def turn():
    global last
    now = time.process_time()
    spent[stack[-1]] += now - last
    last = now

def begin(part):
    turn()
    stack.append(part)

def end():
    turn()
    stack.pop()

def timed(module, name, part):
    function = getattr(module, name)
    def call(*args, **named):
        begin(part)
        found = function(*args, **named)
        end()
        if part == "first generation":
            turn()
            print(json.dumps(spent), flush=True)
            os._exit(0)
        return found
    setattr(module, name, call)

turn()
stack[:] = ["the rest"]
jax.monitoring.register_scalar_listener(
    lambda event, *_, **__: begin(EVENTS[event]) if event in EVENTS else None
)
jax.monitoring.register_event_time_span_listener(
    lambda event, *_, **__: end() if event in EVENTS else None
)
timed(config, "parse", "parse")
timed(config, "call", "make")
timed(loop, "timed_generation", "first generation")
program.run(chosen.search, sys.argv[1:], lambda: False)
"""


def start(cache: Path, population_size: int) -> dict[str, float]:
    """CPU seconds of one start by part, and seconds by the clock on the wall."""
    kept = {k: x for k, x in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    with tempfile.TemporaryDirectory() as folder:
        arguments = (f"population_size={population_size}", "num_generations=1")
        arguments += (f"run.directory={folder}/run", "run.wandb=disabled")
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *arguments],
            env=kept | {"XDG_CACHE_HOME": str(cache)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        wall = time.perf_counter() - began
    spent = json.loads(done.stdout.splitlines()[-1])
    total = sum(spent.values())
    later = {"before training": total - spent["first generation"], "all": total}
    return {**spent, **later, "wall": wall}


def command(words: str) -> float:
    """CPU seconds of a command that starts nothing."""
    before = os.times()
    called = [sys.executable, "-m", "metaevo", *words.split()]
    subprocess.run(called, capture_output=True, check=False)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def spreads(starts: Sequence[dict[str, float]], part: str) -> dict[str, float]:
    return measure.spread([x.get(part, 0.0) for x in starts])


def main(argv: list[str]) -> None:
    options = measure.switches(DEFAULTS, argv)
    results = measure.Results("startup")
    repeats, size = options["repeats"], options["population_size"]
    with tempfile.TemporaryDirectory() as folder:
        caches = [Path(folder) / str(i) for i in range(options["cold_repeats"])]
        cold = [start(cache, size) for cache in caches]
        warm = [start(caches[0], size) for _ in range(repeats)]
    for part in cold[0]:
        both = {"cold": spreads(cold, part), "warm": spreads(warm, part)}
        results.add(part=part, **both, repeats=repeats)
    for words in COMMANDS:
        seconds = measure.spread([command(words) for _ in range(repeats)])
        results.add(command_line=f"metaevo {words}", cpu_seconds=seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
