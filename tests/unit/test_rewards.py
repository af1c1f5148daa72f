"""Rewards that an agent learns from."""

import functools

import jax
import jax.numpy as jnp
import learned as helper
import numpy as np
import pytest

import metaevo
from metaevo import envs, rewards, spaces
from metaevo.learned import operations
from metaevo.slots import Context
from metaevo.storage import artifacts

KEY = jax.random.key(0)
NO, YES = jnp.bool(False), jnp.bool(True)
GAMMA = 0.9
NOW = Context(stats={"gamma": GAMMA})


def learned(function, distance=0.5):
    """A learned reward away from its start."""
    return function.bind(helper.away(function, distance))


def phi(reward, obs):
    """The potential: what remains of a step into the end of an episode."""
    return -reward(obs, 0, 0.0, obs, YES, NOW)


# --- potential-based shaping ----------------------------------------------------------


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_the_sum_telescopes(ends):
    """Σ γᵗ Fₜ = γᵀ Φ(o_T) − Φ(o₀), Φ(o_T) = 0 if o_T is an end, not if time is up."""
    reward = learned(rewards.potential([1.0] * 3, (16, 16), scale=5.0))
    obs = jax.random.normal(jax.random.key(2), (41, 3))
    last = jnp.arange(40) == 39
    terminated = last & (ends == "terminated")
    true = jax.random.normal(jax.random.key(3), (40,))
    each = jax.jit(jax.vmap(reward, (0, None, 0, 0, 0, None)))
    shaped = each(obs[:-1], 0, true, obs[1:], terminated, NOW)
    weights = GAMMA ** jnp.arange(40.0)
    total = (weights * (shaped - true)).sum()
    expected = -phi(reward, obs[0])
    if ends == "truncated":
        expected += GAMMA**40 * phi(reward, obs[-1])
    assert abs(phi(reward, obs[0])) > 0.1
    assert total == pytest.approx(float(expected), abs=1e-4)


def test_a_limit_divides_a_potential_that_could_be_larger_and_no_other():
    far = jax.random.normal(jax.random.key(4), (1000, 2)) * 3
    free = rewards.potential([1.0, 1.0], (8,), scale=5.0)
    limited = rewards.potential([1.0, 1.0], (8,), scale=5.0, limit=2.0)
    for distance, divided in ((1.0, True), (1e-3, False)):
        plain, bounded = (
            np.asarray(
                jax.jit(jax.vmap(functools.partial(phi, learned(x, distance))))(far)
            )
            for x in (free, limited)
        )
        assert np.abs(bounded).max() <= 2.0
        ratio = plain / bounded
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
        assert (ratio[0] > 1.01) == divided


def test_potential_from_before_there_was_a_limit_is_rebuilt():
    made = rewards.potential([1.0, 2.0], (8,))
    assert "limit" not in made.spec
    again = operations.get("potential").rebuild(made.spec)
    assert again.spec == made.spec
    limited = rewards.potential([1.0, 2.0], (8,), limit=3.0)
    assert operations.get("potential").rebuild(limited.spec).spec == limited.spec


# A chain of five states, with a rewarding end on the right and a small reward on the
# left. Action 1 goes right, 0 left, each with a chance of 0.1 to slip the other way.
STATE, ACTION, SLIPS = (x.ravel() for x in np.indices((5, 2, 2)))
RIGHT = ACTION ^ SLIPS
AFTER = np.clip(STATE + np.where(RIGHT, 1, -1), 0, 4)
END = (STATE == 4) & (RIGHT == 1)
TRUE = np.float32(np.where(END, 1.0, 0.12 * ((STATE == 0) & (RIGHT == 0))))


def in_chain(function, params):
    """Rewards of the chain's steps with the function for its own; potentials [5]."""
    one_hot, reward = np.eye(5, dtype=np.float32), function.bind(params)
    over = jax.vmap(reward, (0, 0, 0, 0, 0, None))
    got = over(one_hot[STATE], ACTION, TRUE, one_hot[AFTER], END, NOW)
    return got, jax.vmap(functools.partial(phi, reward))(one_hot)


def values(got):
    """Values [5, 2] of the actions in the chain, by iteration."""
    q = np.zeros((5, 2))
    for _ in range(500):
        value = got + GAMMA * np.where(END, 0, q[AFTER].max(1))
        q = (np.where(SLIPS, 0.1, 0.9) * value).reshape(5, 2, 2).sum(2)
    return q


