"""Self-play: members play against the search's current solution.

    params = {own: member, rival: solution of the generation, share: λ}
    λ = max(0, 1 − generation / num_annealed)

Meta-self-play of M-FOS (Lu et al., 2022, https://arxiv.org/abs/2205.01447). What
evolves is in two slots of the inner loop. With probability λ, which falls to 0, a
simple player takes the rival's place; the inner loop draws it, by its slot `share`. Any
strategy that proposes arrays can do the evolving.

Difference from the paper: one player evolves and plays against itself as it was a
generation ago, where there two learn side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from metaevo import population
from metaevo.errors import ConfigError
from metaevo.types import Params, Proposal, Space, Strategy, remakeable


class State(NamedTuple):
    """State of the strategy that evolves, and the generations told."""

    inner: Any
    generation: jax.Array  # int32


@remakeable
def self_play(
    space: Space,
    evolve: Callable[[Space], Strategy],
    own: str,
    rival: str,
    share: str,
    num_annealed: int,
) -> Strategy:
    """Evolve the slot `own` against the current solution in the slot `rival`.

    Args:
        space: of params {own, rival, share}, the first two of the same shapes, the
            last a number.
        evolve: makes the strategy of params {own} alone, such as
            `functools.partial(open_es, population_size=64, ...)`.
        own, rival, share: names of slots.
        num_annealed: generations in which λ falls from 1 to 0, >= 1.

    Raises:
        ConfigError: the space has other slots, `num_annealed` is less than 1, or the
            strategy proposes a `population.Rule` or lets agents live on.
    """
    names = {own, rival, share}
    if set(space.spec) != names:
        raise ConfigError(
            f"self_play: the space has slots {sorted(space.spec)}, expected "
            f"{sorted(names)}"
        )
    if num_annealed < 1:
        raise ConfigError(f"num_annealed={num_annealed} must be at least 1")
    inner = evolve(space._replace(init=lambda key: _part(space.init(key), own)))

    def now(state: State) -> jax.Array:
        done = state.generation.astype(jnp.float32) / num_annealed
        return jnp.maximum(0.0, 1.0 - done)

    def init(key):
        return State(inner.init(key), jnp.int32(0))

    def whole(state, params, num):
        solution = inner.solution(state.inner)[own]
        rivals = jax.tree.map(lambda x: jnp.broadcast_to(x, (*num, *x.shape)), solution)
        return {**params, rival: rivals, share: jnp.broadcast_to(now(state), num)}

    def ask(key, state):
        proposal, after = inner.ask(key, state.inner)
        if isinstance(proposal.params, population.Rule) or proposal.parents is not None:
            raise ConfigError(
                "self_play: the strategy must propose newborn members as arrays, as "
                "open_es does"
            )
        num = (population.size(proposal.params),)
        params = whole(state, proposal.params, num)
        return Proposal(params), state._replace(inner=after)

    def tell(key, state, proposal, fitness):
        mine = Proposal(_part(proposal.params, own))
        told = inner.tell(key, state.inner, mine, fitness)
        return State(told, state.generation + 1)

    def solution(state):
        return whole(state, inner.solution(state.inner), ())

    def metrics(state):
        return {**inner.metrics(state.inner), share: now(state)}

    return Strategy(
        *(init, ask, tell, solution, metrics, inner.mirrored),
        remembers=inner.remembers,
    )


def _part(params: Params, own: str) -> Params:
    return {own: params[own]}
