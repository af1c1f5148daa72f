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

from metaevo.cli.findings import Finding
from metaevo.config import RunConfig, wandb_mode
from metaevo.errors import LockedError, MetaevoError
from metaevo.storage import run_directory
from metaevo.text import byte_size

LEAST_DISK = 1 << 30  # bytes
LEAST_MEMORY = 1 << 30
# File systems on which locks may not hold and every fsync is a round trip.
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.s3fs", "9p", "afs")
PARALLEL = ("lustre", "gpfs", "beegfs", "ceph", "fuse.juicefs")


def examine(directory: str | Path = ".") -> Iterator[Finding]:
    """Check what a run in `directory` would need; leave nothing behind.

    An exception in a check is a finding that is not ok.
    """
    folder = run_directory.existing_parent(Path(directory).absolute())
    for name, check in CHECKS.items():
        try:
            yield Finding(name, *check(folder))
        except Exception as error:
            kind = (
                "" if isinstance(error, MetaevoError) else f"{type(error).__name__}: "
            )
            yield Finding(name, False, f"{kind}{error}")


# --- checks: whether it is well, and what was found, with the remedy ------------------


def _versions(folder: Path) -> tuple[bool, str]:
    names = ("jax", "jaxlib", "numpy", "optax", "evosax", "gymnax")
    found = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    if metadata.version("jaxlib") != "0.11.1":
        return True, found
    remedy = "jaxlib 0.11.1 copies replay buffers at every step: install another"
    return False, f"{found}; {remedy}"


def _devices(folder: Path) -> tuple[bool, str]:
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
    return True, f"{message}; they ran in {time.monotonic() - began:.1f} s"


def _memory(folder: Path) -> tuple[bool, str]:
    import jax

    from metaevo.evaluators import chunking, surroundings

    surroundings.check_platform()
    free = chunking.available(jax.devices()[0])
    if free is None:
        return True, "not reported by this system"
    remedy = "; a search needs about 1 GiB: end something"
    return _enough(free, LEAST_MEMORY, "available", remedy)


def _disk(folder: Path) -> tuple[bool, str]:
    free = shutil.disk_usage(folder).free
    remedy = "; make room, or give another run.directory"
    return _enough(free, LEAST_DISK, f"free in {folder}", remedy)


def _enough(free: float, least: float, where: str, remedy: str) -> tuple[bool, str]:
    ok = free >= least
    return ok, f"{byte_size(free)} {where}{'' if ok else remedy}"


def _checkpoints(folder: Path) -> tuple[bool, str]:
    """Time what a checkpoint does: write, sync, rename, sync the folder."""
    from metaevo.storage import checkpoint

    times = []
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        for i in range(3):
            began = time.monotonic()
            checkpoint.write(Path(inside) / f"generation-{i}", {}, {})
            times.append(time.monotonic() - began)
            checkpoint.read(Path(inside) / f"generation-{i}")
    seconds = sorted(times)[1]
    slow = "; slow: raise run.checkpoint_every" if seconds > 0.2 else ""
    return True, f"{1e3 * seconds:.0f} ms each{slow}"


def _locks(folder: Path) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        try:
            with run_directory.lock(Path(inside)), run_directory.lock(Path(inside)):
                return False, "do not hold here: two processes could write one run"
        except LockedError:
            return True, "hold"


def _kind_of_disk(folder: Path) -> tuple[bool, str]:
    kind = file_system(folder)
    if kind in NETWORK:
        return False, (
            f"{kind}: a network file system; give a run.directory on a local disk, and "
            "copy it when the run has ended"
        )
    if kind in PARALLEL:
        return True, (
            f"{kind}: shared between hosts; raise run.checkpoint_every if it is slow"
        )
    return True, kind or "of unknown kind"


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


def _cache(folder: Path) -> tuple[bool, str]:
    """Check the cache of compiled programs."""
    import jax

    config: Any = jax.config  # defines its attributes when it is imported
    if config.jax_compilation_cache_dir is None:  # the devices were not set up
        return False, "not set up; see devices"
    place = Path(config.jax_compilation_cache_dir)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=place):
        pass
    held = sum(p.stat().st_size for p in place.iterdir() if p.is_file())
    message = f"{byte_size(held)} of compiled programs in {place}"
    if config.jax_compilation_cache_max_size == -1:
        return True, message
    limit = "it has a size limit, with which one lost file stops it (jax#39880)"
    return False, f"{message}; {limit}"


def _wandb(folder: Path) -> tuple[bool, str]:
    mode = f"{wandb_mode(RunConfig())}, unless run.wandb says otherwise"
    known = os.environ.get("WANDB_API_KEY") or (Path.home() / ".netrc").exists()
    key = "there may be a key for run.wandb=online" if known else "no key, none needed"
    return True, f"{mode}; {key}"


EXTRAS = {x: x for x in ("brax", "navix", "jumanji", "ray")} | {
    "games": "pgx",
    "export": "onnx",
    "tensorboard": "tensorboardX",
    "cuda12": "jax_cuda12_plugin",
    "cuda13": "jax_cuda13_plugin",
}
"""Extras of metaevo, and a module that each installs."""


def _extras(folder: Path) -> tuple[bool, str]:
    specs = {extra: importlib.util.find_spec(x) for extra, x in EXTRAS.items()}
    there = [extra for extra, spec in specs.items() if spec and spec.origin]
    lacking = [extra for extra in EXTRAS if extra not in there]
    there += [x for x in ("mpiexec", "srun") if shutil.which(x)]
    more = f"; not installed: {', '.join(lacking)}" if lacking else ""
    return True, f"{', '.join(there) or 'none'}{more}"


CHECKS: dict[str, Callable[[Path], tuple[bool, str]]] = {
    "versions": _versions,
    "devices": _devices,
    "memory": _memory,
    "disk": _disk,
    "checkpoints": _checkpoints,
    "locks": _locks,
    "file system": _kind_of_disk,
    "cache": _cache,
    "wandb": _wandb,
    "extras": _extras,
}
"""Checks of a folder that exists."""
