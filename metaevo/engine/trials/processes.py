"""Trials in processes of their own, which nothing that they do outlives.

Each trial has a process, in a session of its own. What it prints goes to a file. It
tells its result through a pipe, of which the first line counts. When it has ended, in
whichever way, all processes of its session are killed. When the driver is killed, its
trials end too (`trial.serve`).
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.engine.trials.trial import BOOT, MARK
from metaevo.errors import ConfigError, InterruptedRunError
from metaevo.evaluators.devices import num_cores
from metaevo.storage.own_runs import Source
from metaevo.text import byte_size, duration

POLL = 0.1  # seconds between two looks at a trial's time and memory
GRACE = 10.0  # seconds that a process may take to exit after its result
OUTPUT = "output.txt"  # what a trial prints
PROC = Path("/proc")
PACKAGE = Path(__file__).parents[2]  # metaevo


class Target(NamedTuple):
    """A function in a file, and what it is run by.

    Attributes:
        module: module or file `*.py` that has it.
        function: its name there.
        path: folders to import from first.
        python: interpreter.
    """

    module: str
    function: str
    path: tuple[str, ...]
    python: str

    @property
    def name(self) -> str:
        """The function's name for people, the same wherever its file lies."""
        return f"{Path(self.module).stem}:{self.function}"


class Limits(NamedTuple):
    """Limits of trials.

    Attributes:
        workers: trials that run at a time.
        timeout: seconds of a trial; None: no limit.
        memory: bytes that the processes of a trial may hold together; None: no limit.
    """

    workers: int = 1
    timeout: float | None = None
    memory: int | None = None


class Ended(NamedTuple):
    """The end of a trial.

    Attributes:
        score: finite; None if it failed.
        problem: why it failed; empty if it did not.
        seconds: that it took.
    """

    score: float | None
    problem: str
    seconds: float


# --- which function -------------------------------------------------------------------


def target(score: Callable | str, python: str | Path | None = None) -> Target:
    """Return where a process finds a function.

    Args:
        score: a function at the top level of a file, or `module:function` or
            `file.py:function`.
        python: interpreter of the trials; None: this one.

    Raises:
        ConfigError: the process could not find it there.
    """
    given = score if isinstance(score, str) else getattr(score, "__qualname__", score)
    wrong = f"score={given!r}: expected"
    interpreter = shutil.which(str(python or sys.executable))
    if interpreter is None:
        raise ConfigError(f"python={str(python)!r}: expected a program, such as python")
    if isinstance(score, str):
        module, _, name = score.rpartition(":")
        if not module or not name:
            raise ConfigError(f"{wrong} MODULE:FUNCTION or FILE.py:FUNCTION")
        folder = os.getcwd()
        if module.endswith(".py"):
            module = str(Path(module).absolute())
            folder = str(Path(module).parent)
            if not Path(module).is_file():
                raise ConfigError(f"{wrong} a file that exists, not {module}")
    else:
        module, name, folder = _place(score, wrong)
    here = interpreter == sys.executable
    path = [folder, *(x or os.getcwd() for x in sys.path)] if here else [folder]
    return Target(module, name, tuple(dict.fromkeys(path)), interpreter)


def _place(score: Any, wrong: str) -> tuple[str, str, str]:
    """The module or file of a function, its name there, and the folder to import from.

    Raises:
        ConfigError: another process could not find it.
    """
    if not inspect.isfunction(score):
        raise ConfigError(f"{wrong} a function of a trial")
    name, module = score.__qualname__, score.__module__
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not score:
        raise ConfigError(
            f"{wrong} a function at the top level of a file, since another process "
            "looks it up there by its name"
        )
    source = Source.of(score)
    if source is None:
        raise ConfigError(
            f"{wrong} a function in a file: a process cannot find what was typed in a "
            "notebook or at a prompt; write it to a file, and import it from there"
        )
    main = sys.modules["__main__"]
    if module == "__main__":
        spec = getattr(main, "__spec__", None)
        if spec is None:
            return str(source.file), name, str(source.file.parent)
        module = spec.name  # python -m
        source = source._replace(module=module)
    return module, name, str(source.root)


# --- one trial ------------------------------------------------------------------------


