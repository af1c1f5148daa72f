"""Estimates of a candidate's scores and their intervals (Agarwal et al., 2021).

Scores are [N] for one task or [..., N, tasks], with N seeds. Estimates reduce the last
two axes, so that one bootstrap serves all. They are checked against the definitions in
"Deep RL at the Edge of the Statistical Precipice", https://arxiv.org/abs/2108.13264.
`differences` compares two candidates.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from metaevo import text

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
    # scipy.stats has it, and takes a second of every report to import.
    runs = _runs(scores)
    flat = runs.reshape(*runs.shape[:-2], -1)
    first = flat.shape[-1] // 4
    last = flat.shape[-1] - first
    return np.partition(flat, (first, last - 1), -1)[..., first:last].mean(-1)


def rank_correlation(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Return Spearman's correlation, and the chance of at least that one by noise.

    The chance is that of Student's t with n - 2 degrees of freedom, as scipy's.

    Args:
        first: [n] numbers, not all equal, n >= 3.
        second: [n] numbers, not all equal.
    """
    from scipy import special

    r = float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])
    freedom = len(first) - 2
    with np.errstate(divide="ignore"):
        t = r * np.sqrt(freedom / np.float64((1 + r) * (1 - r)).clip(0))
    return r, float(special.stdtr(freedom, -t))


def rank_agreement(scores: np.ndarray) -> float | None:
    """Return the mean of Spearman's correlations between rows.

    Args:
        scores: [S, n] finite numbers.

    Returns:
        None for fewer than three columns, or two rows whose numbers differ.

    >>> rank_agreement(np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 9.0], [5.0, 5.0, 5.0]]))
    1.0
    """
    ranks = np.array([_ranks(x) for x in scores if np.ptp(x)])
    if len(ranks) < 2 or ranks.shape[1] < 3:
        return None
    both = np.corrcoef(ranks)[np.triu_indices(len(ranks), 1)]
    return float(both.mean())


