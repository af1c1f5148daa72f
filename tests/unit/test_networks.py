"""Torsos and heads."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loops import EVERY

from metaevo import envs
from metaevo.errors import ConfigError
from metaevo.rl import networks

IMAGE = envs.Box((10, 10, 4), 0.0, 1.0, binary=True)
WITH_TORSO = sorted(
    name
    for name, small in EVERY.items()
    if "torso" in {field.name for field in dataclasses.fields(small.module.Config)}
)


def layer_by_layer(weights, x, convolutions):
    """What flax's own layers compute with these weights."""
    for i, (n, kernel, stride) in enumerate(convolutions):
        layer = weights[f"Conv_{i}"]
        shape = kernel, kernel, x.shape[-1], n
        held = layer | {"kernel": layer["kernel"].reshape(shape)}
        convolved = nn.Conv(n, (kernel, kernel), stride, padding="VALID")
        x = jax.nn.relu(convolved.apply({"params": held}, x))
    x = x.reshape(*x.shape[:-3], -1)
    for name in ("Dense_0", "Dense_1"):
        layer = weights[name]
        x = nn.Dense(len(layer["bias"])).apply({"params": layer}, x)
        x = jax.nn.relu(x) if name == "Dense_0" else x
    return x


def assert_same_outputs(net, params, obs, convolutions):
    expected = jax.jit(layer_by_layer, static_argnums=2)(
        params["params"], obs, convolutions
    )
    found = jax.jit(net.apply)(params, obs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_cnn_is_that_of_minatar():
    """Equal to XLA's convolution and flax's layers, with 16 filters of 3 x 3."""
    torso = networks.torso("cnn", IMAGE)
    net = networks.mlp((128,), 3, 0.01, "relu", torso=torso)
    obs = jax.random.bernoulli(jax.random.key(1), 0.3, (2, 5, *IMAGE.shape))
    params = jax.jit(net.init)(jax.random.key(0), jnp.zeros(IMAGE.shape))
    assert jax.tree.map(jnp.shape, params)["params"] == {
        "Conv_0": {"kernel": (36, 16), "bias": (16,)},
        "Dense_0": {"kernel": (8 * 8 * 16, 128), "bias": (128,)},
        "Dense_1": {"kernel": (128, 3), "bias": (3,)},
    }
    params = jax.tree.map(lambda x: x + 0.01, params)  # biases are born zero
    assert_same_outputs(net, params, obs.astype(jnp.float32), ((16, 3, 1),))


PIXELS = envs.Box((84, 84, 4), 0.0, 1.0)


def test_nature_is_the_network_of_dqns_paper():
    """Its numbers of weights; with a smaller dense layer equal to flax's layers."""

    def network(size):
        torso = networks.torso("nature", PIXELS)
        return networks.mlp((size,), 6, activation="relu", torso=torso)

    obs = jax.random.uniform(jax.random.key(1), (2, *PIXELS.shape))
    whole = jax.eval_shape(network(512).init, jax.random.key(0), obs[0])["params"]
    assert {k: sum(x.size for x in v.values()) for k, v in whole.items()} == {
        "Conv_0": 8224, "Conv_1": 32832, "Conv_2": 36928,
        "Dense_0": 1606144, "Dense_1": 3078,
    }  # fmt: skip
    net = network(16)
    params = jax.jit(net.init)(jax.random.key(0), obs[0])
    assert_same_outputs(net, params, obs, ((32, 8, 4), (64, 4, 2), (64, 3, 1)))
    networks.torso("nature", envs.Box((36, 36, 1)))
    with pytest.raises(ConfigError, match=r"'nature' .* at least 36 x 36"):
        networks.torso("nature", envs.Box((36, 35, 1)))


def test_a_slot_replaces_the_activation_of_the_convolution_too():
    net = networks.mlp((), 2, activation="relu", torso=networks.torso("cnn", IMAGE))

    @jax.jit
    def outputs(key):
        obs = jnp.ones(IMAGE.shape)
        params = net.init(key, obs)
        return net.apply(params, obs), net.apply(params, obs, jnp.zeros_like)

    usual, replaced = outputs(jax.random.key(0))
    assert np.abs(usual).max() > 0
    np.testing.assert_array_equal(replaced, 0.0)


def test_dueling_advantages_have_mean_zero():
    net = networks.mlp((8,), 3, dueling=True)
    params = jax.jit(net.init)(jax.random.key(0), jnp.zeros(4))
    obs = np.arange(4.0, dtype=np.float32)
    weights = jax.tree.map(np.asarray, params["params"])
    hidden = np.tanh(obs @ weights["Dense_0"]["kernel"])
    value = hidden @ weights["Dense_2"]["kernel"]
    advantage = hidden @ weights["Dense_1"]["kernel"]
    expected = value + advantage - advantage.mean()
    np.testing.assert_allclose(jax.jit(net.apply)(params, obs), expected, rtol=1e-5)


@pytest.mark.parametrize("name", WITH_TORSO)
def test_every_loop_with_a_torso_takes_both(name):
    """Through an update, unless it is that of another loop."""
    small = EVERY[name]
    # A message lies beside a flat observation.
    deaf = {"message_size": 0} if "message_size" in small.config else {}
    plain = small.module.Meta()
    with pytest.raises(ConfigError, match=r"inner.torso='cnn' needs observations"):
        small.make(plain, torso="cnn", **deaf)
    with pytest.raises(ConfigError, match=r"inner.torso='conv'"):
        small.make(plain, torso="conv", **deaf)
    image = envs.make("gymnax/Breakout-MinAtar")
    loop = small.make(plain, image, torso="cnn", **deaf)

    def lifetime(key):
        state = loop.init(key, loop.meta)
        if name in ("gumbel_alphazero", "r2d3", "gorila"):
            return state
        return loop.train(key, loop.meta, state)[0]

    state = jax.eval_shape(lifetime, jax.random.key(0))
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree.leaves_with_path(state.agent)]
    assert any("Conv_0" in path for path in paths)


def test_the_loops_that_have_a_torso():
    assert {"dqn", "ppo", "ppo_rnn", "pqn"} <= set(WITH_TORSO)
