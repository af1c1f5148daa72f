"""Fitness of a training run, aggregation over runs, and treatment of failed runs.

Only episodes that ended count. A run without a single ended episode has no return: it
scores NaN and ranks last, never 0. A member that lives on and ends none in a generation
keeps its last return.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.types import Fitness, FitnessFn, mean

__all__ = [
    "area_under_curve",
    "final_return",
    "last_segments",
    "mean",
    "normalized",
    "rank_sum",
    "sanitize",
]


def _final_return(train, evaluation):
    del train
    return evaluation["return"]


final_return = FitnessFn(_final_return, True, "final return")
"""Mean return of the deterministic policy after training, on fresh episodes."""


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


def normalized(low: list[float], high: list[float]):
    """Mean over tasks of (return − low) / (high − low), one bound per task.

    Args:
        low: return of a random policy.
        high: return of the reference algorithm.

    Returns:
        an `aggregate` for `Search`: [tasks, S, P] -> [P].
    """
    bottom, top = (jnp.asarray(x, jnp.float32)[:, None, None] for x in (low, high))
    return lambda fitness: mean((fitness - bottom) / (top - bottom))


def sanitize(
    fitness: Fitness | np.ndarray, mirrored: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Make fitness finite, failed members ranking strictly last.

    Args:
        fitness: [P]; NaN, +inf or -inf mark a failed member.
        mirrored: member i + P/2 is the mirror image of member i. If one of a pair
            failed, both get the same value, so the pair pulls in no direction.

    Returns:
        finite fitness [P], and which members failed [P] bool. If all failed the
        fitness is all zero.
    """
    fitness = np.asarray(fitness, np.float32)
    failed = ~np.isfinite(fitness)
    if failed.all():
        return np.zeros_like(fitness), failed
    last = failed.copy()
    if mirrored:
        half = len(fitness) // 2
        last |= np.roll(failed, half)
    finite = fitness[~failed]
    spread = max(float(finite.max() - finite.min()), 1.0)
    worst = min(
        np.float32(finite.min() - spread),
        np.nextafter(finite.min(), np.float32(-np.inf)),
    )
    return np.where(last, worst, fitness), failed
