"""Four CPU devices for every test, and the compilation cache."""

import gc

import jax
import pytest

from metaevo.evaluators.devices import configure

configure(num_cpu_devices=4)


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """A process has 65,530 memory maps, and XLA takes some for every program: without
    this the last of 1,600 tests would end in a segmentation fault.
    """
    yield
    jax.clear_caches()
    gc.collect()
