"""What happens to runs that are killed, full, corrupted, shared and long.

    python -m benchmarks.reliability COMMAND [key=value ...]

appends JSON lines to `benchmarks/results/reliability.jsonl`; `table` makes the tables
of `docs/reliability.md` from them. Commands are the functions of `commands()`; their
parameters are the keys. The tests run small versions.
"""

from __future__ import annotations

import errno
import hashlib
import inspect
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from metaevo.errors import ArtifactError, CheckpointError
from metaevo.storage import artifacts, checkpoint, jsonl

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results" / "reliability.jsonl"
QUIET = ["run.held_out_seeds=0", "run.wandb=disabled"]


# --- programs that are started and killed ---------------------------------------------


def start(directory: Path, *options: str, before: str = "", **environment: str):
    """A tiny search in a process of its own.

    Args:
        before: Python that runs first, in the same process.
    """
    arguments = [f"run.directory={directory}", *QUIET, *options]
    program = (
        f"{before}\nimport sys; sys.argv = ['tiny', *{arguments!r}]\n"
        "import runpy; runpy.run_module('benchmarks.tiny', run_name='__main__')"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def ended(process: subprocess.Popen, seconds: float = 600) -> int:
    process.communicate(timeout=seconds)
    return process.returncode


def digest(directory: Path) -> str:
    """Of the last checkpoint: everything the search's state is."""
    newest = max((directory / "checkpoints").glob("generation-*"))
    data = (newest / "arrays.safetensors").read_bytes()
    return hashlib.sha256(data).hexdigest()[:16]


def generations(directory: Path) -> list[int]:
    return [r["generation"] for r in jsonl.read(directory / "metrics.jsonl")]


def logged(directory: Path) -> int:
    log = directory / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


# --- 2. kill -9 -----------------------------------------------------------------------


def kills(number: int = 50, length: int = 300, seed: int = 0) -> dict[str, Any]:
    """kill -9 at random instants of one run; between kills it is started again."""
    clock = random.Random(seed)
    with _folder() as folder:
        assert ended(start(folder / "whole", f"num_generations={length}")) == 0
        killed = 0
        while killed < number:
            process = start(folder / "killed", f"num_generations={length}")
            # At least a generation further, so that the run ends some day.
            goal = logged(folder / "killed") + clock.randint(
                1, max(1, length // number)
            )
            while logged(folder / "killed") < goal and process.poll() is None:
                time.sleep(0.001)
            time.sleep(clock.uniform(0.0, 0.02))
            process.send_signal(signal.SIGKILL)
            if ended(process) == 0:
                break  # it was done before
            killed += 1
        return {"kills": killed, **_compared(folder, "killed", length)}


def kills_in_checkpoint(number: int = 20, seed: int = 0) -> dict[str, Any]:
    """kill -9 by the process itself before a random step of writing a checkpoint."""
    clock = random.Random(seed)
    most = 6
    length = most * number + most  # however late each strikes, the run is not over
    with _folder() as folder:
        assert ended(start(folder / "whole", f"num_generations={length}")) == 0
        killed = []
        while len(killed) < number:
            step = clock.choice(STEPS)
            nth = clock.randint(2, most)
            process = start(
                folder / "killed",
                f"num_generations={length}",
                before="from benchmarks import reliability as r; "
                f"r.die_at({step!r}, {nth})",
            )
            code = ended(process)
            if code == 0:
                break  # it was done before
            assert code == -signal.SIGKILL, code
            killed.append(step)
        assert ended(start(folder / "killed", f"num_generations={length}")) == 0
        return {"kills": len(killed), **_compared(folder, "killed", length)}


def _compared(folder: Path, name: str, length: int) -> dict[str, Any]:
    """The killed run, brought to its end, against the one that was not."""
    assert ended(start(folder / name, f"num_generations={length}")) == 0
    found, wanted = generations(folder / name), list(range(length))
    return {
        "mismatches": int(digest(folder / name) != digest(folder / "whole")),
        "missing or doubled": len(set(wanted) ^ set(found))
        + len(found)
        - len(set(found)),
    }


# --- 3. disks and files ---------------------------------------------------------------

STEPS = ("mkdir", "write", "fsync", "rename", "rmtree")


@contextmanager
def acting(step: str, nth: int, act: Callable[[], None]) -> Iterator[list[int]]:
    """Lets the nth of a kind of step act before it is done; counts them."""
    count = [0]

    def counted(original):
        def call(*args, **kwargs):
            count[0] += 1
            if count[0] == nth:
                if step == "write":  # half of it is on the disk
                    path, data = args
                    path.write_bytes(data[: len(data) // 2])
                act()
            return original(*args, **kwargs)

        return call

    owner, name = {
        "mkdir": (Path, "mkdir"),
        "write": (checkpoint, "write_synced"),
        "fsync": (os, "fsync"),
        "rename": (os, "rename"),
        "rmtree": (shutil, "rmtree"),
    }[step]
    with mock.patch.object(owner, name, counted(getattr(owner, name))):
        yield count


def die_at(step: str, nth: int) -> None:
    """For a process that is to die."""
    kill = acting(step, nth, lambda: os.kill(os.getpid(), signal.SIGKILL))
    die_at.kept = kill  # lest it ends when it is collected
    kill.__enter__()


def full_disks() -> dict[str, Any]:
    """ENOSPC and EIO at every step of writing a checkpoint."""
    tried = lost = unsaid = 0
    for step in STEPS:
        with _folder() as folder:
            store = _two_checkpoints(folder)
            with acting(step, 0, lambda: None) as count:
                store.save(3, _state(3), {"generation": 3})
        for nth in range(1, count[0] + 1):
            for number in (errno.ENOSPC, errno.EIO):
                with _folder() as folder:
                    store = _two_checkpoints(folder)

                    def fail(number=number):
                        raise OSError(number, os.strerror(number))

                    said = False
                    with acting(step, nth, fail):
                        try:
                            store.save(3, _state(3), {"generation": 3})
                        except OSError as error:
                            said = error.errno == number
                    arrays, manifest = store.load()
                    generation = manifest["generation"]
                    tried += 1
                    # What follows the last rename only tidies up.
                    lost += not (
                        generation in (2, 3)
                        and np.array_equal(arrays["['x']"], _state(generation)["x"])
                    )
                    unsaid += generation == 2 and not said
    return {"failures": tried, "previous checkpoint lost": lost, "not said": unsaid}


def corrupt_checkpoints(number: int = 1000, seed: int = 0) -> dict[str, Any]:
    """The newest of two checkpoints, altered: it must not be used."""
    rng = random.Random(seed)
    used = wrong = 0
    with _folder() as folder:
        store = _two_checkpoints(folder)
        newest = store.folder / "generation-00000002"
        files = {p.name: p.read_bytes() for p in newest.iterdir()}
        for _ in range(number):
            name = rng.choice(sorted(files))
            hurt = altered(files[name], rng)
            if hurt is None:
                (newest / name).unlink()
            else:
                (newest / name).write_bytes(hurt)
            try:
                arrays, manifest = store.load()
                used += manifest["generation"] == 2
                wrong += not np.array_equal(arrays["['x']"], _state(1)["x"])
            except CheckpointError:
                wrong += 1
            (newest / name).write_bytes(files[name])
    return {"corrupted": number, "used": used, "previous one not used": wrong}


def altered(data: bytes, rng: random.Random) -> bytes | None:
    """A file after an accident: never what it was."""
    kind = rng.choice(("flip", "flip", "flip", "cut", "longer", "zeros", "gone"))
    place = rng.randrange(len(data))
    if kind == "flip":
        return (
            data[:place]
            + bytes([data[place] ^ 1 << rng.randrange(8)])
            + data[place + 1 :]
        )
    if kind == "cut":
        return data[:place]
    if kind == "longer":
        return data + rng.randbytes(rng.randint(1, 64))
    if kind == "zeros":
        length = rng.randint(1, 512)
        hurt = (
            data[:place]
            + bytes(len(data[place : place + length]))
            + data[place + length :]
        )
        return hurt if hurt != data else data[:place]
    return None


def _state(generation: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(200, dtype=np.float32) + generation}


def _two_checkpoints(folder: Path) -> checkpoint.Store:
    store = checkpoint.Store(folder / "checkpoints")
    for generation in (1, 2):
        store.save(generation, _state(generation), {"generation": generation})
    return store


# --- 3. artifacts ---------------------------------------------------------------------

FORBIDDEN = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork")
FORBIDDEN += ("pickle.find_class", "socket.connect", "shutil.rmtree", "os.remove")
_events: list[str] | None = None


def _watch(event: str, _) -> None:
    if _events is not None and event in FORBIDDEN:
        _events.append(event)


def mutated_artifacts(number: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Artifacts altered by accident, or by somebody who signs the manifest again."""
    rng = random.Random(seed)
    outcomes = {
        "refused": 0,
        "loaded": 0,
        "crashes": 0,
        "executed": 0,
        "slowest_s": 0.0,
    }
    with _folder() as folder:
        good = _artifact(folder / "good")
        for i in range(number):
            made = folder / "made"
            shutil.copytree(good, made)
            if i % 2:
                path = made / rng.choice(("arrays.safetensors", "manifest.json"))
                hurt = altered(path.read_bytes(), rng)
                path.unlink() if hurt is None else path.write_bytes(hurt)
            else:
                signed(made, lambda manifest: _somewhere(manifest["slots"], rng))
            _tried(made, outcomes)
            shutil.rmtree(made)
    return {"mutated": number, **outcomes}


def hostile_artifacts() -> dict[str, Any]:
    """Artifacts made to do harm."""
    outcomes = {
        "refused": 0,
        "loaded": 0,
        "crashes": 0,
        "executed": 0,
        "slowest_s": 0.0,
    }
    for _, make in HOSTILE:
        with _folder() as folder:
            made = _artifact(folder / "made")
            make(made, folder)
            _tried(made, outcomes)
            outcomes["executed"] += (folder / "pwned").exists()
    return {"hostile": len(HOSTILE), **outcomes}


def _artifact(path: Path) -> Path:
    import jax

    from metaevo import losses, spaces

    space = spaces.replace(value_loss=losses.residual_network("zero", (8, 4)))
    params = jax.tree.map(lambda x: x + 0.3, space.init(jax.random.key(0)))
    artifacts.save(path, params, space.spec, {}, {"search": "reliability"})
    return path


def _tried(path: Path, outcomes: dict[str, Any]) -> None:
    """Loads an artifact; counts what came of it."""
    global _events
    _events = []
    began = time.process_time()  # on a busy machine others' time is none of ours
    try:
        artifacts.load(path)
        outcomes["loaded"] += 1
    except ArtifactError:
        outcomes["refused"] += 1
    except BaseException as error:
        print(f"{path}: {type(error).__name__}: {error}", file=sys.stderr)
        outcomes["crashes"] += 1
    seconds = time.process_time() - began
    outcomes["slowest_s"] = max(outcomes["slowest_s"], round(seconds, 3))
    outcomes["executed"] += len(_events)
    _events = None


def signed(path: Path, change: Callable[[dict], None]) -> None:
    """Alters a manifest as an attacker would, who also signs it."""
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    manifest["digest"] = checkpoint._digest(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


VALUES = (None, True, -1, 0, 1e308, 10**30, "", "os.system", "../x", [], [1] * 99, {})


def _somewhere(tree: dict, rng: random.Random) -> None:
    """Another value, or another key, somewhere in nested plain data."""
    key = rng.choice(list(tree))
    if isinstance(tree[key], dict) and tree[key] and rng.random() < 0.8:
        _somewhere(tree[key], rng)
    elif rng.random() < 0.2:
        tree[rng.choice(("op", "x", "features", "../x"))] = tree.pop(key)
    else:
        tree[key] = rng.choice(VALUES)


def _slot(**changes: Any) -> Callable[[Path, Path], None]:
    """A signed change of the slot's settings."""
    return lambda made, _: signed(
        made, lambda manifest: manifest["slots"]["value_loss"].update(changes)
    )


def _file(name: str, data: bytes) -> Callable[[Path, Path], None]:
    return lambda made, _: (made / name).write_bytes(data) and None


def _pickle(made: Path, folder: Path) -> None:
    command = f"touch {folder / 'pwned'}".encode()
    data = b"cos\nsystem\n(S'" + command + b"'\ntR."
    (made / "arrays.safetensors").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    signed(made, lambda manifest: manifest.update(sha256=digest))


def _link(name: str) -> Callable[[Path, Path], None]:
    def make(made, folder):
        (made / name).rename(folder / "elsewhere")
        (made / name).symlink_to(folder / "elsewhere")

    return make


def _pipe(name: str) -> Callable[[Path, Path], None]:
    def make(made, folder):
        (made / name).unlink()
        os.mkfifo(made / name)

    return make


def _sparse(name: str, size: int) -> Callable[[Path, Path], None]:
    return lambda made, _: os.truncate(made / name, size)


def _header(made: Path, folder: Path) -> None:
    """A safetensors header that claims to be 2^62 bytes long."""
    data = (1 << 62).to_bytes(8, "little") + b"{}"
    (made / "arrays.safetensors").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    signed(made, lambda manifest: manifest.update(sha256=digest))


def _extra(name: str, op: dict) -> Callable[[Path, Path], None]:
    return lambda made, _: signed(
        made, lambda manifest: manifest["slots"].update({name: op})
    )


def _many(made: Path, folder: Path) -> None:
    many = {f"slot{i}": {"op": "number", "value": 1.0} for i in range(20_000)}
    signed(made, lambda manifest: manifest["slots"].update(many))


KNOTS = {
    "op": "knots",
    "kind": "linear",
    "transform": "log",
    "scale": 1.0,
    "default": 1,
}
HOSTILE: tuple[tuple[str, Callable[[Path, Path], None]], ...] = (
    ("an operation that is a function of os", _slot(op="os.system")),
    ("an operation with a dunder", _slot(op="__import__")),
    ("a base that is code", _slot(base="__import__('os').system('touch pwned')")),
    ("layers of a billion", _slot(features=[10**9])),
    ("a billion layers' worth", _slot(features=[1] * 100_000)),
    ("negative layers", _slot(features=[-8, 4])),
    ("layers that are text", _slot(features="abc")),
    ("a scale of NaN", _slot(scale=float("nan"))),
    ("a limit of text", _slot(limit="9" * 10_000)),
    ("a million knots", _extra("lr", {**KNOTS, "num_knots": 10**6})),
    ("a trillion knots", _extra("lr", {**KNOTS, "num_knots": 10**12})),
    ("a path for a name", _extra("../../evil", {"op": "number", "value": 1.0})),
    ("a number that is code", _extra("lr", {"op": "number", "value": "exit()"})),
    ("20,000 slots", _many),
    ("a pickle for arrays", _pickle),
    ("a header of 2^62 bytes", _header),
    ("a link for arrays", _link("arrays.safetensors")),
    ("a link for the manifest", _link("manifest.json")),
    ("a pipe for arrays, which never ends", _pipe("arrays.safetensors")),
    ("a pipe for the manifest", _pipe("manifest.json")),
    ("arrays of 8 GiB", _sparse("arrays.safetensors", 8 << 30)),
    ("a manifest of 8 GiB", _sparse("manifest.json", 8 << 30)),
    ("a manifest of 100,000 brackets", _file("manifest.json", b"[" * 100_000)),
    ("a manifest that is not text", _file("manifest.json", bytes(range(256)) * 9)),
)


# --- 4. locks -------------------------------------------------------------------------


def locks(number: int = 20) -> dict[str, Any]:
    """Two processes start on one directory; then the owner is killed."""
    ran = refused = 0
    slowest_refusal = slowest_takeover = 0.0
    for _ in range(number):
        with _folder() as folder:
            directory = folder / "run"
            long = "num_generations=100000"
            both = [start(directory, long, before=_MARK.format(i)) for i in range(2)]
            while all(process.poll() is None for process in both):
                time.sleep(0.002)
            now = time.time()
            loser = 0 if both[0].poll() is not None else 1
            refused += both[loser].returncode == 3
            owner = both[1 - loser]
            reached = float((folder / f"reached{loser}").read_text())
            slowest_refusal = max(slowest_refusal, now - reached)
            before = logged(directory)
            while logged(directory) < before + 2 and owner.poll() is None:
                time.sleep(0.005)
            ran += owner.poll() is None
            owner.kill()
            ended(owner), ended(both[loser])
            third = start(directory, long, before=_MARK.format(2))
            reached = folder / "reached2"
            while not reached.exists() and third.poll() is None:
                time.sleep(0.002)
            began, taken = time.time(), directory / "history.jsonl"
            starts = taken.read_text().count("started")
            while taken.read_text().count("started") == starts:
                assert third.poll() is None, third.stderr.read()
                time.sleep(0.005)
            slowest_takeover = max(slowest_takeover, time.time() - began)
            third.kill()
            ended(third)
    return {
        "starts": number,
        "one ran": ran,
        "other exited 3": refused,
        "slowest refusal_s": round(slowest_refusal, 2),
        "slowest takeover_s": round(slowest_takeover, 2),
    }


# Writes down when the process reaches the lock.
_MARK = """
import time, pathlib
from metaevo import rundir
lock = rundir.lock
def marked(directory):
    (pathlib.Path(directory).parent / "reached{}").write_text(str(time.time()))
    return lock(directory)
rundir.lock = marked
"""


# --- 5. long runs ---------------------------------------------------------------------


def long_run(length: int = 2000) -> dict[str, Any]:
    """Memory and compilations of a long search, in a process of its own."""
    with _folder() as folder:
        process = start(
            folder / "run", f"num_generations={length}", before=_GAUGE.format(folder)
        )
        assert ended(process, 36_000) == 0
        gauged = [json.loads(x) for x in (folder / "gauge").read_text().splitlines()]
        # The first tenth fills caches and pools.
        early, late = gauged[len(gauged) // 10], gauged[-1]
        return {
            "generations": length,
            "grown_MiB": round((late["bytes"] - early["bytes"]) / 2**20, 1),
            "compiled after the first tenth": late["compiled"] - early["compiled"],
            "generations_per_s": round(length / (late["at"] - gauged[0]["at"]), 1),
        }


# Writes down memory and compilations each time a checkpoint was written.
_GAUGE = """
import json, time
import psutil, jax
from metaevo import checkpoint
compiled = [0]
def on(event, seconds, **_):
    compiled[0] += event == "/jax/core/compile/backend_compile_duration"
jax.monitoring.register_event_duration_secs_listener(on)
save, me = checkpoint.Store.save, psutil.Process()
file = open("{}/gauge", "a")
def gauged(self, *args):
    save(self, *args)
    line = dict(at=time.time(), bytes=me.memory_info().rss, compiled=compiled[0])
    print(json.dumps(line), file=file, flush=True)
checkpoint.Store.save = gauged
"""


# --- commands and tables --------------------------------------------------------------


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


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


sys.addaudithook(_watch)

if __name__ == "__main__":
    main(sys.argv[1:])
