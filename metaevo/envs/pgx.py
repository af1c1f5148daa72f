"""Board games of Pgx (Koyama et al., 2023) as `Env`s; the only importer of pgx.

`make("tic_tac_toe")` is a game of two players who take turns. Observations are those of
the player to move, and `Step.reward` is what the move gave to who made it. Player 0
moves first: Pgx draws which of its players does, which is undone here, so that seats
can be compared.

Pgx: https://arxiv.org/abs/2303.17503.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.envs import (
    Box,
    Discrete,
    Env,
    Step,
    optional,
    rendering,
    require,
    unknown,
    with_auto_reset,
)

MAX_MOVES = {
    "animal_shogi": 256,
    "chess": 512,
    "connect_four": 42,
    "gardner_chess": 256,
    "go_9x9": 162,
    "go_19x19": 722,
    "hex": 122,  # a swap, and all cells
    "othello": 124,
    "tic_tac_toe": 9,
}
"""Games of two players with perfect information, and the most moves of each.

That is a time limit: a game that would be longer is cut."""


class State(NamedTuple):
    """A position.

    Attributes:
        game: Pgx's state.
        first: int32, Pgx's number of the player who moved first.
        time: int32, moves made.
    """

    game: Any
    first: jax.Array
    time: jax.Array


def names() -> list[str]:
    """The environments of this suite.

    Raises:
        ConfigError: pgx is not installed.
    """
    require("pgx", "pgx", "games")
    return sorted(MAX_MOVES)


def make(name: str) -> Env:
    """Make a game.

    Raises:
        ConfigError: there is no such game, or pgx is not installed.
    """
    if name not in MAX_MOVES:
        raise unknown("pgx", name, names(), "game of two players")
    with optional("env=pgx/...", "games"):
        import pgx
    game = pgx.make(name)  # pyright: ignore[reportArgumentType]
    max_moves = MAX_MOVES[name]

    def observed(state):
        return state.game.observation.astype(jnp.float32)

    def player(state):
        return (state.game.current_player != state.first).astype(jnp.int32)

    def reset(key):
        begun = game.init(key)
        state = State(begun, begun.current_player, jnp.int32(0))
        return state, observed(state)

    def step_raw(key, state, action):
        mover = player(state)
        after = State(game.step(state.game, action, key), state.first, state.time + 1)
        # By seat: Pgx orders rewards by its own numbers of players.
        rewards = jnp.where(
            state.first == 0, after.game.rewards, after.game.rewards[::-1]
        )
        terminated = after.game.terminated
        truncated = (after.time >= max_moves) & ~terminated
        obs = observed(after)
        info = {"rewards": rewards}
        return after, Step(obs, rewards[mover], terminated, truncated, obs, info)

    begun = jax.eval_shape(game.init, jax.random.key(0))
    shape, num_actions = begun.observation.shape, begun.legal_action_mask.shape[0]
    binary = begun.observation.dtype == bool
    low, high = (0.0, 1.0) if binary else (-np.inf, np.inf)
    return Env(
        reset=reset,
        step=with_auto_reset(reset, step_raw),
        step_raw=step_raw,
        observation=Box(shape, low, high, binary),
        action=Discrete(num_actions),
        max_steps=max_moves,
        action_mask=lambda state: state.game.legal_action_mask,
        name=f"pgx/{name}",
        player=player,
        render=partial(_frames, name) if name in BOARDS else None,
    )


BOARDS = ("connect_four", "go_9x9", "go_19x19", "hex", "othello", "tic_tac_toe")
"""Games with stones, which can be drawn."""


def _frames(name: str, states: Any, shares: Any = None) -> list[np.ndarray]:
    """Frames of positions; `shares` [num_actions] each, of the move made there."""
    drawn = []
    for i, state in enumerate(states):
        # Planes of the player to move and of the other.
        mine, theirs = np.moveaxis(np.asarray(state.game.observation)[..., :2], -1, 0)
        player = int(state.game.current_player != state.first)
        first, second = (theirs, mine) if player else (mine, theirs)
        stones = np.asarray(first, np.int8) + 2 * np.asarray(second, np.int8)
        at = None
        if shares is not None and i < len(shares):
            at = _cells(name, stones, np.asarray(shares[i]))
        drawn.append(rendering.board(stones, at))
    return drawn


def _cells(name: str, stones: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Shares of moves [num_actions] at the cells where their stones come to lie."""
    if name != "connect_four":
        return share[: stones.size].reshape(stones.shape)
    cells = np.zeros(stones.shape)
    for column in range(stones.shape[1]):
        empty = np.flatnonzero(stones[:, column] == 0)
        if len(empty):
            cells[empty[-1], column] = share[column]
    return cells
