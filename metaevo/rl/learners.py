"""Players of a matrix game that learn, as functions of the two policies just played.

    opponent = learners.lola(matrix.swapped(game))
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
from jax.tree_util import Partial

from metaevo import slots
from metaevo.envs import matrix
from metaevo.errors import ConfigError

__all__ = ["LEARNERS", "best_response", "lola", "naive", "opponent", "static"]


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


LEARNERS = {"naive": naive, "lola": lola, "best_response": best_response}


def opponent(name: str, game: matrix.Game) -> dict[str, Any]:
    """The slots of `inner_loops/opponents.py` that make a named opponent.

    Args:
        name: of `LEARNERS`, or of a policy in `Game.fixed`.
        game: seen from the first seat.

    Raises:
        ConfigError: there is no such opponent.
    """
    if name in LEARNERS:
        return {"opponent": LEARNERS[name](matrix.swapped(game))}
    if name in game.fixed:
        return {"opponent": static(game.fixed[name])}
    known = [*LEARNERS, *game.fixed]
    raise ConfigError(f"opponent={name!r}: expected one of {', '.join(known)}")
