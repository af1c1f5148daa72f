"""Learned losses of a policy and learned activations: their own properties."""

import jax
import jax.numpy as jnp
import learned as helper
import numpy as np
import pytest

from metaevo import activations, losses

USUAL, HUGE = (
    tuple(jnp.float32(x) for x in inputs["policy_loss"])
    for inputs in (helper.USUAL, helper.HUGE)
)


def away(learned, by=0.5):
    return learned.bind(jax.tree.map(jnp.asarray, helper.away(learned, by)))


# --- the policy's loss ----------------------------------------------------------------


def test_policy_loss_gradient_skips_the_advantage():
    inputs = USUAL
    gradients = jax.grad(lambda x: away(losses.policy_network())(*x).sum())(inputs)
    moves = [bool((jnp.abs(g) > 1e-4).any()) for g in gradients]
    assert moves == [True, True, False, True]
    assert (gradients[2] == 0).all()


def test_policy_loss_is_bounded_and_ignores_the_order_of_samples():
    loss = away(losses.policy_network(), 20.0)
    assert jnp.abs(loss(*USUAL)).max() <= 10.0
    assert jnp.abs(loss(*HUGE)).max() <= 10.0
    order = jax.random.permutation(jax.random.key(0), len(USUAL[0]))
    shuffled = loss(*(x[order] for x in USUAL))
    np.testing.assert_allclose(shuffled, loss(*USUAL)[order], rtol=1e-4, atol=1e-4)


# --- activations ----------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"base": "relu", "num_knots": 3}])
def test_activation_keeps_the_mean_square_of_its_layer(settings):
    """The mean of σ² over N(0, 1), whatever its numbers."""
    learned = activations.piecewise(**settings)
    x = jax.random.normal(jax.random.key(0), (100_000,))
    expected = float(
        (activations.HAND_MADE[settings.get("base", "tanh")](x) ** 2).mean()
    )
    for by in (0.3, 3.0):
        found = away(learned, by)(x)
        assert float((found**2).mean()) == pytest.approx(expected, rel=0.02)
    assert expected != pytest.approx(float((x**2).mean()), rel=0.1)


def test_activation_is_linear_between_its_knots():
    learned = activations.piecewise(num_knots=5, limit=2.0)
    params = learned.init(jax.random.key(0)).at[3].set(0.1).at[4].set(-0.2)
    σ = learned.bind(params)
    added = σ(jnp.array([1.0, 1.5, 2.0, 9.0])) / (σ(-1.0) / jnp.tanh(-1.0))
    added -= jnp.tanh(jnp.array([1.0, 1.5, 2.0, 9.0]))
    np.testing.assert_allclose(added, [0.1, -0.05, -0.2, -0.2], atol=1e-5)
