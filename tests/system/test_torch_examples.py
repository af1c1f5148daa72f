"""The examples in PyTorch learn with exported losses."""

import subprocess
import sys
from pathlib import Path

import jax
import learned as helper
import pytest

from metaevo import critic_losses
from metaevo.export import files
from metaevo.storage import artifacts

ROOT = Path(__file__).parents[2]
HELPERS = ROOT / "tests" / "helpers"
ELSEWHERE = ROOT / ".venv-torch" / "bin" / "python"
pytestmark = pytest.mark.skipif(
    not ELSEWHERE.exists(), reason="make test-system makes .venv-torch"
)


@pytest.fixture
def exported(tmp_path):
    """The exported loss of an artifact in the same folder."""
    learned = critic_losses.weighted_square()
    params, spec = {"value_loss": helper.away(learned)}, {"value_loss": learned.spec}
    artifacts.save(tmp_path / "solution", params, spec, {}, {})
    return files.write(tmp_path, "torch", tmp_path / "evolved.py")


def run(*command):
    """The numbers on the last line that a script prints in the other environment."""
    done = subprocess.run(
        [ELSEWHERE, *map(str, command)],
        env={"PATH": "", "HOME": str(Path.home())},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [float(x) for x in done.stdout.splitlines()[-1].split()]


def test_exported_loss_trains_the_agent_that_the_loss_by_jax_trains(exported):
    packages = Path(jax.__file__).parents[1]
    script, updates = HELPERS / "torch_against_jax.py", 5  # 80 gradient steps
    by_jax, by_square, moved = run(
        script, exported, exported.parent, updates, ROOT, packages, *sys.path
    )
    assert by_jax < 1e-5
    assert by_square > 1e-3
    assert moved > 1e-2


def test_loss_takes_the_place_of_the_squared_error_of_stable_baselines(exported):
    square = exported.with_name("square.py")
    square.write_text(
        "def value_loss(value, target, old_value):\n"
        "    return 0.5 * (value - target) ** 2\n"
    )
    by_square, by_exported = run(HELPERS / "sb3_against_itself.py", exported, square)
    assert by_square < 1e-5
    assert by_exported > 1e-3
