"""Grid search: every combination of equally spaced values, scored every generation.

The result is the point with the best mean score over generations.
"""

from __future__ import annotations

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
def grid(space: Space, num_points: int) -> Strategy:
    """All combinations of `num_points` values per number.

    Args:
        space: `spaces.prior(...)`, D numbers; the ends of their ranges are on the grid.
        num_points: n >= 2; the population is n ** D.

    Raises:
        ConfigError: too few points, too many combinations, or another space.
    """
    numbers = spaces.of_prior(space, "grid")
    _options.at_least(2, num_points=num_points)
    size = num_points ** len(numbers)
    if size > 1 << 20:
        raise ConfigError(
            f"num_points={num_points}: {num_points} ** {len(numbers)} combinations are "
            "more than a million; take fewer points or numbers"
        )
    axis = np.linspace(0, 1, num_points, dtype=np.float32)
    mesh = np.meshgrid(*[axis] * len(numbers), indexing="ij")
    points = {name: x.ravel() for name, x in zip(numbers, mesh, strict=True)}

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
