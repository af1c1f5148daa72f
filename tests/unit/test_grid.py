"""Procedural tasks: what their tables say, and that play follows the tables."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaevo import envs
from metaevo.envs import grid
from metaevo.errors import ConfigError

SIDE, CELLS = grid.SIDE, grid.CELLS
OPEN = jnp.ones(len(grid.PAIRS), bool)


@functools.cache
def tables(name, num=50):
    env = envs.make(f"grid/{name}")
    return jax.jit(jax.vmap(env.task))(jax.random.split(jax.random.key(0), num))


def one_maze(opened, goal):
    """A maze with these walls and this goal, and the environment on it."""
    following = grid._moves(opened)
    reached = following == goal
    table = grid.Table(
        following[..., None],
        jnp.zeros((CELLS, 4, 0)),
        reached.astype(jnp.float32),
        reached,
        (jnp.arange(CELLS) == 0).astype(jnp.float32),
    )
    return table, envs.make("grid/maze").at(table)


def walk(env, actions, state=None):
    """States and steps of actions from the start."""
    state = state or jax.jit(env.reset)(jax.random.key(0))[0]
    steps, step = [], jax.jit(env.step_raw)
    for i, action in enumerate(actions):
        state, out = step(jax.random.key(i), state, np.int32(action))
        steps.append((int(state.place), out))
    return steps


def test_moves_go_one_cell_and_stop_at_the_edge():
    _, env = one_maze(OPEN, CELLS - 1)
    places = [place for place, _ in walk(env, (0, 1, 2, 2, 3, 3))]
    assert places == [0, 1, 1 + SIDE, 1 + 2 * SIDE, 2 * SIDE, 2 * SIDE]


def test_walls_block_both_ways_and_nothing_else():
    wall = int(np.flatnonzero((grid.PAIRS == (0, 1)).all(1))[0])
    _, env = one_maze(OPEN.at[wall].set(False), CELLS - 1)
    assert [place for place, _ in walk(env, (1, 2, 1, 0, 3))] == [0, 5, 6, 1, 1]


def test_the_goal_pays_once_and_ends_the_episode():
    _, env = one_maze(OPEN, 1)
    ((_, out),) = walk(env, (1,))
    assert (float(out.reward), bool(out.terminated), bool(out.truncated)) == (1, 1, 0)
    steps = walk(env, (3,) * env.max_steps)
    assert [float(out.reward) for _, out in steps] == [0.0] * env.max_steps
    assert [bool(out.truncated) for _, out in steps[-2:]] == [False, True]


def test_every_cell_of_every_maze_can_be_reached():
    """By breadth-first search in numpy."""
    for following in np.asarray(tables("maze").following)[..., 0]:
        seen = {0}
        while more := {int(x) for cell in seen for x in following[cell]} - seen:
            seen |= more
        assert len(seen) == CELLS


def test_mazes_differ_and_have_walls():
    keys = jax.random.split(jax.random.key(1), 200)
    opened = jax.jit(jax.vmap(grid.open_walls))(keys)
    num = np.asarray(opened).sum(1)
    assert num.min() >= CELLS - 1
    # A tree has 24 of 40 walls open; a fifth of the others more.
    assert num.mean() == pytest.approx(24 + 0.2 * 16, abs=0.5)
    assert len(np.unique(np.asarray(opened), axis=0)) > 190


def test_the_door_opens_to_who_has_the_key():
    env = envs.make("grid/key_door")
    table = jax.tree.map(lambda x: np.asarray(x)[3], tables("key_door"))
    following = table.following[..., 0]
    assert not table.terminal[:CELLS].any()
    taken = following[:CELLS][following[:CELLS] >= CELLS] - CELLS
    (key_at,) = set(taken.tolist())
    (goal,) = set((following[table.terminal] - CELLS).tolist())
    assert goal != key_at
    # Once held, the key is never lost.
    assert (following[CELLS:] >= CELLS).all()
    step = jax.jit(env.at(table).step_raw)

    def moved(place, action):
        state = grid.State(np.int32(place), np.int32(0))
        return step(jax.random.key(0), state, np.int32(action))

    observed = moved(0, 1)[1].obs
    assert observed.shape == (CELLS + 1,)
    assert float(observed[-1]) == float(following[0, 1] >= CELLS)
    # Into the goal without the key: nothing.
    cell, action = np.argwhere(following[:CELLS] == goal)[0]
    state, out = moved(cell, action)
    assert (int(state.place), float(out.reward), bool(out.terminated)) == (goal, 0, 0)
    _, out = moved(cell + CELLS, action)
    assert (float(out.reward), bool(out.terminated)) == (1, 1)


def test_best_return_of_a_maze_is_that_of_its_shortest_path():
    table, _ = one_maze(OPEN, CELLS - 1)
    # Eight steps from corner to corner; the last pays.
    best = grid.best_return(table, 100, gamma=0.9)
    assert float(best) == pytest.approx(0.9**7, rel=1e-5)
    assert float(grid.best_return(table, 7)) == 0.0
    assert float(grid.best_return(table, 8)) == 1.0


@pytest.mark.parametrize("name", ["maze", "key_door"])
def test_every_start_can_be_solved_in_time(name):
    env = envs.make(f"grid/{name}")
    best = jax.vmap(lambda t: grid.best_return(t, env.max_steps))(tables(name))
    np.testing.assert_allclose(best, 1.0, rtol=1e-6)


def test_best_return_is_that_of_the_best_of_all_policies():
    """Of three steps in a process of two states, by enumeration of what is done."""
    table = grid.Table(
        jnp.array([[[0, 1], [1, 0]], [[1, 0], [0, 1]]], jnp.int32),
        jnp.array([[[0.75], [0.5]], [[0.25], [1.0]]]),
        jnp.array([[1.0, 0.0], [-0.5, 2.0]]),
        jnp.array([[False, False], [False, True]]),
        jnp.array([0.25, 0.75]),
    )
    matrix = np.zeros((2, 2, 2))
    for state, action in itertools.product(range(2), range(2)):
        first = float(table.below[state, action, 0])
        for branch, share in enumerate((first, 1 - first)):
            matrix[state, action, int(table.following[state, action, branch])] += share
    reward, terminal = np.asarray(table.reward), np.asarray(table.terminal)
    best = -np.inf
    # A policy is an action for each of two states at each of three times.
    for policy in itertools.product(range(2), repeat=6):
        alive, total = np.array([0.25, 0.75]), 0.0
        for time in range(3):
            after = np.zeros(2)
            for state in range(2):
                action = policy[2 * time + state]
                total += alive[state] * reward[state, action]
                if not terminal[state, action]:
                    after += alive[state] * matrix[state, action]
            alive = after
        best = max(best, total)
    assert float(grid.best_return(table, 3)) == pytest.approx(best, rel=1e-6)


def test_a_random_process_goes_where_its_table_says():
    env = envs.make("grid/random_mdp")
    table = jax.tree.map(lambda x: np.asarray(x)[5], tables("random_mdp"))
    there = env.at(table)

    @jax.jit
    @jax.vmap
    def one(key):
        state = grid.State(jnp.int32(7), jnp.int32(0))
        return there.reset(key)[0].place, there.step_raw(key, state, 2)

    keys = jax.random.split(jax.random.key(0), 4000)
    starts, (after, out) = one(keys)
    below = np.concatenate([[0], np.asarray(table.below)[7, 2], [1]])
    expected = np.zeros(grid.STATES)
    np.add.at(expected, np.asarray(table.following)[7, 2], np.diff(below))
    shares = np.bincount(np.asarray(after.place), minlength=grid.STATES) / 4000
    # Four standard errors of a share.
    assert np.abs(shares - expected).max() < 4 * np.sqrt(0.25 / 4000)
    np.testing.assert_array_equal(out.reward, np.full(4000, table.reward[7, 2]))
    np.testing.assert_array_equal(out.obs.argmax(1), after.place)
    assert set(np.asarray(starts).tolist()) == set(range(grid.STATES))


@pytest.mark.parametrize("name", grid.names())
def test_observations_are_binary_and_tasks_differ(name):
    env = envs.make(f"grid/{name}")
    assert env.observation.binary
    keys = jax.random.split(jax.random.key(0), 20)
    _, obs = jax.jit(jax.vmap(env.reset))(keys)
    assert set(np.unique(obs)) <= {0.0, 1.0}
    following = np.asarray(tables(name).following).reshape(50, -1)
    assert len(np.unique(following, axis=0)) == 50


def test_a_maze_is_drawn_with_its_walls_goal_and_agent():
    wall = int(np.flatnonzero((grid.PAIRS == (0, 1)).all(1))[0])
    table, env = one_maze(OPEN.at[wall].set(False), CELLS - 1)
    state, _ = env.reset(jax.random.key(0))
    board = grid._board(table, state)
    assert board[1, 2, 0]
    assert not board[2, 1, 0]
    assert board[9, 9, 1]
    assert board[1, 1, 3]
    (frame,) = env.render([state])
    assert frame.dtype == np.uint8


def test_an_unknown_task_is_refused():
    with pytest.raises(ConfigError, match="Did you mean grid/maze"):
        envs.make("grid/mase")