def _ranks(x: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal numbers share the mean of theirs."""
    _, where, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[where]


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
    """A point estimate with its confidence interval.

    Attributes:
        estimate: point estimate, in the units of the scores.
        low: lower end of the interval.
        high: upper end of the interval.
        num_equal: number of scores if all of them are equal, else 0. The width of an
            IQM is then 0 and covers only what was seen: up to 1 - 0.05^(1/N) of all
            runs may differ. For N >= 11 that is less than a quarter, which it leaves
            out.
    """

    estimate: float
    low: float
    high: float
    num_equal: int = 0

    @property
    def text(self) -> str:
        """Estimate and interval as text, or that all scores are equal."""
        if self.num_equal:
            return f"{self.estimate:.6g} [all {self.num_equal} scores are equal]"
        return text.with_interval(self.estimate, self.low, self.high)


class Few(NamedTuple):
    """Scores of which there are too few for an interval of their IQM.

    Attributes:
        scores: all of them.
    """

    scores: tuple[float, ...]

    @property
    def text(self) -> str:
        """Their mean, and each.

        >>> Few((1.0, 2.5)).text
        '1.75 [1, 2.5]'
        """
        each = ", ".join(f"{x:.4g}" for x in sorted(self.scores))
        return f"{np.mean(self.scores):.6g} [{each}]"


MIN_SEEDS = 8
"""Seeds from which the interval of an IQM covers; of 3 it holds 58 to 77 %."""


# --- intervals of a mean --------------------------------------------------------------

MAX_EXCEPTIONS = 4
"""Runs at most that differ from all others where a side is at one value."""

SKEWED = 1 / 32
"""Skewness, over the number of pairs, from which Student's interval is widened."""

BEYOND = 1.5
"""Distance of an unseen pair from the mean, over that of the worst that was seen.
`benchmarks.intervals` has measured these three numbers."""

NUM_WEIGHTS = 4_000


def saturated(scores: np.ndarray) -> bool:
    """Return True if all but at most 4 scores, and a quarter of them, are equal.

    Args:
        scores: [N], finite.

    >>> saturated(np.array([500.0] * 15 + [20.0])), saturated(np.arange(8.0))
    (True, False)
    """
    most = np.unique(scores, return_counts=True)[1].max()
    return bool(len(scores) - most <= min(MAX_EXCEPTIONS, len(scores) // 4))


def of_mean(
    x: np.ndarray, unseen: tuple[float, float] | None, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Return an interval of a mean, and the p-value of a mean of 0.

    It is Student's, with two exceptions. Where rare entries decide, the sample may have
    missed them, and the interval holds for one more entry that nobody saw
    (Learned-Miller and Thomas, 2019, https://arxiv.org/abs/1905.06208). Where the
    sample is skewed, such an entry is half as far again from the mean as the worst that
    was seen, and the wider of both intervals counts at each end.

    Args:
        x: [N], N >= 2, not all equal unless `unseen` is given.
        unseen: least and greatest value of the entry that nobody saw; None: no rare
            entries decide.
        confidence: level of the two-sided interval, in (0, 1).
    """
    if unseen is not None:
        return _with_unseen(x, *unseen, confidence)
    low, high, p = _student(x, confidence)
    if abs(_skewness(x)) > SKEWED * len(x):
        middle = x.mean()
        least, greatest = (middle + BEYOND * (y - middle) for y in (x.min(), x.max()))
        skewed = _with_unseen(x, least, greatest, confidence)
        low, high = min(low, skewed[0]), max(high, skewed[1])
        p = max(p, skewed[2])
    return low, high, p


def mean_interval(scores: np.ndarray, confidence: float = 0.95) -> Interval:
    """Return the mean of scores with its interval, see `of_mean`.

    An entry that nobody saw lies among the scores and 0. An end is cut at the least or
    greatest score if three runs or more share it, because such a score is a bound of
    the returns.

    Args:
        scores: [N] finite scores, N >= 2.
        confidence: level of the two-sided interval, in (0, 1).
    """
    scores = np.asarray(scores, np.float64)
    ends = float(min(scores.min(), 0.0)), float(max(scores.max(), 0.0))
    unseen = ends if saturated(scores) else None
    low, high, _ = of_mean(scores, unseen, confidence)
    if unseen is None:
        least, greatest = _bounds(scores)
        low, high = max(low, least), min(high, greatest)
    equal = scores.size if np.ptp(scores) == 0 else 0
    return Interval(float(scores.mean()), float(low), float(high), equal)


def _student(x: np.ndarray, confidence: float) -> tuple[float, float, float]:
    """Return Student's interval of a mean, and the p-value of a mean of 0."""
    from scipy import special

    error = x.std(ddof=1) / math.sqrt(len(x))
    half = student(len(x) - 1, confidence) * error
    p = 2 * special.stdtr(len(x) - 1, -abs(x.mean()) / error)
    return x.mean() - half, x.mean() + half, p


def _with_unseen(
    x: np.ndarray, least: float, greatest: float, confidence: float
) -> tuple[float, float, float]:
    """Return an interval of a mean for one more entry that nobody saw.

    Entries get random weights that are uniform on the simplex. The unseen one is
    `least` for the lower end of the interval, and `greatest` for the upper end.

    Returns:
        both ends, and the p-value of a mean of 0, at least 2 / (NUM_WEIGHTS + 1).
    """
    weights = _weights(len(x) + 1)
    seen = weights[:, :-1] @ x
    lower, upper = (seen + weights[:, -1] * end for end in (least, greatest))
    tail = (1 - confidence) / 2
    p = (1 + min((lower <= 0).sum(), (upper >= 0).sum())) / (1 + NUM_WEIGHTS)
    return np.quantile(lower, tail), np.quantile(upper, 1 - tail), min(1.0, 2 * p)


@functools.lru_cache(8)
def _weights(num: int) -> np.ndarray:
    """Weights that are uniform on the simplex, [NUM_WEIGHTS, num]; always the same."""
    drawn = np.random.default_rng(0).standard_exponential((NUM_WEIGHTS, num))
    return drawn / drawn.sum(1, keepdims=True)


def _skewness(x: np.ndarray) -> float:
    centred = x - x.mean()
    return float((centred**3).mean() / (centred**2).mean() ** 1.5)


def student(freedom: float, confidence: float) -> float:
    """Return the quantile of Student's t for a two-sided interval."""
    from scipy import special

    return -float(special.stdtrit(freedom, (1 - confidence) / 2))


# --- intervals of other estimates -----------------------------------------------------


def bootstrap(
    scores: np.ndarray,
    estimate: Callable[[np.ndarray], np.ndarray] = iqm,
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Return a stratified bootstrap interval of an estimate, by expanded percentiles.

    Seeds are resampled within each task. The ends are quantiles of the resamples'
    estimates, so they stay within the range of the scores. Plain percentiles are too
    narrow for few seeds; the quantiles lie further out, by as much as Student's
    interval of a mean is wider than its percentiles (Hesterberg, 2015, section 5.3,
    https://doi.org/10.1080/00031305.2015.1089789). The cost is linear in N.

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
    rng = np.random.default_rng(seed)

    def resamples(num: int) -> np.ndarray:
        chosen = rng.integers(len(runs), size=(num, *runs.shape))
        return estimate(np.take_along_axis(runs[None], chosen, 1))

    point = float(estimate(runs))
    low, high = _percentiles(
        resamples, len(runs), runs.shape[1], confidence, num_resamples
    )
    return Interval(point, low, high, runs.size if np.ptp(runs) == 0 else 0)


def grouped(
    scores: np.ndarray, confidence: float = 0.95, seed: int = 0
) -> Interval | None:
    """Return the mean over searches of each one's IQM, with its interval.

    The interval holds for other seeds and other searches. The square of its half-width
    is the sum of two squares (Zou and Donner, 2008, https://doi.org/10.1002/sim.3095):
    that over seeds, by percentiles as in `bootstrap`, and Student's over searches.
    Searches share their seeds, so a resample takes a seed of all searches at once. An
    end is cut at the least or greatest score if three runs or more share it exactly,
    because such a score is a bound of the returns.

    Args:
        scores: [searches, N] on the same seeds; not finite where a run failed. Searches
            of which every run failed are left out, then seeds on which any run failed.
        confidence: level of the two-sided interval, in (0, 1).
        seed: seed of the resampling.

    Returns:
        the interval, over seeds alone if there is one search; None if fewer than
        `MIN_SEEDS` seeds are left.
    """
    scores = np.asarray(scores, np.float64)
    scores = scores[np.isfinite(scores).any(1)]
    scores = scores[:, np.isfinite(scores).all(0)]
    searches, n = scores.shape
    if searches == 0 or n < MIN_SEEDS:
        return None
    rng = np.random.default_rng(seed)

    def resamples(num: int) -> np.ndarray:
        chosen = scores[:, rng.integers(n, size=(num, n))]
        return iqm(chosen[..., None]).mean(0)

    each = iqm(scores[..., None])
    point = float(each.mean())
    low, high = _percentiles(resamples, n, searches, confidence)
    if searches > 1:
        t = student(searches - 1, confidence)
        over_searches = t * each.std(ddof=1) / np.sqrt(searches)
        least, greatest = _bounds(scores)
        low = max(point - np.hypot(max(point - low, 0.0), over_searches), least)
        high = min(point + np.hypot(max(high - point, 0.0), over_searches), greatest)
    equal = scores.size if np.ptp(scores) == 0 else 0
    return Interval(point, float(low), float(high), equal)


def _percentiles(
    resamples: Callable[[int], np.ndarray],
    n: int,
    columns: int,
    confidence: float,
    num_resamples: int = 2000,
) -> tuple[float, float]:
    """Return the expanded percentiles of resamples' estimates.

    Args:
        resamples: number -> that many estimates.
        n: number of seeds.
        columns: number of scores of a seed.
    """
    from scipy import special

    tail = special.ndtr(-student(n - 1, confidence) * np.sqrt(n / (n - 1)))
    # In parts, so that memory does not grow with N.
    part = min(num_resamples, max(1, 4_000_000 // (n * columns)))
    parts = range(0, num_resamples, part)
    estimates = [resamples(min(part, num_resamples - i)) for i in parts]
    low, high = np.quantile(np.concatenate(estimates), [tail, 1 - tail])
    return float(low), float(high)


def _bounds(scores: np.ndarray) -> tuple[float, float]:
    """Return bounds of the scores, infinite where there is no sign of one."""
    least, greatest = scores.min(), scores.max()
    return (
        least if (scores == least).sum() >= 3 else -np.inf,
        greatest if (scores == greatest).sum() >= 3 else np.inf,
    )
