"""The numpy reference: its errors, and what it needs.

That it agrees with JAX is in `tests/contracts/test_learned_functions.py`.
"""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import learned as helper
import numpy as np
import pytest

from metaevo import losses, policies
from metaevo.learned import optimizers
from metaevo.storage import artifacts, numpy_export, numpy_reference


def written(slot, learned, path):
    """The reference of a function off its start."""
    params = helper.away(learned)
    artifacts.save(path, {slot: params}, {slot: learned.spec}, {}, {})
    return getattr(numpy_reference.load(path), slot)


def test_temporal_optimizer_of_one_array_needs_the_progress(tmp_path):
    learned = optimizers.adam_numbers(temporal=True)
    params = learned.init(jax.random.key(0))
    artifacts.save(tmp_path, {"optimizer": params}, {"optimizer": learned.spec}, {}, {})
    mine = numpy_reference.load(tmp_path).optimizer
    x = np.arange(6.0).reshape(2, 3)
    direction, _ = mine.update(np.full((2, 3), 3.0), mine.init(x), x, progress=0.0)
    np.testing.assert_allclose(direction, np.full((2, 3), 1.0), rtol=1e-5)  # Adam's
    with pytest.raises(TypeError, match="give progress"):
        mine.update(x, mine.init(x), x)


def test_policy_of_discrete_actions_has_values_but_no_gradient(tmp_path):
    learned = policies.policy((3,), {"num": 4}, (8,), "relu")
    params = learned.init(jax.random.key(0))
    artifacts.save(tmp_path, {"actor": params}, {"actor": learned.spec}, {}, {})
    mine = numpy_reference.load(tmp_path).actor
    obs = np.random.default_rng(0).normal(size=(50, 3))
    np.testing.assert_array_equal(mine(obs), learned.apply(params, jnp.float32(obs)))
    with pytest.raises(ValueError, match="no gradient"):
        mine.gradient(obs)


def test_reference_does_not_import_jax(tmp_path):
    mine = written("value_loss", losses.residual_network(), tmp_path / "solution")
    code = (
        "import sys, numpy as np; from metaevo import reference; "
        f"loss = reference.load({str(tmp_path)!r}).value_loss; "
        "print(repr(float(loss([1.5], [0.25], [1.0])[0]))); "
        "assert 'jax' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == float(mine([1.5], [0.25], [1.0])[0])


def test_unknown_elementary_operation_is_refused(tmp_path):
    written("value_loss", losses.residual_network(), tmp_path)
    program = {
        "inputs": [0],
        "shapes": [["n"]],
        "equations": [["system", [0], 1, {}]],
        "outputs": [1],
    }
    with pytest.raises(ValueError, match="unknown operation 'system'"):
        numpy_reference.run(program, [np.ones(3)], np.float64)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert set(manifest["reference"]) == {"value_loss"}
    (tmp_path / "arrays.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="sha256"):
        numpy_reference.load(tmp_path)


def test_wrong_number_of_inputs_names_the_expected_ones(tmp_path):
    mine = written("td_loss", losses.td_network(), tmp_path)
    with pytest.raises(TypeError, match=r"td_error.*q.*target"):
        mine([1.0])


def test_something_else_than_a_learned_function_has_no_reference():
    with pytest.raises(NotImplementedError, match="a dict has no reference"):
        numpy_export.describe("x", {"op": "td_network"}, {}, {})
