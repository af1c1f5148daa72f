"""Critics' losses with guarantees: their formulas, by hand, and their exact start.

What they guarantee is in `tests/contracts/test_guarantees.py`.
"""

import jax
import jax.numpy as jnp
import learned as helper
import numpy as np
import pytest

from metaevo import critic_losses, losses
from metaevo.errors import ConfigError
from metaevo.slots import Context

S = 2.5
NOW = Context(return_std=S)
V = np.linspace(-30.0, 30.0, 241, dtype=np.float32)
G = np.linspace(4.0, -3.0, 241, dtype=np.float32)


def weights(params, x, settings):
    """W ** tanh(n(x)) in float64, x [N] or [N, inputs], of one hidden layer."""
    net = {name: np.float64(p) for name, p in params["network"].items()}
    seen = np.asarray(x).reshape(len(x), -1)
    hidden = np.tanh(seen @ net["w0"] + net["b0"])
    n = (hidden @ net["w1"] + net["b1"])[:, 0]
    return settings.get("max_weight", 8.0) ** np.tanh(n)


@pytest.mark.parametrize("convex", [False, True])
def test_the_start_is_the_squared_error_to_the_bit(convex):
    learned = critic_losses.weighted_square(convex=convex)
    start = learned.bind(learned.init(jax.random.key(0)))
    td = critic_losses.td_weighted_square(convex=convex)
    start_td = jax.jit(td.bind(td.init(jax.random.key(0))))
    square = jax.jit(losses.square)(V, G, V)
    np.testing.assert_array_equal(start_td(G - V, V, G, NOW), square)

    @jax.jit
    def value_and_slope(v, std):
        value, pull = jax.vjp(lambda v: start(v, G, v, Context(return_std=std)), v)
        return value, *pull(jnp.ones_like(value))

    for std in (0.0, 1e-3, S, 1e3):
        value, slope = value_and_slope(V, std)
        np.testing.assert_array_equal(value, square)
        np.testing.assert_array_equal(slope, V - G)


def test_a_weighted_square_by_hand():
    settings = {"max_weight": 5.0, "max_bias": 0.5, "limit": 2.0}
    learned = critic_losses.weighted_square((6,), **settings)
    params = helper.away(learned, 1.0)
    e = np.float64(V - G) - S * 0.5 * np.tanh(np.float64(params["bias"]))
    x = 2.0 * np.tanh(e / (2.0 * S))
    expected = 0.5 * e**2 * weights(params, x, settings)
    found = jax.jit(learned.bind(params))(V, G, V, NOW)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_signed_weighted_square_by_hand():
    settings = {"max_bias": 0.0, "signed": True}
    learned = critic_losses.td_weighted_square((6,), **settings)
    params = helper.away(learned, 1.0)
    e, g = np.float64(V - G), np.float64(G)
    x = 3.0 * np.tanh(e / (3.0 * S))
    y = x * np.sign(g)
    seen = np.stack([y, np.sign(y), np.abs(g) / (S + np.abs(g))], 1)
    expected = 0.5 * e**2 * weights(params, seen, settings)
    loss = jax.jit(learned.bind(params))
    found = loss(G - V, V, G, NOW)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    # The same errors about targets of the other sign are weighed otherwise.
    other = loss(G - V, V - 2 * G, -G, NOW)
    assert np.abs(other - found)[np.abs(e) > 1].max() > 0.1
    # And rewards as costs.
    np.testing.assert_allclose(loss(V - G, -V, -G, NOW), found, rtol=1e-5)


def test_a_signed_member_knows_the_reluctant_square():
    """Whose weight depends on sign(y) alone."""
    learned = critic_losses.td_weighted_square(
        (1,), max_weight=16.0, max_bias=0.0, signed=True
    )
    least = np.arctanh(np.log(0.1) / np.log(16.0))  # of the network, for a tenth
    network = {
        "w0": np.float32([[0.0], [1e3], [0.0]]),
        "b0": np.float32([0.0]),
        "w1": np.float32([[-least / 2]]),
        "b1": np.float32([least / 2]),
    }
    loss = jax.jit(learned.bind({"network": network}))
    far = np.abs(V - G) > 0.1
    reluctant = np.asarray(jax.jit(losses.td_reluctant)(G - V, V, G))
    np.testing.assert_allclose(
        np.asarray(loss(G - V, V, G, NOW))[far], reluctant[far], rtol=1e-3
    )


def test_a_convex_member_sees_no_sign():
    with pytest.raises(ConfigError, match="signed=True: convex members"):
        critic_losses.weighted_square(convex=True, signed=True)


def test_the_curvature_of_a_convex_member_by_hand():
    """Of each cell that of its center, outside of the cells that of the outermost."""
    learned = critic_losses.weighted_square((6,), convex=True, max_bias=0.0)
    params = helper.away(learned, 1.0)
    loss = learned.bind(params)
    width = 3.0 / critic_losses.NUM_CELLS
    center = (np.arange(critic_losses.NUM_CELLS) + 0.5) * width
    x = np.concatenate([-center[::-1], center])
    expected = weights(params, x, {})
    curvature = jax.jit(
        jax.vmap(jax.grad(jax.grad(lambda v: loss(v, jnp.float32(0.0), v, NOW))))
    )
    inside = np.concatenate([x + offset * width for offset in (-0.4, 0.0, 0.4)])
    at = np.float32(S * np.concatenate([inside, [-50.0, -3.1, 3.1, 50.0]]))
    expected = [*expected, *expected, *expected, *expected[[0, 0, -1, -1]]]
    np.testing.assert_allclose(curvature(at), expected, rtol=1e-4)
    # And it is 0 with slope 0 at the minimum: so it is the double integral.
    least = jax.jit(jax.value_and_grad(lambda v: loss(v, 1.0, 0.0, NOW)))(1.0)
    assert least == (0, 0)


def test_targets_that_are_all_equal_leave_a_finite_loss():
    for convex in (False, True):
        learned = critic_losses.weighted_square(convex=convex)
        loss = learned.bind(jax.tree.map(jnp.asarray, helper.away(learned, 1.0)))
        value, slope = jax.jit(
            jax.value_and_grad(
                lambda v, loss=loss: loss(v, 7.0, v, Context(return_std=0.0)).sum()
            )
        )(V)
        assert np.isfinite(value)
        assert np.isfinite(slope).all()
        assert (slope * (V - 7.0) >= 0).all()


def test_return_std_is_held():
    """A caller's own targets may depend on what is differentiated."""
    learned = critic_losses.weighted_square()
    loss = learned.bind(jax.tree.map(jnp.asarray, helper.away(learned)))
    slope = jax.grad(lambda s: loss(V, G, V, Context(return_std=s)).sum())
    assert jax.jit(slope)(S) == 0
