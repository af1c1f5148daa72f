"""The numpy reference: its errors, and what it needs.

That it agrees with JAX is in `tests/contracts/test_learned_functions.py`.
"""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import learned as helper
import numpy as np
import pytest
from jax.extend import core

from metaevo import losses, policies
from metaevo.errors import ArtifactError
from metaevo.learned import optimizers
from metaevo.portable import numpy_functions, running, tracing
from metaevo.portable.numpy_operations import OPERATIONS
from metaevo.storage import artifacts, numpy_reference, verified


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


def test_elementwise_function_takes_scalars_and_arrays_of_any_common_shape(tmp_path):
    mine = written("value_loss", losses.residual_network(), tmp_path)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(3, 12))
    value, target, _ = inputs
    values, slopes = mine(*inputs), mine.gradient(*inputs)
    for shape in ((3, 4), (12, 1)):
        given = [x.reshape(shape) for x in inputs]
        np.testing.assert_array_equal(mine(*given), values.reshape(shape))
        for slope, expected in zip(mine.gradient(*given), slopes, strict=True):
            np.testing.assert_array_equal(slope, expected.reshape(shape))
    single = mine(*inputs[:, 0])
    assert single.shape == ()
    np.testing.assert_allclose(single, values[0])
    np.testing.assert_allclose(mine.gradient(*inputs[:, 0]), [x[0] for x in slopes])
    beside = value, 0.5, value
    full = value, np.full(12, 0.5), value
    np.testing.assert_array_equal(mine(*beside), mine(*full))
    slopes, expected = mine.gradient(*beside), mine.gradient(*full)
    np.testing.assert_allclose(slopes[1], expected[1].sum())
    np.testing.assert_array_equal(slopes[0], expected[0])
    # numpy would make [12, 12] of these.
    with pytest.raises(ValueError, match=r"value \[12, 1\] for \[n\], target \[12\]"):
        mine(value[:, None], target, target)


def test_inputs_of_a_fixed_number_of_features_are_refused_in_words(tmp_path):
    learned = policies.policy((3,), {"num": 4}, (8,), "relu")
    mine = written("actor", learned, tmp_path)
    with pytest.raises(ValueError, match=r"wrong shapes: obs \[5, 2\] for \[n, 3\]"):
        mine(np.ones((5, 2)))


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


def test_operation_of_a_later_jax_is_written_as_those_of_the_closed_list():
    """JAX 0.11 has `one_minus_square` in the gradient of tanh."""
    primitive = core.Primitive("one_minus_square")
    primitive.def_abstract_eval(lambda x: x)
    x = jax.ShapeDtypeStruct((3,), jnp.float32)
    program = tracing.program(lambda x: 2 * primitive.bind(x), [x])
    assert {name for name, *_ in program["equations"]} <= set(OPERATIONS)
    given = np.float32([-0.5, 0.0, 3.0])
    (found,) = numpy_functions.run(program, [given], np.float32)
    np.testing.assert_array_equal(found, 2 * (1 - given**2))


def test_unknown_elementary_operation_is_refused():
    program = {
        "inputs": [0],
        "shapes": [["n"]],
        "equations": [["system", [0], 1, {}]],
        "outputs": [1],
    }
    with pytest.raises(ValueError, match="unknown operation 'system'"):
        numpy_functions.run(program, [np.ones(3)], np.float64)


def test_altered_arrays_are_refused(tmp_path):
    written("value_loss", losses.residual_network(), tmp_path)
    arrays = tmp_path / "arrays.safetensors"
    arrays.write_bytes(bytes(arrays.stat().st_size))
    with pytest.raises(ValueError, match="sha256"):
        numpy_reference.load(tmp_path)
    arrays.write_bytes(b"")
    with pytest.raises(ValueError, match="bytes"):
        numpy_reference.load(tmp_path)


def test_wrong_number_of_inputs_names_the_expected_ones(tmp_path):
    mine = written("td_loss", losses.td_network(), tmp_path)
    with pytest.raises(TypeError, match=r"td_error.*q.*target"):
        mine([1.0])


