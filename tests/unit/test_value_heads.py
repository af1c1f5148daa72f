"""Heads of action values, noisy networks, and DQN with them."""

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

    @jax.jit
    def projected(logits, reward, factor, v_min, v_max):
        head = value_heads.categorical(len(logits), v_min, v_max)
        found = head.target(logits, reward, factor)
        return found, head.mean(found)

    for i in range(60):
        num = (2, 7, 51)[i % 3]
        v_min = rng.normal() * 10
        v_max = v_min + 10 * rng.random() + 0.1
        logits = rng.normal(size=num) * 3
        # The episode terminated, went on, or ended at a time limit: then the bootstrap
        # stays, with the discount of fewer steps.
        factor = rng.choice([0.0, 0.9, 0.99**3])
        reward = rng.normal() * 10
        p = np.exp(logits) / np.exp(logits).sum()
        returns = reward + factor * np.linspace(v_min, v_max, num)
        given = map(np.float32, (logits, reward, factor, v_min, v_max))
        found, mean = projected(*given)
        expected = slow_projection(p, returns, v_min, v_max)
        np.testing.assert_allclose(found, expected, atol=2e-4)
        assert float(found.sum()) == pytest.approx(1.0, abs=1e-5)
        if v_min <= returns.min() and returns.max() <= v_max:
            assert float(mean) == pytest.approx(p @ returns, abs=1e-3)


def test_cross_entropy_is_least_at_the_target():
    head = value_heads.categorical(5, -1.0, 1.0)
    target = jnp.array([0.1, 0.2, 0.3, 0.4, 0.0])

    def loss(logits):
        return head.loss(logits, target, losses.td_square, Context())

    logits = jnp.array([0.3, -0.2, 1.0, 0.0, 0.5])
    gradient = jax.jit(jax.grad(loss))(logits)
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
    one = np.float32(theta), np.float32(target)
    many = [np.stack([x, 2 * x, -x]) for x in one]
    loss = jax.jit(
        lambda *x, given: head.loss(*x, given, Context()), static_argnames="given"
    )
    for given in (losses.td_huber, losses.td_square):  # by default Huber's
        assert loss(*one, given=given) == pytest.approx(expected, rel=1e-5)
    found = loss(*many, given=losses.td_huber)
    assert found.shape == (3,)
    assert found[0] == pytest.approx(expected, rel=1e-5)
    moved = head.target(one[0], np.float32(1.5), np.float32(0.5))
    np.testing.assert_allclose(moved, 1.5 + 0.5 * theta, rtol=1e-5)
    assert float(head.values(jnp.float32(theta))) == pytest.approx(theta.mean())


# --- noisy networks -------------------------------------------------------------------


def test_noise_is_factorized_and_of_its_scale():
    plain = networks.mlp((40,), 30, activation="relu")
    network = noisy.noisy(plain)
    obs = jnp.linspace(-1, 1, 6)
    params = jax.jit(network.init)(jax.random.key(0), obs)
    noised, plainly = jax.jit(network.apply), jax.jit(plain.apply)
    quiet = noised(params, obs)
    np.testing.assert_array_equal(quiet, plainly(params["mean"], obs))
    assert float(params["scale"]["Dense_1"]["bias"][0]) == pytest.approx(0.5 / 40**0.5)
    drawn = jax.jit(noisy.redrawn)(jax.random.key(1), params)
    of_inputs, of_outputs = drawn["noise"]["Dense_1"]
    # f(x) = sign(x) √|x| of normal noise: mean 0, and E f² = E|x| = √(2/π).
    many = np.concatenate([of_inputs, of_outputs, *drawn["noise"]["Dense_0"]])
    assert float((many**2).mean()) == pytest.approx((2 / np.pi) ** 0.5, rel=0.25)
    by_hand, scales, noise = jax.tree.map(
        np.array, (params["mean"], params["scale"], drawn["noise"])
    )
    for name, (inputs, outputs) in noise.items():
        layer, scale = by_hand["params"][name], scales[name]
        layer["kernel"] += scale["kernel"] * np.outer(inputs, outputs)
        layer["bias"] += scale["bias"] * outputs
    found, expected = noised(drawn, obs), plainly(by_hand, obs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(noised(noisy.quiet(drawn), obs), quiet)


def test_gradients_reach_means_and_scales_and_not_the_noise():
    network = noisy.noisy(networks.mlp((8,), 2, activation="relu"))
    obs = jnp.ones(3)

    @jax.jit
    def gradient(key):
        params = noisy.redrawn(key, network.init(key, obs))
        return jax.grad(lambda params: network.apply(params, obs).sum())(params)

    found = jax.tree.map(np.any, jax.device_get(gradient(jax.random.key(0))))
    assert all(jax.tree.leaves((found["mean"], found["scale"]["Dense_1"])))
    assert not any(jax.tree.leaves(found["noise"]))


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
    born = jax.jit(loop.init)(jax.random.key(0), meta)
    after, metrics = jax.jit(loop.train)(jax.random.key(1), meta, born)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after.agent))
    assert np.isfinite(metrics["value_error_rms"])
    learned = after.agent.params
    if "noisy" in config:
        before = born.agent.params["scale"]
        pairs = zip(*map(jax.tree.leaves, (learned["scale"], before)), strict=True)
        assert all(np.any(a != b) for a, b in pairs)
        redrawn = jax.jit(noisy.redrawn)(jax.random.key(5), learned)
        moved = after.agent._replace(params=redrawn)
        obs, act = jax.random.normal(jax.random.key(6), (50, 4)), jax.jit(loop.act)
        first, second = (
            act(jax.random.key(0), meta, agent, (), obs)[0]
            for agent in (after.agent, moved)
        )
        np.testing.assert_array_equal(first, second)
        assert first.shape == (50,)


def test_each_environment_acts_with_noise_of_its_own():
    network = noisy.noisy(networks.mlp((8,), 2, activation="relu"))

    @jax.jit
    def values(keys):
        params = network.init(keys[0], jnp.ones(3))
        return noisy.NOISY.of_each(network.apply, keys, params)(jnp.ones((4, 3)))

    q = values(jax.random.split(jax.random.key(1), 4))
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
