"""The adapters of NAVIX and Jumanji, against the suites' own steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from inner_loops import ppo
from metaevo import envs
from metaevo.errors import ConfigError

NUM_STEPS = 150
KEY = jax.random.key(3)


def random_action(env, state, key):
    legal = envs.legal_actions(env, state)
    if legal is None:
        return jax.random.randint(key, (), 0, env.action.num)
    return jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf))


def episodes(env, num_steps=NUM_STEPS):
    """First observation, states before each step, actions and steps, with resets."""

    @jax.jit
    def run(key):
        def step(state, key):
            action_key, key = jax.random.split(key)
            action = random_action(env, state, action_key)
            after, out = env.step(key, state, action)
            return after, (state, action, key, out)

        state, obs = env.reset(key)
        return obs, jax.lax.scan(step, state, jax.random.split(KEY, num_steps))[1]

    return run(KEY)


def check_form(env, first, steps):
    """Check types, shapes, fresh starts and the end of an episode."""
    for x in (first, steps.obs, steps.final_obs, steps.reward):
        assert x.dtype == jnp.float32
    assert first.shape == env.observation.shape == steps.obs.shape[1:]
    assert steps.done.any()
    assert not (steps.terminated & steps.truncated).any()
    going_on = ~np.asarray(steps.done)
    np.testing.assert_array_equal(steps.obs[going_on], steps.final_obs[going_on])


def check_starts(env, keys, steps):
    """After an end the next observation is that of a new episode."""
    (ends,) = np.nonzero(steps.done)
    for i in ends[:3]:
        _, fresh = env.reset(jax.random.split(keys[i])[1])
        np.testing.assert_array_equal(steps.obs[i], fresh)


def check_a_loop_trains(env):
    config = ppo.Config(256, num_envs=4, num_steps=32, num_segments=2, features=(8,))
    loop = ppo.make(env, config)
    state = loop.init(KEY, loop.meta)
    _, metrics = jax.jit(loop.train)(KEY, loop.meta, state)
    assert np.isfinite(metrics["entropy"]).all()


# --- NAVIX ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Navix-Empty-Random-5x5-v0", "Navix-DoorKey-5x5-v0"])
def test_steps_equal_navix(name):
    navix = pytest.importorskip("navix")
    env, world = envs.make(f"navix/{name}"), navix.make(name)
    first, (states, actions, keys, steps) = episodes(env, world.max_steps + 20)
    check_form(env, first, steps)
    check_starts(env, keys, steps)
    # Its own `step` begins a new episode in the step after an end, ours does at once.
    theirs = jax.jit(jax.vmap(world.step))(states, actions)
    np.testing.assert_array_equal(steps.final_obs, theirs.observation)
    np.testing.assert_array_equal(steps.reward, theirs.reward)
    np.testing.assert_array_equal(steps.terminated, theirs.is_termination())
    np.testing.assert_array_equal(steps.truncated, theirs.is_truncation())
    assert env.action.num == len(world.action_set)
    assert steps.obs.max() <= env.observation.high


def test_a_loop_trains_in_navix():
    pytest.importorskip("navix")
    check_a_loop_trains(envs.make("navix/Navix-Empty-5x5-v0"))


def test_an_unknown_grid_world_is_named_with_the_nearest():
    pytest.importorskip("navix")
    with pytest.raises(ConfigError, match=r"Did you mean navix/Navix-Empty-5x5-v0\?"):
        envs.make("navix/Navix-Empty-5x5")


# --- Jumanji --------------------------------------------------------------------------

JUMANJI = {
    "Tetris-v0": (10 * 10 + 4 * 4 + 1, 4 * 10),
    "Maze-v0": (2 + 2 + 10 * 10 + 1, 4),
    "RubiksCube-partly-scrambled-v0": (6 * 3 * 3 + 1, 6 * 1 * 3),
    "TSP-v1": (20 * 2 + 1 + 20, 20),
}
"""Name -> size of an observation, number of actions."""


@pytest.mark.parametrize("name", JUMANJI)
def test_steps_equal_jumanji(name):
    jumanji = pytest.importorskip("jumanji")
    env, task = envs.make(f"jumanji/{name}"), jumanji.make(name)
    first, (states, actions, keys, steps) = episodes(env)
    check_form(env, first, steps)
    check_starts(env, keys, steps)
    assert (first.size, env.action.num) == JUMANJI[name]
    spec = task.action_spec
    parts = actions
    if spec.shape:
        parts = np.stack(np.unravel_index(actions, tuple(spec.num_values)), -1)
    _, theirs = jax.jit(jax.vmap(task.step))(
        states.task, jnp.asarray(parts, spec.dtype)
    )
    np.testing.assert_allclose(steps.reward, theirs.reward, rtol=1e-6)
    np.testing.assert_array_equal(steps.done, theirs.last())
    np.testing.assert_array_equal(steps.terminated, theirs.discount == 0)
    shown = theirs.observation._asdict()
    legal = shown.pop("action_mask", None)
    flat = [np.reshape(x, (NUM_STEPS, -1)) for x in jax.tree.leaves(shown)]
    np.testing.assert_allclose(steps.final_obs, np.concatenate(flat, 1), rtol=1e-6)
    assert (env.action_mask is None) == (legal is None)
    if legal is not None:
        after = states.mask[1:][~steps.done[:-1]]
        expected = np.reshape(legal, (NUM_STEPS, -1))[:-1][~steps.done[:-1]]
        np.testing.assert_array_equal(after, expected)


def test_limits_are_those_of_jumanji():
    jumanji = pytest.importorskip("jumanji")
    from metaevo.envs import jumanji as suite

    for name in suite.names():
        limit = getattr(jumanji.make(name), "time_limit", None)
        assert limit in (None, suite.MAX_STEPS[name]), name


def test_an_episode_without_an_end_of_its_own_is_truncated(monkeypatch):
    pytest.importorskip("jumanji")
    from metaevo.envs import jumanji as suite

    monkeypatch.setitem(suite.MAX_STEPS, "Game2048-v1", 5)
    env = envs.make("jumanji/Game2048-v1")
    _, (_, _, _, steps) = episodes(env, 12)
    np.testing.assert_array_equal(np.nonzero(steps.truncated)[0], [4, 9])
    assert not steps.terminated.any()


def test_a_loop_trains_in_jumanji():
    pytest.importorskip("jumanji")
    check_a_loop_trains(envs.make("jumanji/Maze-v0"))


def test_a_task_of_several_agents_is_refused_with_those_there_are():
    with pytest.raises(
        ConfigError, match=r"one agent with discrete actions; expected one of CVRP-v1"
    ):
        envs.make("jumanji/Connector-v3")
