"""Population-based bandits (PB2; Parker-Holder et al., 2020, arXiv:2002.02518).

PBT whose losers explore where a Gaussian process expects them to improve most. It
models the change of fitness in a generation, y, from the numbers trained with,
x ∈ [0, 1]ᴰ, and the fitness before, s ∈ [0, 1], older data counting less:

    k = exp(−‖(x, s) − (x', s')‖² / 2ℓ²) · (1 − ε)^(|t − t'| / 2)
    x = argmax μ(x) + √β σ(x),   β = c₁ log(c₂ n)

y is standardized over the n data; s is scaled by the least and the largest of the data
and of the members that choose, which so lie among the data. β is that of the authors'
code, https://github.com/jparkerholder/PB2; Ray Tune's, c₁ + log(c₂ n), explores more.

Losers choose in turn, each with the choices before it as data without an outcome, so
that they spread. Unlike the paper's, ℓ and ε are the likeliest on a small grid, and the
maximum is over random candidates.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import spaces
from metaevo.types import Fitness, Space, Strategy, remakeable
from strategies import _options, _pbt

LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)
FORGETTING = (0.0, 0.1, 0.3)
C1, C2 = 0.2, 0.4
NOISE = 0.1  # variance, of standardized y


class Data(NamedTuple):
    """Observations, in a ring buffer of N rows."""

    x: jax.Array  # [N, D]
    before: jax.Array  # [N] fitness that the agent came with
    change: jax.Array  # [N] of its fitness
    time: jax.Array  # [N] generation; -1: no data


class State(NamedTuple):
    """State of `pbt`, with the data of the Gaussian process.

    Attributes:
        before: [P] the fitness each agent of the next generation comes with.
        generation: int32.
    """

    params: Any
    parents: jax.Array
    told: Any
    fitness: Fitness
    before: jax.Array
    data: Data
    generation: jax.Array


@remakeable
def pb2(
    space: Space,
    population_size: int,
    *,
    exploit: Literal["truncation", "tournament", "winner"] = "truncation",
    fraction: float = 0.25,
    window: int = 8,
    num_candidates: int = 512,
) -> Strategy:
    """Population-based bandits.

    Args:
        space: `spaces.prior(...)`.
        exploit: who follows whom, as in `pbt`.
        fraction: share of members that continue the agent of a better one.
        window: generations that the Gaussian process remembers.
        num_candidates: points among which a loser chooses.

    Raises:
        ConfigError: An option is out of its range, or the space is not a prior.
    """
    _pbt.check(population_size, exploit, fraction)
    names = spaces.of_prior(space, "pb2")
    _options.at_least(1, window=window, num_candidates=num_candidates)
    size, rows = population_size, window * population_size

    def points(params):
        return jnp.stack([params[name] for name in names], 1)

    def init(key):
        params = jax.vmap(space.init)(jax.random.split(key, size))
        zeros = jnp.zeros(rows)
        data = Data(jnp.zeros((rows, len(names))), zeros, zeros, zeros - 1)
        parents = _pbt.newborn(size)
        unknown = jnp.full(size, jnp.nan, jnp.float32)
        return State(
            params, parents, params, jnp.zeros(size), unknown, data, jnp.int32(0)
        )

    def tell(key, state, proposal, fitness):
        donor_key, explore_key = jax.random.split(key)
        generation = state.generation.astype(jnp.float32)
        known = jnp.isfinite(state.before)
        seen = Data(
            points(proposal.params),
            jnp.where(known, state.before, 0.0),
            jnp.where(known, fitness - state.before, 0.0),
            jnp.where(known, generation, -1.0),
        )
        data = jax.tree.map(lambda x, new: jnp.roll(x, size, 0), state.data, seen)
        data = jax.tree.map(lambda x, new: x.at[:size].set(new), data, seen)
        donors = _pbt.donors(donor_key, fitness, exploit, fraction)
        moved = donors != jnp.arange(size)
        before = fitness[donors]
        x = _explored(explore_key, data, points(proposal.params), before, moved)
        params = {name: x[:, i] for i, name in enumerate(names)}
        after = generation.astype(jnp.int32) + 1
        return State(params, donors, proposal.params, fitness, before, data, after)

    def _explored(key, data, x, before, moved):
        """Return the numbers of all members, [P, D]; losers explore."""
        valid = data.time >= 0
        now = data.time.max() + 1
        change = _standardized(data.change, valid, data.change)
        context, mine = _in_unit(data.before, valid, before)
        inputs = jnp.concatenate([data.x, context[:, None]], 1)
        length, forgetting = _likeliest(inputs, data.time, change, valid)
        beta = _beta(jnp.maximum(valid.sum(), 1).astype(jnp.float32))
        mine = mine[:, None]
        factor = _factor(inputs, data.time, valid, length, forgetting)
        whitened = _solve(factor, change * valid.astype(change.dtype))
        # Members that stay train too: they are data without an outcome yet.
        everything = jnp.concatenate([inputs, jnp.concatenate([x, mine], 1)])
        times = jnp.concatenate([data.time, jnp.full(size, now)])

        def choose(everything, counts, i):
            drawn = jax.random.uniform(
                jax.random.fold_in(key, i), (num_candidates, len(names))
            )
            same = jnp.broadcast_to(mine[i], (num_candidates, 1))
            at = jnp.concatenate([drawn, same], 1), jnp.full(num_candidates, now)

            def half(factor, x, time, valid):
                cross = _kernel(x, time, *at, length, forgetting)
                return _solve(factor, cross * valid[:, None].astype(cross.dtype))

            mean = half(factor, inputs, data.time, valid).T @ whitened
            known = _factor(everything, times, counts, length, forgetting)
            variance = 1.0 - (half(known, everything, times, counts) ** 2).sum(0)
            score = mean + jnp.sqrt(beta * jnp.maximum(variance, 1e-9))
            return everything.at[rows + i].set(at[0][jnp.argmax(score)])

        def turn(state, i):
            everything, counts = state
            everything = jax.lax.cond(
                moved[i],
                lambda: choose(everything, counts, i),
                lambda: everything,
            )
            return (everything, counts.at[rows + i].set(True)), None

        counts = jnp.concatenate([valid, ~moved])
        (everything, _), _ = jax.lax.scan(turn, (everything, counts), jnp.arange(size))
        return everything[rows:, :-1]

    def metrics(state):
        diversity = points(state.params).std(0).mean()
        return {"exploited": _pbt.num_exploited(state), "diversity": diversity}

    return _pbt.strategy(init, tell, metrics)._replace(remembers=True)


# --- the Gaussian process -------------------------------------------------------------


def _beta(count):
    """The weight of the variance, for `count` data; at least 0."""
    return jnp.maximum(0.0, C1 * jnp.log(C2 * count))


def _in_unit(x, valid, new):
    """Return `x` [N], where valid, and `new` [P] scaled to [0, 1] together."""
    least = jnp.minimum(jnp.where(valid, x, jnp.inf).min(), new.min())
    most = jnp.maximum(jnp.where(valid, x, -jnp.inf).max(), new.max())
    width = jnp.maximum(most - least, 1e-6)
    return jnp.where(valid, (x - least) / width, 0.0), (new - least) / width


def _standardized(x, valid, of):
    """Return `of`, standardized by the mean and the deviation of the valid `x`."""
    count = jnp.maximum(valid.sum(), 1).astype(jnp.float32)
    mean = jnp.where(valid, x, 0.0).sum() / count
    variance = jnp.where(valid, (x - mean) ** 2, 0.0).sum() / count
    return (of - mean) / jnp.maximum(jnp.sqrt(variance), 1e-6)


def _kernel(a, time_a, b, time_b, length, forgetting):
    distance = ((a[:, None] - b[None]) ** 2).sum(-1)
    apart = jnp.abs(time_a[:, None] - time_b[None])
    return jnp.exp(-distance / (2 * length**2)) * (1 - forgetting) ** (apart / 2)


def _solve(factor, y):
    return jax.scipy.linalg.solve_triangular(factor, y, lower=True)


def _factor(x, time, valid, length, forgetting):
    """Return the Cholesky factor of the covariance; empty rows are independent."""
    both = valid[:, None] & valid[None]
    covariance = jnp.where(both, _kernel(x, time, x, time, length, forgetting), 0.0)
    diagonal = jnp.where(valid, NOISE, 1.0)
    return jnp.linalg.cholesky(covariance + jnp.diag(diagonal))


def _likeliest(x, time, y, valid):
    """Return the length scale and forgetting of the highest marginal likelihood."""
    pairs = jnp.asarray(np.stack(np.meshgrid(LENGTHS, FORGETTING), -1), jnp.float32)
    pairs = pairs.reshape(-1, 2)

    def likelihood(pair):
        factor = _factor(x, time, valid, *pair)
        return (
            -0.5 * (_solve(factor, y * valid.astype(y.dtype)) ** 2).sum()
            - jnp.log(jnp.diag(factor)).sum()
        )

    # One after the other, because LAPACK under vmap can wait forever on a CPU.
    return pairs[jnp.argmax(jax.lax.map(likelihood, pairs))]
