"""`metaevo doctor`: whether this machine can run searches, and what will be slow."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from metaevo.errors import LockedError

__all__ = ["Finding", "examine", "file_system", "text"]

LEAST_DISK = 1 << 30  # bytes
LEAST_MEMORY = 1 << 30
# Locks may not hold there, and every fsync is a round trip.
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.s3fs", "9p", "afs")
PARALLEL = ("lustre", "gpfs", "beegfs", "ceph", "fuse.juicefs")


class Finding(NamedTuple):
    """One thing looked at.

    Attributes:
        what: a word or two.
        good: False if searches fail or may lose something by it.
        says: the figure, and if it is not good what to do.
    """

    what: str
    good: bool
    says: str


def examine(directory: str | Path = ".") -> Iterator[Finding]:
    """Looks at what a run in `directory` would need; leaves nothing behind."""
    directory = Path(directory).absolute()
    for check in (_versions, _devices, _memory, _disk, _rename, _lock, _kind_of_disk):
        yield from _careful(check, directory)
    yield from _careful(_cache, directory)
    yield from _careful(_wandb, directory)
    yield from _careful(_extras, directory)


def text(findings: list[Finding]) -> str:
    """A line each."""
    lines = [f"{'ok ' if f.good else 'BAD'}  {f.what:11} {f.says}" for f in findings]
    bad = sum(not f.good for f in findings)
    return "\n".join([*lines, f"{bad} problem(s)" if bad else "ready"])


def _careful(check: Callable, directory: Path) -> Iterator[Finding]:
    """What a check finds; that it broke is a finding too."""
    try:
        yield from check(directory)
    except Exception as error:
        what = check.__name__.strip("_").replace("_", " ")
        yield Finding(what, False, f"{type(error).__name__}: {error}")


def _versions(directory: Path) -> Iterator[Finding]:
    names = ("jax", "jaxlib", "numpy", "optax", "evosax", "gymnax")
    found = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    good = metadata.version("jaxlib") != "0.11.1"
    remedy = "; jaxlib 0.11.1 copies replay buffers at every step: install another"
    yield Finding("versions", good, found + ("" if good else remedy))


def _devices(directory: Path) -> Iterator[Finding]:
    import jax

    from metaevo.evaluators.devices import configure

    configure()
    devices = jax.devices()
    says = f"{len(devices)} x {devices[0].device_kind}"
    if devices[0].platform != "cpu":
        free = devices[0].memory_stats() or {}
        if "bytes_limit" in free:
            says += f", {_size(free['bytes_limit'])} for JAX on each"
    elif shutil.which("nvidia-smi"):
        says += "; there is a GPU that JAX does not use: install the extra cuda12"
    # More than names of devices: that something runs on them.
    began = time.monotonic()
    for device in devices:
        assert float(jax.device_put(1.0, device) + 1.0) == 2.0
    yield Finding(
        "devices", True, f"{says}; they ran in {time.monotonic() - began:.1f} s"
    )


def _memory(directory: Path) -> Iterator[Finding]:
    import jax

    from metaevo.evaluators import chunking

    free = chunking.available(jax.devices()[0])
    if free is None:
        yield Finding("memory", True, "cannot be told on this system")
        return
    good = free >= LEAST_MEMORY
    remedy = "" if good else "; a search needs about 1 GiB: end something"
    yield Finding("memory", good, f"{_size(free)} available{remedy}")


def _disk(directory: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(_existing(directory)).free
    good = free >= LEAST_DISK
    remedy = "" if good else "; make room, or give another run.directory"
    yield Finding("disk", good, f"{_size(free)} free in {directory}{remedy}")


def _rename(directory: Path) -> Iterator[Finding]:
    """What a checkpoint does: write, sync, rename, sync the folder."""
    from metaevo.storage import checkpoint

    with tempfile.TemporaryDirectory(dir=_existing(directory)) as folder:
        times = []
        for i in range(3):
            began = time.monotonic()
            checkpoint.write(Path(folder) / f"generation-{i}", {}, {})
            times.append(time.monotonic() - began)
            checkpoint.read(Path(folder) / f"generation-{i}")
    seconds = sorted(times)[1]
    slow = "; slow: raise run.checkpoint_every" if seconds > 0.2 else ""
    yield Finding("checkpoints", True, f"{1e3 * seconds:.0f} ms each{slow}")


def _lock(directory: Path) -> Iterator[Finding]:
    from metaevo.storage import run_directory

    with tempfile.TemporaryDirectory(dir=_existing(directory)) as folder:
        held = False
        with run_directory.lock(Path(folder)):
            try:
                with run_directory.lock(Path(folder)):
                    pass
            except LockedError:
                held = True
    says = "hold" if held else "do not hold here: two processes could write one run"
    yield Finding("locks", held, says)


def _kind_of_disk(directory: Path) -> Iterator[Finding]:
    kind = file_system(_existing(directory))
    says = kind or "of unknown kind"
    if kind in NETWORK:
        says += (
            ": a network file system; give a run.directory on a local disk, and copy "
            "it when the run has ended"
        )
    elif kind in PARALLEL:
        says += ": shared between hosts; raise run.checkpoint_every if it is slow"
    yield Finding("file system", kind not in NETWORK, says)


def file_system(path: Path, mounts: str = "/proc/mounts") -> str | None:
    """The kind of file system that a path is on, as the kernel calls it."""
    if not Path(mounts).exists():
        return None
    best = ("", None)
    for line in Path(mounts).read_text().splitlines():
        _, point, kind, *_ = line.split()
        point = point.replace("\\040", " ")
        inside = Path(point) == path or Path(point) in path.parents
        if inside and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def _cache(directory: Path) -> Iterator[Finding]:
    """Of compiled programs."""
    import jax

    place = Path(jax.config.jax_compilation_cache_dir)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=place):
        pass
    held = sum(p.stat().st_size for p in place.iterdir() if p.is_file())
    limit = jax.config.jax_compilation_cache_max_size
    says = f"{_size(held)} of compiled programs in {place}"
    if limit != -1:
        says += "; it has a size limit, with which one lost file stops it (jax#39880)"
    yield Finding("cache", limit == -1, says)


def _wandb(directory: Path) -> Iterator[Finding]:
    mode = os.environ.get("WANDB_MODE", "offline, unless run.wandb says otherwise")
    known = os.environ.get("WANDB_API_KEY") or (Path.home() / ".netrc").exists()
    key = "there may be a key for run.wandb=online" if known else "no key, none needed"
    yield Finding("wandb", True, f"{mode}; {key}")


def _extras(directory: Path) -> Iterator[Finding]:
    names = {"ray": "ray", "brax": "brax", "tensorboard": "tensorboardX"}
    specs = {e: importlib.util.find_spec(module) for e, module in names.items()}
    there = [e for e, spec in specs.items() if spec and spec.origin]
    launchers = [x for x in ("mpiexec", "srun") if shutil.which(x)]
    yield Finding("extras", True, ", ".join([*there, *launchers]) or "none")


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _size(number: int) -> str:
    from metaevo.text import byte_size

    return byte_size(number)
