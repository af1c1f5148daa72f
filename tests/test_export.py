"""The numpy reference of evolved functions against JAX, values and gradients."""

import json
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_spaces

from metaevo import actors, artifacts, export, reference, schedules
from metaevo.learned import Learned
from metaevo.slots import Context

BOX = {"low": [-2.0, 0.0], "high": [2.0, 1.0]}


class Case(NamedTuple):
    slot: str
    learned: Learned
    inputs: tuple


RNG = np.random.default_rng(0)
# Every learned function of an elementwise slot; all but progress are [n].
FUNCTIONS = {
    name: Case(
        case.slot,
        case.make(),
        (
            *(
                np.float64(np.broadcast_to(x, 41))
                for x in test_spaces.INPUTS[case.slot]
            ),
            *[np.float64(0.3)] * case.make().spec.get("temporal", False),
        ),
    )
    for name, case in test_spaces.CASES.items()
    if case.slot in export.INPUTS
} | {
    "policy": Case(
        "actor",
        actors.policy((2, 3), BOX, (8, 4), "tanh"),
        (10 * RNG.normal(size=(200, 2, 3)),),
    ),
    "steps": Case("lr", schedules.steps(5), (np.float64(0.55),)),
}


def written(name, path):
    """The function, its parameters off their start, and the saved reference."""
    slot, learned, _ = FUNCTIONS[name]
    key = jax.random.key(0)
    params = jax.tree.map(
        lambda x: x + 0.3 * jax.random.normal(key, x.shape), learned.init(key)
    )
    artifacts.save(path, {slot: params}, {slot: learned.spec}, {}, {})
    return params, getattr(reference.load(path), slot)


def by_jax(name, params, inputs):
    """Values, and the gradient of their sum with respect to each input."""
    _, learned, _ = FUNCTIONS[name]
    timed = name == "steps" or learned.spec.get("temporal", False)

    def apply(*inputs):
        context = None
        if timed:
            *inputs, progress = inputs
            context = Context(progress=progress)
        return learned.apply(params, *inputs, context)

    inputs = [jnp.asarray(x) for x in inputs]
    which = tuple(range(len(inputs)))
    gradient = jax.grad(lambda *x: apply(*x).sum(), which)(*inputs)
    return np.asarray(apply(*inputs)), [np.asarray(x) for x in gradient]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float64_against_jax_in_x64(name, tmp_path):
    params, mine = written(name, tmp_path)
    inputs = FUNCTIONS[name].inputs
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jnp.asarray(np.float64(x)), params)
        value, gradient = by_jax(name, params, inputs)
    assert value.dtype == np.float64
    np.testing.assert_allclose(mine(*inputs), value, rtol=0, atol=1e-9)
    for a, b in zip(mine.gradient(*inputs), gradient, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32_against_jax(name, tmp_path):
    params, mine = written(name, tmp_path)
    inputs = [np.float32(x) for x in FUNCTIONS[name].inputs]
    value, gradient = by_jax(name, params, inputs)
    found = mine(*inputs, dtype=np.float32)
    assert found.dtype == np.float32
    assert (np.abs(found - value) <= 1e-5 * np.maximum(1, np.abs(value))).all()
    for a, b in zip(mine.gradient(*inputs, dtype=np.float32), gradient, strict=True):
        assert (np.abs(a - b) <= 1e-5 * np.maximum(1, np.abs(b))).all()


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
    _, mine = written("residual_network", tmp_path / "solution")
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
    written("residual_network", tmp_path)
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
    _, mine = written("td_network", tmp_path)
    with pytest.raises(TypeError, match=r"td_error.*q.*target"):
        mine([1.0])
