"""Cheap procedural tasks: mazes, a key and a door, random Markov decision processes.

All are tables. A task, drawn once for each lifetime (`Env.task`), is the table; a step
looks up a row. States are one number and observations one-hot, so a linear or tabular
agent can solve them, and `best_return` computes the optimum by value iteration.

* `grid/maze`: a square with walls between cells, a spanning tree with some walls more
  taken out. The start is random in each episode, the goal is drawn with the maze.
* `grid/key_door`: the same, but the goal is a door, which opens to who has been at the
  key before. The observation tells whether the key is held.
* `grid/random_mdp`: as in Oh et al. (2020, https://arxiv.org/abs/2007.08794): each
  action leads to one of a few random states, with random probabilities, and each pair
  of state and action has a random reward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.envs import Box, Discrete, Env, Step, rendering, unknown, with_auto_reset
from metaevo.types import Key

SIDE = 5  # cells in a row of a maze
EXTRA = 0.2  # share of the walls that a spanning tree leaves and that are taken out
STATES, ACTIONS, SUCCESSORS = 20, 5, 4  # of a random process
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left


class Table(NamedTuple):
    """A task: N states, A actions, B successors of each pair.

    Attributes:
        following: [N, A, B] int32, the states that a pair may lead to.
        below: [N, A, B - 1] cumulative probabilities of all but the last of them.
        reward: [N, A] for the pair.
        terminal: [N, A] bool, whether the episode ends with the pair.
        start: [N] probabilities of the first state.
    """

    following: jax.Array
    below: jax.Array
    reward: jax.Array
    terminal: jax.Array
    start: jax.Array


class State(NamedTuple):
    """State of an episode.

    Attributes:
        place: int32, index of the state.
        time: int32, steps done.
    """

    place: jax.Array
    time: jax.Array


class _Suite(NamedTuple):
    """A kind of task: how tables are drawn, what is seen of states, and pictures."""

    task: Callable[[Key], Table]
    observed: np.ndarray  # [N, D] of 0 and 1
    max_steps: int
    draw: Callable[[Table, Any], np.ndarray] | None = None


def names() -> list[str]:
    """The environments of this suite."""
    return sorted(_SUITES)


def make(name: str) -> Env:
    """Make an environment whose task is drawn for each lifetime.

    Raises:
        ConfigError: there is no such environment.
    """
    if name not in _SUITES:
        raise unknown("grid", name, names())
    suite = _SUITES[name]()
    observed = suite.observed

    def at(table: Table) -> Env:
        def reset(key):
            # A start is drawn by its place in the cumulative probabilities.
            starts = jnp.cumsum(jnp.asarray(table.start))
            drawn = jax.random.uniform(key) * starts[-1]
            state = State((starts <= drawn).sum(dtype=jnp.int32), jnp.int32(0))
            return state, observe(state)

        def step_raw(key, state, action):
            following, below, reward, terminal, _ = map(jnp.asarray, table)
            pair = state.place, action
            branch = jnp.int32(0)
            if below.shape[-1]:
                drawn = jax.random.uniform(key)
                branch = (drawn >= below[pair]).sum(dtype=jnp.int32)
            reward, terminated = reward[pair], terminal[pair]
            state = State(following[*pair, branch], state.time + 1)
            truncated = (state.time >= suite.max_steps) & ~terminated
            obs = observe(state)
            return state, Step(obs, reward, terminated, truncated, obs, {})

        return nothing._replace(
            reset=reset, step=with_auto_reset(reset, step_raw), step_raw=step_raw,
            render=_renderer(suite, table),
        )  # fmt: skip

    def observe(state):
        return jnp.asarray(observed)[state.place]

    def none(*args):
        raise NotImplementedError

    nothing = Env(
        none,
        none,
        none,
        Box(observed.shape[1:], 0.0, 1.0, binary=True),
        Discrete(ACTIONS if name == "random_mdp" else len(MOVES)),
        suite.max_steps,
        name=f"grid/{name}",
        task=suite.task,
        at=at,
    )
    with jax.ensure_compile_time_eval():
        middle = suite.task(jax.random.key(0))
    return at(jax.tree.map(np.asarray, middle))


def _renderer(suite: _Suite, table: Table):
    draw = suite.draw
    if draw is None:
        return None
    return lambda states: [rendering.grid(draw(table, state)) for state in states]


def best_return(table: Table, max_steps: int, gamma: float = 1.0) -> jax.Array:
    """Return the best expected return of an episode, discounted by `gamma`.

    By value iteration over `max_steps` steps, exact.

    Args:
        table: the task.
        max_steps: time limit T.
        gamma: discount.
    """
    below = table.below
    edges = (*below.shape[:2], 1)
    bounds = jnp.concatenate([jnp.zeros(edges), below, jnp.ones(edges)], -1)
    probability = jnp.diff(bounds, axis=-1)

    def back(value, _):
        after = (probability * value[table.following]).sum(-1)
        q = table.reward + gamma * jnp.where(table.terminal, 0.0, after)
        return q.max(-1), None

    value, _ = jax.lax.scan(back, jnp.zeros(len(table.start)), length=max_steps)
    return (value * table.start).sum() / table.start.sum()


# --- mazes ----------------------------------------------------------------------------


def _neighbors(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of adjacent cells [W, 2], and each cell's wall by move [N, 4].

    The last wall, number W, is that around the square.
    """
    pairs, wall = [], np.full((side * side, len(MOVES)), -1)
    for cell in range(side * side):
        row, column = divmod(cell, side)
        for move, (down, right) in ((1, (0, 1)), (2, (1, 0))):
            if row + down < side and column + right < side:
                other = (row + down) * side + column + right
                wall[cell, move] = wall[other, (move + 2) % 4] = len(pairs)
                pairs.append((cell, other))
    return np.array(pairs), np.where(wall < 0, len(pairs), wall)


