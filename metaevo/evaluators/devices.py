"""Setup of a process before JAX's backend starts: devices and compilation cache."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import warnings
from pathlib import Path
from typing import Any

import jax

from metaevo.config import RunConfig
from metaevo.errors import ConfigError
from metaevo.evaluators import memory, surroundings


def configure(num_cpu_devices: int | None = None, driver: bool = False) -> None:
    """Make every CPU core a JAX device and turn the compilation cache on.

    XLA's CPU backend runs a population on one core. With one device per core, and the
    devices' own thread pools off, a population uses all cores. A GPU is used if there
    is one. Call this function before anything uses a JAX device; later it does not
    change the devices.

    The cache is `$JAX_COMPILATION_CACHE_DIR`, else `$XDG_CACHE_HOME/metaevo`, else
    `~/.cache/metaevo`. It has one folder per kind of processor, because compiled code
    is not portable, and no size limit, because with a limit one orphaned file stops
    all writes (jax#39880).

    Args:
        num_cpu_devices: Number of devices; None: one per core of this process.
        driver: Use the CPU only and leave accelerators to this host's worker.

    Raises:
        ConfigError: XLA refuses the flags in XLA_FLAGS, or JAX has 64-bit types.
    """
    surroundings.check()
    memory.share_arenas(max(2, num_cores()))
    config: Any = jax.config  # defines its attributes when it is imported
    if driver:
        config.update("jax_platforms", "cpu")
    if num_cpu_devices is None:
        num_cpu_devices = num_cores()
    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        try:
            config.update("jax_num_cpu_devices", num_cpu_devices)
        except RuntimeError:
            # A backend has started, and the devices cannot be changed.
            if jax.device_count("cpu") < num_cpu_devices:
                warnings.warn(
                    f"JAX was in use before metaevo could set it up: "
                    f"{jax.device_count('cpu')} of {num_cpu_devices} CPU cores are "
                    f"devices. {_user()}",
                    stacklevel=2,
                )
    flags = os.environ.get("XLA_FLAGS", "")
    if num_cpu_devices > 1 and "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {surroundings.ONE_THREAD}".strip()
    if config.jax_compilation_cache_dir is None:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        config.update("jax_compilation_cache_dir", str(base / "metaevo" / _processor()))
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _user() -> str:
    """Say who may have used JAX before, and what helps."""
    # A notebook and a prompt are a program without a file.
    if not hasattr(sys.modules["__main__"], "__file__"):
        return (
            "An earlier cell or line of this session used it: restart, and begin with "
            "metaevo.configure()."
        )
    return "Something imported by the search runs JAX at import."


def num_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if _LINUX else os.cpu_count() or 1


def choose_devices(config: RunConfig) -> list:
    """Return the JAX devices that `run.devices` asks for.

    Raises:
        ConfigError: There are fewer.
    """
    devices = jax.devices()
    if config.devices is None:
        return devices
    if not 1 <= config.devices <= len(devices):
        raise ConfigError(
            f"run.devices={config.devices}: there are {len(devices)} devices"
        )
    return devices[: config.devices]


_LINUX = hasattr(os, "sched_getaffinity")


def _processor() -> str:
    """Return a name of this kind of processor; equal names, equal instruction sets."""
    kind = platform.machine() + platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        kind += "".join(
            next((x for x in lines if x.startswith(name)), "")
            for name in ("model name", "flags", "Features")
        )
    return hashlib.sha256(kind.encode()).hexdigest()[:12]
