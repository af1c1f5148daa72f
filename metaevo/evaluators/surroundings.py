"""JAX's settings in this process, and checks of them before its backend starts."""

from __future__ import annotations

import enum
import functools
import os
import subprocess
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jaxlib
import ml_dtypes
import numpy

from metaevo.errors import ConfigError

SETTINGS = (
    # random numbers
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_threefry_gpu_kernel_lowering",
    "jax_random_seed_offset",
    "jax_high_dynamic_range_gumbel",
    # types and precision
    "jax_enable_x64",
    "jax_explicit_x64_dtypes",
    "jax_default_dtype_bits",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_allow_f16_reductions",
    # programs
    "jax_disable_jit",
    "jax_disable_most_optimizations",
    "jax_optimization_level",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_level",
    "jax_memory_fitting_effort",
    "jax_compiler_enable_remat_pass",
    "jax_use_direct_linearize",
    "jax_use_shardy_partitioner",
    "jax_use_simplified_jaxpr_constants",
    "jax_softmax_custom_jvp",
    "jax_use_magma",
    "jax_bcoo_cusparse_lowering",
    "jax_ragged_dot_use_ragged_dot_instruction",
    "jax_ragged_dot_use_gpu_pallas_triton_lowering",
    "jax_custom_vjp3",
    "jax_remat3",
    "jax_scan3",
    "jax_enable_pgle",
    "jax_xla_profile_version",
    "eager_constant_folding",
    # devices
    "jax_default_device",
)
"""Settings of JAX that may change bits. A version of JAX need not have all of them."""

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
"""The flag that metaevo itself adds to XLA_FLAGS."""

_PARSE = "from jaxlib import xla_client; xla_client.CompileOptions()" + (
    ".executable_build_options.debug_options"
)


def settings() -> dict[str, Any]:
    """Return the settings of JAX that may change bits, as plain data by name."""
    config: Any = jax.config  # defines its attributes when it is imported
    # An attribute has the value of this thread; some settings have none.
    return {
        name: _plain(getattr(config, name, config.values[name]))
        for name in SETTINGS
        if name in config.values
    }


def adopt(given: Mapping[str, Any]) -> None:
    """Set JAX's settings as another process has them.

    Args:
        given: as `settings` returns them there. Settings that are as they should be
            are left alone, and so is `jax_default_device`, a device of that process.
    """
    here = settings()
    for name, value in given.items():
        if name != "jax_default_device" and name in here and here[name] != value:
            jax.config.update(name, value)


def check() -> None:
    """Check JAX's flags and settings before a backend starts.

    A wrong flag in XLA_FLAGS ends a process inside XLA, without an exception. So
    another process reads the flags first, in 0.2 s, and only if there are some.

    Raises:
        ConfigError: XLA refuses its flags, or JAX has 64-bit types.
    """
    check_flags()
    check_settings()


def check_settings() -> None:
    """Check that JAX has the types of 32 bits that searches and their files have.

    Raises:
        ConfigError: it has those of 64 bits.
    """
    if settings()["jax_enable_x64"]:
        raise ConfigError(
            "jax_enable_x64=True (JAX_ENABLE_X64): searches run in 32 bits; set "
            "JAX_ENABLE_X64=0, or jax.config.update('jax_enable_x64', False)"
        )


def check_flags() -> None:
    """Check that XLA reads the flags in XLA_FLAGS.

    Raises:
        ConfigError: it does not; has the line that XLA prints.
    """
    given = os.environ.get("XLA_FLAGS", "").split()
    flags = " ".join(flag for flag in given if flag != ONE_THREAD)
    if flags and (problem := _refused(flags)):
        raise ConfigError(f"XLA_FLAGS={flags}: {problem}; correct it or leave it out")


def check_platform() -> None:
    """Start JAX's backend.

    Raises:
        ConfigError: JAX has no device of the platform that JAX_PLATFORMS names.
    """
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:
        asked = typing.cast(Any, jax.config).jax_platforms
        lines = str(error).splitlines()
        said = lines[0].partition(" (set JAX_PLATFORMS")[0] if lines else ""
        said = said.rstrip(".") or "no device of this platform was found"
        if not asked:
            raise ConfigError(f"JAX finds no device: {said}") from None
        raise ConfigError(
            f"JAX_PLATFORMS={asked}: {said}; set JAX_PLATFORMS=cpu, or leave it out"
        ) from None


@functools.cache
def _refused(flags: str) -> str:
    """Return what XLA says against flags; empty if it takes them."""
    # From where this process has them: another folder may hold a stranger's files.
    modules = (jaxlib, ml_dtypes, numpy)
    places = sorted({str(Path(x.__file__ or "").parents[1]) for x in modules})
    program = f"import sys; sys.path += {places}; {_PARSE}"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program],
            env=os.environ | {"XLA_FLAGS": flags},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    if done.returncode == 0 or "Traceback" in done.stderr:
        return ""  # another version of jaxlib has no such class
    for line in done.stderr.splitlines():
        # DATE TIME PROCESS FILE:LINE] TEXT
        _, bracket, said = line.partition("] ")
        if bracket and not line.startswith("WARNING"):
            return said.replace(" in XLA_FLAGS:", "").rstrip(".")[:200]
    return ""


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
