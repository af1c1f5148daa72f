"""Ranges of numbers as texts: `space.NUMBER=RANGE` in place of a search's own space.

A range is written as the call of `metaevo.spaces` that makes it: `grid([0.1,0.01])`,
`uniform(0,1)`, `log_uniform(1e-5,1e-2)`, `horizon_uniform(0.9,0.999)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from metaevo import spaces
from metaevo.cli import values
from metaevo.errors import ConfigError
from metaevo.spaces import Range
from metaevo.types import Space

KEY = "space"
FORMS = (
    "grid([A,B,...])",
    "uniform(LOW,HIGH)",
    "log_uniform(LOW,HIGH)",
    "horizon_uniform(LOW,HIGH)",
)
_MAKERS: Mapping[str, Callable[..., Range]] = {
    x.__name__: x for x in (spaces.uniform, spaces.log_uniform, spaces.horizon_uniform)
}


def read(key: str, text: str) -> Range:
    """Return the range that a text stands for.

    Args:
        key: name of the number, for the message.
        text: one of `FORMS`.

    Raises:
        ConfigError: it stands for none.

    >>> read("space.lr", "grid([.1, 1e-2])").values
    (0.1, 0.01)
    """
    parts = re.fullmatch(r"\s*(\w+)\s*\((.*)\)\s*", text, re.DOTALL)
    name, inside = parts.groups() if parts else ("", "")
    try:
        numbers = values.read(tuple[float, ...], inside.strip())
        if name == "grid":
            return spaces.grid(numbers)
        low, high = numbers
        return _MAKERS[name](low, high)
    except ConfigError as error:
        raise ConfigError(f"{key}={text}: {error}") from None
    except (KeyError, ValueError):
        raise ConfigError(
            f"{key}={text}: expected a range, {', '.join(FORMS[:-1])} or {FORMS[-1]}"
        ) from None


def is_grid(text: str) -> bool:
    """Return True for a text that can only stand for a `grid`."""
    return text.strip().startswith("grid")


def space(texts: Mapping[str, str]) -> Space:
    """Return the space of some numbers.

    Args:
        texts: range of each number, by its slot.

    Raises:
        ConfigError: one is no range.
    """
    ranges = {name: read(f"{KEY}.{name}", text) for name, text in texts.items()}
    return spaces.prior(**ranges)
