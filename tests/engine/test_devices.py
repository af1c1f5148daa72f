"""Set-up of a process: no search touches JAX before the devices are chosen."""

import pkgutil
import subprocess
import sys

import searches

SEARCHES = [m.name for m in pkgutil.iter_modules(searches.__path__)]


def python(program):
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return out.stdout.strip(), out.stderr


def test_importing_searches_leaves_the_devices_to_be_chosen():
    """All in one process: the first that touches JAX is found by its output."""
    imports = "".join(
        f"import searches.{name}\nstarted += [{name!r}] * backends_are_initialized()\n"
        for name in SEARCHES
    )
    stdout, stderr = python(
        "from jax._src.xla_bridge import backends_are_initialized\nstarted = []\n"
        + imports
        + "import metaevo; metaevo.configure(3)\n"
        "import jax; print(started[:1], jax.device_count())"
    )
    assert stdout == "[] 3"
    assert "JAX was in use" not in stderr


def test_set_up_that_comes_too_late_warns():
    stdout, stderr = python(
        "import jax; jax.devices(); import metaevo; metaevo.configure(3)\n"
        "print(jax.device_count())"
    )
    assert stdout == "1"
    assert "1 of 3 CPU cores are devices" in stderr
