"""Statistics of runs and comparisons (Agarwal et al., 2021).

Scores are [N] for one task or [..., N, tasks]: N seeds. Estimates reduce the last two
axes, so that one bootstrap serves all. Cross-checked against the definitions in
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
    """Mean over all runs of all tasks."""
    return _runs(scores).mean((-2, -1))


def median(scores: np.ndarray) -> np.ndarray:
    """Median over tasks of the mean over seeds; over seeds if there is one task."""
    runs = _runs(scores)
    if runs.shape[-1] == 1:
        return np.median(runs[..., 0], -1)
    return np.median(runs.mean(-2), -1)


def iqm(scores: np.ndarray) -> np.ndarray:
    """Interquartile mean: mean of the middle half of all runs of all tasks."""
    from scipy import stats  # slow to import, and a wrong argument needs none of it

    runs = _runs(scores)
    return stats.trim_mean(runs.reshape(*runs.shape[:-2], -1), 0.25, axis=-1)


def optimality_gap(scores: np.ndarray, optimum: float = 1.0) -> np.ndarray:
    """Mean of how far runs fall short of `optimum`; what lies above counts as 0."""
    return optimum - mean(np.minimum(scores, optimum))


def probability_of_improvement(a: np.ndarray, b: np.ndarray) -> float:
    """P(A > B) + ½ P(A = B) for a run of each on the same task, mean over tasks.

    Args:
        a, b: [N] and [M], or [N, tasks] and [M, tasks].
    """
    a, b = _runs(a), _runs(b)
    return float((np.sign(a[:, None] - b[None]) / 2 + 0.5).mean())


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Fraction of runs above each threshold, [len(thresholds)]."""
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
    """Stratified, studentized bootstrap interval of an estimate.

    Seeds are resampled within each task. A resample's deviation is measured in its own
    standard error, by the jackknife over seeds, which for few seeds covers better than
    percentiles do (Efron and Tibshirani, 1993, section 12.5).

    Args:
        scores: [N] or [N, tasks].
        estimate: [..., N, tasks] -> [...], such as `iqm` or `mean`.
        confidence: of the two-sided interval.

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
    """Standard error of `estimate` from leaving out one seed: [..., N, T] -> [...]."""
    n = runs.shape[-2]
    left_out = [estimate(np.delete(runs, i, axis=-2)) for i in range(n)]
    return np.sqrt((n - 1) * np.var(left_out, axis=0))


class Paired(NamedTuple):
    """Mean paired difference a - b with its confidence interval.

    Attributes:
        difference, low, high: in the units of the scores, of the pairs that are finite.
        num_pairs: how many those are.
        num_failed: how often a, and b, failed.
    """

    difference: float
    low: float
    high: float
    num_pairs: int
    num_failed: tuple[int, int]

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `no difference`: of a against b.

        Whoever failed more often is not better, whatever the seeds on which it did not.
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
    """Student's interval of the mean of a - b, paired by position.

    Args:
        a, b: [N] scores on the same seeds; not finite where the run failed.
        confidence: of the two-sided interval, which is infinite if fewer than two
            pairs are finite.
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
