"""From a process's start to training, cold and with a filled compilation cache.

    python -m benchmarks.startup                                    5 minutes

Starts what `make demo` runs, in a process of its own, and stops it after its first
generation. `before_generation_0` ends where the engine enters generation 0: imports,
tracing, and the compilation of the program that trains, which memory planning asks for.
`first_generation` ends with its record. Compilations are counted by program.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from benchmarks import measure

DEFAULTS = {"repeats": 5, "cold_repeats": 1, "population_size": 32}

FINISHED = re.compile(r"Finished XLA compilation of jit\((\w+)\) in ([\d.e-]+) sec")


def start(cache: Path, population_size: int) -> dict:
    """Seconds of one start, and its compilations."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "searches.ppo_value_loss",
                f"population_size={population_size}",
                "num_generations=1",
                f"run.directory={folder}",
                "run.held_out_seeds=0",
                "run.wandb=disabled",
            ],
            env=os.environ
            | {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_LOG_COMPILES": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        history = (Path(folder) / "history.jsonl").read_text().splitlines()
        record = (Path(folder) / "metrics.jsonl").read_text().splitlines()[0]
    entered = json.loads(history[0])["time"] - began
    compiled = defaultdict(list)
    for name, seconds in FINISHED.findall(done.stderr):
        compiled[name].append(float(seconds))
    return {
        "before_generation_0": entered,
        "first_generation": entered + json.loads(record)["seconds"],
        "compiled": {
            name: {"count": len(times), "seconds": round(sum(times), 3)}
            for name, times in compiled.items()
            if sum(times) > 0.1
        },
        "programs": sum(map(len, compiled.values())),
    }


def main(argv: list[str]) -> None:
    options = measure.switches(DEFAULTS, argv)
    results = measure.Results("startup")
    size = options["population_size"]
    with tempfile.TemporaryDirectory() as folder:
        kinds = {"cold": [], "warm": []}
        for i in range(options["cold_repeats"]):
            kinds["cold"].append(start(Path(folder) / str(i), size))
        for _ in range(options["repeats"]):
            kinds["warm"].append(start(Path(folder) / "0", size))
    for kind, starts in kinds.items():
        for name in ("before_generation_0", "first_generation"):
            seconds = measure.spread([x[name] for x in starts])
            results.add(start=kind, until=name, seconds=seconds, repeats=len(starts))
        last = starts[-1]
        results.add(start=kind, compiled=last["compiled"], programs=last["programs"])


if __name__ == "__main__":
    main(sys.argv[1:])
