"""Scales on which numbers move away from their defaults.

A move of zero is the default itself, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from metaevo.errors import ConfigError

__all__ = ["Transform", "linear", "log", "logit", "named", "one_minus_log"]

LARGEST = 50.0  # of a logarithm's move: e^50 times a number is still a float32


class Transform(NamedTuple):
    """The scale of a number.

    Attributes:
        moved: `(default, y) -> number`, traced: the default moved by y, which may be
            any real number, on this scale; the default where y = 0.
        holds: `number -> bool`, True if the number lies on this scale.
        scale: how far one unit of what evolves moves a number: y = scale · x. Choose
            it such that one sigma fits all numbers of a space.
        name: for the artifact.
        start: the number that is moved in place of the default, for defaults at an end
            of the scale; None: the default.
    """

    moved: Callable[[jax.Array | float, jax.Array], jax.Array]
    holds: Callable[[float], bool]
    scale: float
    name: str
    start: float | None = None

    def starting_at(self, start: float) -> Transform:
        """Return this scale with another start than the default.

        >>> log().starting_at(10.0).start
        10.0
        """
        return self._replace(start=start)


def linear(scale: float = 1.0) -> Transform:
    """The number itself: default + y."""
    return Transform(lambda d, y: d + y, math.isfinite, scale, "linear")


def log(scale: float = 1.0) -> Transform:
    """A positive number: default · eʸ; scale 1 is a factor of e per unit."""
    return Transform(lambda d, y: d * _exp(y), lambda d: 0 < d < math.inf, scale, "log")


def logit(scale: float = 1.0) -> Transform:
    """A number in (0, 1), whose log-odds move by y."""
    # d = 0 stays 0 and d = 1 stays 1, which a schedule that begins there needs.
    return Transform(
        lambda d, y: d / (d + (1 - d) * _exp(-y)), lambda d: 0 < d < 1, scale, "logit"
    )


def one_minus_log(scale: float = 1.0) -> Transform:
    """A number below 1, such as a discount: 1 − (1 − default) eʸ.

    Kept in [0, 1 − 1e-6].
    """
    return Transform(
        lambda d, y: jnp.clip(1 - (1 - d) * _exp(y), 0.0, 1 - 1e-6),
        lambda d: 0 <= d < 1,
        scale,
        "one_minus_log",
    )


def _exp(y):
    return jnp.exp(jnp.clip(y, -LARGEST, LARGEST))


NAMED = {f.__name__: f for f in (linear, log, logit, one_minus_log)}


def named(name: str, scale: float) -> Transform:
    """The inverse of `Transform.name` and `scale`.

    Raises:
        ValueError: there is none of that name, or the scale is not a positive number.
    """
    if name not in NAMED:
        raise ConfigError(f"transform={name!r}: one of {', '.join(NAMED)}")
    if not isinstance(scale, int | float) or not 0 < scale < math.inf:
        raise ConfigError(f"scale={scale!r} is not a positive number")
    return NAMED[name](scale)


def checked(what: str, transform: Transform, default: float) -> float:
    """`default`, on the scale; one that is traced, such as a draw, is not checked.

    Args:
        what: the space and the slot, for the message.

    Raises:
        ConfigError: the default does not lie on it.
    """
    try:
        number = float(default)
    except jax.errors.ConcretizationTypeError:
        return default
    if not transform.holds(number):
        raise ConfigError(
            f"{what}={transform.name}()): the default {default} is outside that scale; "
            "set another default or use linear()"
        )
    return default
