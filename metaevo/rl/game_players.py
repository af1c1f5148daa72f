"""Players of a matrix game that learn, as functions of the two policies just played.

    opponent = game_players.lola(matrix.swapped(game))
    next_logits = opponent(own_logits, other_logits, context)

A learner is a value of the slots `shaper` and `opponent` of `inner_loops/opponents.py`:
`(own logits [n], other's logits [n], context) -> own next logits [n]`. It is made for a
seat: `matrix.swapped(game)` is the game of the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from metaevo import slots
from metaevo.envs import matrix
from metaevo.errors import ConfigError

__all__ = [
    "META_LEARNED",
    "PLAYERS",
    "best_response",
    "lola",
    "meta_learned",
    "naive",
    "opponent",
    "static",
]


def _value(game: matrix.Game, seat: int = 0):
    return lambda own, other: game.values(own, other)[seat]


def naive(game: matrix.Game, lr: float = 1.0) -> Partial:
    """One step of gradient ascent on the own value, the other taken as fixed."""
    gradient = jax.grad(_value(game))
    return slots.function(lambda own, other, context: own + lr * gradient(own, other))


def lola(game: matrix.Game, lr: float = 1.0, other_lr: float = 1.0) -> Partial:
    """Learning with opponent-learning awareness, in first order and with exact values.

    Foerster et al., 2018, https://arxiv.org/abs/1709.04326: the gradient ascends the
    own value after a naive step of the other with step size `other_lr`, in a
    first-order Taylor expansion.
    """
    mine, theirs = _value(game), _value(game, 1)

    def expected(own, other):
        gain = jnp.vdot(jax.grad(mine, 1)(own, other), jax.grad(theirs, 1)(own, other))
        return mine(own, other) + other_lr * gain

    gradient = jax.grad(expected)
    return slots.function(lambda own, other, context: own + lr * gradient(own, other))


def best_response(game: matrix.Game, num_steps: int = 1000, lr: float = 1.0) -> Partial:
    """`num_steps` steps of gradient ascent from even odds, the other taken as fixed.

    M-FOS draws the start anew each time. Here it is always logits of 0, so that a
    learner needs no random numbers.
    """
    gradient = jax.grad(_value(game))

    def learn(own, other, context):
        def step(_, own):
            return own + lr * gradient(own, other)

        return jax.lax.fori_loop(0, num_steps, step, jnp.zeros_like(own))

    return slots.function(learn)


def static(probabilities: Sequence[float]) -> Partial:
    """A policy that never changes, given as probabilities [n]; see `Game.fixed`."""
    fixed = matrix.logits(probabilities)
    return slots.function(
        lambda own, other, context: jnp.broadcast_to(fixed, own.shape)
    )


PLAYERS = {"naive": naive, "lola": lola, "best_response": best_response}

# Game -> first logits of the opponent, and its step size, by
# `experiments/meta_learned_start`.
META_LEARNED = {
    "prisoners_dilemma": ((-8.94, 1.78, -9.21, 0.38, -8.94), 0.007),
    "matching_pennies": ((2.91, 3.05, -1.24, 2.42, 3.11), 0.512),
    "chicken": ((-9.21,), 7.389),
}


def meta_learned(game: matrix.Game) -> dict[str, Any]:
    """A naive learner whose first policy and step size are meta-learned (M-MAML).

    They were learned for 100 steps against naive learners (Finn et al., 2017,
    https://arxiv.org/abs/1703.03400; the opponent M-MAML of M-FOS), by evolution.

    Args:
        game: seen from the first seat; the learner has the second.

    Returns:
        slots of `inner_loops/opponents.py`.

    Raises:
        ConfigError: nothing was learned for this game.
    """
    if game.name not in META_LEARNED:
        raise ConfigError(
            f"opponent='meta_learned': nothing was learned for {game.name!r}, but for "
            f"{', '.join(META_LEARNED)}"
        )
    start, lr = META_LEARNED[game.name]
    return {
        "opponent": naive(matrix.swapped(game), lr),
        "opponent_start": np.float32(start),
        "opponent_start_std": 0.0,
    }


def opponent(name: str, game: matrix.Game) -> dict[str, Any]:
    """The slots of `inner_loops/opponents.py` that make a named opponent.

    Args:
        name: of `PLAYERS`, `meta_learned`, or a policy in `Game.fixed`.
        game: seen from the first seat.

    Raises:
        ConfigError: there is no such opponent.
    """
    if name in PLAYERS:
        answers = {"opponent_answers": 1.0} if name == "best_response" else {}
        return {"opponent": PLAYERS[name](matrix.swapped(game)), **answers}
    if name == "meta_learned":
        return meta_learned(game)
    if name in game.fixed:
        return {"opponent": static(game.fixed[name])}
    known = [*PLAYERS, "meta_learned", *game.fixed]
    raise ConfigError(f"opponent={name!r}: expected one of {', '.join(known)}")
