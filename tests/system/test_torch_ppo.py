"""A PPO in PyTorch with an exported loss follows the same PPO with the loss by JAX."""

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
ELSEWHERE = ROOT / ".venv-torch" / "bin" / "python"


@pytest.mark.skipif(not ELSEWHERE.exists(), reason="make test-system makes .venv-torch")
def test_exported_loss_trains_the_agent_that_the_loss_by_jax_trains(tmp_path):
    learned = critic_losses.weighted_square()
    params, spec = {"value_loss": helper.away(learned)}, {"value_loss": learned.spec}
    artifacts.save(tmp_path / "solution", params, spec, {}, {})
    exported = files.write(tmp_path, "torch")
    packages = Path(jax.__file__).parents[1]
    script = ROOT / "tests" / "helpers" / "torch_against_jax.py"
    updates = 5  # 80 gradient steps
    done = subprocess.run(
        [
            ELSEWHERE,
            script,
            exported,
            tmp_path,
            str(updates),
            ROOT,
            packages,
            *sys.path,
        ],
        env={"PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    by_jax, by_square, moved = map(float, done.stdout.split())
    assert by_jax < 1e-5
    assert by_square > 1e-3
    assert moved > 1e-2
