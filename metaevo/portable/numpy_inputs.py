"""The inputs of a reference function, in the shapes that its program takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["shaped"]


def shaped(
    names: Sequence[str],
    expected: Sequence[Sequence],
    inputs: Sequence[Any],
    dtype: Any,
) -> tuple[list[np.ndarray], tuple[int, ...] | None]:
    """Return the inputs as a program takes them, and the shape that they had.

    A program whose inputs are [n] and scalars is elementwise: it also takes arrays of
    any common shape in place of [n]. A scalar stands for all elements of any input.

    Args:
        names: names of the inputs, in order.
        expected: their shapes in the program; open sizes are names.
        inputs: the values.
        dtype: of the arrays.

    Returns:
        the arrays, and the shape that results are to have; None: the program's own.

    Raises:
        TypeError: there are too few inputs or too many.
        ValueError: they are of other shapes, or of several.

    >>> (value, target), shape = shaped("ab", [["n"], ["n"]], [[[1], [2]], 3], float)
    >>> value.shape, target.shape, shape
    ((2,), (2,), (2, 1))
    """
    if len(inputs) != len(names):
        raise TypeError(f"expected {len(names)} inputs: {tuple(names)}")
    arrays = [np.asarray(x, dtype) for x in inputs]
    if _fit(expected, arrays):
        return arrays, None
    pairs = list(zip(expected, arrays, strict=True))
    given = {x.shape for sizes, x in pairs if sizes and x.ndim} or {()}
    elementwise = all(
        list(sizes) == ["n"] or not (sizes or x.ndim) for sizes, x in pairs
    )
    if not elementwise and (spread := _spread(expected, arrays)) is not None:
        return spread, None
    if not elementwise or len(given) > 1:
        shapes = [
            f"{name} {_text(x.shape)} for {_text(sizes)}"
            for name, (sizes, x) in zip(names, pairs, strict=True)
        ]
        raise ValueError(f"inputs of wrong shapes: {', '.join(shapes)}")
    (shape,) = given
    flat = [np.broadcast_to(x, shape).ravel() if sizes else x for sizes, x in pairs]
    return flat, shape


def _spread(
    expected: Sequence[Sequence], arrays: Sequence[np.ndarray]
) -> list[np.ndarray] | None:
    """Return arrays in which scalars have the sizes of the others; None if none fit."""
    known: dict[Any, int] = {}
    for sizes, x in zip(expected, arrays, strict=True):
        if len(sizes) == x.ndim:
            known = dict(zip(sizes, x.shape, strict=True)) | known
    found = []
    for sizes, x in zip(expected, arrays, strict=True):
        if any(isinstance(n, str) and n not in known for n in sizes):
            return None
        whole = [known[n] if isinstance(n, str) else int(n) for n in sizes]
        found.append(x if x.ndim else np.broadcast_to(x, whole))
    return found if _fit(expected, found) else None


def _fit(expected: Sequence[Sequence], arrays: Sequence[np.ndarray]) -> bool:
    """Return True if arrays have the expected shapes, open sizes being equal."""
    open_sizes: dict[str, int] = {}
    return all(
        len(sizes) == x.ndim
        and all(
            have
            == (open_sizes.setdefault(size, have) if isinstance(size, str) else size)
            for size, have in zip(sizes, x.shape, strict=True)
        )
        for sizes, x in zip(expected, arrays, strict=True)
    )


def _text(shape: Sequence) -> str:
    return f"[{', '.join(map(str, shape))}]"
