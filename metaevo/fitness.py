"""Fitness of a training run, aggregation over runs, and treatment of failed runs.

Only episodes that ended count. A run without a single ended episode has no return, so
its score is NaN, never 0: it was *not scored*, which is no failure. A member that lives
on and ends none in a generation keeps its last return.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.errors import ConfigError
from metaevo.types import Evaluated, Fitness, FitnessFn, Search, mean

__all__ = [
    "Halving",
    "area_under_curve",
    "final_return",
    "last_segments",
    "mean",
    "minus",
    "normalized",
    "not_scored",
    "of_stopped",
    "rank_sum",
    "reached",
    "sanitize",
    "score",
    "with_hurdles",
]


def _final_return(train, evaluation):
    del train
    return evaluation["return"]


final_return = FitnessFn(_final_return, True, "final return")
"""Mean return of the deterministic policy after training, on fresh episodes."""


score = FitnessFn(_final_return, True, "score")
"""The number that the user's function returned; see `metaevo.optimize`."""


def _area_under_curve(train, evaluation):
    del evaluation
    valid = train["episodes"] > 0

    def hold(last, at):
        value, valid = at
        last = jnp.where(valid, value, last)
        return last, last

    # Before the first episode has ended the curve is that episode's return.
    first = train["return"][jnp.argmax(valid)]
    _, curve = jax.lax.scan(hold, first, (train["return"], valid))
    # Nothing ended: what the member was last known to reach, if it lives on.
    return jnp.where(valid.any(), curve.mean(), train["return"][-1])


area_under_curve = FitnessFn(_area_under_curve, False, "mean return over the lifetime")
"""Mean over segments of the training return; a segment in which no episode ended
holds the value before it."""


def last_segments(k: int) -> FitnessFn:
    """Mean training return of the episodes that ended in the last `k` segments."""

    def score(train, evaluation):
        del evaluation
        episodes, returns = train["episodes"][-k:], train["return"][-k:]
        total = episodes.sum()
        average = (returns * episodes).sum() / jnp.maximum(total, 1)
        # Nothing ended: what the member was last known to reach, if it lives on.
        return jnp.where(total > 0, average, train["return"][-1])

    name = "the last segment" if k == 1 else f"the last {k} segments"
    return FitnessFn(score, False, f"mean return of {name}")


def reached(search: Search, scores: np.ndarray) -> np.ndarray:
    """Return which tasks each member was trained on: [tasks, P] bool.

    Args:
        search: its hurdles stop members.
        scores: [tasks, S, P] fitness; of a task that was not reached, NaN.
    """
    scores = np.asarray(scores)
    found = np.ones((len(scores), scores.shape[-1]), bool)
    for task, least in enumerate(search.hurdles):
        with np.errstate(invalid="ignore"):
            found[task + 1 :] &= scores[task].mean(0) >= least
    return found


def with_hurdles(search: Search, evaluated: Evaluated) -> Evaluated:
    """Return an evaluation in which a stopped member is the worst where it was not.

    On each task and seed it gets the least finite fitness of those that were trained.
    Where nobody was, all members get the same.
    """
    if not search.hurdles:
        return evaluated
    scores = np.array(evaluated.fitness)
    healthy = np.array(evaluated.healthy)
    for task, there in enumerate(reached(search, scores)):
        if there.all():
            continue
        trained = np.where(there & np.isfinite(scores[task]), scores[task], np.inf)
        least = trained.min(1, keepdims=True)
        least = np.where(np.isfinite(least), least, 0.0)
        scores[task] = np.where(there, scores[task], least)
        healthy[task] |= ~there
    return evaluated._replace(fitness=scores, healthy=healthy)


