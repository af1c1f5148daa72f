"""Environments: every gymnax environment behaves as gymnax says, made regular."""

import sys

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from metaevo import envs
from metaevo.cli import listing
from metaevo.envs import gymnax as suite
from metaevo.errors import ConfigError
from metaevo.rl import evaluation, matches

INTEGER_OBSERVATION = {"FrozenLake-misc": 16}
IRREGULAR = {
    "CartPole-v1": "terminates",
    "Pendulum-v1": "continuous, ends by its limit",
    "FourRooms-misc": "integers for numbers",
    "FrozenLake-misc": "an integer for a state",
    "SimpleBandit-bsuite": "integers for rewards",
    "Breakout-MinAtar": "in bytes",
}
"""One environment for each thing that is made regular; others are slow tests."""


def rollout(name, num_steps=60):
    """Our steps and gymnax's own, on the same keys and actions."""
    env = envs.make(f"gymnax/{name}")
    reference, params = gymnax.make(name)
    # A short time limit so that truncation happens within the rollout.
    limit = type(params.max_steps_in_episode)(25)
    params = params.replace(max_steps_in_episode=limit)
    env = suite.adapt(reference, params, name)

    def action(key):
        if isinstance(env.action, envs.Discrete):
            return jax.random.randint(key, (), 0, env.action.num)
        return jax.random.uniform(key, env.action.shape, minval=-2.0, maxval=2.0)

    def clipped(a):
        if isinstance(env.action, envs.Discrete):
            return a
        return jnp.clip(a, env.action.low, env.action.high)

    def step(state, key):
        (ours, theirs), (action_key, step_key) = state, jax.random.split(key)
        a = action(action_key)
        ours, out = env.step(step_key, ours, a)
        obs, theirs, reward, term, trunc, info = reference.step(
            step_key, theirs, clipped(a), params
        )
        expected = obs, reward, term, trunc, info["final_observation"]
        return (ours, theirs), (out._replace(info={}), expected)

    @jax.jit
    def run(key):
        ours, obs = env.reset(key)
        expected, theirs = reference.reset(key, params)
        keys = jax.random.split(jax.random.key(7), num_steps)
        return obs, expected, jax.lax.scan(step, (ours, theirs), keys)[1]

    return env, *run(jax.random.key(0))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in IRREGULAR else pytest.mark.slow)
        for name in suite.names()
    ],
)
def test_steps_equal_gymnax(name):
    env, first, first_expected, (steps, expected) = rollout(name)
    obs, reward, term, trunc, final = (np.asarray(x) for x in expected)
    if name in INTEGER_OBSERVATION:
        one_hot = np.eye(INTEGER_OBSERVATION[name])
        first_expected, obs, final = (one_hot[x] for x in (first_expected, obs, final))
    np.testing.assert_array_equal(first, first_expected)
    # Programs that differ round differently: a step of Swimmer by 1e-6.
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(steps.obs, obs, **close)
    np.testing.assert_allclose(steps.final_obs, final, **close)
    np.testing.assert_allclose(steps.reward, np.reshape(reward, -1), **close)
    np.testing.assert_array_equal(steps.terminated, term)
    np.testing.assert_array_equal(steps.truncated, trunc & ~term)
    for x in (steps.obs, steps.reward, steps.final_obs):
        assert x.dtype == jnp.float32
    assert steps.obs.shape[1:] == env.observation.shape
    assert steps.done.any()
    if env.observation.binary:
        for seen in (first, steps.obs, steps.final_obs):
            np.testing.assert_array_equal(envs.unpacked(envs.packed(env, seen)), seen)


def test_minatar_is_kept_in_bytes():
    env = envs.make("gymnax/Breakout-MinAtar")
    assert env.observation.binary
    assert envs.packed(env, jnp.zeros(env.observation.shape)).nbytes == 400


@pytest.mark.parametrize("falls", [False, True])
def test_the_time_limit_of_cartpole_truncates_what_does_not_terminate(falls):
    env = envs.make("gymnax/CartPole-v1")
    assert env.max_steps == 500
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    last = state.replace(time=np.int32(499), x=np.float32(3.0 * falls))
    _, step = jax.jit(env.step)(jax.random.key(1), last, np.int32(0))
    assert (bool(step.truncated), bool(step.terminated)) == (not falls, falls)
    assert not np.array_equal(step.obs, step.final_obs)


