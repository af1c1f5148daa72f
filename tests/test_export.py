"""The numpy reference of evolved functions against JAX, values and gradients."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaevo import actors, artifacts, export, losses, reference, schedules

BOX = {"low": [-2.0, 0.0], "high": [2.0, 1.0]}
# slot -> (the function, its inputs' shapes for n = 200)
FUNCTIONS = {
    "value_loss": (losses.residual_network("clipped_square"), [(200,)] * 3),
    "td_loss": (losses.td_network("td_huber", (8, 8)), [(200,)] * 3),
    "actor": (actors.policy((2, 3), BOX, (8, 4), "tanh"), [(200, 2, 3)]),
    "lr": (schedules.steps(5), [()]),
}


def made(slot):
    """The function's parameters off their start, inputs, and the saved reference."""
    learned, shapes = FUNCTIONS[slot]
    key = jax.random.key(0)
    params = jax.tree.map(
        lambda x: x + 0.3 * jax.random.normal(key, x.shape), learned.init(key)
    )
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=shape) * 10 for shape in shapes]
    if slot == "lr":
        inputs = [np.float64(0.55)]
    return learned, params, inputs


def written(slot, path):
    learned, params, inputs = made(slot)
    spec = {slot: learned.spec}
    artifacts.save(path, {slot: params}, spec, {}, {})
    return learned, params, inputs, getattr(reference.load(path), slot)


def by_jax(slot, learned, params, inputs):
    def apply(*inputs):
        if slot == "lr":
            from metaevo.slots import Context

            return learned.apply(params, Context(progress=inputs[0]))
        return learned.apply(params, *inputs, None)

    inputs = [jnp.asarray(x) for x in inputs]
    which = tuple(range(len(inputs)))
    gradient = jax.grad(lambda *x: apply(*x).sum(), which)(*inputs)
    return np.asarray(apply(*inputs)), [np.asarray(x) for x in gradient]


@pytest.mark.parametrize("slot", FUNCTIONS)
def test_float64_against_jax_in_x64(slot, tmp_path):
    learned, params, inputs, mine = written(slot, tmp_path)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jnp.asarray(np.float64(x)), params)
        value, gradient = by_jax(slot, learned, params, inputs)
    assert value.dtype == np.float64
    np.testing.assert_allclose(mine(*inputs), value, rtol=0, atol=1e-9)
    for a, b in zip(mine.gradient(*inputs), gradient, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("slot", FUNCTIONS)
def test_float32_against_jax(slot, tmp_path):
    learned, params, inputs, mine = written(slot, tmp_path)
    inputs = [np.float32(x) for x in inputs]
    value, gradient = by_jax(slot, learned, params, inputs)
    found = mine(*inputs, dtype=np.float32)
    assert found.dtype == np.float32
    assert (np.abs(found - value) <= 1e-5 * np.maximum(1, np.abs(value))).all()
    for a, b in zip(mine.gradient(*inputs, dtype=np.float32), gradient, strict=True):
        assert (np.abs(a - b) <= 1e-5 * np.maximum(1, np.abs(b))).all()


def test_every_slot_of_known_inputs_is_tested():
    assert export.INPUTS.keys() - {"drift", "policy_loss"} <= FUNCTIONS.keys()


def test_a_choice_has_no_gradient(tmp_path):
    learned = actors.policy((3,), {"num": 4}, (8,), "relu")
    params = learned.init(jax.random.key(0))
    artifacts.save(tmp_path, {"actor": params}, {"actor": learned.spec}, {}, {})
    mine = reference.load(tmp_path).actor
    obs = np.random.default_rng(0).normal(size=(50, 3))
    np.testing.assert_array_equal(mine(obs), learned.apply(params, jnp.float32(obs)))
    with pytest.raises(ValueError, match="no gradient"):
        mine.gradient(obs)


def test_it_needs_no_jax(tmp_path):
    *_, mine = written("value_loss", tmp_path / "solution")
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


def test_unknown_operations_are_refused(tmp_path):
    written("value_loss", tmp_path)
    program = {
        "inputs": [0],
        "shapes": [["n"]],
        "equations": [["system", [0], 1, {}]],
        "outputs": [1],
    }
    with pytest.raises(ValueError, match="unknown operation 'system'"):
        reference.run(program, [np.ones(3)], np.float64)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert set(manifest["reference"]) == {"value_loss"}
    (tmp_path / "arrays.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="sha256"):
        reference.load(tmp_path)


def test_a_wrong_number_of_inputs_says_what_was_expected(tmp_path):
    *_, mine = written("td_loss", tmp_path)
    with pytest.raises(TypeError, match=r"td_error.*q.*target"):
        mine([1.0])
