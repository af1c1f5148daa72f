"""Rescalings of action values: values of the slot `rescale`.

`(x, context) -> h(x) [...]`, elementwise, increasing, h(0) = 0. A network learns h of
the return, so that one step size fits returns of all sizes:

    target = h(Σ γⁱ rᵢ + γⁿ h⁻¹(Q(o', a')))

Pohlen et al., 2018, https://arxiv.org/abs/1805.11593.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import slots
from metaevo.learned.functions import Learned, above_one, whole
from metaevo.learned.operations import operation
from metaevo.slots import Context

__all__ = [
    "LARGEST",
    "cells",
    "identity",
    "inverse",
    "monotone",
    "piecewise",
    "signed_root",
]

EPSILON = 1e-3  # slope of `signed_root` far from 0, which makes its inverse Lipschitz
LARGEST = 1e9
"""`inverse` finds returns up to it, if it has no closed form."""


@slots.function
def signed_root(x, context=None):
    """h(x) = sign(x) (√(|x| + 1) − 1) + ε x, ε = 0.001 (Pohlen et al., 2018).

    >>> float(signed_root(jnp.float32(10.0)).round(5))
    2.32662
    """
    del context
    # √(a + 1) − 1 without the difference of what is nearly equal.
    return x / (jnp.sqrt(jnp.abs(x) + 1) + 1) + EPSILON * x


@slots.function
def identity(x, context=None):
    """x: values are those of the returns."""
    del context
    return jnp.asarray(x)


def _squared(y: jax.Array) -> jax.Array:
    """The inverse of `signed_root`: s = √(|x| + 1) solves ε s² + s = |y| + 1 + ε."""
    total = jnp.abs(y) + 1 + EPSILON
    root = 2 * total / (jnp.sqrt(1 + 4 * EPSILON * total) + 1)
    return jnp.sign(y) * jnp.maximum(root - 1, 0.0) * (root + 1)


_CLOSED: Mapping[Callable, Callable[[jax.Array], jax.Array]] = {
    signed_root.func: _squared,
    identity.func: jnp.asarray,
}
_STEPS = 40  # halvings of the interval of asinh x: to the precision of float32


def inverse(
    rescale: Callable[..., jax.Array], y: jax.Array, context: Context | None = None
) -> jax.Array:
    """x with rescale(x) = y.

    In closed form for the hand-made rescalings, otherwise by bisection of asinh x, with
    |x| up to `LARGEST`. No gradient flows through it.

    Args:
        rescale: a value of the slot, increasing.
        y: [...] float32.

    >>> float(inverse(signed_root, signed_root(jnp.float32(10.0))).round(4))
    10.0
    """
    y = jax.lax.stop_gradient(jnp.asarray(y))
    closed = _CLOSED.get(getattr(rescale, "func", rescale))
    if closed is not None:
        return closed(y)
    end = jnp.full_like(y, math.asinh(LARGEST))

    def halve(_, interval):
        low, high = interval
        middle = (low + high) / 2
        below = rescale(jnp.sinh(middle), context) < y
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    low, high = jax.lax.fori_loop(0, _STEPS, halve, (-end, end))
    # A value that is not a number must stay visible.
    return jnp.where(jnp.isnan(y), y, jnp.sinh((low + high) / 2))


def cells(num_cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges 0, ¼, ½, 1, 2, 4 ... and widths [num_cells]; the last cell goes on."""
    edges = np.concatenate([[0.0], 0.25 * 2.0 ** np.arange(num_cells - 1)])
    return edges, np.append(np.diff(edges), 1e30)


def piecewise(y: jax.Array, below: jax.Array, above: jax.Array) -> jax.Array:
    """f(y) [...], piecewise linear with f(0) = 0.

    Args:
        y: [...].
        below, above: [K] slopes in the `cells` of y < 0 and y > 0, from 0 outwards.
    """
    edges, widths = (jnp.asarray(x, y.dtype) for x in cells(len(above)))

    def covered(y):
        """The part of each cell within y, [..., K]."""
        return jnp.clip(jnp.expand_dims(y, -1) - edges, 0.0, widths)

    return (above * covered(y)).sum(-1) - (below * covered(-y)).sum(-1)


@operation(
    "monotone_rescaling",
    slot="rescale",
    hand_made=signed_root,
    guarantees=lambda op: ("order-preserving",),
    examples=({}, {"num_cells": 2, "largest": 4.0}),
)
def monotone(num_cells: int = 6, largest: float = 8.0) -> Learned:
    """h(x) = f(h₀(x)), f piecewise linear and increasing, that starts as h₀.

    h₀ is `signed_root`. f(0) = 0, and its slope is one number in [1 / largest, largest]
    in each of `num_cells` cells on both sides of 0. The cells' edges in |h₀| are 0, ¼,
    ½, 1, 2, 4 and so on, and the last goes on: ½ is a return of 1.2, 2 of 8, 8 of 79.

    Args:
        num_cells: cells on each side, 1 to 64.
        largest: > 1.

    Raises:
        ValueError: a setting has a wrong type or value.
    """
    above_one(largest=largest)
    num_cells = whole(1, 64, num_cells=num_cells)
    limit = math.log(largest)

    def init(_):
        return {"above": jnp.zeros(num_cells), "below": jnp.zeros(num_cells)}

    def slopes(numbers):
        return jnp.exp(limit * jnp.tanh(numbers / limit))

    def apply(params, x, context=None):
        y = signed_root(jnp.asarray(x, jnp.result_type(float)), context)
        return piecewise(y, slopes(params["below"]), slopes(params["above"]))

    return Learned(init, apply, starts_hand_made=True)
