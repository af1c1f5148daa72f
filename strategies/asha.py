"""Asynchronous successive halving (Li et al., 2020, https://arxiv.org/abs/1810.05934).

Agents live on, and at some ages, the *rungs*, only the better ones do: one that is not
among the best 1/`factor` of all scores that were seen at this rung is stopped, and a
newborn one with other numbers takes its place. So the population is always full, and
nobody waits for others. It is the rule by stopping: who was stopped does not go on
later. The paper's promotes such a member when others turn out to be worse.

Median stopping (Golovin et al., 2017) is `factor=1, keep=0.5`: a rung in each
generation.

A score at a rung is that of a young agent. `rank_correlation` says how much it tells
of the end: where it is near 0, early stopping draws at random.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.fitness import Halving
from metaevo.types import Proposal, Space, Strategy, remakeable
from strategies import _options

LEAST_ENDS = 4  # of which a correlation is told


class State(NamedTuple):
    """The next generation, and what was seen at the rungs.

    Attributes:
        params: [P, ...] of the next generation.
        age: [P] int32, generations that its agents have lived; 0: newborn.
        first: [P] float32, their scores at the first rung.
        scores: [K, N] float32, the last N at each rung, as many as `counts` says.
        counts: [K] int32, scores seen at each rung.
        ends: [2, N] float32, scores at the first rung and at the end of whole lives.
        num_ends: int32, whole lives.
        best: params of the best of those that came farthest.
        rung: int32, how far it came: K is a whole life, -1 none.
        score: float32, of the best there.
        stopped, born: int32, in the last generation, and in all.
    """

    params: Any
    age: jax.Array
    first: jax.Array
    scores: jax.Array
    counts: jax.Array
    ends: jax.Array
    num_ends: jax.Array
    best: Any
    rung: jax.Array
    score: jax.Array
    stopped: jax.Array
    born: jax.Array


@remakeable
def asha(
    space: Space,
    population_size: int,
    horizon: int,
    *,
    first: int = 1,
    factor: int = 3,
    keep: float | None = None,
    memory: int = 512,
) -> Strategy:
    """Asynchronous successive halving over draws of `space.init`.

    The search needs `segments_per_generation`, and a fitness of what training itself
    logs, such as `fitness.last_segments(1)`, which costs no evaluation.

    Args:
        space: such as `spaces.prior`.
        population_size: P, agents that train at any time.
        horizon: generations in a life, at least 2: `num_segments` of the inner loop
            over `segments_per_generation`.
        first: age at the first rung, in [1, horizon - 1].
        factor: each rung is at `factor` times the age of the one before, at least 2;
            1: a rung in each generation.
        keep: share that goes on at a rung, in (0, 1]; None: 1 / factor.
        memory: N, scores that are kept of each rung, at least P.

    Raises:
        ConfigError: An option is out of its range.
    """
    _options.at_least(2, population_size=population_size)
    _options.at_least(population_size, memory=memory)
    halving = Halving(horizon, first, factor, keep)
    halving.check()
    ages = jnp.asarray(halving.ages, jnp.int32)
    kept = np.array([halving.kept(seen) for seen in range(memory + 1)], np.int32)
    last = len(ages)  # number of the rung that is a whole life

    def init(key):
        params = jax.vmap(space.init)(jax.random.split(key, population_size))
        return State(
            params=params,
            age=jnp.zeros(population_size, jnp.int32),
            first=jnp.zeros(population_size),
            scores=jnp.zeros((last, memory)),
            counts=jnp.zeros(last, jnp.int32),
            ends=jnp.zeros((2, memory)),
            num_ends=jnp.int32(0),
            best=jax.tree.map(lambda x: x[0], params),
            rung=jnp.int32(-1),
            score=jnp.zeros(()),
            stopped=jnp.int32(0),
            born=jnp.int32(population_size),
        )

    def ask(key, state):
        del key
        members = jnp.arange(population_size, dtype=jnp.int32)
        return Proposal(state.params, jnp.where(state.age > 0, members, -1)), state

    def tell(key, state, proposal, fitness):
        age = state.age + 1
        at = age[None] == ages[:, None]  # [K, P]
        scores = jax.vmap(_put, (0, 0, 0, None))(
            state.scores, state.counts, at, fitness
        )
        counts = state.counts + at.sum(1, dtype=jnp.int32)
        there = jnp.arange(memory)[None] < counts[:, None]
        above = (scores[:, None, :] > fitness[None, :, None]) & there[:, None]
        better = above.sum(-1, dtype=jnp.int32)
        seen = there.sum(-1, dtype=jnp.int32)
        stays = better < jnp.asarray(kept)[seen][:, None]
        stopped = (at & ~stays).any(0)
        done = age >= horizon

        early = jnp.where(at[0], fitness, state.first)
        ends = jax.vmap(_put, (0, None, None, 0))(
            state.ends, state.num_ends, done, jnp.stack([early, fitness])
        )
        rung = jnp.where(done, last, jnp.where(at.any(0), jnp.argmax(at, 0), -1))
        farthest = rung.max()
        score = jnp.where(rung == farthest, fitness, -jnp.inf)
        winner = jnp.argmax(score)
        wins = (farthest > state.rung) | (
            (farthest == state.rung) & (farthest >= 0) & (score[winner] > state.score)
        )
        best = jax.tree.map(
            lambda new, old: jnp.where(wins, new[winner], old),
            proposal.params,
            state.best,
        )

        fresh = stopped | done
        drawn = jax.vmap(space.init)(jax.random.split(key, population_size))
        params = jax.tree.map(
            lambda new, old: jnp.where(
                fresh.reshape(-1, *[1] * (new.ndim - 1)), new, old
            ),
            drawn,
            proposal.params,
        )
        return State(
            params=params,
            age=jnp.where(fresh, 0, age),
            first=early,
            scores=scores,
            counts=counts,
            ends=ends,
            num_ends=state.num_ends + done.sum(dtype=jnp.int32),
            best=best,
            rung=jnp.where(wins, farthest, state.rung),
            score=jnp.where(wins, score[winner], state.score),
            stopped=stopped.sum(dtype=jnp.int32),
            born=state.born + fresh.sum(dtype=jnp.int32),
        )

    def metrics(state):
        return {
            "trials": state.born,
            "stopped_early": state.stopped,
            "whole_lives": state.num_ends,
            "best_rung": state.rung,
            "rank_correlation": _rank_correlation(
                state.ends[0], state.ends[1], state.num_ends
            ),
        }

    return Strategy(
        *(init, ask, tell, lambda state: state.best, metrics),
        from_ranges=True,
        remembers=True,
    )


def _put(
    kept: jax.Array, count: jax.Array, chosen: jax.Array, new: jax.Array
) -> jax.Array:
    """Write the chosen of `new` [P] into a ring [N] that has had `count` entries."""
    place = (count + jnp.cumsum(chosen, dtype=jnp.int32) - 1) % len(kept)
    return kept.at[jnp.where(chosen, place, len(kept))].set(new, mode="drop")


def _rank_correlation(x: jax.Array, y: jax.Array, count: jax.Array) -> jax.Array:
    """Spearman's, of the first `count` of pairs [N]; 0 of fewer than `LEAST_ENDS`."""
    there = jnp.arange(len(x)) < count
    number = there.sum(dtype=jnp.float32)

    def centred(x):
        below = (there[None] & (x[None] < x[:, None])).sum(1)
        equal = (there[None] & (x[None] == x[:, None])).sum(1)
        rank = below.astype(jnp.float32) + 0.5 * (equal - 1).astype(jnp.float32)
        rank = rank - jnp.where(there, rank, 0.0).sum() / jnp.maximum(number, 1.0)
        return jnp.where(there, rank, 0.0)

    a, b = centred(x), centred(y)
    size = jnp.sqrt((a**2).sum() * (b**2).sum())
    found = (a * b).sum() / jnp.maximum(size, 1e-9)
    return jnp.where((number >= LEAST_ENDS) & (size > 0), found, 0.0)
