"""Tree search in games: signs, ends, and short tactics."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from inner_loops import alphazero, gumbel_alphazero, ppo
from metaevo import envs, schedules
from metaevo.envs import Discrete
from metaevo.errors import ConfigError
from metaevo.rl import matches, planning
from metaevo.slots import Context


@functools.cache
def game():
    """Tic-tac-toe; to import Pgx takes seconds."""
    return envs.make("pgx/tic_tac_toe")


@functools.cache
def programs():
    return jax.jit(game().reset), jax.jit(game().step_raw)


def step(state, move):
    return programs()[1](jax.random.key(1), state, jnp.int32(move))


# Moves of both players so far, and the move to find.
WIN = (0, 3, 1, 4), 2
WIN_OF_THE_SECOND = (0, 3, 1, 4, 8), 5


def position(moves, key=0):
    state, obs = programs()[0](jax.random.key(key))
    for move in moves:
        state, out = step(state, move)
        obs = out.obs
    return state, obs, envs.legal_actions(game(), state)


# --- the game -------------------------------------------------------------------------


def test_player_0_moves_first_and_rewards_are_by_seat():
    """Pgx's players begin in either order."""
    for key in range(4):
        state, _, mask = position((), key)
        assert int(game().player(state)) == 0
        assert mask.all()
        for (moves, best), player, rewards in (
            (WIN, 0, [1, -1]),
            (WIN_OF_THE_SECOND, 1, [-1, 1]),
        ):
            state, _, _ = position(moves, key)
            assert int(game().player(state)) == player
            _, out = step(state, best)
            assert bool(out.terminated)
            assert float(out.reward) == 1
            np.testing.assert_array_equal(out.info["rewards"], rewards)


def test_other_games_are_refused():
    with pytest.raises(ConfigError, match=r"Did you mean pgx/tic_tac_toe\?"):
        envs.make("pgx/tic_tac_to")
    with pytest.raises(ConfigError, match="no such game of two players"):
        envs.make("pgx/kuhn_poker")


def test_algorithms_that_plan_for_one_player_refuse_a_game_of_two():
    with pytest.raises(ConfigError, match="two players who take turns; see alphazero"):
        ppo.make(game())


def test_games_in_which_all_act_at_once_are_refused():
    with pytest.raises(ConfigError, match="2 players act at once"):
        alphazero.make(envs.make("coin_game/3x3"))


# --- the search -----------------------------------------------------------------------


def test_a_win_is_found_with_16_simulations_and_an_untrained_net():
    config = gumbel_alphazero.Config(num_simulations=16, features=(16,))
    loop = gumbel_alphazero.make(game(), config)

    @jax.jit
    def act(state, obs, mask):
        key = jax.random.key(3)
        agent = loop.init(jax.random.key(0), loop.meta).agent
        return loop.act(key, loop.meta, agent, (), obs, state, mask)[0]

    for moves, best in (WIN, WIN_OF_THE_SECOND):
        assert int(act(*position(moves))) == best


def unknowing(keys, obs, state):
    """Even logits and values of zero."""
    return jnp.zeros((len(obs), 9)), jnp.zeros(len(obs))


def several(position, number):
    """The state and legal moves of a position, as many times."""
    repeat = jax.jit(lambda tree: jax.tree.map(lambda x: jnp.stack([x] * number), tree))
    return repeat(position[::2])


def puct(key, root, env, evaluate, num_simulations, explore, temperature=1.0):
    return planning.puct(
        key,
        planning.model(env, evaluate, 1.0),
        root,
        alphazero.Meta(temperature=temperature, dirichlet_fraction=0.0),
        Context(),
        num_simulations=num_simulations,
        bounds=(-1.0, 1.0),
        explore=explore,
    )


@functools.cache
def searched(explore=False, num_simulations=256):
    """`(key, position) -> found`, by a search whose values are zero but at ends."""

    @jax.jit
    def search(key, state, mask):
        here = jax.tree.map(lambda x: x[None], (state, mask))
        root = planning.Root(jnp.zeros((1, 9)), jnp.zeros(1), *here, jnp.zeros(1))
        temperature = 1e3 if explore else 1.0
        return puct(key, root, game(), unknowing, num_simulations, explore, temperature)

    return search


LOST = (0, 4, 1, 8, 3)  # the first player has two lines to finish


