"""Fitness shaping: [P] fitness to [P] utilities, the weights of members in an update.

Higher fitness never gives a lower utility. Members of equal fitness get equal
utilities, which cancel in a mirrored pair. If all members are equal, all utilities are
0.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from strategies import _options


def centered_rank(fitness: jax.Array) -> jax.Array:
    """Return ranks scaled to [-0.5, 0.5]; ties get their mean rank.

    They are invariant under monotone maps of the fitness. (Wierstra et al., 2014;
    Salimans et al., 2017.)

    >>> centered_rank(jnp.array([3.0, 1.0, 3.0])).tolist()
    [0.25, -0.5, 0.25]
    """
    from_best = jax.scipy.stats.rankdata(-fitness) - 1.0
    return 0.5 - from_best / (len(fitness) - 1)


def standardize(fitness: jax.Array) -> jax.Array:
    """Return z-scores, mean 0 and variance 1; 0 if all members are equal.

    They are invariant under shifts and scaling of the fitness, and finite for all
    finite fitness because it is scaled before it is squared.

    >>> standardize(jnp.array([10.0, 30.0])).round(3).tolist()
    [-1.0, 1.0]
    """
    scale = jnp.abs(fitness).max()
    fitness = fitness / jnp.where(scale > 0, scale, 1.0)
    fitness = fitness - fitness.mean()
    spread = jnp.sqrt(jnp.square(fitness).mean())
    # A smaller spread is the rounding error of the mean of equal members.
    return jnp.where(spread > 1e-6, fitness / jnp.maximum(spread, 1e-6), 0.0)


def pair_rank(fitness: jax.Array) -> jax.Array:
    """Return 0.5 for the better of a pair (i, i + P/2), -0.5 for the other; ties 0.

    This is invariant under monotone maps of each pair's fitness, so pairs may have
    different environment seeds. (Jackson et al., 2024, give 1 and 0, which is
    equivalent for mirrored pairs.)

    >>> pair_rank(jnp.array([1.0, 5.0, 2.0, 4.0])).tolist()
    [-0.5, 0.5, 0.5, -0.5]
    """
    first, second = jnp.split(fitness, 2)
    half = 0.5 * jnp.sign(first - second)
    return jnp.concatenate([half, -half])


def without_ties(shaping: Callable) -> Callable:
    """Return `shaping`, with 0 for both members of a pair (i, i + P/2) that tie.

    Equal weights of mirrored noise cancel, but in a sum over all members they leave
    rounding errors, of which an optimizer such as Adam makes whole steps where all
    pairs tie. So the sum is exactly 0 there, and has the same bits where none does.

    >>> without_ties(centered_rank)(jnp.array([1.0, 5.0, 1.0, 5.0])).tolist()
    [0.0, 0.0, 0.0, 0.0]
    """

    def shaped(fitness):
        utility = shaping(fitness)
        first, second = jnp.split(utility, 2)
        return jnp.where(jnp.tile(first == second, 2), 0.0, utility)

    return shaped


_ALL = {f.__name__: f for f in (centered_rank, standardize, pair_rank)}


def named(name: str, allowed: tuple[str, ...] = tuple(_ALL)) -> Callable:
    """Return the shaping of this name.

    Raises:
        ConfigError: The name is not in `allowed`.
    """
    _options.one_of(allowed, shaping=name)
    return _ALL[name]