def test_a_wrong_name_is_explained():
    for name, message in (
        ("gymnax/CartPol-v1", "Did you mean gymnax/CartPole-v1"),
        ("gymnaxx/CartPole-v1", "Did you mean gymnax/CartPole-v1"),
        ("CartPole-v1", "expected SUITE/NAME"),
        ("gymnax/MNISTBandit-bsuite", "no such environment"),
        ("nowhere:make", "No module named"),
        ("probes:nothing", "no attribute"),
        ("builtins:dict", "not an Env"),
    ):
        with pytest.raises(ConfigError, match=message):
            envs.make(name)


def test_an_import_path_makes_an_environment():
    assert envs.make("probes:policy").action == envs.Discrete(2)


def test_only_the_first_episode_of_each_environment_counts():
    """Episodes of 10 steps with reward 1 − 10 once: all steps after are ignored."""
    env = probes.truncated()._replace(max_steps=35)

    def act(key, carry, obs, state, mask):
        return jnp.int32(0), carry

    out = evaluation.first_episodes(jax.random.key(0), env, act, (), 4)
    assert out["return"] == -1.0
    assert out["length"] == 10.0


def assert_selected(env, indices, action, num_steps=1):
    """The chosen components are shown, and nothing else changes; returns the steps."""
    masked, shown = envs.select(env, indices), np.array(indices)

    @jax.jit
    def run(key):
        def step(states, key):
            key, outs = jax.random.fold_in(key, 7), {}
            for name in ("step_raw", "step"):
                pairs = [
                    getattr(one, name)(key, state, action)
                    for one, state in zip((env, masked), states, strict=True)
                ]
                states_after, outs[name] = zip(*pairs, strict=True)
            return states_after, outs

        resets = [one.reset(key) for one in (env, masked)]
        states, first = zip(*resets, strict=True)
        keys = jax.random.split(key, num_steps)
        return first, jax.lax.scan(step, states, keys)[1]

    first, outs = run(jax.random.key(3))
    np.testing.assert_array_equal(first[1], np.asarray(first[0])[..., shown])
    for out, seen in outs.values():
        for kind in ("obs", "final_obs"):
            expected = np.asarray(getattr(out, kind))[..., shown]
            np.testing.assert_array_equal(getattr(seen, kind), expected)
        np.testing.assert_array_equal(seen.reward, out.reward)
        np.testing.assert_array_equal(seen.done, out.done)
    return outs["step"][0]


def test_select_shows_some_components_and_changes_nothing_else():
    env = envs.make("gymnax/CartPole-v1")
    masked = envs.select(env, (2, 0))
    high = np.asarray(env.observation.high)[[2, 0]]
    np.testing.assert_array_equal(masked.observation.high, high)
    assert masked.observation.shape == (2,)
    # Always to the right: falls in about ten.
    assert assert_selected(env, (2, 0), jnp.int32(1), 30).done.sum() >= 2


def test_select_shows_the_same_components_to_each_player():
    env = envs.make("coin_game/3x3")
    assert_selected(env, (5, 0, 30), jnp.array([0, 1]))


def test_components_that_are_not_there_are_refused():
    for indices in ((), (4,), (-1,)):
        with pytest.raises(ConfigError, match=r"CartPole-v1.*shape \(4,\)"):
            envs.select(envs.make("gymnax/CartPole-v1"), indices)


def test_only_flat_observations_have_components():
    with pytest.raises(ConfigError, match="cannot select"):
        envs.select(envs.make("gymnax/Breakout-MinAtar"), (0,))


@pytest.mark.parametrize(
    ("name", "package"),
    [("navix/Navix-Empty-5x5-v0", "navix"), ("jumanji/Snake-v1", "jumanji")],
)
def test_a_suite_that_is_not_installed_names_its_extra(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"pip install 'metaevo\[{package}\]'"):
        envs.make(name)


