"""Random search that evaluates its best members again (Bergstra and Bengio, 2012).

Each generation draws most of its members and evaluates the best members so far again,
on new seeds, which corrects lucky scores. Members are ranked by their mean score.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo.errors import ConfigError
from metaevo.types import Proposal, Space, Strategy, remakeable
from strategies import _options


class State(NamedTuple):
    """The best so far, best first.

    Attributes:
        params: [N, ...].
        mean: [N] mean scores; -inf: not evaluated yet.
        count: [N] int32, number of scores.
    """

    params: Any
    mean: jax.Array
    count: jax.Array


@remakeable
def random_search(
    space: Space, population_size: int, *, num_elites: int | None = None
) -> Strategy:
    """Random search over draws of `space.init`, such as those of `spaces.prior`.

    Args:
        population_size: P, evaluations in a generation.
        num_elites: N in [1, P - 1], members that are evaluated again; None: P/4.

    Raises:
        ConfigError: An option is out of its range.
    """
    _options.at_least(2, population_size=population_size)
    size = max(1, population_size // 4) if num_elites is None else num_elites
    if not 1 <= size < population_size:
        raise ConfigError(f"num_elites={size} must be in [1, {population_size - 1}]")

    def draw(key, number):
        return jax.vmap(space.init)(jax.random.split(key, number))

    def init(key):
        zeros = jnp.zeros(size)
        return State(draw(key, size), zeros - jnp.inf, jnp.zeros(size, jnp.int32))

    def ask(key, state):
        new = draw(key, population_size - size)
        params = jax.tree.map(lambda *x: jnp.concatenate(x), state.params, new)
        return Proposal(params), state

    def tell(key, state, proposal, fitness):
        del key
        new = population_size - size
        before = jnp.concatenate([state.count, jnp.zeros(new, jnp.int32)])
        seen = state.count.astype(jnp.float32)
        total = jnp.where(seen > 0, state.mean * seen, 0.0)
        total = jnp.concatenate([total, jnp.zeros(new)]) + fitness
        mean = total / (before + 1).astype(jnp.float32)
        # Of equal means the one of more scores ranks first.
        best = jnp.lexsort((-before, -mean))[:size]
        params = jax.tree.map(lambda x: x[best], proposal.params)
        return State(params, mean[best], before[best] + 1)

    def first(state):
        """Return the best member evaluated more than once, if there is one."""
        again = jnp.where(state.count > 1, state.mean, -jnp.inf)
        return jnp.where((state.count > 1).any(), jnp.argmax(again), 0)

    def solution(state):
        return jax.tree.map(lambda x: x[first(state)], state.params)

    def metrics(state):
        chosen = first(state)
        mean = jnp.where(state.count[chosen] > 0, state.mean[chosen], 0.0)
        return {"solution_mean": mean, "solution_evaluations": state.count[chosen]}

    return Strategy(
        *(init, ask, tell, solution, metrics), from_ranges=True, remembers=True
    )