def root_value(moves):
    state, _, mask = position(moves)
    found = searched()(jax.random.key(0), state, mask)
    return float(found.value[0]), np.asarray(found.visits[0])


def test_a_won_position_is_worth_1_to_who_is_to_move():
    for moves, best in (WIN, WIN_OF_THE_SECOND):
        value, visits = root_value(moves)
        assert value > 0.85  # a mean over the simulations
        assert visits.argmax() == best
    assert root_value(LOST)[0] < -0.5


def test_nothing_is_gained_behind_an_end():
    """A finished state stays as it is, whatever follows it in the environment."""
    state, _, _ = position(WIN[0])

    def evaluate(keys, obs, state):
        return jnp.zeros((len(obs), 9)), jnp.ones(len(obs))

    model = jax.jit(planning.model(game(), evaluate, 1.0), static_argnums=0)
    no = jnp.array(False)
    at = planning.TreeNode(state, no, no, jnp.float32(0.0))
    at = jax.tree.map(lambda x: x[None], at)
    out, at = model((), jax.random.key(0), jnp.array([WIN[1]]), at)
    assert (float(out.reward[0]), float(out.discount[0])) == (1.0, 0.0)
    assert float(out.value[0]) == 0
    for move in (5, 6):
        out, later = model((), jax.random.key(0), jnp.array([move]), at)
        assert (float(out.reward[0]), float(out.discount[0])) == (0.0, 0.0)
        for a, b in zip(jax.tree.leaves(later[0]), jax.tree.leaves(at[0]), strict=True):
            np.testing.assert_array_equal(a, b)


def test_no_move_is_drawn_that_the_search_did_not_visit():
    """At a high temperature moves without a visit would have a share, illegal too."""
    state, _, mask = position((0, 4, 1))
    search = searched(explore=True, num_simulations=8)
    keys = jax.random.split(jax.random.key(0), 64)
    found = jax.jit(jax.vmap(search, (0, None, None)))(keys, state, mask)
    visits, action, mask = map(np.asarray, (found.visits[:, 0], found.action, mask))
    assert (np.take_along_axis(visits, action, -1) > 0).all()
    assert mask[action].all()
    assert len(np.unique(action)) > 3


# --- matches --------------------------------------------------------------------------


def match(a, b, num_games=200):
    return jax.jit(lambda key: matches.play(key, game(), a, b, num_games))(
        jax.random.key(0)
    )


def test_perfect_play_never_loses_from_either_seat():
    perfect = matches.minimax(game())
    results = match(perfect, matches.random)
    assert (results.score >= 0).all()
    np.testing.assert_array_equal(results.seat[:4], [0, 1, 0, 1])
    first, second = (results.score[results.seat == i].mean() for i in (0, 1))
    assert first > second > 0.5
    summary = matches.metrics(results)
    shares = [float(summary[x]) for x in ("wins", "draws", "losses")]
    assert sum(shares) == pytest.approx(1)
    assert float(summary["return"]) == pytest.approx(shares[0] - shares[2], abs=1e-6)
    assert (match(perfect, perfect, 20).score == 0).all()


def test_playing_on_at_random_beats_random_moves():
    results = match(matches.player(game(), "rollouts-10"), matches.random, 20)
    assert float(results.score.mean()) > 0.5


def test_unknown_opponents_are_refused():
    for name in ("perfect", "rollouts-0", "rollouts-", "rollouts-x"):
        with pytest.raises(ConfigError, match=r"inner\.opponent="):
            matches.player(game(), name)
    with pytest.raises(ConfigError, match=r"solves pgx/tic_tac_toe alone"):
        matches.minimax(envs.make("pgx/connect_four"))


def test_a_state_at_the_time_limit_keeps_its_value_however_often_it_is_visited():
    """All values are .5, so the root's is; below the limit nothing comes or goes."""
    env = one_move(0.0)

    def cut(key, state, action):
        state, out = env.step_raw(key, state, action)
        return state, out._replace(terminated=out.truncated, truncated=out.terminated)

    def evaluate(keys, obs, state):
        return jnp.zeros((len(obs), 2)), jnp.full(len(obs), 0.5)

    limited = env._replace(step_raw=cut, player=None)
    start = jnp.zeros(1, jnp.int32)
    root = planning.Root(jnp.zeros((1, 2)), jnp.full(1, 0.5), start, None)
    value = jax.jit(lambda key: puct(key, root, limited, evaluate, 32, False).value[0])
    assert value(jax.random.key(0)) == pytest.approx(0.5)


