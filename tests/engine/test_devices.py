"""Set-up of a process: no search touches JAX before the devices are chosen."""

import pkgutil
import subprocess
import sys

import pytest

import searches

SEARCHES = [m.name for m in pkgutil.iter_modules(searches.__path__)]


def python(program):
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return out.stdout.strip(), out.stderr


@pytest.mark.parametrize("name", SEARCHES)
def test_importing_a_search_leaves_the_devices_to_be_chosen(name):
    stdout, stderr = python(
        f"import searches.{name}; import metaevo; metaevo.configure(3)\n"
        "import jax; print(jax.device_count())"
    )
    assert stdout == "3"
    assert "JAX was in use" not in stderr


def test_a_set_up_that_comes_too_late_is_said():
    stdout, stderr = python(
        "import jax; jax.devices(); import metaevo; metaevo.configure(3)\n"
        "print(jax.device_count())"
    )
    assert stdout == "1"
    assert "1 of 3 CPU cores are devices" in stderr
