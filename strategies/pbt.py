"""Population-based training (Jaderberg et al., 2017, https://arxiv.org/abs/1711.09846).

Agents persist over generations. Between two generations losers *exploit*: they continue
a winner's agent with its numbers; and *explore*: each of these numbers is multiplied by
one of `factors`, or drawn again. Experience and random keys stay with the member.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from metaevo.errors import ConfigError
from metaevo.types import (
    Fitness,
    Key,
    Params,
    Population,
    Space,
    Strategy,
    remakeable,
)
from strategies import _options, _pbt


class State(NamedTuple):
    """The next generation and the last one.

    Attributes:
        params: [P, ...] Params of the next generation.
        parents: [P] Members whose agents are continued; -1 in generation 0.
        told: [P, ...] Params of the last generation.
        fitness: [P] Fitness of the last generation.
    """

    params: Any
    parents: jax.Array
    told: Any
    fitness: Fitness


@remakeable
def pbt(
    space: Space,
    population_size: int,
    *,
    exploit: Literal["truncation", "tournament", "winner"] = "truncation",
    fraction: float = 0.25,
    factors: Sequence[float] = (0.8, 1.2),
    resample: float = 0.25,
    copies: Literal["both", "agent", "params"] = "both",
    explore: Callable[[Key, Params], Params] | None = None,
    start: Population | None = None,
) -> Strategy:
    """Population-based training.

    Args:
        space: such as `spaces.prior`, whose `init` draws numbers from their ranges and
            whose `perturb` multiplies them and stays in the ranges.
        exploit: `truncation`: the worst `fraction` follow one of the best `fraction`
            each. `tournament`: each is compared with a random other and follows it if
            that is better. `winner`: all follow the best.
        fraction: in [0, 0.5], for truncation; 0: no member exploits.
        factors: a number is multiplied by one of them, drawn at random.
        resample: probability that a number is drawn again instead. The defaults are
            those of Ray Tune.
        copies: `both`: a loser takes the winner's agent and numbers; `agent`: it keeps
            its numbers; `params`: it keeps its agent.
        explore: `(key, params) -> params` of one member, in place of the above.
        start: [P, ...] params of generation 0; None: draws of `space.init`.

    Raises:
        ConfigError: An option is out of its range.
    """
    _pbt.check(population_size, exploit, fraction)
    if not factors or not all(0 < x < math.inf for x in factors):
        raise ConfigError(f"factors={tuple(factors)} must be positive numbers")
    _options.fraction(resample=resample)
    _options.one_of(("both", "agent", "params"), copies=copies)

    def perturb_or_resample(key, params):
        factor_key, which_key, init_key = jax.random.split(key, 3)
        drawn = _for_each(factor_key, params, lambda k, x: _choice(k, x, factors))
        fresh = _for_each(
            which_key, params, lambda k, x: jax.random.bernoulli(k, resample, x.shape)
        )
        return jax.tree.map(
            jnp.where, fresh, space.init(init_key), space.perturb(params, drawn)
        )

    change = explore or perturb_or_resample

    def init(key):
        params = jax.tree.map(jnp.asarray, start)
        if start is None:
            params = jax.vmap(space.init)(jax.random.split(key, population_size))
        parents = _pbt.newborn(population_size)
        return State(params, parents, params, jnp.zeros(population_size))

    def tell(key, state, proposal, fitness):
        donor_key, explore_key = jax.random.split(key)
        own = jnp.arange(population_size)
        donors = _pbt.donors(donor_key, fitness, exploit, fraction)
        moved = donors != own
        taken = own if copies == "agent" else donors
        params = jax.tree.map(lambda x: x[taken], proposal.params)
        # One key per member, so that losers with the same donor differ.
        keys = jax.random.split(explore_key, population_size)
        params = jax.tree.map(
            lambda new, old: jnp.where(_like(moved, new), new, old),
            jax.vmap(change)(keys, params),
            params,
        )
        parents = own if copies == "params" else donors
        return State(params, parents, proposal.params, fitness)

    def metrics(state):
        spread = [x.std(0).mean() for x in jax.tree.leaves(state.params)]
        diversity = jnp.stack(spread).mean()
        return {"exploited": _pbt.num_exploited(state), "diversity": diversity}

    return _pbt.strategy(init, tell, metrics)


def _for_each(key, params, draw):
    """Return `draw(key, x)` of every leaf, each with its own key."""
    leaves, treedef = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    return treedef.unflatten([draw(k, x) for k, x in zip(keys, leaves, strict=True)])


def _choice(key, x, factors):
    return jax.random.choice(key, jnp.asarray(factors, x.dtype), x.shape)


def _like(mask, x):
    return mask.reshape(-1, *[1] * (x.ndim - 1))
