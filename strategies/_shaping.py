"""Fitness shaping: how much each member pulls, [P] fitness to [P] utilities.

Higher fitness never gives a lower utility, and of a mirrored pair equal members pull
equally, which cancels. If all members are equal, all utilities are 0.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from strategies import _options


def centered_rank(fitness: jax.Array) -> jax.Array:
    """Ranks, scaled to [-0.5, 0.5]; ties share their mean rank.

    Invariant under monotone maps of the fitness. (Wierstra et al., 2014; Salimans et
    al., 2017.)
    """
    from_best = jax.scipy.stats.rankdata(-fitness) - 1.0
    return 0.5 - from_best / (len(fitness) - 1)


def standardize(fitness: jax.Array) -> jax.Array:
    """Z-scores, mean 0 and variance 1; 0 if all members are equal.

    Invariant under adding a constant and under scaling. Finite for all finite fitness:
    scaled before it is squared.
    """
    scale = jnp.abs(fitness).max()
    fitness = fitness / jnp.where(scale > 0, scale, 1.0)
    fitness = fitness - fitness.mean()
    spread = jnp.sqrt(jnp.square(fitness).mean())
    # Below this it is the rounding of the mean of equal members.
    return jnp.where(spread > 1e-6, fitness / jnp.maximum(spread, 1e-6), 0.0)


def pair_rank(fitness: jax.Array) -> jax.Array:
    """0.5 for the better of a mirrored pair (i, i + P/2), -0.5 for the other; ties 0.

    Invariant under monotone maps of each pair's fitness, so pairs may live in unlike
    worlds. (Jackson et al., 2024, give 1 and 0, which is the same of mirrored pairs.)
    """
    first, second = jnp.split(fitness, 2)
    half = 0.5 * jnp.sign(first - second)
    return jnp.concatenate([half, -half])


_ALL = {f.__name__: f for f in (centered_rank, standardize, pair_rank)}


def named(name: str, allowed: tuple[str, ...] = tuple(_ALL)) -> Callable:
    """The shaping of this name.

    Raises:
        ConfigError: it is none of `allowed`.
    """
    _options.one_of(allowed, shaping=name)
    return _ALL[name]
