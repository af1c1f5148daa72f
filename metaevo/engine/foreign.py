"""Functions from Python files that nobody vouches for, as programs.

A child process imports the file, traces its function twice, and answers with the
elementary operations that JAX saw (`portable.tracing`). This process runs those alone:
no code of the file ever runs here, and none of it runs while agents train.

The child has an empty folder, no environment of the user's, and limits of time and
memory. It may read Python's own files and no others, and neither write, nor start
processes, nor open connections: an audit hook ends it. Python code can get around a
hook. On Linux for x86-64 the kernel also refuses to write, to start processes, to open
sockets and to signal others (seccomp), whatever the code does; reading is then all that
is left, with nowhere to send it. Elsewhere the hook stands alone.
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
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.errors import ConfigError
from metaevo.learned import operations

__all__ = ["Allowance", "RefusedError", "traced"]

MAX_SOURCE = 1 << 16
MAX_ANSWER = 1 << 20
_OURS = str(Path(__file__).parents[1])
_CHILD = "from metaevo.engine import foreign; foreign.child()"


class RefusedError(ConfigError):
    """A file whose function cannot be used; the message says why."""


class Allowance(NamedTuple):
    """Limits of tracing a file.

    Attributes:
        seconds: of wall time, imports of JAX included.
        megabytes: of memory beyond what JAX takes.
    """

    seconds: float = 60.0
    megabytes: int = 1024


def traced(
    path: Path, slot: str, reads: tuple[str, ...], limits: Allowance = Allowance()
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


def _answered(task: Mapping[str, Any], limits: Allowance) -> dict[str, Any]:
    """Run a task in a child process, and return its answer."""
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
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Timer(limits.seconds, _kill, [process.pid])
        late.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(task).encode())
                process.stdin.close()
            out = process.stdout.read(MAX_ANSWER + 1)
            if not late.is_alive():
                return {"error": f"took longer than {limits.seconds:g} s"}
        finally:
            late.cancel()
            _kill(process.pid)
            process.wait()
            process.stdout.close()
    try:
        if len(out) > MAX_ANSWER:
            raise ValueError
        answer = json.loads(out.decode().splitlines()[-1])
        if answer.keys() == {"error"}:
            return {"error": str(answer["error"])}
        # The file may have answered in the child's place.
        entry, slot = answer["entry"], task["slot"]
        expected = {"op": f"{operations.STORED}{slot}:candidate.{slot}", "arrays": {}}
        expected |= {"reads": task["reads"], "program": entry["program"]}
        if entry != expected:
            raise ValueError
        operations.get(entry["op"]).rebuild(entry)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {"error": "its process ended without an answer"}
    except NotImplementedError as error:
        return {"error": str(error)}
    return {"entry": entry}


def _kill(pid: int) -> None:
    """Kill a child, and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


# --- in the child ---------------------------------------------------------------------


def child() -> None:
    """Read a task from stdin, trace, and answer on stdout."""
    out = os.dup(1)
    os.dup2(2, 1)  # what the file prints is dropped
    task = json.loads(sys.stdin.read())
    try:
        answer = _answer(task, out)
    except MemoryError:
        answer = {"error": f"took more than {task['megabytes']} MB of memory"}
    except RecursionError:
        answer = {"error": "RecursionError"}
    except BaseException as error:
        first = (str(error).splitlines() or [""])[0]
        answer = {"error": f"{type(error).__name__}: {first}"[:300]}
    os.write(out, b"\n" + json.dumps(answer).encode())
    os._exit(0)


def _answer(task: Mapping[str, Any], out: int) -> dict[str, Any]:
    import jax.numpy as jnp

    slot, reads = task["slot"], tuple(task["reads"])
    # Whatever JAX imports late is there before files are closed to it.
    _program(lambda *x: jnp.where(x[0] > 0, x[0], jnp.tanh(x[1])) ** 2, slot, reads)
    # Python opens a file of this name to show a line with a wrong syntax.
    code = compile(task["source"], "candidate.py", "exec")
    _close(task["megabytes"], out)
    scope: dict[str, Any] = {"__name__": "candidate"}
    exec(code, scope)
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


_HARMLESS = (
    *("import", "compile", "exec", "marshal.loads", "object.", "code.__new__"),
    *("sys._getframe", "sys.excepthook", "sys.unraisablehook", "cpython."),
    *("builtins.id", "function.__new__", "array.__new__", "time.sleep", "glob."),
    *("warnings.", "gc.", "os.fspath", "os.listdir", "os.scandir", "jax."),
)


