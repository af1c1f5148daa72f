"""Heads of action values, noisy networks, and DQN with them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loops import SMALL

from inner_loops import dqn
from metaevo import losses
from metaevo.errors import ConfigError
from metaevo.rl import networks, noisy, value_heads
from metaevo.slots import Context

# --- categorical ----------------------------------------------------------------------


def slow_projection(p, returns, v_min, v_max):
    """Bellemare et al., 2017, algorithm 1, atom by atom."""
    num = len(p)
    step, out = (v_max - v_min) / (num - 1), np.zeros(num)
    for j in range(num):
        b = (min(max(returns[j], v_min), v_max) - v_min) / step
        low, high = int(np.floor(b)), min(int(np.ceil(b)), num - 1)
        if low == high:
            out[low] += p[j]
        else:
            out[low] += p[j] * (high - b)
            out[high] += p[j] * (b - low)
    return out


def test_the_projection_equals_a_loop_over_atoms_and_keeps_mass():
    rng = np.random.default_rng(0)
    for i in range(60):
        num = (2, 7, 51)[i % 3]
        v_min = rng.normal() * 10
        v_max = v_min + 10 * rng.random() + 0.1
        head = value_heads.categorical(num, v_min, v_max)
        logits = rng.normal(size=num) * 3
        # The episode terminated, went on, or ended at a time limit: then the bootstrap
        # stays, with the discount of fewer steps.
        factor = rng.choice([0.0, 0.9, 0.99**3])
        reward = rng.normal() * 10
        p = np.exp(logits) / np.exp(logits).sum()
        returns = reward + factor * np.linspace(v_min, v_max, num)
        found = head.target(
            jnp.float32(logits), jnp.float32(reward), jnp.float32(factor)
        )
        expected = slow_projection(p, returns, v_min, v_max)
        np.testing.assert_allclose(found, expected, atol=2e-4)
        assert float(found.sum()) == pytest.approx(1.0, abs=1e-5)
        if v_min <= returns.min() and returns.max() <= v_max:
            assert float(head.mean(found)) == pytest.approx(p @ returns, abs=1e-3)


def test_a_terminal_reward_is_shared_by_its_neighbors():
    head = value_heads.categorical(3, 0.0, 2.0)
    logits = jnp.array([5.0, -1.0, 3.0])
    ended = head.target(logits, jnp.float32(0.25), jnp.float32(0.0))
    np.testing.assert_allclose(ended, [0.75, 0.25, 0.0], atol=1e-6)
    # With the bootstrap all moves by 0.25, and what is beyond the end stays there.
    p = jax.nn.softmax(logits)
    on = head.target(logits, jnp.float32(0.25), jnp.float32(1.0))
    by_hand = [0.75 * p[0], 0.25 * p[0] + 0.75 * p[1], 0.25 * p[1] + p[2]]
    np.testing.assert_allclose(on, by_hand, atol=1e-6)


def test_cross_entropy_is_least_at_the_target():
    head = value_heads.categorical(5, -1.0, 1.0)
    target = jnp.array([0.1, 0.2, 0.3, 0.4, 0.0])

    def loss(logits):
        return head.loss(logits, target, losses.td_square, Context())

    logits = jnp.array([0.3, -0.2, 1.0, 0.0, 0.5])
    gradient = jax.grad(loss)(logits)
    np.testing.assert_allclose(gradient, jax.nn.softmax(logits) - target, atol=1e-6)
    assert float(head.values(jnp.zeros(5))) == pytest.approx(0.0, abs=1e-6)


# --- quantiles ------------------------------------------------------------------------


def test_the_quantile_loss_equals_its_definition():
    head = value_heads.quantile(4)
    rng = np.random.default_rng(2)
    theta, target = rng.normal(size=(2, 4)) * 2
    expected = 0.0
    for i in range(4):
        level = (i + 0.5) / 4
        for j in range(4):
            delta = target[j] - theta[i]
            size = abs(delta)
            huber = 0.5 * delta**2 if size <= 1 else size - 0.5
            expected += abs(level - (delta < 0)) * huber / 4
    args = jnp.float32(theta), jnp.float32(target), losses.td_huber, Context()
    assert float(head.loss(*args)) == pytest.approx(expected, rel=1e-5)
    default = head.loss(*args[:2], losses.td_square, Context())
    assert float(default) == pytest.approx(expected, rel=1e-5)
    batch = (jnp.stack([x, 2 * x, -x]) for x in args[:2])
    found = head.loss(*batch, *args[2:])
    assert found.shape == (3,)
    assert float(found[0]) == pytest.approx(expected, rel=1e-5)
    moved = head.target(jnp.float32(theta), jnp.float32(1.5), jnp.float32(0.5))
    np.testing.assert_allclose(moved, 1.5 + 0.5 * theta, rtol=1e-5)
    assert float(head.values(jnp.float32(theta))) == pytest.approx(theta.mean())


def test_quantiles_of_a_known_return_are_found():
    """By gradient descent from zero, on 0 or 1 with equal chances, and on 0 to 9."""
    head = value_heads.quantile(5)

    @functools.partial(jax.jit, static_argnums=0)
    def fitted(high):
        target = jnp.linspace(0.0, high, 10).round()

        def step(theta, _):
            gradient = jax.grad(
                lambda theta: head.loss(theta, target, losses.td_huber, Context())
            )(theta)
            return theta - 0.05 * gradient, None

        return jax.lax.scan(step, jnp.zeros(5), None, length=5000)[0]

    found = fitted(9.0)
    np.testing.assert_allclose(found, [0.5, 2.5, 4.5, 6.5, 8.5], atol=0.6)
    assert (jnp.diff(fitted(1.0)) >= -1e-3).all()


# --- noisy networks -------------------------------------------------------------------


def test_noise_is_factorized_and_of_its_scale():
    plain = networks.mlp((40,), 30, activation="relu")
    network = noisy.noisy(plain)
    obs = jnp.linspace(-1, 1, 6)
    params = network.init(jax.random.key(0), obs)
    quiet = network.apply(params, obs)
    np.testing.assert_array_equal(quiet, plain.apply(params["mean"], obs))
    assert float(params["scale"]["Dense_1"]["bias"][0]) == pytest.approx(0.5 / 40**0.5)
    drawn = noisy.redrawn(jax.random.key(1), params)
    of_inputs, of_outputs = drawn["noise"]["Dense_1"]
    # f(x) = sign(x) √|x| of normal noise: mean 0, and E f² = E|x| = √(2/π).
    many = jnp.concatenate([of_inputs, of_outputs, *drawn["noise"]["Dense_0"]])
    assert float((many**2).mean()) == pytest.approx((2 / np.pi) ** 0.5, rel=0.25)
    by_hand = jax.tree.map(lambda x: x, params["mean"])
    for name, (inputs, outputs) in drawn["noise"].items():
        layer, scale = by_hand["params"][name], params["scale"][name]
        layer["kernel"] += scale["kernel"] * inputs[:, None] * outputs[None]
        layer["bias"] += scale["bias"] * outputs
    np.testing.assert_allclose(
        network.apply(drawn, obs), plain.apply(by_hand, obs), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_array_equal(network.apply(noisy.quiet(drawn), obs), quiet)


def test_gradients_reach_means_and_scales_and_not_the_noise():
    network = noisy.noisy(networks.mlp((8,), 2, activation="relu"))
    obs = jnp.ones(3)
    params = noisy.redrawn(jax.random.key(1), network.init(jax.random.key(0), obs))
    gradient = jax.grad(lambda params: network.apply(params, obs).sum())(params)
    assert all(jnp.any(x != 0) for x in jax.tree.leaves(gradient["scale"]["Dense_1"]))
    assert all(jnp.any(x != 0) for x in jax.tree.leaves(gradient["mean"]))
    assert not any(jnp.any(x != 0) for x in jax.tree.leaves(gradient["noise"]))


# --- in DQN ---------------------------------------------------------------------------

RAINBOW = {"double": True, "dueling": True, "num_step_return": 3, "noisy": True}
RAINBOW |= {"head": "categorical", "num_atoms": 11, "v_min": 0.0, "v_max": 20.0}
WITH_HEADS = {
    "rainbow": (RAINBOW, losses.td_square),
    "quantile": ({"head": "quantile", "num_atoms": 7}, losses.td_huber),
}


@pytest.mark.parametrize("name", WITH_HEADS)
def test_a_lifetime_with_a_head(name):
    """It learns, evaluation has no noise, and the values have the shape of actions."""
    config, td_loss = WITH_HEADS[name]
    meta = dqn.Meta(lr=1e-2, epsilon=0.0, td_loss=td_loss, max_grad_norm=10.0)
    loop = SMALL["dqn"].make(meta, **config)
    born = loop.init(jax.random.key(0), meta)
    after, metrics = jax.jit(loop.train)(jax.random.key(1), meta, born)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after.agent))
    assert np.isfinite(metrics["value_error_rms"])
    learned = after.agent.params
    if "noisy" in config:
        before = born.agent.params["scale"]
        pairs = zip(*map(jax.tree.leaves, (learned["scale"], before)), strict=True)
        assert all(np.any(a != b) for a, b in pairs)
        moved = after.agent._replace(params=noisy.redrawn(jax.random.key(5), learned))
        obs = jax.random.normal(jax.random.key(6), (50, 4))
        first, second = (
            loop.act(jax.random.key(0), meta, agent, (), obs)[0]
            for agent in (after.agent, moved)
        )
        np.testing.assert_array_equal(first, second)
        assert first.shape == (50,)


def test_each_environment_acts_with_noise_of_its_own():
    network = noisy.noisy(networks.mlp((8,), 2, activation="relu"))
    params = network.init(jax.random.key(0), jnp.ones(3))
    keys = jax.random.split(jax.random.key(1), 4)
    q = noisy.NOISY.of_each(network.apply, keys, params)(jnp.ones((4, 3)))
    assert len(np.unique(q[:, 0])) == 4


def test_bad_heads_are_refused():
    small = SMALL["dqn"]
    with pytest.raises(ConfigError, match=r"inner\.head='c51': expected one of scalar"):
        small.make(head="c51")
    with pytest.raises(ConfigError, match=r"v_min=3\.0, inner\.v_max=3\.0"):
        small.make(head="categorical", v_min=3.0, v_max=3.0)
    with pytest.raises(ConfigError, match=r"num_atoms=1: .*at least 2 atoms"):
        small.make(head="quantile", num_atoms=1)
    meta = small.meta._replace(td_loss=losses.td_huber)
    with pytest.raises(ConfigError, match="td_loss would have no effect"):
        small.make(meta, head="categorical")
    loop = small.make(head="categorical")
    state = jax.eval_shape(loop.init, jax.random.key(0), meta)
    with pytest.raises(ConfigError, match="td_loss would have no effect"):
        jax.eval_shape(loop.train, jax.random.key(0), meta, state)
