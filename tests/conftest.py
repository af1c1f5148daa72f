"""Four CPU devices for every test, and one compilation cache for all of them."""

import gc
import os
from pathlib import Path

import jax
import pytest

from metaevo.evaluators.devices import configure

configure(num_cpu_devices=4)
# Tests run thousands of programs that compile in less than the 0.3 s from which a
# search caches. Processes that tests start read the same folder: `~/.cache/metaevo`,
# unless JAX_COMPILATION_CACHE_DIR or XDG_CACHE_HOME names another.
for name, value in (
    ("jax_persistent_cache_min_compile_time_secs", 0.0),
    ("jax_persistent_cache_min_entry_size_bytes", -1),
):
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)
os.environ["JAX_COMPILATION_CACHE_DIR"] = jax.config.jax_compilation_cache_dir


# A process may have 65,530 memory maps, and XLA takes some for every program: up to
# 6,000 in one test. A process that has more of them than allowed is killed.
MAPS = 30_000


def forget_programs():
    jax.clear_caches()
    gc.collect()


@pytest.fixture(autouse=True, scope="module")
def forget_programs_of_a_file():
    yield
    forget_programs()


@pytest.fixture(autouse=True)
def forget_programs_of_a_long_file():
    """Release the programs so far, where the tests of one file need too many maps."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAPS:
        forget_programs()
