"""Four CPU devices for every test, and one compilation cache for all of them."""

import gc
import os

import jax

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
# Lowering looks up the source line of each operation, which no test reads. Errors and
# `not_finite` take it from the traced program.
jax.config.update("jax_traceback_in_locations_limit", 0)
os.environ["JAX_COMPILATION_CACHE_DIR"] = jax.config.jax_compilation_cache_dir
# Tracing makes millions of small objects that live. Looking through all of them for
# cycles as often as Python does by default takes a tenth of the time of the tests.
gc.set_threshold(100_000, 20, 20)