def of_stopped(last: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return the fitness of members of which some were stopped early.

    A member that was stopped has its last score, or the least of whole lives with the
    same seed where that is lower. So it is never above a whole life.

    Args:
        last: [S, P] last score of each; NaN of those that failed.
        whole: [P] bool, whether it lived to the end.

    >>> of_stopped(np.array([[5.0, 7.0]]), np.array([True, False])).tolist()
    [[5.0, 5.0]]
    """
    least = np.where(whole & np.isfinite(last), last, np.inf).min(1, keepdims=True)
    return np.where(whole, last, np.minimum(last, least))


class Halving(NamedTuple):
    """Stop lives early: at some ages, the *rungs*, only the better ones go on.

    Successive halving (Jamieson and Talwalkar, 2016, https://arxiv.org/abs/1502.07943)
    and ASHA (Li et al., 2020, https://arxiv.org/abs/1810.05934). Median stopping
    (Golovin et al., 2017) is `factor=1, keep=0.5`: a rung at each age.

    Attributes:
        horizon: age of a whole life, at least 2.
        first: age at the first rung, in [1, horizon - 1].
        factor: each rung is at `factor` times the age of the one before, at least 2;
            1: a rung at each age.
        keep: share that goes on at a rung, in (0, 1]; None: 1 / factor.
        wait: False: a life is compared with those that came to the rung before it, and
            goes on at once (ASHA). True: at each rung all wait for the last one.
    """

    horizon: int
    first: int = 1
    factor: int = 3
    keep: float | None = None
    wait: bool = False

    @property
    def share(self) -> float:
        """The share that goes on at a rung."""
        return 1.0 / self.factor if self.keep is None else self.keep

    @property
    def ages(self) -> tuple[int, ...]:
        """The rungs, below `horizon`.

        >>> Halving(32, 2).ages, Halving(5, 2, 1, 0.5).ages
        ((2, 6, 18), (2, 3, 4))
        """
        found, age = [], self.first
        while age < self.horizon:
            found.append(age)
            age = age * self.factor if self.factor > 1 else age + 1
        return tuple(found)

    def kept(self, seen: int) -> int:
        """Return how many of the lives that were seen at a rung go on.

        >>> [Halving(9).kept(seen) for seen in (1, 3, 4)]
        [1, 1, 2]
        """
        return math.ceil(self.share * seen - 1e-9)  # .1 * 30 is above 3

    def stops(self, better: int, seen: int) -> bool:
        """Return True if a life is stopped.

        Args:
            better: lives with a higher score at this rung.
            seen: lives at this rung, it included.

        >>> [Halving(9).stops(better, 4) for better in range(4)]
        [False, False, True, True]
        """
        return better >= self.kept(seen)

    def check(self) -> None:
        """Check the fields.

        Raises:
            ConfigError: one is out of its range.
        """
        for name, least in (("horizon", 2), ("factor", 1), ("first", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"{name}={value!r}: expected a whole number, at least {least}"
                )
        if self.first >= self.horizon:
            raise ConfigError(
                f"first={self.first} must be below horizon={self.horizon}"
            )
        if self.keep is None and self.factor == 1:
            raise ConfigError(
                "factor=1 needs keep=..., the share that goes on at a rung"
            )
        if not isinstance(self.share, int | float) or not 0 < self.share <= 1:
            raise ConfigError(f"keep={self.keep} must be in (0, 1]")


def minus(fitness: FitnessFn) -> FitnessFn:
    """The negative of a fitness, for adversaries.

    >>> minus(final_return).name
    'minus final return'
    """

    def score(train, evaluation):
        return -fitness.score(train, evaluation)

    return FitnessFn(score, fitness.needs_evaluation, f"minus {fitness.name}")


def rank_sum(fitness: jax.Array) -> Fitness:
    """Sum over tasks of the rank of the mean over seeds: [tasks, S, P] -> [P].

    Scale-free, so tasks with unlike rewards weigh the same. Ties share their rank. A
    member that failed on any task is NaN.
    """
    per_task = fitness.mean(1)
    failed = ~jnp.isfinite(per_task)
    # Ranked last, where they do not move the others' ranks, and marked after.
    ranks = jax.vmap(jax.scipy.stats.rankdata)(jnp.where(failed, jnp.inf, per_task))
    return jnp.where(failed, jnp.nan, ranks).sum(0)


def normalized(
    low: Sequence[float], high: Sequence[float]
) -> Callable[[jax.Array], Fitness]:
    """Mean over tasks of (fitness − low) / (high − low), one bound per task.

    A task then weighs by how much better than the hand-made algorithm a member is, in
    units of what that gains over `low`.

    Args:
        low: fitness of a random policy on each task.
        high: fitness of the hand-made algorithm on each task.

    Returns:
        an `aggregate` for `Search`: [tasks, S, P] -> [P]. It raises ConfigError for
        another number of tasks.

    Raises:
        ConfigError: not as many lows as highs, or not low < high.
    """
    bottom, top = (np.asarray(x, np.float32) for x in (low, high))
    if bottom.shape != top.shape or bottom.ndim != 1 or not (bottom < top).all():
        raise ConfigError(
            f"normalized(low={low}, high={high}): expected low < high for each task"
        )

    def aggregate(fitness: jax.Array) -> Fitness:
        if len(fitness) != len(bottom):
            raise ConfigError(
                f"fitness.normalized has bounds of {len(bottom)} tasks, the search has "
                f"{len(fitness)}"
            )
        share = (fitness - bottom[:, None, None]) / (top - bottom)[:, None, None]
        return mean(share)

    return aggregate


def sanitize(
    fitness: Fitness | np.ndarray,
    mirrored: bool,
    not_scored: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Make fitness finite, failed members ranking strictly last.

    A member that was not scored has said nothing about itself: it gets the median of
    those that were.

    Args:
        fitness: [P]; NaN, +inf or -inf mark a member that failed or was not scored.
        mirrored: member i + P/2 is the mirror image of member i. If one of a pair
            failed or was not scored, both get the same value, so the pair pulls in no
            direction.
        not_scored: [P] bool, which of the members without finite fitness are healthy
            and had no episode that ended; None: none.

    Returns:
        finite fitness [P], and which members failed [P] bool. If none was scored, the
        fitness is 0, and -1 of members that failed beside others that did not.
    """
    fitness = np.asarray(fitness, np.float32)
    finite = np.isfinite(fitness)
    unknown = np.zeros_like(finite) if not_scored is None else not_scored & ~finite
    failed = ~finite & ~unknown
    if failed.all():
        return np.zeros_like(fitness), failed
    last, middle = failed, unknown
    if mirrored:
        half = len(fitness) // 2
        last, middle = last | np.roll(last, half), middle | np.roll(middle, half)
    # In double precision, where the largest spread of float32 is finite.
    known = fitness[finite].astype(np.float64) if finite.any() else np.zeros(1)
    lowest, spread = known.min(), max(known.max() - known.min(), 1.0)
    with np.errstate(over="ignore"):
        below = np.nextafter(np.float32(lowest), np.float32(-np.inf))
    worst = np.float32(max(min(lowest - spread, below), -np.finfo(np.float32).max))
    clean = np.where(middle, np.float32(np.median(known)), fitness)
    # Beside the least float32 there is none below: then the others move up by a bit.
    clean = np.maximum(clean, np.nextafter(worst, np.float32(np.inf)))
    return np.where(last, worst, clean), failed


def not_scored(evaluated: Evaluated) -> np.ndarray:
    """Find healthy members without a score because no episode of theirs ended.

    A member that misses its score for another reason too, such as a return that is not
    finite, has failed.

    Returns:
        [P] bool.
    """
    missing = ~np.isfinite(evaluated.fitness)
    ended = [(np.asarray(x["episodes"]) > 0).any(-1) for x in evaluated.train]
    waiting = missing & evaluated.healthy & ~np.stack(ended)
    for task, metrics in enumerate(evaluated.evaluation):
        for x in metrics.values():
            waiting[task] &= np.isfinite(np.asarray(x))
    otherwise = (missing & ~waiting).any((0, 1))
    return np.asarray(waiting.any((0, 1)) & ~otherwise)