def test_the_optimal_policy_of_a_chain_is_unchanged():
    """By value iteration; a free reward, the control, changes it."""
    true = values(TRUE)
    function = rewards.potential([1.0] * 5, (8,), scale=10.0)
    shape_steps = jax.jit(functools.partial(in_chain, function))
    for key in range(3):
        params = function.init(jax.random.key(key))
        params["w1"] = jax.random.normal(jax.random.key(9 + key), params["w1"].shape)
        got, potentials = map(np.asarray, shape_steps(params))
        shaped = values(got)
        assert np.ptp(potentials) > 1.0
        np.testing.assert_allclose(shaped, true - potentials[:, None], atol=1e-3)
        np.testing.assert_array_equal(shaped.argmax(1), true.argmax(1))
    control = rewards.free([1.0] * 5, {"num": 2}, (8,))
    got, _ = jax.jit(functools.partial(in_chain, control))(helper.away(control, 1.0))
    assert (values(np.asarray(got)).argmax(1) != true.argmax(1)).any()


def test_the_agents_own_discount_is_what_counts():
    reward = learned(rewards.potential([1.0], (4,), gamma=0.5))
    obs, after = jnp.array([0.3]), jnp.array([-0.8])
    given = jax.jit(lambda context: reward(obs, 0, 0.0, after, NO, context))
    contexts = NOW, Context(stats={"gamma": 0.0}), Context(), None
    found = [float(given(context)) for context in contexts]
    value = (found[0] - found[1]) / GAMMA
    assert value == pytest.approx(float(phi(reward, after)), rel=1e-4)
    assert found[2] == found[3] == pytest.approx(found[1] + 0.5 * value, rel=1e-5)


def test_an_artifact_has_the_discount_that_it_evolved_with(tmp_path):
    from inner_loops import ppo

    space = spaces.replace(reward=rewards.potential([1.0], (4,)))
    meta = ppo.Meta(gamma=0.7)
    spec = artifacts.complete(space.spec, meta, meta)
    params = space.init(KEY)
    params["reward"]["w1"] += 1.0
    artifacts.save(tmp_path / "solution", params, spec, {}, {})
    loaded = metaevo.load(tmp_path).reward
    mine = space.bind(params, meta).reward
    seen = jnp.array([0.3]), 0, 1.0, jnp.array([0.9]), NO
    assert loaded(*seen) == mine(*seen, Context(stats={"gamma": 0.7}))
    assert loaded(*seen) != mine(*seen, NOW)


# --- others ---------------------------------------------------------------------------


def test_what_may_change_the_optimum_says_so(tmp_path):
    kinds = {
        "potential": rewards.potential([1.0]),
        "free": rewards.free([1.0], {"num": 2}),
        "impact": rewards.impact([1.0]),
    }
    for name, function in kinds.items():
        space = spaces.replace(reward=function)
        artifacts.save(tmp_path / name, space.init(KEY), space.spec, {}, {})
        said = metaevo.load(tmp_path / name).manifest["slots"]["reward"].get("label")
        assert said == (None if name == "potential" else "may change optimum")


def test_impact_by_hand():
    """β goes from 2 to 0; components weigh 1 and e."""
    function = rewards.impact([1.0, 2.0], num_knots=2, scale=3.0)
    params = {"strength": jnp.array([2.0, 0.0]), "log_weights": jnp.array([0.0, 1.0])}
    reward = function.bind(params)
    obs, after = jnp.array([1.0, 1.0]), jnp.array([2.0, 0.0])
    size = np.sqrt((1.0 + (np.e / 2) ** 2) / 2)
    for progress, beta in ((0.0, 2.0), (0.25, 1.5), (1.0, 0.0)):
        found = reward(obs, 0, 5.0, after, NO, Context(progress=progress))
        assert found == pytest.approx(5 + 3 * beta * size, rel=1e-5)


def test_units_are_half_the_bounds_where_there_are_any():
    car = envs.make("gymnax/MountainCar-v0")
    np.testing.assert_allclose(rewards.units(car), [0.9, 0.07], rtol=1e-5)
    pole = rewards.units(envs.make("gymnax/CartPole-v1"))
    assert pole[1] == pole[3] == 1.0
    assert rewards.units(car._replace(observation=envs.Box((2, 2)))) == [1.0] * 4


def test_the_kind_of_actions():
    assert rewards.kind_of(envs.make("gymnax/CartPole-v1")) == {"num": 2}
    assert rewards.kind_of(envs.make("gymnax/Pendulum-v1")) == {"size": 1}


def test_bad_settings_are_refused():
    for make, message in (
        (lambda: rewards.potential([]), "units="),
        (lambda: rewards.potential([1.0, 0.0]), "units="),
        (lambda: rewards.potential([1.0], gamma=1.5), "gamma=1.5"),
        (lambda: rewards.potential([1.0], scale=-1.0), "scale=-1.0"),
        (lambda: rewards.potential([1.0], ()), "features="),
        (lambda: rewards.free([1.0], {"num": 0}), "expected num or size"),
        (lambda: rewards.free([1.0], {"num": 2, "size": 1}), "expected num or size"),
        (lambda: rewards.free([1.0], {"shape": 2}), "expected num or size"),
        (lambda: rewards.impact([1.0], 1), "num_knots=1"),
        (lambda: rewards.impact([1.0], scale=0.0), "scale=0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
