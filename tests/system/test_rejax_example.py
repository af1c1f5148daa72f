"""The example in rejax learns with an exported loss, in an environment of its own."""

import os
import subprocess
from pathlib import Path

import learned as helper
import pytest

from metaevo import critic_losses
from metaevo.export import files
from metaevo.storage import artifacts

ROOT = Path(__file__).parents[2]
ELSEWHERE = ROOT / ".venv-rejax" / "bin" / "python"
pytestmark = pytest.mark.skipif(
    not ELSEWHERE.exists(),
    reason="no .venv-rejax; `make .venv-rejax/.installed` makes it (1 GB)",
)
# rejax's own, of which `clip_eps` is 0.2.
OWN = """
import jax.numpy as jnp


def value_loss(value, target, old_value):
    clipped = old_value + (value - old_value).clip(-0.2, 0.2)
    return 0.5 * jnp.maximum((value - target) ** 2, (clipped - target) ** 2)
"""


def test_loss_takes_the_place_of_that_of_rejax(tmp_path):
    learned = critic_losses.weighted_square()
    params, spec = {"value_loss": helper.away(learned)}, {"value_loss": learned.spec}
    artifacts.save(tmp_path / "solution", params, spec, {}, {})
    exported = files.write(tmp_path, "jax", tmp_path / "evolved.py")
    own = tmp_path / "own.py"
    own.write_text(OWN)
    done = subprocess.run(
        [
            ELSEWHERE,
            ROOT / "tests" / "helpers" / "rejax_against_itself.py",
            exported,
            own,
        ],
        env={key: x for key, x in os.environ.items() if key != "PYTHONPATH"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    by_own, by_exported = map(float, done.stdout.splitlines()[-1].split())
    assert by_own < 1e-4
    assert by_exported > 1e-3
