"""Matches of two players who take turns, over both seats.

A player is `(key, obs, state, mask) -> action` for one game; `obs` is what the player
to move sees, `mask` [A] bool the legal moves.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import envs
from metaevo.envs import Env
from metaevo.errors import ConfigError
from metaevo.rl import planning
from metaevo.slots import Context
from metaevo.types import Key, Metrics

__all__ = [
    "Player",
    "Results",
    "metrics",
    "minimax",
    "play",
    "player",
    "playouts",
    "random",
]

Player = Callable[..., jax.Array]


class Results(NamedTuple):
    """Of a match of N games.

    Attributes:
        score: [N] what the first of the two players got: in most games 1 for a win, 0
            for a draw, -1 for a loss.
        seat: [N] int32, its seat; 0 moves first.
        length: [N] moves of both.
    """

    score: jax.Array
    seat: jax.Array
    length: jax.Array


def play(key: Key, env: Env, a: Player, b: Player, num_games: int) -> Results:
    """Plays a match; `a` has seat 0 in games 0, 2, 4 ... and seat 1 in the others.

    Args:
        env: with `player`, and rewards per player in `Step.info["rewards"]`.
    """
    reset_key, run_key = jax.random.split(key)
    seat = jnp.arange(num_games, dtype=jnp.int32) % 2
    state, obs = jax.vmap(env.reset)(jax.random.split(reset_key, num_games))

    def one(key, state, obs, seat):
        a_key, b_key, step_key = jax.random.split(key, 3)
        mask = envs.legal_actions(env, state)
        moves = a(a_key, obs, state, mask), b(b_key, obs, state, mask)
        action = jnp.where(env.player(state) == seat, *moves)  # pyright: ignore[reportOptionalCall]
        state, out = env.step_raw(step_key, state, action)
        return state, out.obs, out.info["rewards"][seat], out.done

    def advance(now, key):
        state, obs, alive, score, length = now
        keys = jax.random.split(key, num_games)
        state, obs, reward, done = jax.vmap(one)(keys, state, obs, seat)
        score = score + jnp.where(alive, reward, 0.0)
        return (state, obs, alive & ~done, score, length + alive), None

    zeros = jnp.zeros(num_games)
    start = (state, obs, jnp.ones(num_games, bool), zeros, zeros)
    keys = jax.random.split(run_key, env.max_steps)
    (_, _, _, score, length), _ = jax.lax.scan(advance, start, keys)
    return Results(score, seat, length)


def metrics(results: Results) -> Metrics:
    """`return`, the mean score, `length`, and the shares `wins`, `draws`, `losses`."""
    score = results.score
    return {
        "return": score.mean(),
        "length": results.length.mean(),
        "wins": (score > 0).mean(),
        "draws": (score == 0).mean(),
        "losses": (score < 0).mean(),
    }


# --- players --------------------------------------------------------------------------


def player(env: Env, name: str) -> Player:
    """The player of a name.

    Args:
        name: `random`; `rollouts-N`, `playouts` with N simulations; `minimax`.

    Raises:
        ConfigError: there is no such player, or it cannot play `env`.
    """
    if name == "random":
        return random
    if name == "minimax":
        return minimax(env)
    if (found := re.fullmatch(r"rollouts-([1-9]\d{0,5})", name)) is None:
        raise ConfigError(
            f"inner.opponent={name!r}: expected random, minimax, or rollouts-N with N "
            "simulations"
        )
    return playouts(env, int(found[1]))


def random(key, obs, state, mask):
    """Uniform legal moves."""
    del obs, state
    return jax.random.categorical(key, jnp.where(mask, 0.0, -jnp.inf))


def playouts(env: Env, num_simulations: int, c: float = 1.25) -> Player:
    """A tree search without a network, which plays on at random from its leaves.

    Args:
        num_simulations: at least 1.
        c: constant of the exploration bonus of `planning.puct`, with uniform priors.
    """
    meta = SimpleNamespace(
        dirichlet_fraction=0.0,
        dirichlet_alpha=1.0,
        c_init=c,
        c_base=19652.0,
        temperature=1.0,
        q_transform=lambda q, context: q,
    )
    num_actions = env.action.num  # pyright: ignore[reportAttributeAccessIssue]

    def played_on(key, state):
        """Score of who is to move if both go on at random; 0 after the end."""
        mover = env.player(state)  # pyright: ignore[reportOptionalCall]

        def step(now):
            key, state, _, score = now
            key, move_key, step_key = jax.random.split(key, 3)
            action = random(move_key, None, state, envs.legal_actions(env, state))
            state, out = env.step_raw(step_key, state, action)
            return key, state, out.done, score + out.info["rewards"][mover]

        start = key, state, jnp.array(False), jnp.float32(0.0)
        return jax.lax.while_loop(lambda now: ~now[2], step, start)[3]

    def evaluate(keys, obs, state):
        del obs
        values = jax.vmap(played_on)(keys, state)
        return jnp.zeros((len(values), num_actions)), values

    def choose(key, obs, state, mask):
        del obs
        one = jax.tree.map(lambda x: x[None], (state, mask))
        model = planning.model(env, evaluate, 1.0)
        search_key, root_key = jax.random.split(key)
        logits, value = evaluate(root_key[None], None, one[0])
        found = planning.puct(
            search_key,
            model,
            planning.Root(logits, value, *one),
            meta,
            Context(),
            num_simulations=num_simulations,
            bounds=(-1.0, 1.0),
            explore=False,
        )
        return found.action[0]

    return choose


def minimax(env: Env) -> Player:
    """Perfect play in tic-tac-toe, drawn among all best moves.

    Raises:
        ConfigError: `env` is another game.
    """
    if env.name != "pgx/tic_tac_toe":
        raise ConfigError(
            f"inner.opponent='minimax': solves pgx/tic_tac_toe alone, not {env.name}"
        )
    best = jnp.asarray(_best_moves())
    weights = jnp.asarray(3 ** np.arange(9))

    def choose(key, obs, state, mask):
        del state
        cells = obs.reshape(9, 2)  # mine, theirs
        index = (weights * (cells[:, 0] + 2 * cells[:, 1])).sum().astype(jnp.int32)
        return jax.random.categorical(key, jnp.where(best[index] & mask, 0.0, -jnp.inf))

    return choose


_LINES = (
    *((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6)),
    *((1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)),
)


@functools.cache
def _best_moves() -> np.ndarray:
    """Best moves [3^9, 9] bool; cells count 0 empty, 1 mine, 2 theirs, base 3."""
    best = np.zeros((3**9, 9), bool)

    @functools.cache
    def value(board: tuple[int, ...]) -> int:
        """Return the score of the player to move, and fill in its best moves."""
        if any(all(board[i] == 2 for i in line) for line in _LINES):
            return -1
        empty = [i for i in range(9) if board[i] == 0]
        if not empty:
            return 0
        values = {i: -value(_after(board, i)) for i in empty}
        top = max(values.values())
        index = sum(cell * 3**i for i, cell in enumerate(board))
        best[index, [i for i in empty if values[i] == top]] = True
        return top

    value((0,) * 9)
    return best


def _after(board: tuple[int, ...], move: int) -> tuple[int, ...]:
    """The board with a stone of mine, as the other player sees it."""
    placed = [*board]
    placed[move] = 1
    return tuple((0, 2, 1)[cell] for cell in placed)
