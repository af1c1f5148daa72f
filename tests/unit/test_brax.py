"""The Brax adapter, on a system of two lines and on one real environment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaevo import envs
from metaevo.errors import ConfigError
from metaevo.rl import rollouts

brax = pytest.importorskip("brax.envs")
from metaevo.envs import brax as suite  # noqa: E402


class Line(brax.Env):
    """x ← x + a from a random start; ends beyond 3, fails beyond −3."""

    observation_size, action_size, backend = 1, 1, "none"

    def reset(self, rng):
        x = jax.random.uniform(rng, (1,))
        zero = jnp.zeros(())
        return brax.State(None, x, zero, zero, {}, {})

    def step(self, state, action):
        x = state.obs + action
        x = jnp.where(x < -3, jnp.nan, x)
        done = jnp.where(x[0] > 3, 1.0, 0.0)
        return state.replace(obs=x, reward=x[0], done=done)


@jax.jit
def run(action):
    """40 steps with a time limit of 15, which right and left end before."""
    env, key = suite.adapt(Line(), "line", 15), jax.random.key(0)

    def step(carry, key):
        state, obs = carry
        state, out = env.step(key, state, jnp.full(1, action))
        return (state, out.obs), (obs, out)

    return jax.lax.scan(step, env.reset(key), jax.random.split(key, 40))[1]


def test_an_end_keeps_the_last_observation_and_starts_afresh():
    before, out = run(1.0)
    assert out.terminated.any()
    assert not out.truncated.any()
    np.testing.assert_allclose(out.final_obs, before + 1, rtol=1e-6)
    starts = np.asarray(out.obs)[np.asarray(out.terminated), 0]
    assert len(np.unique(starts)) == len(starts) > 5
    assert ((starts >= 0) & (starts <= 1)).all()


@pytest.mark.parametrize(("num_envs", "num_steps"), [(4, 8), (3, 40)])
def test_starts_of_a_rollout_are_fresh_and_differ(num_envs, num_steps):
    """A pool of them: in the same step never the same, and not one for all steps."""
    env = suite.adapt(Line())

    @jax.jit
    def starts(*keys):
        drawn, world = rollouts.worlds(*keys, env, num_steps, num_envs)
        return jax.vmap(lambda drawn: world(drawn)[2])(drawn)[..., 0]

    obs = np.asarray(starts(*jax.random.split(jax.random.key(0))))
    assert obs.shape == (num_steps, num_envs)
    assert all(len(np.unique(x)) == num_envs for x in obs)
    assert len(np.unique(obs)) == num_envs * max(1, num_steps // 16)


def test_the_time_limit_truncates():
    _, out = run(0.0)
    np.testing.assert_array_equal(np.flatnonzero(out.truncated), [14, 29])
    assert not out.terminated.any()
    assert out.done.sum() == 2


def test_a_failed_simulation_ends_the_episode_and_is_counted():
    before, out = run(-1.0)
    diverged = np.asarray(out.info["diverged"])
    assert diverged.any()
    np.testing.assert_array_equal(out.terminated, diverged)
    np.testing.assert_array_equal(out.reward[diverged], 0.0)
    np.testing.assert_array_equal(out.final_obs[diverged], before[diverged])
    assert all(np.isfinite(x).all() for x in (out.obs, out.final_obs, out.reward))


def test_actions_are_clipped():
    before, out = run(9.0)
    np.testing.assert_allclose(out.final_obs, before + 1, rtol=1e-6)


def test_a_real_environment_steps_as_brax_does():
    env = envs.make("brax/inverted_pendulum")
    reference = brax.get_environment("inverted_pendulum", backend="spring")
    assert env.observation.shape == (4,)
    assert env.action == envs.Box((1,), -1.0, 1.0)

    @jax.jit
    def both(key):
        def step(carry, key):
            (ours, theirs) = carry
            action = jax.random.uniform(key, (1,), minval=-1.0)
            ours, out = env.step_raw(key, ours, action)
            theirs = reference.step(theirs, action)
            return (ours, theirs), (out.final_obs, theirs.obs, out.terminated)

        start = env.reset(key)[0], reference.reset(key)
        return jax.lax.scan(step, start, jax.random.split(key, 30))[1]

    ours, theirs, terminated = both(jax.random.key(0))
    np.testing.assert_array_equal(ours, theirs)
    assert terminated.any()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("brax/ants", "Did you mean brax/ant?"),
        ("brax/ant/sprung", "backend 'sprung' must be one of"),
        ("braxx/ant", "Did you mean brax/ant"),
    ],
)
def test_unknown_names_are_explained(name, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        envs.make(name)


def test_the_names_are_those_of_brax():
    assert sorted(brax._envs) == suite.names()


def test_brax_that_is_not_installed_is_explained(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "brax", None)
    with pytest.raises(ConfigError, match="pip install"):
        envs.make("brax/ant")
