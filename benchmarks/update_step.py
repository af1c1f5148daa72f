"""fastpbrl's question: what does one update of a whole population cost?

    python -m benchmarks.update_step                                10 minutes

For TD3, SAC and DQN, one environment step and one gradient step of every member
(Flajolet et al., 2022, figure 2): `sequential`, members one after the other;
`processes`, each member a process of its own, all at once; `vectorized`, one program.
Writes `results/BACKEND/update_step.csv` with population_size, runtime_per_step and
compilation_time in seconds, and the same as JSON lines.
"""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
import time

from metaevo.evaluators.devices import configure

configure()

import jax  # noqa: E402

from benchmarks import measure, populations  # noqa: E402
from benchmarks.throughput import devices_for, off_policy  # noqa: E402

DEFAULTS = {
    "repeats": 5,
    "steps": 1_000,
    "processes": (1, 2, 4, 8),
    "vectorized": (1, 2, 4, 8, 16, 40, 80),
    "child": "",
}
ALGORITHMS = ("td3", "sac", "dqn")


def compiled(name: str, size: int, steps: int, devices: list):
    """A runner of `steps` steps, and the seconds until it was ready."""
    began = time.perf_counter()
    runner = populations.ours(off_policy(name, steps), size, devices)
    return runner, time.perf_counter() - began


def child(name: str, steps: int, repeats: int) -> None:
    """One member in a process: says that it is ready, waits for a line, runs."""
    runner, seconds = compiled(name, 1, steps, jax.devices()[:1])
    runner.run()
    for _ in range(repeats):
        print(seconds, flush=True)
        sys.stdin.readline()
        runner.run()
    print("done", flush=True)


def in_processes(name: str, size: int, steps: int, repeats: int):
    """Seconds per step of `size` processes at once, and of compiling in one of them."""
    command = [sys.executable, "-m", "benchmarks.update_step", f"child={name}"]
    command += [f"steps={steps}", f"repeats={repeats}"]
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipe) for _ in range(size)]
    times, answers = [], [one.stdout.readline() for one in children]
    seconds = float(answers[0])
    for _ in range(repeats):
        began = time.perf_counter()
        for one in children:
            one.stdin.write("\n")
            one.stdin.flush()
        for one in children:
            one.stdout.readline()
        times.append((time.perf_counter() - began) / steps)
    for one in children:
        one.wait()
    return times, seconds


def main(argv: list[str]) -> None:
    options = measure.switches(DEFAULTS, argv)
    steps, repeats = options["steps"], options["repeats"]
    if options["child"]:
        child(options["child"], steps, repeats)
        return
    results = measure.Results("update_step")
    rows = []

    def add(name, way, size, times, seconds):
        row = {
            "algorithm": name,
            "way": way,
            "population_size": size,
            "runtime_per_step": statistics.median(times),
            "compilation_time": seconds,
        }
        rows.append(row)
        results.add(**row, spread=measure.spread(times), repeats=repeats)
        with open(results.path.with_suffix(".csv"), "w", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            writer.writeheader()
            writer.writerows(rows)

    for name in ALGORITHMS:
        for size in options["processes"]:
            made = [compiled(name, 1, steps, jax.devices()[:1]) for _ in range(size)]
            runners, seconds = zip(*made, strict=True)

            def one_by_one(runners=runners):
                for runner in runners:
                    runner.run()

            times = [measure.timed(one_by_one).wall / steps for _ in range(repeats)]
            add(name, "sequential", size, times, seconds[0])
            add(name, "processes", size, *in_processes(name, size, steps, repeats))
        for size in options["vectorized"]:
            runner, seconds = compiled(name, size, steps, devices_for(size))
            times = [measure.timed(runner.run).wall / steps for _ in range(repeats)]
            add(name, "vectorized", size, times, seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