def _close(megabytes: int, out: int) -> None:
    """Close this process: no files, processes or connections from here on."""
    used = Path("/proc/self/statm")
    if used.exists():  # on Linux
        pages = int(used.read_text(encoding="ascii").split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + (megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    folders = {sys.prefix, sys.base_prefix, _OURS, *sys.path}
    readable = tuple(os.path.realpath(x) + os.sep for x in folders if os.path.isdir(x))
    suffixes = (".py", ".pyc", ".so", ".pyi")
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    # All names are the hook's own: the file could change those of a module.
    def hook(
        event,
        args,
        readable=readable,
        suffixes=suffixes,
        writing=writing,
        harmless=_HARMLESS,
        text=str,
        whole=int,
        same=isinstance,
        write=os.write,
        leave=os._exit,
        out=out,
    ):
        what = event
        if event.startswith(harmless):
            return
        if event == "open":
            path, _, flags = args
            if same(path, text) and same(flags, whole) and not flags & writing:
                known = path.startswith(readable) and path.endswith(suffixes)
                if known and "/../" not in path:
                    return
            what = "opens a file"
        elif event.startswith("socket."):
            what = "opens a connection"
        elif event.startswith(("subprocess.", "os.system", "os.exec", "os.fork")):
            what = "starts a process"
        # Not an exception, which the file could catch.
        write(out, b'\n{"error": "' + what.encode()[:80] + b'"}')
        leave(0)

    _filter_calls()
    sys.addaudithook(hook)


# Numbers of x86-64: execve(at), (v)fork, clone3, kill, tkill, pidfd_*, ptrace,
# process_vm_*, socket, connect, io_uring_setup, bpf, userfaultfd, openat2, creat, and
# all that changes files by their names.
_REFUSED_CALLS = (
    *(59, 322, 57, 58, 435, 62, 200, 434, 424, 438, 101, 310, 311, 41, 42),
    *(425, 321, 323, 437, 85, 76, 77, 82, 83, 84, 86, 87, 88, 90, 91, 92, 93, 94),
    *(133, 188, 189, 190, 132, 235, 258, 259, 260, 261, 263, 264, 265, 266, 268),
    *(280, 316, 165, 161, 155, 272, 304, 452),
)


def _filter_calls() -> None:
    """Have the kernel refuse system calls, in all threads: Linux for x86-64 alone.

    Raises:
        OSError: the kernel takes no filter.
    """
    if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        return
    import ctypes
    import struct

    load, jump, answer = 0x20, 0x15, 0x06
    any_bit, errno, allow = 0x45, 0x00050001, 0x7FFF0000
    code: list[tuple[int, int, int, int]] = [
        (load, 0, 0, 4),  # the architecture
        (jump, 1, 0, 0xC000003E),
        (answer, 0, 0, errno),
        (load, 0, 0, 0),  # the call
    ]
    for number in _REFUSED_CALLS:
        code += [(jump, 0, 1, number), (answer, 0, 0, errno)]
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    for number, argument in ((2, 1), (257, 2)):  # open, openat
        code += [
            (jump, 0, 4, number),
            (load, 0, 0, 16 + 8 * argument),
            (any_bit, 0, 1, writing),
            (answer, 0, 0, errno),
            (answer, 0, 0, allow),
        ]
    code += [  # clone: of a thread alone
        (jump, 0, 4, 56),
        (load, 0, 0, 16),
        (any_bit, 1, 0, 0x00010000),
        (answer, 0, 0, errno),
        (answer, 0, 0, allow),
        (any_bit, 0, 1, 0x40000000),  # the calls of x32
        (answer, 0, 0, errno),
        (answer, 0, 0, allow),
    ]
    raw = b"".join(struct.pack("<HBBI", *row) for row in code)
    kept = ctypes.create_string_buffer(raw, len(raw))
    program = ctypes.create_string_buffer(
        struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(kept))
    )
    library = ctypes.CDLL(None, use_errno=True)
    where = ctypes.c_void_p(ctypes.addressof(program))
    no_new_rights, seccomp, set_filter, all_threads = 38, 317, 1, 1
    if library.prctl(no_new_rights, 1, 0, 0, 0) or library.syscall(
        seccomp, set_filter, all_threads, where
    ):
        raise OSError("no filter of system calls")
