"""Exported source: its inputs, its errors, and text of strangers in it.

That each format equals JAX is in `tests/system/test_exports.py`.
"""

import ast
import inspect
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import learned as helper
import numpy as np
import pytest

from metaevo import (
    advantages,
    critic_losses,
    drifts,
    losses,
    rewards,
    schedules,
)
from metaevo.errors import ArtifactError, ConfigError
from metaevo.export import files, helpers, programs, source
from metaevo.export import inputs as of_users
from metaevo.learned import operations, optimizers
from metaevo.portable import tracing
from metaevo.storage import artifacts, numpy_reference


def saved(path, **slots):
    """An artifact with learned functions off their starts, and numbers."""
    numbers = {k: x for k, x in slots.items() if isinstance(x, float)}
    made = {k: x for k, x in slots.items() if k not in numbers}
    params = {k: helper.away(x) for k, x in made.items()}
    spec = {k: x.spec for k, x in made.items()}
    spec |= {k: {"op": "number"} for k in numbers}
    params |= {k: np.float32(0) for k in numbers}
    artifacts.save(path, params, spec, numbers, {"search": "mine"})
    return path


def imported(path, to="numpy", **options):
    """The names that an exported file defines."""
    written = files.write(path, to, path.parent / f"{to}_file.py", **options)
    scope: dict = {}
    exec(compile(written.read_text(), str(written), "exec"), scope)
    return scope


@pytest.fixture(scope="module")
def loss(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loss") / "solution"
    return saved(folder, value_loss=losses.residual_network(), lr=3e-4)


def test_numpy_file_equals_the_reference_over_any_leading_axes(loss):
    mine, reference = imported(loss), numpy_reference.load(loss).value_loss
    assert mine["LR"] == 3e-4
    inputs = np.random.default_rng(0).normal(0, 20, (3, 2, 5))
    flat = [x.ravel() for x in inputs]
    found = mine["value_loss"](*inputs)
    assert found.shape == (2, 5)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found.ravel(), reference(*flat), rtol=1e-7)
    slopes = mine["value_loss_gradient"](*inputs)
    for a, b in zip(slopes, reference.gradient(*flat), strict=True):
        np.testing.assert_allclose(a.ravel(), b, rtol=1e-6, atol=1e-9)


def test_scalars_broadcast_and_inputs_take_the_type_of_the_first_array(loss):
    value_loss = imported(loss)["value_loss"]
    value = np.float32([[1.0], [2.0]])
    found = value_loss(value, 0.5, np.float64(0))
    assert found.dtype == np.float32
    wide = value_loss(*np.broadcast_arrays(value, np.float32(0.5), np.float32(0)))
    np.testing.assert_array_equal(found, wide)
    assert np.shape(value_loss(1.0, 2.0, 3.0)) == ()


def test_a_column_beside_a_row_is_refused_in_one_line(loss):
    """A critic's [n, 1] and targets [n] would give a loss [n, n]."""
    exported = imported(loss)
    expected = r"^value_loss: value has shape \(3, 1\) and target \(3,\): [^\n]*$"
    for name in ("value_loss", "value_loss_gradient"):
        with pytest.raises(ValueError, match=expected):
            exported[name](np.ones((3, 1)), np.ones(3), np.ones(3))


