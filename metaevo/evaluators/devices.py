"""Process set-up before JAX's backend starts: devices and the compilation cache."""

from __future__ import annotations

import hashlib
import os
import platform
import warnings
from pathlib import Path

import jax

from metaevo.config import RunConfig
from metaevo.errors import ConfigError


def configure(num_cpu_devices: int | None = None, driver: bool = False) -> None:
    """Makes every CPU core a device and turns the compilation cache on.

    XLA's CPU backend runs a population on one core; sharding it over one device per
    core uses them all, with each device's own thread pool off. A GPU is used when
    found. Call it before anything touches a JAX device; later it has no effect on
    the devices.

    The cache is `$JAX_COMPILATION_CACHE_DIR`, else `$XDG_CACHE_HOME/metaevo`, else
    `~/.cache/metaevo`, with one folder per processor kind since compiled code is not
    portable. It has no size limit: a limit lets one orphaned file stop all writes
    (jax#39880).

    Args:
        num_cpu_devices: None: one per core that this process may use.
        driver: stay on the CPU: accelerators belong to this host's worker.
    """
    if driver:
        jax.config.update("jax_platforms", "cpu")
    if num_cpu_devices is None:
        num_cpu_devices = num_cores()
    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        try:
            jax.config.update("jax_num_cpu_devices", num_cpu_devices)
        except RuntimeError:
            # A backend has started: the devices are what they are.
            if jax.device_count("cpu") < num_cpu_devices:
                warnings.warn(
                    f"JAX was in use before metaevo could set it up: "
                    f"{jax.device_count('cpu')} of {num_cpu_devices} CPU cores are "
                    "devices. Something imported by the search runs JAX at import.",
                    stacklevel=2,
                )
    flags = os.environ.get("XLA_FLAGS", "")
    if num_cpu_devices > 1 and "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false".strip()
    if jax.config.jax_compilation_cache_dir is None:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update(
            "jax_compilation_cache_dir", str(base / "metaevo" / _processor())
        )
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def num_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if _LINUX else os.cpu_count()


def choose_devices(config: RunConfig) -> list:
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
    """A name for this kind of processor: same name, same instruction set."""
    kind = platform.machine() + platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        kind += "".join(
            next((x for x in lines if x.startswith(name)), "")
            for name in ("model name", "flags", "Features")
        )
    return hashlib.sha256(kind.encode()).hexdigest()[:12]
