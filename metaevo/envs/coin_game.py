"""The Coin Game: two players, a red and a blue one, gather coins on a small torus.

Lerer and Peysakhovich, 2017, https://arxiv.org/abs/1707.01068, as in M-FOS (Lu et al.,
2022, https://arxiv.org/abs/2205.01447). There is one coin of each color. A player who
enters any coin gets 1; who takes the other's coin costs the other 2. Taken coins appear
again at random. Two players who take all coins get 0 on average; two who leave the
other's coin gain from every coin.

    env = envs.make("coin_game/3x3")        # env.num_players is 2
    state, out = env.step(key, state, jnp.array([0, 3]))
    out.obs, out.reward                     # [2, 36], [2]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import envs
from metaevo.errors import ConfigError

SIDE = 3
CELLS = SIDE * SIDE
MAX_STEPS = 15  # the authors' episodes have 16 steps, the last of which is a reset
MOVES = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])  # right, left, down, up


class State(NamedTuple):
    """Places are cells, row · 3 + column, int32; red comes first."""

    players: jax.Array  # [2]
    coins: jax.Array  # [2]
    time: jax.Array  # int32


def names() -> list[str]:
    """The names that `make` takes."""
    return ["3x3"]


def make(name: str) -> envs.Env:
    """The game on a torus of 3 x 3 cells, of 15 steps, which end by the time limit.

    Observations are of each player, [2, 36]: four planes of 9 cells, 1 where the own
    player, the other, the own coin and the other's coin are. Actions are [2]: right,
    left, down, up.

    Raises:
        ConfigError: there is no such size.
    """
    if name not in names():
        raise ConfigError(f"env='coin_game/{name}': expected coin_game/3x3")
    return envs.Env(
        reset=_reset,
        step=envs.with_auto_reset(_reset, _step),
        step_raw=_step,
        observation=envs.Box((4 * CELLS,), 0.0, 1.0, binary=True),
        action=envs.Discrete(len(MOVES)),
        max_steps=MAX_STEPS,
        name=f"coin_game/{name}",
        render=_render,
        num_players=2,
    )


def _reset(key: jax.Array) -> tuple[State, jax.Array]:
    places = jax.random.randint(key, (4,), 0, CELLS)
    state = State(places[:2], places[2:], jnp.int32(0))
    return state, _observe(state)


def _step(key: jax.Array, state: State, action: jax.Array) -> tuple[State, envs.Step]:
    row, column = jnp.divmod(state.players, SIDE)
    moved = jnp.stack([row, column], -1) + jnp.asarray(MOVES)[action]
    players = (moved % SIDE) @ np.array([SIDE, 1])
    taken = players[:, None] == state.coins  # [by player, coin]
    others = taken[::-1].diagonal()  # [2] the own coin went to the other
    reward = taken.sum(1, dtype=jnp.float32) - 2.0 * others
    fresh = jax.random.randint(key, (2,), 0, CELLS)
    coins = jnp.where(taken.any(0), fresh, state.coins)
    state = State(players.astype(jnp.int32), coins, state.time + 1)
    obs = _observe(state)
    over = state.time >= MAX_STEPS
    return state, envs.Step(obs, reward, jnp.bool(False), over, obs, {})


def _observe(state: State) -> jax.Array:
    """[2, 36]; each player sees itself and its coin first."""
    own = jnp.stack([state.players, state.players[::-1], state.coins,
                     state.coins[::-1]], 1)  # fmt: skip
    return jax.nn.one_hot(own, CELLS).reshape(2, -1)


# --- simple players -------------------------------------------------------------------


def greedy(obs: jax.Array, context: Any = None) -> jax.Array:
    """The move towards the nearest coin of either color.

    Args:
        obs: [36 or more], one player's observation, and anything behind it.
    """
    del context
    return _towards(obs, np.array([2, 3]))


def considerate(obs: jax.Array, context: Any = None) -> jax.Array:
    """The move towards the own coin, whatever it takes on its way."""
    del context
    return _towards(obs, np.array([2]))


def _towards(obs: jax.Array, planes: np.ndarray) -> jax.Array:
    cells = obs[: 4 * CELLS].reshape(4, CELLS).argmax(-1)
    here = jnp.stack(jnp.divmod(cells[0], SIDE))
    after = (here + MOVES) % SIDE  # [4, 2]
    goals = jnp.stack(jnp.divmod(cells[planes], SIDE), -1)
    apart = jnp.abs(after[:, None] - goals)
    distance = jnp.minimum(apart, SIDE - apart).sum(-1).min(-1)
    return distance.argmin()


# --- pictures -------------------------------------------------------------------------

_CELL = 80  # pixels
_COLORS = ("#d55e00", "#0072b2")  # red, blue


def _render(states: list[State]) -> list[np.ndarray]:
    """Players are discs, coins rings of their color."""
    from PIL import Image, ImageDraw

    def frame(state: State) -> np.ndarray:
        size = SIDE * _CELL
        image = Image.new("RGB", (size, size), "#ffffff")
        draw = ImageDraw.Draw(image)
        for i in range(SIDE):
            draw.line((0, i * _CELL, size, i * _CELL), "#d8d8d8", 2)
            draw.line((i * _CELL, 0, i * _CELL, size), "#d8d8d8", 2)
        for color, coin, shift in zip(_COLORS, state.coins, (-8, 8), strict=True):
            x, y = _center(coin)
            draw.circle((x + shift, y), 14, None, color, 6)
        for color, player, shift in zip(_COLORS, state.players, (-14, 14), strict=True):
            x, y = _center(player)
            draw.circle((x + shift, y + shift), 18, color)
        return np.asarray(image)

    return [frame(jax.tree.map(np.asarray, state)) for state in states]


def _center(cell: Any) -> tuple[int, int]:
    row, column = divmod(int(cell), SIDE)
    return column * _CELL + _CELL // 2, row * _CELL + _CELL // 2