def test_a_loss_of_a_difference_takes_both_tensors(tmp_path):
    """There is no sign to get wrong: it is that of the loaded loss at target - q."""
    path = saved(tmp_path / "solution", td_loss=losses.td_network())
    q, target = np.random.default_rng(0).normal(size=(2, 7))
    mine, reference = imported(path), numpy_reference.load(path).td_loss
    found = mine["td_loss"](q, target)
    np.testing.assert_allclose(found, reference(target - q, q, target), rtol=1e-6)
    of_error, of_q, of_target = reference.gradient(target - q, q, target)
    slopes = mine["td_loss_gradient"](q, target)
    np.testing.assert_allclose(slopes[0], of_q - of_error, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(slopes[1], of_target + of_error, rtol=1e-5, atol=1e-7)


TENSORS = {
    "td_loss": ["q", "target"],
    "priority": ["q", "target", "age", "visits", "reward", "terminated"],
    "policy_loss": ["log_prob", "old_log_prob", "advantage", "entropy"],
    "drift": ["log_prob", "old_log_prob", "advantage", "clip_eps"],
    "correction": ["log_prob", "old_log_prob"],
}


def test_no_exported_function_takes_a_difference():
    for case in helper.cases().values():
        if case.operation.slot in TENSORS:
            found = of_users.signature(case.make().spec).given
            assert list(found) == TENSORS[case.operation.slot]


def test_the_discount_of_a_potential_is_an_argument(tmp_path):
    learned = rewards.potential((1.0, 2.0), gamma=0.9)
    reward = imported(saved(tmp_path / "solution", reward=learned))["reward"]
    obs, after = np.ones((4, 2)), np.zeros((4, 2))
    assert list(inspect.signature(reward).parameters)[-1] == "gamma"
    low, high = (reward(obs, 0, 1.0, after, 0.0, gamma=x) for x in (0.9, 0.99))
    assert not np.allclose(low, high)
    mine = numpy_reference.load(tmp_path / "solution").reward
    given = (obs, np.zeros(4), np.ones(4), after, np.zeros(4))
    np.testing.assert_allclose(low, mine(*given), rtol=1e-6)
    # It does not read the action, which has any shape.
    np.testing.assert_array_equal(reward(obs, np.ones((4, 3)), 1, after, 0, 0.9), low)


def test_a_name_that_cannot_be_imported_is_not_in_the_example(loss, tmp_path):
    for stem in ("evolved", "my-loss", "class", "torch"):
        text = files.write(loss, "torch", tmp_path / f"{stem}.py").read_text()
        assert ">>> value, target, old_value = torch.randn(3, 32)" in text
        found = ">>> from evolved import LR, value_loss" in text
        assert found == (">>> from" in text) == (stem == "evolved")


def test_source_is_named_after_the_statements_that_it_comes_from(loss):
    text = files.write(loss, "torch", loss.parent / "torch_file.py").read_text()
    body = ast.parse(text).body
    assert "inside = _max(x, -3.0)" in text
    assert "# losses.clipped_square\n" in text
    assert "search: mine" in text.partition('"""\n')[0]
    # One statement a line, and nothing imported but torch.
    lines = [x.lineno for x in ast.walk(ast.parse(text)) if isinstance(x, ast.Assign)]
    assert len(lines) == len(set(lines))
    imports = [
        ast.unparse(x) for x in body if isinstance(x, ast.Import | ast.ImportFrom)
    ]
    assert imports == ["from __future__ import annotations", "import torch"]


def test_what_does_not_depend_on_inputs_is_computed():
    """The two constants of DPO's drift, from numbers that pass through exp and clip."""
    learned = drifts.dpo_constants()
    program = programs.evolved("drift", learned.spec, helper.away(learned)).value
    assert not list(program.constants())
    assert all(
        any(isinstance(x, str) for x in one.operands) for one in program.equations
    )


def test_broadcasting_that_numpy_does_by_itself_is_not_written():
    """Of three arrays between which `where` chooses, one gives the others its shape."""
    learned = critic_losses.weighted_square(convex=True, features=(8,))
    params = helper.away(learned)
    program = programs.evolved("value_loss", learned.spec, params).value
    settings = [
        one.settings for one in program.equations if one.operation == "broadcast_in_dim"
    ]
    whole = [x for x in settings if len(x["axes"]) == len(x["shape"])]
    assert len(whole) == 1


def test_large_weights_are_packed_and_equal(tmp_path):
    path = saved(tmp_path / "solution", drift=drifts.lpo_network(features=(64, 32)))
    text = files.write(path, "numpy", tmp_path / "x.py").read_text()
    assert "base64" in text
    inputs = helper.USUAL["drift"]
    inputs = [np.broadcast_to(np.float64(x), (41,)) for x in inputs]
    log_ratio, *rest = inputs
    np.testing.assert_allclose(
        imported(path)["drift"](log_ratio - 1, -1.0, *rest),
        numpy_reference.load(path).drift(*inputs),
        atol=1e-7,
    )


def test_schedule_and_optimizer_stand_in_one_file(tmp_path):
    path = saved(
        tmp_path / "solution",
        optimizer=optimizers.adam_numbers(),
        lr=schedules.steps(2),
    )
    mine, reference = imported(path), numpy_reference.load(path).optimizer
    params, gradient = {"b": np.zeros(3)}, {"b": np.arange(3.0)}
    state = mine["optimizer_init"](params)
    found, _ = mine["optimizer_update"](gradient, state, params)
    expected, _ = reference.update(gradient, reference.init(params), params)
    np.testing.assert_allclose(found["b"], expected["b"], rtol=1e-6)
    last = numpy_reference.load(path).lr(0.9)
    assert float(mine["lr"](0.9)) == pytest.approx(float(last), rel=1e-6)


def test_jax_file_computes_a_loss_of_half_precision_in_float32(loss):
    value_loss = imported(loss, "jax")["value_loss"]
    x = np.array([0.5, 2.0, 400.0], np.float16)
    found, pull = jax.vjp(jax.jit(lambda x: value_loss(x, 0.0, 1.0)), x)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    (slope,) = pull(found)
    assert slope.dtype == np.float16


def test_clamp_has_the_derivative_of_jax_at_its_bounds():
    scope: dict = {"jnp": jnp, "jax": jax}
    exec(helpers.JAX["_clamp"], scope)
    x = np.float32([-2.0, -1.0, 0.5, 1.0, 3.0])
    for fn in (jax.lax.clamp, scope["_clamp"]):
        both = jax.value_and_grad(lambda x, fn=fn: fn(-1.0, x, 1.0))
        bounded, slope = jax.jit(jax.vmap(both))(x)
        assert bounded.tolist() == [-1.0, -1.0, 0.5, 1.0, 1.0]
        assert slope.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]
    call = SimpleNamespace(x=["0.0", "x", "1.0"], m="torch")
    for dialect in ("jax", "torch"):
        assert source.DIALECTS[dialect].table["clamp"](call) == "_clamp(0.0, x, 1.0)"


