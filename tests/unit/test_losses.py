"""Learned losses of a policy and learned activations: their own properties."""

import jax
import jax.numpy as jnp
import learned as helper
import numpy as np
import pytest

from metaevo import activations, losses

USUAL, HUGE = (
    tuple(np.float32(x) for x in inputs["policy_loss"])
    for inputs in (helper.USUAL, helper.HUGE)
)


def away(learned, by=0.5):
    return learned.bind(jax.tree.map(jnp.asarray, helper.away(learned, by)))


# --- the policy's loss ----------------------------------------------------------------


def test_policy_loss_gradient_skips_the_advantage():
    loss = away(losses.policy_network())
    gradients = jax.jit(jax.grad(lambda x: loss(*x).sum()))(USUAL)
    moves = [bool((np.abs(g) > 1e-4).any()) for g in gradients]
    assert moves == [True, True, False, True]
    assert (gradients[2] == 0).all()


def test_policy_loss_is_bounded_and_ignores_the_order_of_samples():
    loss = jax.jit(away(losses.policy_network(), 20.0))
    found = np.asarray(loss(*USUAL))
    assert np.abs(found).max() <= 10.0
    assert np.abs(loss(*HUGE)).max() <= 10.0
    order = np.random.default_rng(0).permutation(len(USUAL[0]))
    shuffled = loss(*(x[order] for x in USUAL))
    np.testing.assert_allclose(shuffled, found[order], rtol=1e-4, atol=1e-4)


# --- activations ----------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"base": "relu", "num_knots": 3}])
def test_activation_keeps_the_mean_square_of_its_layer(settings):
    """The mean of σ² over N(0, 1), whatever its numbers."""
    learned = activations.piecewise(**settings)
    x = np.float32(np.random.default_rng(0).normal(size=100_000))
    apply = jax.jit(learned.apply)

    def mean_square(values):
        return float(np.mean(np.square(values)))

    usual = activations.HAND_MADE[settings.get("base", "tanh")]
    expected = mean_square(usual(x))
    for by in (0.3, 3.0):
        found = mean_square(apply(helper.away(learned, by), x))
        assert found == pytest.approx(expected, rel=0.02)
    assert expected != pytest.approx(mean_square(x), rel=0.1)


def test_activation_is_linear_between_its_knots():
    learned = activations.piecewise(num_knots=5, limit=2.0)
    params = np.array(learned.init(jax.random.key(0)))
    params[3:5] = 0.1, -0.2
    x = np.float32([-1.0, 1.0, 1.5, 2.0, 9.0])
    found = np.asarray(jax.jit(learned.bind(params))(x))
    added = (found / (found[0] / np.tanh(-1.0)) - np.tanh(x))[1:]
    np.testing.assert_allclose(added, [0.1, -0.05, -0.2, -0.2], atol=1e-5)
