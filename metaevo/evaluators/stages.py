"""Lives of newborn members in stages, after some of which the worse are stopped.

`Search.stopping` says when. One program trains a stage, of all members and of those
that are left, which are packed into fewer chunks. A stopped member costs no more
frames, and its fitness is that of its shorter life, but at most the least of a whole
one: among those that are stopped early the order is a guess, which strategies by rank
that give the worse half one weight do not see.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from metaevo import fitness
from metaevo.evaluators import _arrays
from metaevo.evaluators.lift import Outcome
from metaevo.types import FitnessFn, InnerState, Key, Search

Stage = Callable[[np.ndarray, InnerState | None], tuple[Outcome, InnerState]]
"""`(members [M], their states or None) -> outcome and states`, [S, M, ...]."""


def lengths(search: Search, size: int) -> list[int]:
    """Return how many of P members train in each stage.

    >>> from metaevo.fitness import Halving
    >>> lengths(Search(*[None] * 5, stopping=Halving(4, factor=2)), 32)
    [32, 16, 8, 8]
    """
    found = [size]
    for age in range(1, search.stopping.horizon):
        left = found[-1]
        found.append(
            search.stopping.kept(left) if age in search.stopping.ages else left
        )
    return found


def train(search: Search, size: int, key: Key, stage: Stage) -> Outcome:
    """Train newborn members on one task, the better ones for a whole life.

    Args:
        search: Search with `stopping`.
        size: P.
        key: Key of the generation, by which lots are drawn.
        stage: Trains some of the members for a stage of their lives.

    Returns:
        The outcome, [S, P, ...]; metrics of segments that were not trained are NaN, or
        0 where they are whole numbers.
    """
    ties = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    going, state = np.arange(size), None

    def next_stage() -> tuple[Any, InnerState]:
        outcome, after = stage(going, state)
        return jax.device_get(outcome), after

    told, state = next_stage()
    healthy = np.array(told.healthy)  # a copy, to be written to
    told = told._replace(healthy=healthy, evaluation={})  # no fitness needs one
    scores = np.where(told.healthy, scored(search.fitness, told.train), np.nan)
    for num in lengths(search, size)[1:]:
        if num < len(going):
            best = _best(num, told, scores, going, ties)
            state = state._replace(
                agent=_arrays.take(state.agent, best, 1),
                experience=_arrays.take(state.experience, best, 1),
            )
            going = going[best]
        outcome, state = next_stage()
        more = _arrays.scatter(outcome.train, going, size)
        train = {k: np.concatenate([told.train[k], more[k]], 2) for k in more}
        told = told._replace(train=train)
        told.healthy[:, going] = outcome.healthy
        found = np.where(told.healthy, scored(search.fitness, train), np.nan)
        scores[:, going] = found[:, going]
    lived = np.isin(np.arange(size), going)
    return told._replace(fitness=fitness.of_stopped(scores, lived))


def _best(
    num: int,
    told: Outcome,
    scores: np.ndarray,
    going: np.ndarray,
    ties: np.random.Generator,
) -> np.ndarray:
    """Return the places of the best among those that go on, ascending.

    Args:
        num: How many.
        told: Outcome of all members until now.
        scores: [S, P] scores until now.
        going: [n] members that have come so far.
        ties: Draws among equals.
    """
    healthy = told.healthy[:, going]
    ended = told.train["episodes"][:, going].sum(-1) > 0
    waiting = np.asarray(healthy.all(0) & ~ended.all(0))
    found, _ = fitness.sanitize(scores[:, going].mean(0), False, waiting)
    order = np.lexsort((ties.permutation(len(going)), -found))
    return np.sort(order[:num])


def scored(given: FitnessFn, train: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the fitness of lives so far, [S, P], as the whole life would be scored.

    Args:
        given: fitness that needs no evaluation.
        train: [S, P, K] per metric; `return` is NaN where no episode ended.
    """
    returns = train["return"].copy()
    for k in range(1, returns.shape[2]):  # as the loop gave them: the last that ended
        returns[..., k] = np.where(
            np.isnan(returns[..., k]), returns[..., k - 1], returns[..., k]
        )
    return np.asarray(_lifted(given)({**train, "return": returns}))


@functools.cache
def _lifted(given: FitnessFn) -> Callable[[Any], jax.Array]:
    return jax.jit(jax.vmap(jax.vmap(lambda train: given.score(train, None))))