def test_noise_in_the_root_is_on_legal_moves_alone():
    """Of 400 moves 20 are legal and share it."""
    mask = jnp.zeros((16, 400), bool).at[:, :20].set(True)
    root = planning.Root(jnp.zeros(mask.shape), jnp.zeros(16), (), mask)
    prior = jnp.zeros(mask.shape).at[:, :20].set(1 / 20)

    @jax.jit
    def policy(share):
        logits = planning.noisy(jax.random.key(0), root, 0.3, share)
        return jax.nn.softmax(planning.legal(logits, mask))

    noise = policy(1.0)
    assert float(noise[:, 20:].max()) == 0
    # Of Dirichlet(0.3) over 20 moves: mean and deviation of a share.
    np.testing.assert_allclose(noise[:, :20].mean(), 1 / 20, rtol=1e-5)
    expected = np.sqrt(0.05 * 0.95 / (20 * 0.3 + 1))
    assert float(noise[:, :20].std()) == pytest.approx(expected, rel=0.2)
    np.testing.assert_allclose(policy(0.25), 0.75 * prior + 0.25 * noise, atol=1e-6)
    np.testing.assert_allclose(policy(0.0), prior, atol=1e-6)


def test_moves_are_drawn_by_the_temperature_of_their_number():
    """Of two positions alike, the later one's most visited move is taken."""
    move, here = np.repeat(np.float32([0.0, 1.0]), 8), several(position(WIN[0]), 16)
    root = planning.Root(jnp.zeros((16, 9)), jnp.zeros(16), *here, move)
    rest = root, game(), unknowing, 64, True, schedules.by_move(100.0, 0.01, moves=1)
    drawn = jax.jit(lambda key: puct(key, *rest).action)
    first, later = np.split(np.asarray(drawn(jax.random.key(0))), 2)
    assert (later == WIN[1]).all()
    assert len(set(first)) > 2


def test_a_win_in_one_gets_nearly_all_of_the_gumbel_target():
    """With 16 simulations and an untrained network, at mctx's defaults."""
    here = several(position(WIN[0]), 16)

    @jax.jit
    def target(key):
        return planning.gumbel(
            key,
            planning.model(game(), unknowing, 1.0),
            planning.Root(jnp.zeros((16, 9)), jnp.zeros(16), *here),
            gumbel_alphazero.Meta(),
            Context(),
            num_simulations=16,
            num_considered=16,
            explore=True,
        ).policy

    assert float(target(jax.random.key(0))[:, WIN[1]].mean()) >= 0.92


# --- self-play ------------------------------------------------------------------------


def test_values_are_learned_for_who_is_to_move():
    """In a game of one move that its player wins, and one that the other does."""
    config = alphazero.Config(
        512, num_envs=16, num_steps=4, num_segments=1, features=(8,),
        num_simulations=2, num_eval_envs=2,
    )  # fmt: skip

    @jax.jit
    def learned(reward):
        loop = alphazero.make(one_move(reward), config, alphazero.Meta(lr=3e-2))
        state = loop.init(jax.random.key(0), loop.meta)
        return loop.train(jax.random.key(1), loop.meta, state)[1]

    for won_by_mover in (1.0, -1.0):
        metrics = learned(won_by_mover)
        assert float(metrics["value_error_rms"]) < 0.5
        assert float(metrics["return"]) == won_by_mover


def one_move(reward):
    """A game that ends with its first move."""
    rewards = jnp.stack([reward, -reward])

    def reset(key):
        return jnp.int32(0), jnp.zeros(1)

    def step_raw(key, state, action):
        done = jnp.array(True)
        obs = jnp.ones(1)
        info = {"rewards": rewards}
        return state + 1, envs.Step(obs, rewards[0], done, ~done, obs, info)

    return envs.Env(
        reset,
        envs.with_auto_reset(reset, step_raw),
        step_raw,
        envs.Box((1,), 0.0, 1.0),
        Discrete(2),
        1,
        action_mask=lambda state: jnp.ones(2, bool),
        name="one_move",
        player=lambda state: state % 2,
    )