def test_something_else_than_a_learned_function_has_no_reference():
    with pytest.raises(NotImplementedError, match="a dict has no reference"):
        tracing.describe("x", {"op": "td_network"}, {}, {})


# --- references of strangers ----------------------------------------------------------


def signed(path, equation):
    """Add an equation to a program of an artifact, and sign it."""
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["reference"]["value_loss"]["value"]["equations"].append(equation)
    manifest["digest"] = verified.digest(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


HUGE = 10**10


ABSURD = [
    ["iota", [], 99, {"shape": [HUGE], "axis": 0, "type": "float64"}],
    ["broadcast_in_dim", [0], 99, {"shape": ["n", HUGE], "axes": [0]}],
    ["reshape", [0], 99, {"shape": [1 << 15, 1 << 15]}],
    ["pad", [0, 0], 99, {"low": [HUGE], "high": [0]}],
    ["iota", [], 99, {"shape": [2], "axis": 0, "type": "O"}],
    ["add", [0, {"value": [1], "type": "V9999999999"}], 99, {}],
    ["add", [0, 0], 99, {"dtype": "O"}],
    ["system", [0], 99, {}],
    ["tanh"],
    "tanh",
]


def test_absurd_programs_are_refused_when_they_are_loaded(tmp_path):
    written("value_loss", losses.residual_network(), tmp_path)
    sound = (tmp_path / "manifest.json").read_text()
    for equation in ABSURD:
        (tmp_path / "manifest.json").write_text(sound)
        numpy_reference.load(tmp_path)
        signed(tmp_path, equation)
        with pytest.raises(ValueError, match="no artifact with a reference"):
            numpy_reference.load(tmp_path)


def test_sizes_that_multiply_are_refused_before_memory_is_taken():
    side = 1 << 20
    program = {
        "inputs": [0],
        "shapes": [[]],
        "equations": [
            ["broadcast_in_dim", [0], 1, {"shape": [side, 1], "axes": []}],
            ["broadcast_in_dim", [0], 2, {"shape": [1, side], "axes": []}],
            ["add", [1, 2], 3, {}],
        ],
        "outputs": [3],
    }
    running.check_program(program)
    with pytest.raises(ValueError, match="add: more than"):
        numpy_functions.run(program, [np.ones(())], np.float64)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_of_no_steps_gives_the_carry_and_nothing_stacked(reverse):
    step = {"inputs": [0, 1], "equations": [["add", [0, 1], 2, {}]], "outputs": [2, 2]}
    settings = {"num_consts": 0, "num_carry": 1, "reverse": reverse, "program": step}
    program = {
        "inputs": [0, 1],
        "shapes": [[3], ["T", 3]],
        "equations": [["scan", [0, 1], [2, 3], settings]],
        "outputs": [2, 3],
    }
    for steps in (0, 2):
        inputs = [np.full(3, 5.0), np.ones((steps, 3))]
        last, stacked = numpy_functions.run(program, inputs, np.float64)
        assert last.tolist() == [5.0 + steps] * 3
        assert stacked.shape == (steps, 3)


def test_links_and_pipes_are_not_followed(tmp_path):
    written("value_loss", losses.residual_network(), tmp_path / "run" / "solution")
    solution = tmp_path / "run" / "solution"
    numpy_reference.load(tmp_path / "run")
    for name in ("manifest.json", "arrays.safetensors"):
        kept = (solution / name).rename(tmp_path / name)
        (solution / name).symlink_to(kept)
        for load in (numpy_reference.load, artifacts.load):
            with pytest.raises((ValueError, ArtifactError), match="symbolic link"):
                load(solution)
        (solution / name).unlink()
        os.mkfifo(solution / name)
        with pytest.raises(ValueError, match="a pipe"):
            numpy_reference.load(solution)
        (solution / name).unlink()
        kept.rename(solution / name)
    solution.rename(tmp_path / "elsewhere")
    solution.symlink_to(tmp_path / "elsewhere")
    for load in (numpy_reference.load, artifacts.load):
        with pytest.raises((ValueError, ArtifactError), match="symbolic link"):
            load(tmp_path / "run")
