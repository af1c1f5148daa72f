"""Runs that signals, full file systems, small memory and other starts stop."""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.reliability_disks import temporary_folder
from benchmarks.reliability_processes import (
    ROOT,
    compared,
    digest,
    ended,
    generations,
    logged,
    start,
)

SIGNALS: Mapping[str, tuple[int, ...]] = {
    "SIGTERM": (signal.SIGTERM,),
    "SIGINT": (signal.SIGINT,),
    "SIGINT twice": (signal.SIGINT, signal.SIGINT),
    "SIGHUP": (signal.SIGHUP,),
    "SIGPIPE": (signal.SIGPIPE,),
    "SIGKILL": (signal.SIGKILL,),
}
"""Signals sent in a row, by the name in the table."""


def signals(length: int = 300) -> Iterator[dict[str, Any]]:
    """Send each signal to a run in its middle, and start the run again."""
    with temporary_folder() as folder:
        assert ended(start(folder / "whole", f"num_generations={length}")) == 0
        for name, numbers in SIGNALS.items():
            directory = folder / name.replace(" ", "_")
            process = start(directory, f"num_generations={length}")
            _reach(process, directory, 3)
            began = time.perf_counter()
            for number in numbers:
                process.send_signal(number)
                time.sleep(0.01)
            code = ended(process)
            took = time.perf_counter() - began
            yield {
                "signal": name,
                "exit code": code,
                "ended after s": round(took, 2),
                **compared(folder, directory.name, length),
            }


