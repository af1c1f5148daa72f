"""Slots of members as values that a process without JAX can take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from metaevo import population
from metaevo.errors import ArtifactError, ConfigError
from metaevo.learned.functions import Learned
from metaevo.portable import slopes
from metaevo.types import Population


def traced(
    name: str, op: Mapping[str, Any], slot: Any
) -> tuple[dict[str, Any], list[int]]:
    """Write a slot's function down as `numpy_functions.Function` takes it.

    Args:
        name: of the slot.
        op: its entry in `Space.spec`.
        slot: the function; its arrays are left open.

    Returns:
        the program, and the order in which it takes the arrays of `slot`.

    Raises:
        ConfigError: a process without JAX could not carry it out.
    """
    leaves, tree = jax.tree.flatten(slot)

    def apply(params, *inputs):
        arrays = [params[str(i)] for i in range(len(params))]
        return jax.tree.unflatten(tree, arrays)(*inputs)

    named = {str(i): x for i, x in enumerate(leaves)}
    try:
        if not callable(slot):
            raise TypeError("it is an optimizer, not a function")
        learned = Learned(lambda key: named, apply, op)
        described = slopes.describe(name, op, learned, named)
    except (ArtifactError, NotImplementedError, TypeError, KeyError) as error:
        raise ConfigError(
            f"space: slot {name!r} cannot be given to a process without JAX: {error}"
        ) from None
    return described, [int(x.rpartition("/")[2]) for x in described["params"]]


def members(params: Population) -> Population:
    """Return all members of a population in numpy, [P, ...] per leaf."""
    if isinstance(params, population.Rule):
        params = population.take(params, np.arange(params.number))
    return jax.device_get(params)


def shortest(x: Any) -> float:
    """A number of the fewest digits that become the same float32 again.

    >>> shortest(np.float32(0.1))
    0.1
    """
    return float(str(np.float32(x)))