def test_constants_of_truth_values_are_no_numbers_in_torch():
    array = source.DIALECTS["torch"].array
    assert array("[True, False]") == "torch.tensor([True, False])"
    assert array("[1.0, 1e-05]").endswith("dtype=torch.float64)")


def test_onnx_reward_of_a_step_is_not_called_the_next_one(tmp_path):
    onnx = pytest.importorskip("onnx")
    path = saved(tmp_path / "solution", reward=rewards.impact((1.0, 2.0)))
    model = onnx.load(str(files.write(path, "onnx")))
    assert "reward" in {x.name for x in model.graph.input}
    assert [x.name for x in model.graph.output] == ["reward_value"]


# --- what is refused ------------------------------------------------------------------


def test_two_optimizers_do_not_fit_into_one_file(tmp_path):
    path = saved(
        tmp_path / "solution",
        actor=optimizers.adam_numbers(),
        critic=optimizers.adam_numbers(),
    )
    with pytest.raises(ConfigError, match=r"slots actor, critic .*; give slot=NAME"):
        files.write(path, "numpy")
    assert imported(path, slot="actor")["optimizer_update"]


@pytest.mark.parametrize("name", ["torch", "zip"])
def test_slot_that_a_file_cannot_define_is_refused(name, tmp_path):
    path = saved(tmp_path / "solution", **{name: losses.residual_network()})
    with pytest.raises(ConfigError, match=f"slot '{name}' cannot be a name"):
        files.write(path, "torch")


@pytest.mark.parametrize(
    ("name", "value"), [("value-loss", losses.residual_network()), ("lambda", 0.3)]
)
def test_slot_that_is_not_a_plain_name_is_refused(name, value, tmp_path):
    path = saved(tmp_path / "solution", **{name: value})
    with pytest.raises(ArtifactError, match=f"slot name '{name}' is not a plain name"):
        files.write(path, "numpy")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "tensorflow"}, r"to=tensorflow: expected one of jax, torch"),
        (
            {"to": "numpy", "slot": "drift"},
            r"slot=drift: expected one of lr, value_loss",
        ),
        ({"to": "onnx", "slot": "lr"}, r"to=onnx: a file holds one function.*has 0"),
        ({"to": "jax"}, r"out=.*never: expected a name that ends in \.py"),
    ],
)
def test_wrong_options_name_what_is_expected(loss, options, message):
    with pytest.raises(ConfigError, match=message):
        files.write(loss, **options, out=loss.parent / "never")
    assert not (loss.parent / "never").exists()


@pytest.mark.parametrize("out", ["there/", "."])
def test_a_folder_gets_a_file_of_the_usual_name(out, loss, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = files.write(loss, "numpy", out, slot="value_loss")
    assert written == Path(out) / "value_loss_numpy.py"
    assert "from value_loss_numpy import value_loss" in written.read_text()


def test_no_artifact_and_no_place_to_write_are_named(loss, tmp_path):
    with pytest.raises(ArtifactError, match="no artifact here"):
        files.write(tmp_path, "numpy")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"out=.*cannot be written"):
        files.write(loss, "numpy", tmp_path / "file" / "x.py")


