"""Environments of several players: the Coin Game, seats, and a fixed partner."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from inner_loops import partner, ppo
from metaevo import envs, fitness
from metaevo.engine import play
from metaevo.envs import coin_game
from metaevo.envs.coin_game import State
from metaevo.errors import ConfigError
from metaevo.rl import rollouts

COINS = envs.make("coin_game/3x3")
RIGHT, LEFT, DOWN, UP = range(4)
SIZES = {"total_timesteps": 120, "num_envs": 4, "num_steps": 15, "features": (8,)}


# --- the Coin Game --------------------------------------------------------------------


STEP = jax.jit(COINS.step_raw)


def stepped(players, coins, actions, time=0):
    state = State(jnp.array(players), jnp.array(coins), jnp.int32(time))
    return STEP(jax.random.key(0), state, jnp.array(actions))


def test_coins_are_paid_to_who_takes_them_and_by_whose_they_were():
    for players, coins, actions, expected in (
        ((0, 4), (1, 8), (RIGHT, DOWN), (1, 0)),  # red takes its own
        ((0, 5), (8, 1), (RIGHT, UP), (1, -2)),  # red takes blue's
        ((0, 4), (3, 1), (DOWN, UP), (1, 1)),  # each its own
        ((0, 4), (1, 3), (DOWN, UP), (-1, -1)),  # each the other's
        ((0, 2), (1, 8), (RIGHT, LEFT), (-1, 1)),  # both take red's
        ((0, 4), (2, 7), (LEFT, DOWN), (1, 1)),  # around the edge
        ((0, 4), (8, 8), (UP, RIGHT), (0, 0)),
    ):
        state, out = stepped(players, coins, actions)
        np.testing.assert_array_equal(out.reward, expected)
        left = [c for c in coins if c not in np.asarray(state.players)]
        assert all(c in np.asarray(state.coins) for c in left)


def test_players_see_themselves_first():
    _, out = stepped((0, 4), (2, 6), (RIGHT, DOWN))
    planes = np.asarray(out.obs).reshape(2, 4, 9).argmax(-1)
    np.testing.assert_array_equal(planes, [(1, 7, 2, 6), (7, 1, 6, 2)])
    swapped = stepped((4, 0), (6, 2), (DOWN, RIGHT))[1]
    np.testing.assert_array_equal(swapped.obs, out.obs[::-1])


def test_an_episode_ends_by_its_time_limit():
    assert not stepped((0, 4), (2, 6), (0, 0), 13)[1].done
    out = stepped((0, 4), (2, 6), (0, 0), 14)[1]
    assert out.truncated
    assert not out.terminated


def random(obs, key):
    return jax.random.randint(key, (len(obs),), 0, 4)


PLAYERS = {
    "greedy": lambda obs, key: jax.vmap(coin_game.greedy)(obs),
    "considerate": lambda obs, key: jax.vmap(coin_game.considerate)(obs),
    "random": random,
}


@jax.jit
def rewards(first, second):
    """Mean rewards a step of two players, by their places in `PLAYERS`."""

    num_games = 512

    def act(player, obs, key):
        return jax.lax.switch(player, list(PLAYERS.values()), obs, key)

    def step(now, key):
        state, obs = now
        a, b = jax.random.split(key)
        actions = act(first, obs[:, 0], a), act(second, obs[:, 1], b)
        keys = jax.random.split(key, num_games)
        state, out = jax.vmap(COINS.step_raw)(keys, state, jnp.stack(actions, 1))
        return (state, out.obs), out.reward.mean(0)

    key = jax.random.key(1)
    start = jax.vmap(COINS.reset)(jax.random.split(key, num_games))
    return jax.lax.scan(step, start, jax.random.split(key, COINS.max_steps))[1].mean(0)


def rewards_of(*players):
    return np.asarray(rewards(*map(list(PLAYERS).index, players)))


def test_who_takes_all_coins_gains_nothing_from_its_like():
    assert np.abs(rewards_of("greedy", "greedy")).max() < 0.08
    assert np.abs(rewards_of("random", "random")).max() < 0.08
    assert (rewards_of("considerate", "considerate") > 0.2).all()
    own, other = rewards_of("greedy", "random")
    assert own > 0.3
    assert other < -0.2


def test_an_unknown_size_is_refused():
    with pytest.raises(ConfigError, match="expected coin_game/3x3"):
        envs.make("coin_game/5x5")


def test_states_are_drawn():
    state, _ = stepped((0, 4), (2, 6), (0, 0))
    (frame,) = COINS.render([state])
    assert frame.shape == (240, 240, 3)
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) >= 3


# --- seats ----------------------------------------------------------------------------


def lived(loop, num_segments=1):
    """The state and metrics [segments] after some segments."""

    @jax.jit
    def run(key):
        state = loop.init(key, loop.meta)
        step = functools.partial(loop.train, key, loop.meta)
        return jax.lax.scan(lambda s, _: step(s), state, None, num_segments)

    return run(jax.random.key(0))


def test_each_seat_of_a_game_is_an_environment_of_a_rollout():
    episodes = jax.jit(lambda key: rollouts.start(key, COINS, 6))(jax.random.key(0))
    assert episodes.obs.shape == (6, 36)
    assert episodes.env_state.players.shape == (3, 2)

    def choose(carry, obs, noise, state, mask):
        return carry, jax.vmap(coin_game.greedy)(obs), ()

    after, _, steps, finished, _ = jax.jit(
        lambda key: rollouts.collect(key, COINS, episodes, jnp.zeros((15, 6)), choose)
    )(jax.random.key(1))
    assert steps.reward.shape == finished.done.shape == (15, 6)
    # Seats 0 and 1 are one game: the second sees the first as its other player.
    planes = np.asarray(steps.obs).reshape(15, 3, 2, 4, 9)
    np.testing.assert_array_equal(planes[:, :, 0, 0], planes[:, :, 1, 1])
    np.testing.assert_array_equal(planes[:, :, 0, 2], planes[:, :, 1, 3])
    assert not np.array_equal(planes[:, 0, 0], planes[:, 1, 0])
    np.testing.assert_array_equal(finished.done[-1], True)
    np.testing.assert_array_equal(after.last_return, np.asarray(steps.reward).sum(0))
    # Each is paid for its own move.
    moved = planes[1:].argmax(-1)[..., 0]
    coins = planes[:-1].argmax(-1)[..., 2:]
    taken = (moved[..., None] == coins).sum(-1)
    lost = moved[:, :, ::-1] == coins[..., 0]
    expected = (taken - 2 * lost).reshape(14, 6)
    np.testing.assert_array_equal(steps.reward[:-1], expected)


def test_one_ppo_learns_and_plays_all_seats():
    """Parameter sharing; it needs a multiple of the players."""
    loop = ppo.make(COINS, ppo.Config(**SIZES, num_segments=2))
    state, metrics = lived(loop)
    assert state.agent.age == 1
    assert metrics["episodes"] == 4
    assert metrics["length"] == 15
    found = jax.jit(loop.evaluate)(jax.random.key(0), loop.meta, state)
    assert found["length"] == 15
    states, _, _ = play.episode(jax.random.key(0), loop, loop.meta, state.agent)
    assert len(states) == 16
    with pytest.raises(ConfigError, match=r"num_envs=5 .* multiple of the 2 players"):
        rollouts.start(jax.random.key(0), COINS, 5)


# --- a fixed partner ------------------------------------------------------------------


def test_against_a_partner_one_seat_is_left():
    env = envs.against(COINS, coin_game.greedy)
    assert env.num_players == 1
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    actions = jnp.stack([coin_game.greedy(state[1]), jnp.int32(UP)])
    _, out = jax.jit(env.step_raw)(jax.random.key(1), state, jnp.int32(UP))
    _, both = STEP(jax.random.key(1), state[0], actions)
    np.testing.assert_array_equal(out.obs, both.obs[1])
    assert out.reward == both.reward[1]
    paid = out.info["metrics"]
    assert (paid["partner_reward"], paid["own_reward"]) == tuple(both.reward)
    with pytest.raises(ConfigError, match="needs 2 players"):
        envs.against(env, coin_game.greedy)


def test_what_an_environment_measures_is_a_metric_of_training():
    env = envs.against(COINS, coin_game.greedy)
    loop = ppo.make(env, ppo.Config(**SIZES, num_segments=2))
    metrics = lived(loop)[1]
    np.testing.assert_allclose(metrics["own_reward"] * 15, metrics["return"], rtol=1e-6)
    assert np.all(metrics["partner_reward"] > 0.1)


def test_the_shaper_is_told_of_the_last_segment():
    """And is in the first seat: with what it is told it decides what it is paid."""

    def told(obs, context):
        # Greedy from the second segment on; before, it is told nothing.
        return jnp.where(obs[38] > 0, coin_game.greedy(obs), 0)

    learner = ppo.make(
        COINS,
        ppo.Config(**SIZES | {"num_envs": 2, "num_minibatches": 2}, num_segments=4),
    )
    loop = partner.make(learner, partner.Config(4), partner.Meta(told))

    state, metrics = lived(loop, 4)
    np.testing.assert_allclose(
        state.agent.memory,
        [metrics["return"][-1], metrics["opponent_return"][-1], 1.0],
        rtol=1e-6,
    )
    assert metrics["return"][1:].mean() > metrics["return"][0] + 0.1
    assert int(state.agent.age) == 4
    found = jax.jit(loop.evaluate)(jax.random.key(0), loop.meta, state)
    assert found["return"] == metrics["return"][-1]


def test_pay_counts_in_segments_in_which_no_episode_ends():
    sizes = {"total_timesteps": 128, "num_steps": 8, "num_segments": 4}
    sizes |= {"num_epochs": 1, "anneal_lr": False}
    learner = ppo.make(COINS, ppo.Config(**SIZES | sizes))
    loop = partner.make(learner, partner.Config(4), partner.Meta(coin_game.greedy))

    _, metrics = lived(loop, 4)
    np.testing.assert_array_equal(metrics["episodes"], learner.frames_per_segment)
    np.testing.assert_array_equal(metrics["length"], 1)
    score = fitness.area_under_curve.score(metrics, {})
    assert score == pytest.approx(float(metrics["return"].mean()))


def test_learners_that_do_not_fit_are_refused():
    alone = ppo.make(envs.make("gymnax/CartPole-v1"))
    with pytest.raises(ConfigError, match="needs 2 players"):
        partner.make(alone)
    fixed = alone._replace(on=None)
    with pytest.raises(ConfigError, match="cannot be put on another"):
        partner.make(fixed)
    two = ppo.make(COINS, ppo.Config(**SIZES, num_segments=2))
    with pytest.raises(ConfigError, match="num_segments=4 does not divide"):
        partner.make(two, partner.Config(4))
    with pytest.raises(ConfigError, match=r"^shaper\.activation='swoosh'"):
        partner.make(two, partner.Config(activation="swoosh"))
    with pytest.raises(ConfigError, match="discrete actions"):
        partner.policy(envs.make("gymnax/Pendulum-v1"))
