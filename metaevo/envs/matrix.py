"""Matrix games of two players, with exact and differentiable values.

    game = matrix.make("prisoners_dilemma")
    known = {name: matrix.logits(p) for name, p in game.fixed.items()}
    game.payoffs(known["tit-for-tat"], known["always defect"])     # [-2.04, -1.92]

A policy is a vector of logits, one for each situation: sigmoid(logit) is the
probability of the first move. In an iterated game the situations are the start and the
four outcomes of the last round, each player's own move first: start, CC, CD, DC, DD.
The round repeats for ever, later rounds discounted by 0.96. The expected discounted sum
is computed in closed form (Press and Dyson, 2012,
https://doi.org/10.1073/pnas.1206569109). Payoffs are those of M-FOS (Lu et al., 2022,
https://arxiv.org/abs/2205.01447).

All functions are of one pair of players and in plain jnp. Use `jax.vmap` for many
pairs, which are then independent, and `jax.grad` for gradients.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.errors import ConfigError

__all__ = ["DISCOUNT", "Game", "logits", "make", "names", "swapped"]

DISCOUNT = 0.96
OUTCOMES = ("CC", "CD", "DC", "DD")
_SEEN_BY_THE_OTHER = np.array([0, 2, 1, 3])  # its CD is the own DC

Values = Callable[[jax.Array, jax.Array], jax.Array]


class Game(NamedTuple):
    """A game of two players, seen from the first seat.

    Attributes:
        name: the argument of `make` that gives it.
        situations: names of the situations, one logit of a policy each, [n].
        values: `(own logits [n], other's logits [n]) -> [2]`, the expected discounted
            sums of both players' payoffs, the player's own first.
        unit: what `values` are multiplied by to give a payoff a round: 1 - DISCOUNT, or
            1 in a game of one round.
        fixed: name -> probabilities [n] of well-known policies.
    """

    name: str
    situations: tuple[str, ...]
    values: Values
    unit: float
    fixed: Mapping[str, tuple[float, ...]]

    @property
    def num_situations(self) -> int:
        """n, the number of logits of a policy."""
        return len(self.situations)

    def payoffs(self, own: jax.Array, other: jax.Array) -> jax.Array:
        """Both players' payoffs a round, [2], the player's own first."""
        return self.unit * self.values(own, other)


def logits(probabilities: Sequence[float], certain: float = 1e-4) -> np.ndarray:
    """The logits [n] float32 of a policy given as probabilities [n].

    Args:
        certain: probabilities are kept this far from 0 and 1.
    """
    p = np.clip(np.asarray(probabilities, float), certain, 1 - certain)
    return np.log(p / (1 - p)).astype(np.float32)


def swapped(game: Game) -> Game:
    """The game seen from the second seat."""

    def values(own, other):
        return game.values(other, own)[::-1]

    return game._replace(values=values)


# --- values ---------------------------------------------------------------------------


def iterated(payoffs: np.ndarray, discount: float = DISCOUNT) -> Values:
    """Values of a round that repeats for ever.

    Args:
        payoffs: [4, 2] of both players after CC, CD, DC, DD.
        discount: of later rounds, in [0, 1).
    """
    paid = np.float32(payoffs)

    def values(own, other):
        p, q = jax.nn.sigmoid(own), jax.nn.sigmoid(other)
        after = _outcomes(
            p[1:], q[1:][_SEEN_BY_THE_OTHER]
        )  # [4, 4], from row to column
        # The value v of each outcome: v = payoffs + discount · after · v.
        system = jnp.eye(4) - discount * after
        value = _solve(system, jnp.asarray(paid, system.dtype))
        return _outcomes(p[0], q[0]) @ value

    return values


def _solve(a: jax.Array, b: jax.Array) -> jax.Array:
    """x of a x = b, [n, n] and [n, m], for an a that its diagonal dominates.

    For `jnp.linalg.solve` LAPACK is called once for each game, which takes 2.2 times as
    long, and in a program of 4,096 games on a CPU waits for itself for ever.
    """
    inverse = jax.lax.stop_gradient(_inverse(a))
    return jax.lax.custom_linear_solve(
        lambda x: a @ x,
        b,
        solve=lambda _, b: inverse @ b,
        transpose_solve=lambda _, b: inverse.T @ b,
    )


def _inverse(a: jax.Array) -> jax.Array:
    """Gauss and Jordan's, without pivots."""
    n = len(a)
    both = jnp.concatenate([a, jnp.eye(n, dtype=a.dtype)], 1)
    for i in range(n):
        row = both[i] / both[i, i]
        others = np.arange(n)[:, None] != i
        both = jnp.where(others, both - both[:, i : i + 1] * row, row)
    # Otherwise XLA computes it again for each of its uses.
    return jax.lax.optimization_barrier(both[:, n:])


def _outcomes(p: jax.Array, q: jax.Array) -> jax.Array:
    """Probabilities [..., 4] of CC, CD, DC, DD if players play C with p and q."""
    return jnp.stack([p * q, p * (1 - q), (1 - p) * q, (1 - p) * (1 - q)], -1)


def one_round(payoffs: np.ndarray) -> Values:
    """Values of a single round; `payoffs` as in `iterated`."""
    paid = np.float32(payoffs)

    def values(own, other):
        p, q = jax.nn.sigmoid(own[0]), jax.nn.sigmoid(other[0])
        return _outcomes(p, q) @ paid

    return values


# --- games ----------------------------------------------------------------------------


def _prisoners_dilemma() -> Game:
    """C is to cooperate. Payoffs: both -1, both defect -2, 0 and -3 otherwise."""
    fixed = {
        "tit-for-tat": (1, 1, 0, 1, 0),
        "always defect": (0, 0, 0, 0, 0),
        "always cooperate": (1, 1, 1, 1, 1),
        # Zero-determinant: own payoff + 2 = 3 (the other's + 2), whatever it plays. It
        # starts as after CC: with a discount the start moves this by a few hundredths.
        "extortion": (0.743, 0.743, 0.1, 0.643, 0),
    }
    payoffs = np.array([(-1, -1), (-3, 0), (0, -3), (-2, -2)])
    return Game("prisoners_dilemma", ("start", *OUTCOMES), iterated(payoffs),
                1 - DISCOUNT, fixed)  # fmt: skip


def _matching_pennies() -> Game:
    """C is heads. The first player wins 1 of the second if the pennies differ."""
    payoffs = np.array([(-1, 1), (1, -1), (1, -1), (-1, 1)])
    fixed = {"even": (0.5,) * 5, "always heads": (1,) * 5}
    return Game("matching_pennies", ("start", *OUTCOMES), iterated(payoffs),
                1 - DISCOUNT, fixed)  # fmt: skip


def _chicken() -> Game:
    """C is to swerve. One round: to dare wins 1 of who swerves, a crash costs 100."""
    payoffs = np.array([(0, 0), (-1, 1), (1, -1), (-100, -100)])
    fixed = {"always dare": (0,), "always swerve": (1,)}
    return Game("chicken", ("swerve",), one_round(payoffs), 1.0, fixed)


_GAMES = {
    "prisoners_dilemma": _prisoners_dilemma,
    "matching_pennies": _matching_pennies,
    "chicken": _chicken,
}


def names() -> list[str]:
    """The names that `make` takes."""
    return list(_GAMES)


def make(name: str) -> Game:
    """A game by its name.

    Raises:
        ConfigError: there is no such game; names the nearest.
    """
    if name not in _GAMES:
        near = difflib.get_close_matches(name, _GAMES, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"game={name!r}: expected one of {', '.join(_GAMES)}.{hint}")
    return _GAMES[name]()
