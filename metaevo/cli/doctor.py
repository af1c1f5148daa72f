"""Examination of this machine: can it run searches, and what will be slow."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from metaevo.cli import findings
from metaevo.cli.findings import Finding
from metaevo.config import RunConfig, wandb_mode
from metaevo.errors import LockedError, MetaevoError
from metaevo.text import byte_size

__all__ = ["examine", "file_system", "text"]

LEAST_DISK = 1 << 30  # bytes
LEAST_MEMORY = 1 << 30
# File systems on which locks may not hold and every fsync is a round trip.
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.s3fs", "9p", "afs")
PARALLEL = ("lustre", "gpfs", "beegfs", "ceph", "fuse.juicefs")


def examine(directory: str | Path = ".") -> Iterator[Finding]:
    """Check what a run in `directory` would need; leave nothing behind."""
    directory = Path(directory).absolute()
    for check in (_versions, _devices, _memory, _disk, _rename, _lock, _kind_of_disk):
        yield from _careful(check, directory)
    yield from _careful(_cache, directory)
    yield from _careful(_wandb, directory)
    yield from _careful(_extras, directory)


def text(found: list[Finding]) -> str:
    """Return a line per finding, and a summary."""
    bad = sum(not f.ok for f in found)
    return findings.text(found, f"{bad} problem(s)" if bad else "ready")


def _careful(check: Callable, directory: Path) -> Iterator[Finding]:
    """Run a check; an exception in it is a finding that is not ok."""
    try:
        yield from check(directory)
    except Exception as error:
        name = check.__name__.strip("_").replace("_", " ")
        kind = "" if isinstance(error, MetaevoError) else f"{type(error).__name__}: "
        yield Finding(name, False, f"{kind}{error}")


def _versions(directory: Path) -> Iterator[Finding]:
    names = ("jax", "jaxlib", "numpy", "optax", "evosax", "gymnax")
    found = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    ok = metadata.version("jaxlib") != "0.11.1"
    remedy = "; jaxlib 0.11.1 copies replay buffers at every step: install another"
    yield Finding("versions", ok, found + ("" if ok else remedy))


def _devices(directory: Path) -> Iterator[Finding]:
    import jax

    from metaevo.evaluators import surroundings
    from metaevo.evaluators.devices import configure

    configure()
    surroundings.check_platform()
    devices = jax.devices()
    message = f"{len(devices)} x {devices[0].device_kind}"
    if devices[0].platform != "cpu":
        free = devices[0].memory_stats() or {}
        if "bytes_limit" in free:
            message += f", {byte_size(free['bytes_limit'])} for JAX on each"
    elif shutil.which("nvidia-smi"):
        message += "; there is a GPU that JAX does not use: install the extra cuda12"
    # A device may have a name and yet run nothing.
    began = time.monotonic()
    for device in devices:
        assert float(jax.device_put(1.0, device) + 1.0) == 2.0
    seconds = time.monotonic() - began
    yield Finding("devices", True, f"{message}; they ran in {seconds:.1f} s")


def _memory(directory: Path) -> Iterator[Finding]:
    import jax

    from metaevo.evaluators import chunking, surroundings

    surroundings.check_platform()
    free = chunking.available(jax.devices()[0])
    if free is None:
        yield Finding("memory", True, "not reported by this system")
        return
    ok = free >= LEAST_MEMORY
    remedy = "" if ok else "; a search needs about 1 GiB: end something"
    yield Finding("memory", ok, f"{byte_size(free)} available{remedy}")


def _disk(directory: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(_existing(directory)).free
    ok = free >= LEAST_DISK
    remedy = "" if ok else "; make room, or give another run.directory"
    yield Finding("disk", ok, f"{byte_size(free)} free in {directory}{remedy}")


def _rename(directory: Path) -> Iterator[Finding]:
    """Time what a checkpoint does: write, sync, rename, sync the folder."""
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
    message = "hold" if held else "do not hold here: two processes could write one run"
    yield Finding("locks", held, message)


def _kind_of_disk(directory: Path) -> Iterator[Finding]:
    kind = file_system(_existing(directory))
    message = kind or "of unknown kind"
    if kind in NETWORK:
        message += (
            ": a network file system; give a run.directory on a local disk, and copy "
            "it when the run has ended"
        )
    elif kind in PARALLEL:
        message += ": shared between hosts; raise run.checkpoint_every if it is slow"
    yield Finding("file system", kind not in NETWORK, message)


def file_system(path: Path, mounts: str = "/proc/mounts") -> str | None:
    """Return the kernel's name of the file system that holds `path`.

    Args:
        path: Absolute path.
        mounts: File in the format of /proc/mounts.

    Returns:
        The name, such as `ext4`; None if `mounts` does not exist.
    """
    if not Path(mounts).exists():
        return None
    best = ("", None)
    for line in Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines():
        _, point, kind, *_ = line.split()
        point = point.replace("\\040", " ")
        inside = Path(point) == path or Path(point) in path.parents
        if inside and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def _cache(directory: Path) -> Iterator[Finding]:
    """Check the cache of compiled programs."""
    import jax

    config: Any = jax.config  # defines its attributes when it is imported
    if config.jax_compilation_cache_dir is None:  # the devices were not set up
        yield Finding("cache", False, "not set up; see devices")
        return
    place = Path(config.jax_compilation_cache_dir)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=place):
        pass
    held = sum(p.stat().st_size for p in place.iterdir() if p.is_file())
    limit = config.jax_compilation_cache_max_size
    message = f"{byte_size(held)} of compiled programs in {place}"
    if limit != -1:
        message += (
            "; it has a size limit, with which one lost file stops it (jax#39880)"
        )
    yield Finding("cache", limit == -1, message)


def _wandb(directory: Path) -> Iterator[Finding]:
    mode = f"{wandb_mode(RunConfig())}, unless run.wandb says otherwise"
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
