"""Functions from Python files that nobody vouches for, as programs.

A child process imports the file, traces its function twice, and answers with the
elementary operations that JAX saw (`portable.tracing`). This process runs those alone:
no code of the file ever runs here, and none of it runs while agents train.

The child has an empty folder, no environment of the user's, and limits of time and
memory. It may read Python's own files and no others, and neither write, nor start
processes, nor open connections: an audit hook ends it. On Linux it also has no network
of its own, where the kernel allows that. This stops honest mistakes and plain theft. It
is not a prison: whoever plants a file made to break out of CPython can.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.errors import ConfigError

__all__ = ["Limits", "RefusedError", "traced"]

MAX_SOURCE = 1 << 16
MAX_ANSWER = 1 << 20
_OURS = str(Path(__file__).parents[1])
_CHILD = "from metaevo.engine import foreign; foreign.child()"


class RefusedError(ConfigError):
    """A file whose function cannot be used; the message says why."""


class Limits(NamedTuple):
    """What tracing a file may take.

    Attributes:
        seconds: of wall time, imports of JAX included.
        megabytes: of memory beyond what JAX takes.
    """

    seconds: float = 60.0
    megabytes: int = 1024


def traced(
    path: Path, slot: str, reads: tuple[str, ...], limits: Limits = Limits()
) -> dict[str, Any]:
    """The function `slot` of a file, as a program of elementary operations.

    Args:
        path: a Python file that defines a function of the slot's name.
        slot: a kind of slot, such as `td_loss`.
        reads: scalars of the context that it may read.
        limits: of the child process.

    Returns:
        an entry for `learned.operations`, of a stored program.

    Raises:
        RefusedError: the file has no such function, its function is not one, or it took
            what it may not take.
    """
    source = path.read_bytes()
    if len(source) > MAX_SOURCE:
        raise RefusedError(f"larger than {MAX_SOURCE:,} bytes")
    task = {"source": source.decode("utf-8", "replace"), "slot": slot}
    task |= {"reads": list(reads), "megabytes": limits.megabytes}
    answer = _answered(task, limits)
    if "error" in answer:
        raise RefusedError(str(answer["error"])[:300])
    return answer["entry"]


def _answered(task: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """What a child says of a task."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"JAX_PLATFORMS": "cpu", "HOME": folder, "TMPDIR": folder}
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment |= {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        process = subprocess.Popen(
            [sys.executable, "-P", "-B", "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        try:
            given = json.dumps(task).encode()
            out, _ = process.communicate(given, timeout=limits.seconds)
        except subprocess.TimeoutExpired:
            return {"error": f"took longer than {limits.seconds:g} s"}
        finally:
            # All that it started, too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    try:
        if len(out) > MAX_ANSWER:
            raise ValueError
        answer = json.loads(out.decode().splitlines()[-1])
        if not isinstance(answer, dict) or not answer.keys() & {"error", "entry"}:
            raise ValueError
    except (ValueError, IndexError):
        how = "ran out of memory or time" if process.returncode < 0 else "ended"
        return {"error": f"its process {how} without an answer"}
    return answer


# --- in the child ---------------------------------------------------------------------


class _Forbidden(BaseException):
    """Something that a function has no business with."""


def child() -> None:
    """Read a task from stdin, trace, and answer on stdout."""
    out = os.dup(1)
    os.dup2(2, 1)  # what the file prints is dropped
    task = json.loads(sys.stdin.read())
    try:
        answer = _answer(task)
    except _Forbidden as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"error": f"took more than {task['megabytes']} MB of memory"}
    except RecursionError:
        answer = {"error": "RecursionError"}
    except BaseException as error:
        first = (str(error).splitlines() or [""])[0]
        answer = {"error": f"{type(error).__name__}: {first}"[:300]}
    os.write(out, b"\n" + json.dumps(answer).encode())
    os._exit(0)


def _answer(task: Mapping[str, Any]) -> dict[str, Any]:
    import jax.numpy as jnp

    slot, reads = task["slot"], tuple(task["reads"])
    # Whatever JAX imports late is there before files are closed to it.
    _program(lambda *x: jnp.where(x[0] > 0, x[0], jnp.tanh(x[1])) ** 2, slot, reads)
    _close(task["megabytes"])
    scope: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(task["source"], "candidate.py", "exec"), scope)
    function = scope.get(slot)
    if not callable(function):
        return {"error": f"it defines no function {slot}"}
    first, second = (_program(function, slot, reads) for _ in range(2))
    if first != second:
        return {"error": "two traces of it differ: it depends on more than its inputs"}
    return {"entry": first}


def _program(function: Any, slot: str, reads: tuple[str, ...]) -> dict[str, Any]:
    """The entry of a function of the slot's inputs and a context."""
    import jax.numpy as jnp

    from metaevo import slots
    from metaevo.learned import operations
    from metaevo.learned.functions import Learned
    from metaevo.portable import tracing
    from metaevo.portable.signatures import N, Signature

    def call(apply, params, given, context):
        value = apply(params, *given, context)
        if value.shape != given[0].shape:
            raise ValueError(
                f"gives shape {list(map(str, value.shape))} for inputs of shape ['n']"
            )
        return value

    def apply(params, *given):
        del params
        value = jnp.asarray(function(*given))
        return value.astype(jnp.result_type(float))

    given = dict.fromkeys(slots.SIGNATURES[slot], (N,))
    signature = Signature(given, reads, call)
    described = tracing.describe(
        slot, {}, Learned(lambda key: {}, apply), {}, signed=lambda op: signature
    )
    return {
        "op": f"{operations.STORED}{slot}:candidate.{slot}",
        "program": {name: described[name] for name in ("value", "inputs")},
        "arrays": {},
        "reads": list(reads),
    }


def _close(megabytes: int) -> None:
    """Close this process: no files, processes or connections from here on."""
    _without_network()
    pages = (
        int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        if _linux()
        else 0
    )
    if pages:
        limit = pages * os.sysconf("SC_PAGE_SIZE") + (megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    readable = tuple(
        os.path.realpath(x) + os.sep
        for x in {sys.prefix, sys.base_prefix, _OURS, *sys.path}
        if x and os.path.isdir(x)
    )
    suffixes = (".py", ".pyc", ".so", ".pyi")

    def hook(event: str, args: tuple) -> None:
        if event == "open":
            path, _, flags = args
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            name = os.fspath(path) if not isinstance(path, int) else ""
            name = os.fsdecode(name)
            known = os.path.realpath(name).startswith(readable)
            if writes or not (known and name.endswith(suffixes)):
                raise _Forbidden(f"opens a file: {name[:80]!r}")
        elif event.startswith(("socket.", "ftplib.", "urllib.", "http.", "smtplib.")):
            raise _Forbidden("opens a connection")
        elif event.startswith(
            ("subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn")
        ) or event in ("os.system", "os.kill", "os.killpg", "pty.spawn"):
            raise _Forbidden("starts or stops a process")
        elif event.startswith(_OF_FILES):
            raise _Forbidden(f"calls {event}")

    sys.addaudithook(hook)


_OF_FILES = (
    *("ctypes.", "gc.get_", "os.remove", "os.rename", "os.rmdir", "os.listdir"),
    *("os.scandir", "os.chdir", "os.mkdir", "os.link", "os.symlink", "os.chmod"),
)


def _linux() -> bool:
    return sys.platform.startswith("linux")


def _without_network() -> None:
    """Leave the network, where the kernel lets a user do so."""
    if not _linux():
        return
    import ctypes

    new_user, new_network = 0x10000000, 0x40000000
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).unshare(new_user | new_network)
