"""Learned optimizers against optax, and their own properties."""

import jax
import jax.numpy as jnp
import learned as helper
import numpy as np
import optax
import pytest

import metaevo
from metaevo import optimizers
from metaevo.learned import optimizers as learned_optimizers
from metaevo.slots import Context
from metaevo.storage import artifacts

AGENT = helper.network(jax.random.key(9), 3, 5, 4, 2)
USUAL = [
    jax.tree.map(lambda x, i=i, scale=scale: scale * jnp.cos(5 * i + 7 * x), AGENT)
    for i, scale in enumerate(helper.SCALES["usual"])
]


@jax.jit
def updated(optimizer, *args):
    return optimizer.update(*args)


def called(function, inputs, context=None):
    """All directions that an optimizer goes."""
    context = () if context is None else (context,)
    agent, directions = AGENT, []
    state = function.init(agent)
    for gradient in inputs:
        direction, state = updated(function, gradient, state, agent, *context)
        agent = jax.tree.map(lambda p, d: p - 0.01 * d, agent, direction)
        directions += [x.ravel() for x in jax.tree.leaves(direction)]
    return jnp.concatenate(directions)


def away(learned, by=0.5):
    return learned.bind(jax.tree.map(jnp.asarray, helper.away(learned, by)))


def close(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


def adam(*behind, eps=1e-5, **decays):
    """optax's Adam, with what follows it."""
    return optax.chain(optax.scale_by_adam(eps=eps, **decays), *behind)


@pytest.mark.parametrize(
    ("number", "x", "transformation"),
    [
        ("gain", 0.7, adam(optax.scale(np.e**0.7))),
        ("beta1", 1.0, adam(b1=1 - 0.1 * np.e)),
        ("beta2", 2.0, adam(b2=1 - 0.001 * np.e**2)),
        ("eps", 4.0, adam(eps=1e-5 * np.e**4)),
        ("decay", 0.5, adam(optax.add_decayed_weights(0.05))),
        ("clip", -3.0, adam(optax.clip(10 * np.e**-3))),
    ],
)
def test_each_number_of_adam_equals_optaxs(number, x, transformation):
    learned = learned_optimizers.adam_numbers()
    params = learned.init(jax.random.key(0)) | {number: jnp.float32(x)}
    theirs = optimizers.from_optax(transformation)
    expected = called(theirs, USUAL, Context())
    found = called(learned.bind(params), USUAL)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    usual = called(optimizers.adam, USUAL, Context())
    assert np.abs(found - usual).max() > 1e-3


def test_temporal_number_changes_linearly_over_a_lifetime():
    learned = learned_optimizers.adam_numbers(temporal=True)
    params = learned.init(jax.random.key(0)) | {"gain": jnp.float32([0.0, 2.0])}
    half = called(learned.bind(params), USUAL, Context(0.5))
    plain = learned_optimizers.adam_numbers()
    same = plain.bind(plain.init(jax.random.key(0)) | {"gain": jnp.float32(1.0)})
    np.testing.assert_allclose(half, called(same, USUAL), rtol=1e-5)


def test_loaded_optimizer_trains_a_network_of_another_shape(tmp_path):
    """As optax wants it, and away from where it evolved; far from Adam's start."""
    learned = learned_optimizers.recurrent(step=0.01)
    params = {"optimizer": helper.away(learned, 0.1)}
    spec = {"optimizer": learned.spec}
    artifacts.save(tmp_path / "solution", params, spec, {}, {})
    found = metaevo.load(tmp_path / "solution").optimizer
    rule = optax.chain(
        optax.GradientTransformation(found.init, found.update), optax.scale(-0.01)
    )
    agent = helper.network(jax.random.key(3), 2, 32, 32, 1)
    x = jax.random.normal(jax.random.key(4), (64, 2))

    def loss(agent):
        h = x
        for i in range(3):
            layer = agent["actor"]["params"][f"Dense_{i}"]
            h = jnp.tanh(h @ layer["kernel"] / 5 + layer["bias"])
        return ((h[:, 0] - jnp.tanh(x[:, 0] * x[:, 1])) ** 2).mean()

    @jax.jit
    def step(agent, state):
        updates, state = rule.update(jax.grad(loss)(agent), state, agent)
        return optax.apply_updates(agent, updates), state

    state, before = rule.init(agent), loss(agent)
    for _ in range(200):
        agent, state = step(agent, state)
    assert loss(agent) < 0.5 * before


def test_permuted_units_give_a_permuted_direction():
    learned = learned_optimizers.recurrent(noise=False)
    optimizer = away(learned)
    order = jnp.array([3, 0, 4, 1, 2])

    def shuffled(tree):
        layers = tree["actor"]["params"]
        first = {k: x[..., order] for k, x in layers["Dense_0"].items()}
        second = layers["Dense_1"] | {"kernel": layers["Dense_1"]["kernel"][order]}
        layers = layers | {"Dense_0": first, "Dense_1": second}
        return tree | {"actor": {"params": layers}}

    def run(change):
        state = optimizer.init(change(AGENT))
        for gradient in USUAL:
            direction, state = updated(
                optimizer, change(gradient), state, change(AGENT)
            )
        return direction

    close(run(shuffled), shuffled(run(lambda x: x)), rtol=1e-4, atol=1e-5)


def test_layers_are_placed_from_0_to_1():
    depths = learned_optimizers.depths(AGENT)
    layers = depths["actor"]["params"]
    assert [x["bias"] for x in layers.values()] == [0.0, 0.5, 1.0]
    assert [x["kernel"] for x in layers.values()] == [0.0, 0.5, 1.0]
    assert depths["log_std"] == 0.0


def test_noise_is_normal_and_follows_the_agents_start():
    """δ alone: normal, new in each update and tensor, that of the agent's start."""
    learned = learned_optimizers.recurrent(step=1.0)
    params = learned.init(jax.random.key(0))
    last = params["head"] | {"b2": jnp.float32([0.0, 0.0, 0.5])}
    optimizer = learned.bind(params | {"head": last})
    agent = {"a": np.ones((60, 60), np.float32), "b": np.ones((60, 60), np.float32)}
    still = jax.tree.map(np.zeros_like, agent)

    def run(agent):
        state = optimizer.init(agent)
        drawn = []
        for _ in range(2):
            direction, state = updated(optimizer, still, state, agent)
            drawn += [np.asarray(x).ravel() for x in jax.tree.leaves(direction)]
        return np.stack(drawn)

    drawn = run(agent)
    expected = 3 * np.tanh(0.5 / 3)
    np.testing.assert_allclose(drawn.mean(1), 0.0, atol=0.1)
    np.testing.assert_allclose(drawn.std(1), expected, rtol=0.05)
    between = np.corrcoef(drawn)[~np.eye(4, dtype=bool)]
    assert np.abs(between).max() < 0.07
    np.testing.assert_array_equal(run(agent), drawn)
    agent["a"][0, 0] = 1.5
    other = run(agent)
    assert np.abs(np.corrcoef(other[0], drawn[0])[0, 1]) < 0.07
