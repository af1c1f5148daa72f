"""Statistics of runs and comparisons (Agarwal et al., 2021).

Scores are [N] for one task or [..., N, tasks], with N seeds. Estimates reduce the last
two axes, so that one bootstrap serves all. They are checked against the definitions in
"Deep RL at the Edge of the Statistical Precipice", https://arxiv.org/abs/2108.13264.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = [
    "Interval",
    "Paired",
    "bootstrap",
    "iqm",
    "mean",
    "median",
    "optimality_gap",
    "paired_difference",
    "performance_profile",
    "probability_of_improvement",
]


# --- point estimates: [N] or [..., N, tasks] -> [...] ---------------------------------


def mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean over all runs of all tasks."""
    return _runs(scores).mean((-2, -1))


def median(scores: np.ndarray) -> np.ndarray:
    """Return the median over tasks of the mean over seeds.

    With a single task it is the median over seeds.
    """
    runs = _runs(scores)
    if runs.shape[-1] == 1:
        return np.median(runs[..., 0], -1)
    return np.median(runs.mean(-2), -1)


def iqm(scores: np.ndarray) -> np.ndarray:
    """Return the interquartile mean: the mean of the middle half of all runs.

    >>> float(iqm(np.array([0.0, 1.0, 3.0, 100.0])))
    2.0
    """
    from scipy import stats  # slow to import, and unused by most commands

    runs = _runs(scores)
    return stats.trim_mean(runs.reshape(*runs.shape[:-2], -1), 0.25, axis=-1)


def optimality_gap(scores: np.ndarray, optimum: float = 1.0) -> np.ndarray:
    """Return the mean shortfall from `optimum`; scores above it count as no shortfall.

    >>> float(optimality_gap(np.array([0.5, 2.0])))
    0.25
    """
    return optimum - mean(np.minimum(scores, optimum))


def probability_of_improvement(a: np.ndarray, b: np.ndarray) -> float:
    """Return P(A > B) + ½ P(A = B) for a run of each on a task, mean over tasks.

    Args:
        a: [N] or [N, tasks] scores.
        b: [M] or [M, tasks] scores.

    >>> probability_of_improvement(np.array([1.0, 3.0]), np.array([2.0, 3.0]))
    0.375
    """
    a, b = _runs(a), _runs(b)
    return float((np.sign(a[:, None] - b[None]) / 2 + 0.5).mean())


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return the fraction of runs above each threshold.

    >>> performance_profile(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.5])).tolist()
    [0.5]
    """
    return (np.ravel(scores)[:, None] > np.asarray(thresholds)[None]).mean(0)


def _runs(scores: np.ndarray) -> np.ndarray:
    scores = np.asarray(scores, np.float64)
    return scores[:, None] if scores.ndim == 1 else scores


# --- intervals ------------------------------------------------------------------------


class Interval(NamedTuple):
    """A point estimate with its confidence interval."""

    estimate: float
    low: float
    high: float


def bootstrap(
    scores: np.ndarray,
    estimate: Callable[[np.ndarray], np.ndarray] = iqm,
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Return a stratified, studentized bootstrap interval of an estimate.

    Seeds are resampled within each task. The deviation of a resample is divided by the
    resample's own standard error, from the jackknife over seeds. For few seeds this
    covers better than percentiles do (Efron and Tibshirani, 1993, section 12.5).

    Args:
        scores: [N] or [N, tasks], N >= 3.
        estimate: [..., N, tasks] -> [...], such as `iqm` or `mean`.
        confidence: level of the two-sided interval, in (0, 1).
        num_resamples: number of resamples.
        seed: seed of the resampling.

    Raises:
        ValueError: fewer than three seeds, or a score that is not finite.
    """
    runs = _runs(scores)
    if len(runs) < 3 or not np.isfinite(runs).all():
        raise ValueError("an interval needs at least 3 seeds, all of them finite")
    point, error = float(estimate(runs)), float(_jackknife_error(runs, estimate))
    if error == 0:
        return Interval(point, point, point)
    rng = np.random.default_rng(seed)
    chosen = rng.integers(len(runs), size=(num_resamples, *runs.shape))
    resamples = np.take_along_axis(runs[None], chosen, 1)
    errors = _jackknife_error(resamples, estimate)
    kept = errors > 1e-9 * error
    deviations = (estimate(resamples[kept]) - point) / errors[kept]
    low, high = np.quantile(deviations, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(point, float(point - high * error), float(point - low * error))


def _jackknife_error(runs: np.ndarray, estimate: Callable) -> np.ndarray:
    """Return the standard error of `estimate` by the jackknife over seeds.

    Args:
        runs: [..., N, tasks].
    """
    n = runs.shape[-2]
    left_out = [estimate(np.delete(runs, i, axis=-2)) for i in range(n)]
    return np.sqrt((n - 1) * np.var(left_out, axis=0))


class Paired(NamedTuple):
    """Mean paired difference a - b with its confidence interval.

    Attributes:
        difference: mean over the pairs of finite scores, in the units of the scores.
        low: lower end of the interval.
        high: upper end of the interval.
        num_pairs: number of pairs of finite scores.
        num_failed: numbers of scores of a, and of b, that are not finite.
    """

    difference: float
    low: float
    high: float
    num_pairs: int
    num_failed: tuple[int, int]

    @property
    def verdict(self) -> str:
        """Verdict on a against b: `better`, `worse` or `no difference`.

        The one that failed on more seeds is never better.
        """
        failed_more = self.num_failed[0] - self.num_failed[1]
        if self.low > 0 and failed_more <= 0:
            return "better"
        return "worse" if self.high < 0 and failed_more >= 0 else "no difference"

    @property
    def words(self) -> str:
        """The verdict as words that stand before the name of b."""
        return {
            "better": "better than",
            "worse": "worse than",
            "no difference": "not distinguishable from",
        }[self.verdict]


def paired_difference(a: np.ndarray, b: np.ndarray, confidence: float = 0.95) -> Paired:
    """Return Student's interval of the mean of a - b, paired by position.

    Args:
        a: [N] scores; not finite where the run failed.
        b: [N] scores on the same seeds; likewise.
        confidence: level of the two-sided interval, in (0, 1). The interval is infinite
            if fewer than two pairs are finite.
    """
    from scipy import stats

    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    failed = int((~np.isfinite(a)).sum()), int((~np.isfinite(b)).sum())
    finite = (a - b)[np.isfinite(a) & np.isfinite(b)]
    if len(finite) < 2:
        return Paired(float("nan"), -np.inf, np.inf, len(finite), failed)
    average = float(finite.mean())
    if np.ptp(finite) == 0:
        low = high = average
    else:
        low, high = stats.ttest_1samp(finite, 0.0).confidence_interval(confidence)
    return Paired(average, float(low), float(high), len(finite), failed)
