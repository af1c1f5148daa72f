"""Grid search: every combination of some values, scored every generation.

The result is the point with the best mean score over generations.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import spaces
from metaevo.errors import ConfigError
from metaevo.types import Proposal, Space, Strategy, remakeable
from strategies import _options


class State(NamedTuple):
    mean: jax.Array  # [P] score so far
    count: jax.Array  # int32, generations


@remakeable
def grid(space: Space, num_points: int | None = None) -> Strategy:
    """All combinations of the values of numbers.

    Args:
        space: `spaces.prior(...)`, D numbers. Those of a `spaces.grid([...])` take each
            value of it.
        num_points: n >= 2, equally spaced values of each number of another range, its
            ends among them; None: there is no such number. The population is n ** D if
            all are.

    Raises:
        ConfigError: too few points, too many combinations, or another space.
    """
    axes = _axes(space, num_points)
    size = math.prod(len(x) for x in axes.values())
    if size > 1 << 20:
        raise ConfigError(
            f"{size} combinations of {', '.join(axes)} are more than a million; "
            "take fewer points or numbers"
        )
    mesh = np.meshgrid(*axes.values(), indexing="ij")
    points = {name: x.ravel() for name, x in zip(axes, mesh, strict=True)}

    def init(key):
        del key
        return State(jnp.zeros(size), jnp.int32(0))

    def ask(key, state):
        del key
        return Proposal(jax.tree.map(jnp.asarray, points)), state

    def tell(key, state, proposal, fitness):
        del key, proposal
        count = state.count + 1
        mean = state.mean + (fitness - state.mean) / count.astype(jnp.float32)
        return State(mean, count)

    def solution(state):
        return jax.tree.map(
            lambda x: jnp.asarray(x)[jnp.argmax(state.mean)], dict(points)
        )

    def metrics(state):
        return {"solution_mean": state.mean.max()}

    return Strategy(init, ask, tell, solution, metrics, from_ranges=True)


def _axes(space: Space, num_points: int | None) -> dict[str, np.ndarray]:
    """Return the places in [0, 1] of the values of each number."""
    axes = {}
    for name in spaces.of_prior(space, "grid"):
        values = space.spec[name].get("values")
        if values is not None:
            axes[name] = (np.arange(len(values), dtype=np.float32) + 0.5) / len(values)
        elif num_points is None:
            raise ConfigError(
                f"num_points=null: it is needed, since {name!r} has a range; only the "
                "values of spaces.grid([...]) need none"
            )
        else:
            _options.at_least(2, num_points=num_points)
            axes[name] = np.linspace(0, 1, num_points, dtype=np.float32)
    return axes
