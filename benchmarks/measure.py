"""Shared parts of all benchmarks: interleaved timing, machine limits, result files.

A shared machine is never quiet, so nothing here is a single time: variants take turns,
round after round, and a ratio is the median of the rounds' own ratios, in which a slow
spell hits both sides.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from metaevo.storage import provenance

RESULTS = Path(__file__).parent / "results"


class Sample(NamedTuple):
    """One timed call, in seconds."""

    wall: float
    cpu: float  # of all threads of this process


def timed(fn: Callable[[], object]) -> Sample:
    """Time `fn`, which must wait for its own results."""
    wall, cpu = time.perf_counter(), time.process_time()
    fn()
    return Sample(time.perf_counter() - wall, time.process_time() - cpu)


def interleaved(
    variants: Mapping[str, Callable[[], object]], repeats: int
) -> dict[str, list[Sample]]:
    """`repeats` rounds in which every variant runs once, after one call to warm up."""
    for fn in variants.values():
        fn()
    samples = {name: [] for name in variants}
    for _ in range(repeats):
        for name, fn in variants.items():
            samples[name].append(timed(fn))
    return samples


def spread(values: list[float]) -> dict[str, float]:
    """Median and extremes, to four digits."""
    found = {"median": statistics.median(values), "min": min(values)}
    return {k: float(f"{v:.4g}") for k, v in (found | {"max": max(values)}).items()}


def ratios(slow: list[Sample], fast: list[Sample], work: float = 1.0) -> dict:
    """Return ratios of speed, by wall clock and by CPU time, round by round.

    Args:
        work: of a call of `fast` over that of a call of `slow`.
    """
    pairs = list(zip(slow, fast, strict=True))
    return {
        "wall": spread([work * a.wall / b.wall for a, b in pairs]),
        "cpu": spread([work * a.cpu / max(b.cpu, 1e-9) for a, b in pairs]),
    }


def curves(ours: np.ndarray, reference: np.ndarray) -> list[dict]:
    """Two learning curves, [seeds, windows], and whether they agree: whether 95 %
    intervals of the means overlap, window by window."""
    rows = []
    for i in range(ours.shape[1]):
        row = {"window": i}
        for name, seeds in (("ours", ours[:, i]), ("reference", reference[:, i])):
            row[name] = float(seeds.mean())
            row[f"{name}_se"] = float(seeds.std(ddof=1) / np.sqrt(len(seeds)))
        margin = 1.96 * (row["ours_se"] + row["reference_se"])
        row["agree"] = abs(row["ours"] - row["reference"]) <= margin
        rows.append(row)
    return rows


def gemm(size: int = 2048, seconds: float = 0.5) -> Callable[[], float]:
    """numpy's matrix product in float32 on all cores: the physical limit of a CPU.

    Returns:
        a function that multiplies for about `seconds` and returns FLOP/s.
    """
    a = np.random.default_rng(0).standard_normal((size, size), np.float32)
    out = np.empty_like(a)
    flop = 2 * size**3

    def run():
        calls, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            np.matmul(a, a, out=out)
            calls += 1
        return calls * flop / (time.perf_counter() - began)

    run()
    return run


def conditions() -> dict:
    """Return the machine and the versions of a figure, for every line of results."""
    packages = ("jax", "jaxlib", "numpy", "flax", "optax", "gymnax")
    devices = jax.devices()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": devices[0].device_kind,
        "num_devices": len(devices),
        "machine": provenance.processor(),
        "cores": os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()],
        "python": platform.python_version(),
        "versions": {p: importlib.metadata.version(p) for p in packages},
        "flags": os.environ.get("XLA_FLAGS", ""),
    }


class Results:
    """A file of JSON lines: `NAME.jsonl` in `results/BACKEND`, or in another folder.

    Every line is also printed, and holds the command and the `conditions`.

    Args:
        name: of the file.
        keep: continue the file if it exists, else overwrite it.
        folder: of the file, in place of `results/BACKEND`.
    """

    def __init__(self, name: str, keep: bool = False, folder: Path | None = None):
        self.path = (folder or RESULTS / jax.default_backend()) / f"{name}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        old = self.path.read_text() if keep and self.path.exists() else ""
        self.lines = old.splitlines()
        module = sys.modules["__main__"].__spec__
        command = module.name if module else Path(sys.argv[0]).name
        self.command = " ".join(["python -m", command, *sys.argv[1:]])

    def add(self, **line) -> None:
        where = conditions() | {"command": self.command}
        self.lines.append(json.dumps(line | where))
        print(json.dumps(line), flush=True)
        # Whole at every moment: a killed benchmark leaves what it had.
        self.path.write_text("\n".join(self.lines) + "\n")


def switches(defaults: Mapping[str, object], argv: list[str]) -> dict[str, object]:
    """`key=value` arguments over `defaults`, whose types they take.

    Raises:
        SystemExit: an argument is not one of them.
    """
    chosen = dict(defaults)
    for word in argv:
        key, equals, value = word.partition("=")
        if not equals or key not in defaults:
            sys.exit(
                f"{word!r}: expected one of {', '.join(f'{k}=' for k in defaults)}"
            )
        kind = type(defaults[key])
        if kind is bool:
            if value not in ("true", "false"):
                sys.exit(f"{word!r}: expected true or false")
            chosen[key] = value == "true"
        elif kind is tuple:
            chosen[key] = tuple(int(x) for x in value.split(","))
        else:
            chosen[key] = kind(value)
    return chosen
