"""Closed forms: what is in a family is recovered, what is not is told apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaevo import activations, closed_forms, critic_losses, drifts, losses, schedules
from metaevo.analysis import curve_fits
from metaevo.slots import Context
from metaevo.storage import artifacts, numpy_reference

KEY = jax.random.key(0)


def fitted(tmp_path, slot, learned, params, visited=None):
    params = jax.tree.map(np.float32, params)
    artifacts.save(tmp_path / "a", {slot: params}, {slot: learned.spec}, {}, {})
    function = getattr(numpy_reference.load(tmp_path / "a"), slot)
    return curve_fits.fit(slot, learned.spec, function, visited)


def loaded(tmp_path, slot, form):
    """A fit as another agent loads it."""
    artifacts.save(tmp_path / "b", {slot: form.params}, {slot: form.op}, {}, {})
    return artifacts.load(tmp_path / "b").slots[slot]


def both(function, other, slot, largest, *context):
    """Values of two losses of a slot, over the same errors."""
    x = np.float32(largest * np.linspace(-0.75, 1, 15))
    inputs = (x, 0 * x, x) if slot == "value_loss" else (-x, x, 0 * x)
    evaluate = jax.jit(lambda *given: (function(*given), other(*given)))
    return evaluate(*inputs, *context)


def constants(**given):
    start = jax.tree.map(float, closed_forms.error_loss("zero").init(KEY))
    return start | given


LOSSES = {
    "a square": {"square": 0.5},
    "DQNReg's": {"square": 1.0},
    "Huber": {"huber": 1.3, "knee": 2.5},
    "tilted": {"square": 0.4, "tilt": -0.7},
    "log cosh": {"log_cosh": 0.9, "width": 1.7},
    "absolute": {"abs": 0.8, "square": 0.1},
    "three terms": {"huber": 0.6, "knee": 3.0, "abs": 0.3, "tilt": 0.2},
    "nothing": {},
}


@pytest.mark.parametrize(
    ("slot", "name"),
    [
        *(("value_loss", name) for name in LOSSES),
        *(("td_loss", name) for name in ("DQNReg's", "three terms")),
    ],
)
def test_a_loss_of_the_family_is_recovered(tmp_path, slot, name):
    known = constants(**LOSSES[name])
    learned, mine = closed_forms.error_loss("zero"), dict(known)
    if slot == "td_loss":
        learned = closed_forms.td_error_loss()
        mine = known | {"q": 0.05, "square": known["square"] - 0.5}
    form = fitted(tmp_path, slot, learned, mine, (-6.0, 8.0))
    if slot == "td_loss":
        assert form.params["q"] == pytest.approx(0.05)
    assert form.r2 > 1 - 1e-5
    for constant in ("square", "abs", "huber", "log_cosh", "tilt"):
        found = float(form.params[constant])
        found += 0.5 * (slot == "td_loss" and constant == "square")
        assert found == pytest.approx(known[constant], abs=1e-3), form.formula
    for size in ("knee", "width"):
        if size in LOSSES[name]:
            assert form.params[size] == pytest.approx(known[size], abs=1e-3)
    found, expected = both(loaded(tmp_path, slot, form), learned.bind(mine), slot, 4.0)
    np.testing.assert_allclose(found, expected, atol=2e-3)


@pytest.mark.parametrize("slot", ["value_loss", "td_loss"])
def test_a_loss_free_of_scale_has_a_formula_free_of_scale(tmp_path, slot):
    learned = closed_forms.scaled_error_loss()
    if slot == "td_loss":
        learned = closed_forms.scaled_td_error_loss()
    known = constants(huber=1.3, knee=1.5, tilt=-0.7, square=-0.4)
    form = fitted(tmp_path, slot, learned, known, (-2.0, 3.0))
    assert form.formula == (
        "s² (0.1 x² + 1.3 Huber(x; 1.5) - 0.7 x),  "
        f"x = ({'value' if slot == 'value_loss' else 'Q'} - target) / s,  "
        "s = return_std"
    )
    context = Context(return_std=100.0)
    form = loaded(tmp_path, slot, form)
    found, expected = both(form, learned.bind(known), slot, 400.0, context)
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_a_weighted_square_is_explained_in_part(tmp_path):
    learned = critic_losses.weighted_square(convex=True)
    params = learned.init(KEY)
    params["network"]["w1"] = jax.random.normal(KEY, (16, 1)) / 2
    form = fitted(tmp_path, "value_loss", learned, params)
    assert 0.5 < form.r2 < 0.99999
    assert form.op == {"op": "scaled_error_loss"}


def test_a_formula_can_be_read(tmp_path):
    known = constants(huber=1.3, knee=2.5, tilt=-0.7)
    form = fitted(tmp_path, "value_loss", closed_forms.error_loss("zero"), known)
    assert form.formula == "1.3 Huber(x; 2.5) - 0.7 x,  x = value - target"
    clipped = closed_forms.error_loss()
    form = fitted(tmp_path, "value_loss", clipped, constants(tilt=0.25))
    assert form.formula == (
        "0.5 x² + 0.25 x,  x = value - target, of which ½ x² is clipped as PPO's"
    )
    # And it is clipped as before: here the clipped value is the one further off.
    context = Context(stats={"clip_eps": 0.1})
    given = np.float32([[0.4, 0.4], [0.5, 0.5], [1.0, 0.4]])
    form = loaded(tmp_path, "value_loss", form)
    for loss in (form, clipped.bind(constants(tilt=0.25))):
        found = jax.jit(loss)(*given, context)
        np.testing.assert_allclose(found + 0.025, [0.08, 0.005], atol=1e-4)


def test_dqnreg_as_the_learned_loss_has_it(tmp_path):
    learned = losses.td_network()
    params = learned.init(KEY) | {"tilt": 0.05}
    form = fitted(tmp_path, "td_loss", learned, params)
    assert form.formula == "0.5 x² + 0.05 Q,  x = Q - target"


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.6), (0.7, 3.0)])
def test_dpos_constants_are_recovered(tmp_path, alpha, beta):
    params = {"alpha": np.log(alpha / 2), "beta": np.log(beta / 0.6)}
    form = fitted(tmp_path, "drift", drifts.dpo_constants(), params)
    assert 2 * np.exp(form.params["alpha"]) == pytest.approx(alpha, abs=1e-3)
    assert 0.6 * np.exp(form.params["beta"]) == pytest.approx(beta, abs=1e-3)
    assert form.r2 > 1 - 1e-5
    if alpha == 2.0:
        assert form.formula == (
            "A ≥ 0: ReLU((r - 1) A - 2 tanh((r - 1) A / 2)); "
            "A < 0: ReLU(A log r - 0.6 tanh(A log r / 0.6))"
        )


def test_ppos_clip_is_recovered_from_a_network_at_its_start(tmp_path):
    learned = drifts.drift_network()
    form = fitted(tmp_path, "drift", learned, learned.init(KEY))
    assert form.op["op"] == "clip_constant"
    assert 0.2 * np.exp(form.params["eps"]) == pytest.approx(0.2, abs=1e-3)
    assert form.formula == "ReLU((r - clip(r, 1 ± 0.2)) A)"
    d, a = jnp.linspace(-0.6, 0.6, 9), jnp.ones(9)
    function = loaded(tmp_path, "drift", form)
    np.testing.assert_allclose(
        function(d, a, 0.2), drifts.ppo_clip(d, a, 0.2), atol=1e-3
    )


@pytest.mark.parametrize("base", ["tanh", "relu"])
def test_an_activation_as_a_rational_function(tmp_path, base):
    learned = activations.piecewise(base)
    form = fitted(tmp_path, "activation", learned, learned.init(KEY))
    assert form.r2 > 0.995
    x = jnp.linspace(-3, 3, 31)
    function = loaded(tmp_path, "activation", form)
    usual = activations.HAND_MADE[base](x)
    np.testing.assert_allclose(
        function(x), usual, atol=0.01 if base == "tanh" else 0.12
    )


def test_a_schedule_as_a_line_on_its_own_scale(tmp_path):
    make = schedules.around(schedules.knots)
    settings = {"transform": "log", "scale": 0.5, "default": 1e-3}
    learned = make(kind="cubic", num_knots=7, **settings)
    # Greville's abscissae make a straight line of a cubic spline.
    places = np.array([0, 1 / 12, 0.25, 0.5, 0.75, 11 / 12, 1])
    form = fitted(tmp_path, "lr", learned, 1.0 - 4.0 * places)
    np.testing.assert_allclose(form.params, [1.0, -3.0], atol=1e-3)
    assert form.formula == "lr = 0.001 exp(0.5 - 2 τ),  τ = share of the lifetime"
    assert form.r2 > 1 - 1e-6
    number = loaded(tmp_path, "lr", form)
    assert number(Context(progress=0.5)) == pytest.approx(1e-3 * np.exp(-0.5), rel=1e-3)


def test_steps_as_a_line(tmp_path):
    learned = schedules.steps(10)
    values = 0.1 * np.exp(-2 * (np.arange(10) + 0.5) / 10)
    form = fitted(tmp_path, "lr", learned, values)
    number = loaded(tmp_path, "lr", form)
    assert number(Context(progress=0.5)) == pytest.approx(0.1 * np.exp(-1), rel=0.02)


def test_what_has_no_closed_form(tmp_path):
    temporal = losses.residual_network(temporal=True)
    assert fitted(tmp_path, "value_loss", temporal, temporal.init(KEY)) is None
    policy = losses.policy_network()
    assert fitted(tmp_path, "policy_loss", policy, policy.init(KEY)) is None