PAIRS, WALL = _neighbors(SIDE)
CELLS = SIDE * SIDE


def open_walls(key: Key) -> jax.Array:
    """Draw which walls are open, [W] bool: a spanning tree (Kruskal, 1956) and more."""
    order_key, more_key = jax.random.split(key)
    order = jax.random.permutation(order_key, len(PAIRS))

    def join(label, wall):
        a, b = label[jnp.asarray(PAIRS)[wall]]
        return jnp.where(label == b, a, label), a != b

    _, opened = jax.lax.scan(join, jnp.arange(CELLS), order)
    opened = jnp.zeros(len(PAIRS), bool).at[order].set(opened)
    return opened | (jax.random.uniform(more_key, (len(PAIRS),)) < EXTRA)


def _moves(opened: jax.Array) -> jax.Array:
    """Return the cell that each move leads to, [N, 4]: across an open wall, or none."""
    steps = np.array([down * SIDE + right for down, right in MOVES])
    there = np.arange(CELLS)[:, None] + steps
    through = jnp.append(opened, False)[WALL]
    return jnp.where(through, there, np.arange(CELLS)[:, None]).astype(jnp.int32)


def _maze(key: Key) -> Table:
    walls_key, goal_key = jax.random.split(key)
    following = _moves(open_walls(walls_key))
    goal = jax.random.randint(goal_key, (), 0, CELLS)
    reached = following == goal
    return Table(
        following[..., None],
        jnp.zeros((CELLS, len(MOVES), 0)),
        reached.astype(jnp.float32),
        reached,
        (jnp.arange(CELLS) != goal).astype(jnp.float32),
    )


def _key_door(key: Key) -> Table:
    """Return a maze's table twice: without the key, and with it."""
    walls_key, places_key = jax.random.split(key)
    cell = _moves(open_walls(walls_key))
    goal, key_at = jax.random.permutation(places_key, CELLS)[:2]
    # The goal is a door: without the key it is a cell like others.
    taken = jnp.where(cell == key_at, cell + CELLS, cell)
    following = jnp.concatenate([taken, cell + CELLS]).astype(jnp.int32)
    reached = following == goal + CELLS
    start = (jnp.arange(CELLS) != goal) & (jnp.arange(CELLS) != key_at)
    start = start.astype(jnp.float32)
    return Table(
        following[..., None],
        jnp.zeros((2 * CELLS, len(MOVES), 0)),
        reached.astype(jnp.float32),
        reached,
        jnp.concatenate([start, jnp.zeros(CELLS)]),
    )


def _board(table: Table, state: Any) -> np.ndarray:
    """Return the board [2 SIDE + 1, 2 SIDE + 1, 4]: walls, goal, key, agent."""
    size = 2 * SIDE + 1
    board = np.zeros((size, size, 4), bool)
    board[..., 0] = True

    def square(place):
        row, column = divmod(int(place) % CELLS, SIDE)
        return 2 * row + 1, 2 * column + 1

    following = np.asarray(table.following)[..., 0]
    ends = following[np.asarray(table.terminal)] % CELLS
    for place, nexts in enumerate(following):
        row, column = square(place)
        board[row, column, 0] = False
        for (down, right), other in zip(MOVES, nexts, strict=True):
            if other % CELLS != place % CELLS:
                board[row + down, column + right, 0] = False
    board[*square(ends[0]), 1] = True
    taken = following[:CELLS][following[:CELLS] >= CELLS]
    if len(following) > CELLS and int(state.place) < CELLS and len(taken):
        board[*square(taken[0]), 2] = True
    board[*square(state.place), 3] = True
    return board


# --- random processes -----------------------------------------------------------------


def _random_mdp(key: Key) -> Table:
    states_key, shares_key, reward_key = jax.random.split(key, 3)
    shape = (STATES, ACTIONS)
    shares = jax.random.exponential(shares_key, (*shape, SUCCESSORS))
    cumulative = jnp.cumsum(shares / shares.sum(-1, keepdims=True), -1)
    return Table(
        jax.random.randint(states_key, (*shape, SUCCESSORS), 0, STATES),
        cumulative[..., :-1],
        jax.random.normal(reward_key, shape),
        jnp.zeros(shape, bool),
        jnp.ones(STATES) / STATES,
    )


_KEY = np.repeat(np.array([[0.0], [1.0]], np.float32), CELLS, 0)
_SUITES: dict[str, Callable[[], _Suite]] = {
    "maze": lambda: _Suite(_maze, np.eye(CELLS, dtype=np.float32), 100, _board),
    "key_door": lambda: _Suite(
        _key_door,
        np.concatenate([np.tile(np.eye(CELLS, dtype=np.float32), (2, 1)), _KEY], 1),
        100,
        _board,
    ),
    "random_mdp": lambda: _Suite(_random_mdp, np.eye(STATES, dtype=np.float32), 50),
}