def test_a_file_is_written_where_a_link_leads_and_into_no_pipe(loss, tmp_path):
    (tmp_path / "link.py").symlink_to("meant.py")
    files.write(loss, "numpy", tmp_path / "link.py")
    assert (tmp_path / "meant.py").is_file()
    assert (tmp_path / "link.py").is_symlink()
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(ConfigError, match="expected a name for a regular file"):
        files.write(loss, "numpy", tmp_path / "pipe.py")
    (tmp_path / "loop.py").symlink_to("loop.py")
    with pytest.raises(ConfigError, match=r"out=.*loop\.py: "):
        files.write(loss, "numpy", tmp_path / "loop.py")


def test_operation_without_a_translation_is_refused_by_name(loss, monkeypatch):
    monkeypatch.delitem(tracing.OPERATIONS, "tanh")
    with pytest.raises(ConfigError, match=r"to=torch: slot 'value_loss'.*'tanh'"):
        files.write(loss, "torch", loss.parent / "never")


def test_function_over_time_keeps_trajectories_apart(tmp_path):
    """Axes behind time are trajectories, whatever their number."""
    learned = advantages.recurrent(hidden=2, features=(3,))
    path = saved(tmp_path / "solution", advantage=learned)
    mine = imported(path)
    rng = np.random.default_rng(0)
    arrays = [*rng.normal(size=(5, 7, 2, 3)), *(rng.random((2, 7, 2, 3)) < 0.2)]
    scalars = (1.7, 0.9, 0.8)
    found = mine["advantage"](*arrays, *scalars)
    slopes = mine["advantage_gradient"](*arrays, *scalars)
    assert found.shape == slopes[0].shape == (7, 2, 3)
    assert mine["advantage"](*(x[:, 0] for x in arrays), *scalars).shape == (7, 3)
    for i, j in np.ndindex(2, 3):
        alone = [x[:, i, j] for x in arrays]
        one = mine["advantage"](*alone, *scalars)
        assert one.shape == (7,)
        np.testing.assert_allclose(found[:, i, j], one, rtol=1e-12)
        one = mine["advantage_gradient"](*alone, *scalars)
        np.testing.assert_allclose(slopes[1][:, i, j], one[1], rtol=1e-9, atol=1e-12)
    # A later step matters to an earlier one of its trajectory, and to no other.
    arrays[6][:], changed = 0, arrays[0].copy()
    before = mine["advantage"](*arrays, *scalars)
    changed[5, 1, 2] += 1
    moved = mine["advantage"](changed, *arrays[1:], *scalars) != before
    assert moved[:6, 1, 2].all()
    assert moved.sum() == 6


@pytest.mark.parametrize("to", ["onnx", "stablehlo"])
def test_missing_package_is_named_with_the_remedy(loss, to, monkeypatch):
    package = {"onnx": "onnx", "stablehlo": "flatbuffers"}[to]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ConfigError, match=rf"{package}: pip install 'metaevo\[export\]'"
    ):
        files.write(loss, to, loss.parent / "never")


def names_of(text):
    return {x.id for x in ast.walk(ast.parse(text)) if isinstance(x, ast.Name)}


def test_text_of_a_stranger_stays_in_the_docstring(tmp_path):
    """It cannot end the docstring: the file would run it."""
    evil = '"""\nimport os\nos.abort()\n"""\\'
    learned = losses.residual_network()
    params = {"value_loss": helper.away(learned)}
    spec = {"value_loss": {**learned.spec, "label": evil}}
    artifacts.save(tmp_path / "solution", params, spec, {}, {"search": evil})
    text = files.write(tmp_path, "numpy").read_text()
    assert "os" not in names_of(text)
    assert "abort" not in json.dumps([ast.dump(x) for x in ast.parse(text).body[1:]])
    assert "abort" in text


def test_settings_of_a_stranger_stay_in_the_docstring(tmp_path):
    evil = '""";__import__("os").system("echo EVIL");"""'
    moving = schedules.feedback({evil: 1.0}, (2,), "log", 0.5)
    lr = operations.get("feedback").rebuild({**moving.spec, "default": 0.01})
    assert evil in str(lr.spec)
    path = saved(tmp_path / "solution", lr=lr)
    for to in ("numpy", "jax", "torch"):
        text = files.write(path, to).read_text()
        assert "__import__" not in names_of(text)
        assert "EVIL" in text
