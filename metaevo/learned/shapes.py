"""The shapes of a learned function's inputs: one check for all that is loaded.

Elements are leading axes. All inputs have the same ones, or none: then an input is one
number for all elements. `[n, 1]` beside `[n]` is a mistake, which arrays would answer
with `[n, n]`. Needs no framework.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from metaevo import slots

__all__ = ["Inner", "check", "inner", "one", "wrong"]

Inner = Sequence[int | str] | None
"""Axes of one element; those with a name are open. None: a scalar for all elements."""


def inner(kind: str, shapes: Mapping[str, Sequence[int | str]]) -> dict[str, Inner]:
    """Return the axes of one element, by input.

    Args:
        kind: a key of `slots.SIGNATURES`.
        shapes: name -> shape of the inputs that are not one number an element, such as
            ("n", "a"); () is a scalar for all elements.

    >>> inner("exploration", {"q": ("n", "a"), "epsilon": ()})
    {'q': ('a',), 'epsilon': None}
    """
    found: dict[str, Inner] = {}
    for name in slots.SIGNATURES[kind]:
        shape = tuple(shapes.get(name, ("n",)))
        found[name] = shape[1:] if shape else None
    return found


def check(called: str, expected: Mapping[str, Inner], given: Mapping) -> None:
    """Check the inputs of a function.

    Args:
        called: its name in the message.
        expected: name -> axes of one element.
        given: name -> shape.

    Raises:
        ValueError: `wrong`.
    """
    message = wrong(expected, given)
    if message is not None:
        raise ValueError(f"{called}: {message}")


def wrong(expected, given):
    """Say in one line which inputs do not fit together; None if all do.

    Args:
        expected: name -> axes of one element.
        given: name -> shape.

    >>> wrong({"value": (), "target": ()}, {"value": (3, 1), "target": (3,)})
    'value has shape (3, 1) and target (3,): give equal shapes, or scalars'
    >>> wrong({"value": (), "target": ()}, {"value": (3, 1), "target": ()})
    >>> wrong({"obs": (4,)}, {"obs": (32, 3)})
    'obs has shape (32, 3): expected (..., 4)'
    >>> wrong({"progress": None}, {"progress": (1,)})
    'progress has shape (1,): expected a scalar'
    """
    seen = {}
    for name, axes in expected.items():
        shape, inner = tuple(given[name]), axes or ()
        ahead = len(shape) - len(inner)
        sizes = list(zip(inner, shape[max(ahead, 0) :]))  # noqa: B905
        fixed = all(axis == size for axis, size in sizes if isinstance(axis, int))
        if axes is None and shape:
            return f"{name} has shape {shape}: expected a scalar"
        if ahead < 0 or not fixed:
            wanted = ", ".join(["...", *map(str, inner)])
            return f"{name} has shape {shape}: expected ({wanted})"
        # An input without leading axes stands for all elements.
        for axis, size in [*sizes, *([("...", shape[:ahead])] if ahead else [])]:
            other, known = seen.setdefault(axis, (name, size))
            if known != size:
                alone = not inner and not expected[other]
                equal = "shapes, or scalars" if alone else "leading axes"
                equal = equal if axis == "..." else f"last axes {axis}"
                there = tuple(given[other])
                return (
                    f"{other} has shape {there} and {name} {shape}: give equal {equal}"
                )
    return None


def one(expected: Mapping[str, Inner], given: Mapping[str, tuple]) -> str | None:
    """Say which input of a function of one transition is none; None if all are.

    Components may have any shape, as those of an image.

    >>> one({"obs": (4,), "reward": ()}, {"obs": (2, 2), "reward": (8,)})
    'reward has shape (8,): expected one transition, () (jax.vmap takes a batch)'
    """
    for name, axes in expected.items():
        fixed = axes is not None and all(isinstance(x, int) for x in axes)
        if fixed and name in given and math.prod(given[name]) != math.prod(axes or ()):
            return (
                f"{name} has shape {tuple(given[name])}: expected one transition, "
                f"{tuple(axes or ())} (jax.vmap takes a batch)"
            )
    return None
