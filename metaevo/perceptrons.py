"""Small tanh networks in plain jnp: what learned functions are made of.

Hidden weights start random and the last layer at zero, so that a function starts as if
the network were not there, and members mirrored about the start differ.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from metaevo.types import Key, Params

__all__ = ["Perceptron", "perceptron", "sizes"]


class Perceptron(NamedTuple):
    """`init(key) -> params` and `apply(params, x [..., num_inputs]) -> [..., N]`."""

    init: Callable[[Key], Params]
    apply: Callable[[Params, jax.Array], jax.Array]


def sizes(features: Sequence[int]) -> tuple[int, ...]:
    """`features`, hidden layer sizes, as integers.

    Raises:
        ValueError, TypeError: not 1 to 8 layers of 1 to 4096 units.
    """
    features = tuple(operator.index(n) for n in features)
    if not 1 <= len(features) <= 8 or not all(1 <= n <= 4096 for n in features):
        raise ValueError(f"features={features}: 1 to 8 layers of 1 to 4096 units")
    return features


def perceptron(
    num_inputs: int, features: Sequence[int], num_outputs: int = 1, limit: float = 10.0
) -> Perceptron:
    """A tanh network that is zero at first.

    Args:
        num_inputs: of typical size 1.
        features: hidden layer sizes.
        limit: what inputs are clipped to, so that outputs stay finite.

    Raises:
        ValueError, TypeError: as `sizes`.
    """
    shapes = list(itertools.pairwise((num_inputs, *sizes(features), num_outputs)))

    def init(key):
        params = {}
        for i, shape in enumerate(shapes):
            weight = jax.random.normal(jax.random.fold_in(key, i), shape)
            weight = weight / math.sqrt(shape[0])
            last = i == len(shapes) - 1
            params[f"w{i}"] = jnp.zeros(shape) if last else weight
            params[f"b{i}"] = jnp.zeros(shape[1])
        return params

    def apply(params, x):
        x = jnp.clip(x, -limit, limit)
        for i in range(len(shapes)):
            x = jnp.tanh(x) if i > 0 else x
            x = x @ params[f"w{i}"] + params[f"b{i}"]
        return x

    return Perceptron(init, apply)
