"""Games of two as tasks of one, who plays a random opponent: `versus/pgx/tic_tac_toe`.

A step is a move and the opponent's answer, drawn uniformly from the legal ones. Who
moves first is drawn for each episode. `Step.reward` is what both moves gave the player:
at the end 1 for a win, 0 for a draw, -1 for a loss.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import envs
from metaevo.errors import ConfigError

__all__ = ["VersusState", "against_random", "make", "names"]


class VersusState(NamedTuple):
    """The state of a game, and the player's seat in it."""

    state: Any
    seat: jax.Array  # scalar int32, 0 moves first


def names() -> list[str]:
    """Those of pgx, as names of this suite."""
    return [f"pgx/{name}" for name in envs.suite("pgx").names()]


def make(name: str) -> envs.Env:
    """The game of another suite, `SUITE/NAME`, against a random opponent.

    Raises:
        ConfigError: there is no such game, or it is not one of two who take turns.
    """
    return against_random(envs.inner("versus", name, "pgx/tic_tac_toe"))


def against_random(env: envs.Env) -> envs.Env:
    """`env` for one of its two players; the other moves at random.

    Raises:
        ConfigError: `env` is not a game of two who take turns.
    """
    legal = env.action_mask
    if env.player is None or legal is None:
        raise ConfigError(
            f"env='versus/{env.name}': expected a game of two players who take turns"
        )

    def random_move(key, state):
        draw_key, step_key = jax.random.split(key)
        # After an episode's end there may be none: any number will do.
        logits = jnp.where(legal(state), 0.0, -1e9)
        action = jax.random.categorical(draw_key, logits)
        return env.step_raw(step_key, state, action)

    def reset(key):
        seat_key, game_key, move_key = jax.random.split(key, 3)
        seat = jax.random.bernoulli(seat_key).astype(jnp.int32)
        state, obs = env.reset(game_key)
        moved, answer = random_move(move_key, state)
        state, obs = _where(seat == 0, (state, obs), (moved, answer.final_obs))
        return VersusState(state, seat), obs

    def step_raw(key, state, action):
        own_key, their_key = jax.random.split(key)
        after, own = env.step_raw(own_key, state.state, action)
        answered, theirs = random_move(their_key, after)
        paid = [out.info["rewards"][state.seat] for out in (own, theirs)]
        ended = own._replace(reward=paid[0], info={})
        going_on = theirs._replace(reward=paid[0] + paid[1], info={})
        after, out = _where(own.done, (after, ended), (answered, going_on))
        return VersusState(after, state.seat), out

    return envs.around(
        env,
        reset,
        step_raw,
        name=f"versus/{env.name}",
        max_steps=(env.max_steps + 1) // 2,
        player=None,
    )


def _where(condition: jax.Array, a: Any, b: Any) -> Any:
    """Return `a` where a scalar condition holds, else `b`; keys of PRNGs too."""
    return jax.tree.map(lambda x, y: jax.lax.select(condition, x, y), a, b)
