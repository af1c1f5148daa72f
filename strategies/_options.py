"""Checks of a strategy's options: each names the option, its value and the remedy."""

from __future__ import annotations

import math

from metaevo.errors import ConfigError


def even(population_size: int, why: str = "members come in mirrored pairs") -> int:
    """Return `population_size` if members can be paired.

    Args:
        population_size: P.
        why: Reason for the message.

    Raises:
        ConfigError: P is odd or below 2.

    >>> even(8)
    8
    """
    if population_size < 2 or population_size % 2:
        expected = "even" if population_size >= 2 else "even and at least 2"
        raise ConfigError(
            f"population_size={population_size}: {why}, so it must be {expected}; use "
            f"{max(2, population_size + 1)}"
        )
    return population_size


def at_least(low: int, **options: float) -> None:
    """Raise ConfigError if one of `options` is below `low`, or not finite."""
    for name, value in options.items():
        if not low <= value < math.inf:
            raise ConfigError(f"{name}={value} must be at least {low} and finite")


def positive(**options: float) -> None:
    """Raise ConfigError if one of `options` is not above 0, or not finite."""
    for name, value in options.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"{name}={value} must be positive and finite")


def fraction(**options: float) -> None:
    """Raise ConfigError if one of `options` is not in [0, 1]."""
    for name, value in options.items():
        if not 0 <= value <= 1:
            raise ConfigError(f"{name}={value} must be in [0, 1]")


def one_of(choices: tuple[str, ...], **options: str) -> None:
    """Raise ConfigError if one of `options` is not in `choices`."""
    for name, value in options.items():
        if value not in choices:
            raise ConfigError(f"{name}={value!r} must be one of {', '.join(choices)}")