def full_tmpfs(times: int = 3, length: int = 300) -> dict[str, Any]:
    """Fill the file system of a run, free it and start the run again, some times.

    Mounting needs root.
    """
    codes = []
    with temporary_folder() as folder, _tmpfs(folder / "small") as small:
        assert ended(start(folder / "whole", f"num_generations={length}")) == 0
        directory, filler = small / "run", small / "filler"
        for i in range(times):
            process = start(directory, f"num_generations={length}")
            _reach(process, directory, (i + 1) * length // (times + 1))
            _fill(filler)
            codes.append(ended(process))
            filler.unlink()
        shutil.copytree(directory, folder / "filled")
        row = compared(folder, "filled", length)
    return {"filled": times, "exit codes": ", ".join(map(str, codes)), **row}


def small_memory(length: int = 20) -> Iterator[dict[str, Any]]:
    """Run under `ulimit -v` of several sizes, and then continue without a limit."""
    with temporary_folder() as folder:
        assert ended(start(folder / "whole", f"num_generations={length}")) == 0
        for mib in (512, 640, 768, 896, 1024, 2048):
            before = (
                "import resource\n"
                f"resource.setrlimit(resource.RLIMIT_AS, ({mib << 20}, {mib << 20}))"
            )
            directory = folder / str(mib)
            process = start(directory, f"num_generations={length}", before=before)
            error = process.communicate(timeout=600)[1].decode(errors="replace")
            yield {
                "ulimit -v MiB": mib,
                "exit code": process.returncode,
                "last line": _last(error),
                "generations": logged(directory),
                **compared(folder, str(mib), length),
            }


def two_codes(times: int = 4, length: int = 400) -> dict[str, Any]:
    """Start another version of the code on a run that is under way, then continue.

    The other version has a comment more in its search, which leaves the bits alone.
    """
    refused = named = wrong = 0
    with temporary_folder() as folder:
        other = folder / "other"
        (other / "benchmarks").mkdir(parents=True)
        shutil.copy(ROOT / "benchmarks" / "__init__.py", other / "benchmarks")
        text = (ROOT / "benchmarks" / "tiny.py").read_text()
        (other / "benchmarks" / "tiny.py").write_text(text + "\n# Another version.\n")
        assert ended(start(folder / "whole", f"num_generations={length}")) == 0
        for i in range(times):
            directory = folder / f"run{i}"
            options = f"num_generations={length}"
            first = start(directory, options)
            _reach(first, directory, 6)
            second = start(directory, options, root=other)
            refused += ended(second) == 3
            first.send_signal(signal.SIGTERM)
            assert ended(first) == 75
            third = start(directory, options, root=other)
            assert ended(third) == 0
            history = (directory / "history.jsonl").read_text()
            named += "has changed since this run was started" in history
            wrong += digest(directory) != digest(folder / "whole")
            wrong += generations(directory) != list(range(length))
    return {
        "second starts": times,
        "refused with 3": refused,
        "change named": named,
        "mismatches": wrong,
    }


def seeds_twice(times: int = 3, seeds: int = 3, length: int = 40) -> dict[str, Any]:
    """Start `run.seeds` twice at the same time in one directory, then once more."""
    codes, wrong = [], 0
    options = (f"num_generations={length}", f"run.seeds={seeds}")
    with temporary_folder() as folder:
        assert ended(start(folder / "whole", *options)) == 0
        for i in range(times):
            both = [start(folder / str(i), *options) for _ in range(2)]
            codes.append(" and ".join(map(str, sorted(map(ended, both)))))
            assert ended(start(folder / str(i), *options)) == 0
            for seed in range(seeds):
                mine, whole = (folder / x / f"seed{seed}" for x in (str(i), "whole"))
                wrong += digest(mine) != digest(whole)
                wrong += generations(mine) != list(range(length))
    return {
        "double starts": times,
        "exit codes": "; ".join(codes),
        "mismatches": wrong,
    }


def kills_of_ppo(number: int = 30, seed: int = 0) -> dict[str, Any]:
    """Kill searches of PPO's value loss on CartPole, also in their comparison.

    Instants are uniform over the time of the whole run. A run that ends is compared,
    and the next one begins.
    """
    clock = random.Random(seed)
    search: dict[str, Any] = {"module": "searches.ppo_weighted_value_loss"}
    length = 12
    options = (
        "population_size=4",
        f"num_generations={length}",
        "inner.total_timesteps=8192",
        "run.held_out_seeds=8",
    )
    with temporary_folder() as folder:
        whole = folder / "whole"
        for _ in range(2):  # the second time programs come from the cache
            shutil.rmtree(whole, ignore_errors=True)
            began = time.perf_counter()
            assert ended(start(whole, *options, **search)) == 0
            seconds = time.perf_counter() - began
        wanted = _digests(whole)
        killed = late = runs = mismatches = lines = 0
        while killed < number:
            directory = folder / f"run{runs}"
            process = start(directory, *options, **search)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(clock.uniform(0.0, seconds))
            process.kill()
            late += logged(directory) == length and process.poll() is None
            if killed == number - 1 and ended(process) != 0:
                killed += 1
                process = start(directory, *options, **search)
            if ended(process) == 0:
                found = _digests(directory)
                mismatches += sum(
                    found.get(name) != wanted.get(name) for name in found | wanted
                )
                lines += generations(directory) != list(range(length))
                runs += 1
            else:
                killed += 1
        return {
            "kills": killed,
            "after the last generation": late,
            "runs": runs,
            "mismatches": mismatches,
            "logs with a line missing or doubled": lines,
        }


def _digests(directory: Path) -> dict[str, str]:
    """Return digests of the arrays of the solution, the comparison and the state."""
    found = {"checkpoint": digest(directory)}
    for path in sorted(directory.rglob("*.safetensors")):
        name = str(path.relative_to(directory))
        if not name.startswith("checkpoints/"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return found


def _reach(process: subprocess.Popen, directory: Path, number: int) -> None:
    """Wait until a run has logged a number of generations, or is over."""
    while logged(directory) < number and process.poll() is None:
        time.sleep(0.002)


def _last(error: str) -> str:
    """Return the line of the error, without what a Markdown table cannot hold."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    lines = [line for line in lines if "rror" in line] or lines
    return lines[-1][:90].replace("|", "/") if lines else ""


def _fill(path: Path) -> None:
    """Write a file until the file system is full."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@contextlib.contextmanager
def _tmpfs(path: Path, size: str = "32m") -> Iterator[Path]:
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    subprocess.run(mount, check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