def test_a_suite_that_is_not_installed_is_listed_with_its_extra(monkeypatch):
    for package in ("navix", "jumanji"):
        monkeypatch.setitem(sys.modules, package, None)
    listed = " ".join(listing.text("environments").split())
    assert "navix/ import of navix halted" in listed
    assert "pip install 'metaevo[navix]'" in listed
    assert "jumanji/ No module named 'jumanji'. Install it with: pip" in listed


# --- rewards at the end ---------------------------------------------------------------


def test_sparse_rewards_are_the_sum_of_an_episode_at_its_end():
    name = "gymnax/CartPole-v1"
    dense, sparse = (envs.make(x) for x in (name, f"sparse/{name}"))

    @jax.jit
    def step(key, a, b):
        return dense.step_raw(key, a, 1), sparse.step_raw(key, b, 1)

    (a, _), (b, _) = dense.reset(jax.random.key(0)), sparse.reset(jax.random.key(0))
    total = 0.0
    for i in range(100):
        (a, was), (b, out) = step(jax.random.key(i), a, b)
        total += float(was.reward)
        seen = [*was.obs, total / dense.max_steps]
        np.testing.assert_allclose(out.obs, seen, rtol=1e-6)
        assert float(out.reward) == (total if was.done else 0.0)
        if was.done:
            break
    assert was.done
    assert total > 3
    assert bool(out.terminated)
    fresh, obs = sparse.reset(jax.random.key(1))
    again, _ = envs.auto_reset(b, out, fresh, obs)
    assert float(again.earned) == 0.0
    assert sparse.name == f"sparse/{name}"


def test_a_time_limit_ends_an_episode_of_sparse_rewards():
    """All of it is paid: a value behind it would be paid again."""
    sparse = envs.make("sparse/gymnax/Pendulum-v1")
    keys = jax.random.split(jax.random.key(1), sparse.max_steps)

    def step(state, key):
        state, out = sparse.step_raw(key, state, jnp.zeros(1))
        return state, (out.reward, out.terminated, out.truncated)

    _, (reward, terminated, truncated) = jax.lax.scan(
        step, sparse.reset(keys[0])[0], keys
    )
    assert terminated.tolist() == [False] * (sparse.max_steps - 1) + [True]
    assert not truncated.any()
    assert float(reward[-1]) < -100


def test_sparse_rewards_are_refused_for_several_players_and_for_images():
    for name in ("coin_game/3x3", "gymnax/Breakout-MinAtar"):
        with pytest.raises(ConfigError, match="one player whose observations are vec"):
            envs.make(f"sparse/{name}")


# --- against a random opponent --------------------------------------------------------


def test_a_game_against_a_random_opponent_is_a_task_of_one_player():
    """Random play: its results are those of two random players, each first in turn,
    and each move is the player's own until the game ends."""
    env, game = (envs.make(x) for x in ("versus/pgx/tic_tac_toe", "pgx/tic_tac_toe"))

    def move(carry, key):
        state, obs = carry
        mine = game.player(state.state) == state.seat
        mask = envs.legal_actions(env, state)
        action = matches.random(key, obs, state.state, mask)
        state, out = env.step_raw(key, state, action)
        return (state, out.obs), (mine, out.reward, out.done)

    def episode(key):
        reset_key, moves_key = jax.random.split(key)
        keys = jax.random.split(moves_key, 5)
        return jax.lax.scan(move, env.reset(reset_key), keys)[1]

    keys = jax.random.split(jax.random.key(0), 2_000)
    turns, rewards, ended = map(np.asarray, jax.jit(jax.vmap(episode))(keys))
    assert ended[:, -1].all()
    before = np.pad(ended, ((0, 0), (1, 0)))[:, :-1]
    assert turns[~before].all()
    assert not rewards[~ended].any()
    last = rewards[np.arange(len(rewards)), ended.argmax(1)]
    # Of two random players the first wins 58.5 %, the second 28.8 %.
    wins, losses = (last > 0).mean(), (last < 0).mean()
    assert abs(wins - 0.436) < 0.05
    assert abs(losses - 0.436) < 0.05


def test_other_environments_have_no_opponent():
    with pytest.raises(ConfigError, match="two players who take turns"):
        envs.make("versus/gymnax/CartPole-v1")