def run(
    where: Target,
    trial: Mapping[str, Any] | None,
    folder: Path,
    limits: Limits,
    stopped: threading.Event,
) -> Ended | None:
    """Run a trial in a process, and end all that it started.

    Args:
        where: the function.
        trial: as `trial.serve` reads it; None: the function is imported alone.
        folder: gets `output.txt`, what it prints.
        limits: of time and memory.
        stopped: set when the trial is to be abandoned.

    Returns:
        how it ended; None if it was abandoned.
    """
    job = {"path": where.path, "function": where[:2], "trial": trial}
    threads = str(max(1, num_cores() // limits.workers))
    environment = {"OMP_NUM_THREADS": threads, **os.environ, MARK: "1"}
    began = time.monotonic()
    read, write = os.pipe()
    with (
        os.fdopen(read, "rb") as result,
        open(folder / OUTPUT, "wb") as output,
        tempfile.TemporaryFile() as file,  # without a name: no other trial writes it
    ):
        file.write(json.dumps(job).encode())
        file.seek(0)
        given = file.fileno(), write
        try:
            process = subprocess.Popen(
                [where.python, "-P", "-c", BOOT, str(PACKAGE), *map(str, given)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                pass_fds=given,
            )
        finally:
            os.close(write)
        try:
            told = _told(process, result.fileno(), limits, stopped)
            if isinstance(told, dict):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
        finally:
            _kill(process.pid)
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
    if told is None:
        return None
    seconds = time.monotonic() - began
    if isinstance(told, str):
        return Ended(None, told or _death(process.returncode), seconds)
    return Ended(told["score"], told["problem"], seconds)


def _told(
    process: subprocess.Popen, result: int, limits: Limits, stopped: threading.Event
) -> dict | str | None:
    """Wait for a result: it, or why there is none, empty if the process died itself.

    Returns:
        None if the trial was abandoned.
    """
    limit = float("inf") if limits.timeout is None else limits.timeout
    deadline, data = time.monotonic() + limit, b""
    with selectors.DefaultSelector() as selector:
        selector.register(result, selectors.EVENT_READ)
        while b"\n" not in data:
            dead = process.poll() is not None
            if selector.get_map() and selector.select(0 if dead else POLL):
                more = os.read(result, 1 << 16)
                data += more
                if not more:  # closed, by the process or with it
                    selector.unregister(result)
            elif dead:  # what it forked may hold the pipe open
                return ""
            elif not selector.get_map():
                time.sleep(POLL)
            if stopped.is_set():
                return None
            if time.monotonic() > deadline:
                return f"took longer than timeout={duration(limit)}"
            if limits.memory is not None and _held(process.pid) > limits.memory:
                return f"held more than memory={byte_size(limits.memory)}"
    try:
        told = json.loads(data.partition(b"\n")[0])
        score = told.get("score")
        if score is not None and not math.isfinite(score):
            raise ValueError
        return {"score": score, "problem": str(told.get("problem", ""))}
    except (ValueError, TypeError, AttributeError):
        return "wrote to the pipe of its result"


def _death(code: int) -> str:
    how = f"exit code {code}"
    if code < 0:
        with contextlib.suppress(ValueError):
            how = signal.Signals(-code).name
    return f"ended without a score: {how}"


def _session(leader: int) -> Iterator[tuple[int, int]]:
    """Live processes of a session and the bytes of each, where there is /proc."""
    if not PROC.is_dir():
        return
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = (entry / "stat").read_bytes()
                fields = text[text.rindex(b")") + 2 :].split()
                if int(fields[3]) == leader and fields[0] != b"Z":
                    yield int(entry.name), int(fields[21]) * _PAGE


_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def _held(leader: int) -> int:
    return sum(held for _, held in _session(leader))


def _kill(leader: int) -> None:
    """Kill a session: its leader's group, and processes that left the group.

    A killed process may live for a moment, and have forked another.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    deadline = time.monotonic() + GRACE
    while (found := [*_session(leader)]) and time.monotonic() < deadline:
        for process, _ in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


Run = Callable[
    [Target, Mapping[str, Any] | None, Path, Limits, threading.Event], Ended | None
]
"""Runs a trial somewhere, as `run` does on this machine."""


# --- all trials -----------------------------------------------------------------------


def run_all(
    jobs: Sequence[Any],
    one: Callable[[Any, threading.Event], None],
    workers: int,
    should_stop: Callable[[], bool],
) -> None:
    """Call `one(job, stopped)` for each job, some at a time, in threads.

    Raises:
        InterruptedRunError: `should_stop` returned True; what runs was abandoned.
    """
    stopped = threading.Event()
    with ThreadPoolExecutor(workers) as pool:
        waiting = {pool.submit(one, job, stopped) for job in jobs}
        try:
            while waiting:
                done, waiting = wait(waiting, 2 * POLL, FIRST_COMPLETED)
                for future in done:
                    future.result()
                if should_stop():
                    raise InterruptedRunError
        except BaseException:
            stopped.set()
            for future in waiting:
                future.cancel()
            raise
