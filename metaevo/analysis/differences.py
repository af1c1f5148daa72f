"""Differences between two candidates on the same seeds, and verdicts on them.

Verdicts are on plain means, by `stats.of_mean`: two or three searches are too few to be
resampled. `benchmarks.intervals` measures how often verdicts are false.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from metaevo import text
from metaevo.analysis import stats

LEVEL = 0.05
"""Level of a verdict."""

RESOLUTION = 64 * float(np.finfo(np.float32).eps)
"""Differences up to this share of the scores are rounding. Errors of float32 add up
over a training run, so it is a few ulps for each of many operations."""


class Paired(NamedTuple):
    """Mean paired difference a - b with its 95 % interval.

    Attributes:
        difference: mean over the pairs of finite scores, in the units of the scores.
        low: lower end of the interval.
        high: upper end of the interval.
        p_value: two-sided.
        num_pairs: number of seeds on which both sides have a finite score.
        num_failed: numbers of runs of a, and of b, whose score is not finite.
        num_runs: numbers of runs of a, and of b.
        num_searches: numbers of searches of a, and of b, that the interval lets vary; 0
            for a side that is no search. (0, 0) if it is about these results on other
            seeds, and not about searching.
        resolution: differences up to this size are rounding.
        each: numbers of searches of a that are better, and worse, than a rival that
            was not searched for, each by itself on the seeds, and of all; None for one
            search, or against a rival that was searched for.
        num_verdicts: number of verdicts that are read together; see `holm`.
        p_corrected: p-value corrected for their number; None: not corrected.
    """

    difference: float
    low: float
    high: float
    p_value: float
    num_pairs: int
    num_failed: tuple[int, int]
    num_runs: tuple[int, int]
    num_searches: tuple[int, int] = (0, 0)
    resolution: float = 0.0
    each: tuple[int, int, int] | None = None
    num_verdicts: int = 1
    p_corrected: float | None = None

    @property
    def verdict(self) -> str:
        """Verdict on a against b.

        Returns:
            `fails` if all runs of a failed, or a greater share than of b;
            `rival fails` if a smaller share did and a is not better besides;
            otherwise `verdict_where_trained`.
        """
        failed = [x / n for x, n in zip(self.num_failed, self.num_runs, strict=True)]
        if failed[0] == 1 or failed[0] > failed[1]:
            return "fails"
        if failed[1] > failed[0] and self.verdict_where_trained != "better":
            return "rival fails"
        return self.verdict_where_trained

    @property
    def verdict_where_trained(self) -> str:
        """Verdict on the runs that did not fail.

        Returns:
            `equal` if the whole interval is rounding; `better` or `worse` if the
            corrected p-value is at most 0.05; otherwise `no difference`.
        """
        if max(abs(self.low), abs(self.high)) <= self.resolution:
            return "equal"
        p = self.p_value if self.p_corrected is None else self.p_corrected
        if p > LEVEL or abs(self.difference) <= self.resolution:
            return "no difference"
        return "better" if self.difference > 0 else "worse"

    @property
    def about_results(self) -> bool:
        """True if the interval is about these results, and not about searching."""
        return self.num_searches == (0, 0)

    @property
    def text(self) -> str:
        """Difference and interval as text; words if there are no two pairs."""
        if self.num_pairs < 2:
            return "not compared"
        return text.with_interval(self.difference, self.low, self.high, "+")

    @property
    def each_text(self) -> str:
        """Count the searches that are better by themselves; empty without `each`.

        >>> Paired(3, 1, 5, 0, 9, (0, 0), (27, 9), each=(2, 0, 3)).each_text
        '; better in 2 of 3 searches, each by itself'
        """
        if self.each is None:
            return ""
        better, worse, searches = self.each
        also = f", worse in {worse}" if worse else ""
        return f"; better in {better} of {searches} searches, each by itself{also}"


def clause(paired: Paired, a: str, b: str) -> str:
    """Return the verdict as a clause.

    >>> one = Paired(3.1, 1.2, 5.0, 0.002, 32, (0, 0), (32, 32))
    >>> clause(one, "the solution", "the hand-made one")
    'the solution is better than the hand-made one'
    >>> clause(one._replace(num_failed=(29, 0), num_pairs=1), "it", "the other")
    'it fails on 29 of 32 seeds, the other on 0'
    """
    compared = f"{a} is {comparison(paired, b)}"
    failing = failure(paired, a, b)
    if failing and paired.num_pairs > 1:
        return f"{failing}; where both train, {compared}"
    return failing or compared


def comparison(paired: Paired, b: str) -> str:
    """Return the verdict on the runs that did not fail as a predicate."""
    words = {
        "better": "better than",
        "worse": "worse than",
        "equal": "equal, up to rounding, to",
        "no difference": "not distinguishable from",
    }[paired.verdict_where_trained]
    overturned = paired.p_value <= LEVEL < (paired.p_corrected or 0)
    after = f" after Holm's correction for {paired.num_verdicts} verdicts" * overturned
    return f"{words} {b}{after}"


def failure(paired: Paired, a: str, b: str) -> str:
    """Return a clause on the side that fails more; empty if failing does not decide."""
    sides = list(zip((a, b), paired.num_failed, paired.num_runs, strict=True))
    if paired.verdict == "rival fails":
        sides.reverse()
    elif paired.verdict != "fails":
        return ""
    (one, failed, runs), (other, others_failed, others_runs) = sides
    if paired.about_results and runs == others_runs:
        return f"{one} fails on {failed} of {runs} seeds, {other} on {others_failed}"
    return (
        f"{one} fails in {failed} of {runs} runs, "
        f"{other} in {others_failed} of {others_runs}"
    )


def paired_difference(a: np.ndarray, b: np.ndarray, confidence: float = 0.95) -> Paired:
    """Return an interval of the mean of a - b, paired by position.

    It is that of `stats.of_mean`. Where one side has nearly all its scores at one value
    and the other side has not, runs that differ are rare, and the seeds may have missed
    them: it holds for one pair that nobody saw. In that the side that is at one value
    falls by as much as the scores, or they and 0, lie apart, or is as good as any that
    was seen. So it does where all differences are equal and tell nothing of their
    spread. Where the scores vary and all differences are rounding, the interval is too.

    Args:
        a: [N] scores; not finite where the run failed.
        b: [N] scores on the same seeds; likewise.
        confidence: level of the two-sided interval, in (0, 1). The interval is infinite
            if fewer than two pairs are finite.
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    failed = int((~np.isfinite(a)).sum()), int((~np.isfinite(b)).sum())
    kept = np.isfinite(a) & np.isfinite(b)
    pairs = np.stack([a[kept], b[kept]])
    num = pairs.shape[1]
    runs = a.size, b.size
    if num < 2:
        return Paired(np.nan, -np.inf, np.inf, 1.0, num, failed, runs)
    resolution = RESOLUTION * float(np.abs(pairs).max())
    differences = pairs[0] - pairs[1]
    average = float(differences.mean())
    if np.abs(differences).max() <= resolution < np.ptp(pairs):
        low, high, p = average, average, 1.0
    else:
        alike = bool(np.ptp(differences) <= resolution)
        if np.ptp(pairs) == 0:
            resolution = -1.0  # one value everywhere proves nothing equal
        unseen = _unseen(pairs[0], pairs[1], alike)
        low, high, p = stats.of_mean(differences, unseen, confidence)
    return Paired(
        average, float(low), float(high), float(p), num, failed, runs,
        resolution=resolution,
    )  # fmt: skip


def unpaired_difference(a: np.ndarray, b: np.ndarray) -> Paired:
    """Return an interval of the difference of two means, each over seeds of its own.

    It joins the sides' own 95 % intervals, `stats.mean_interval`, so it covers where
    they do (Zou and Donner, 2008, https://doi.org/10.1002/sim.3095). Its p-value says
    only whether it holds 0.

    Args:
        a, b: scores; not finite where the run failed. The interval is infinite if a
            side has fewer than three that are finite.
    """
    sides = [np.asarray(x, np.float64) for x in (a, b)]
    failed = [int((~np.isfinite(x)).sum()) for x in sides]
    runs = [x.size for x in sides]
    finite = [x[np.isfinite(x)] for x in sides]
    num = min(x.size for x in finite)
    counts = num, (failed[0], failed[1]), (runs[0], runs[1])
    if num < 3:
        return Paired(np.nan, -np.inf, np.inf, 1.0, *counts)
    mine, theirs = map(stats.mean_interval, finite)
    value = mine.estimate - theirs.estimate
    low = value - math.hypot(mine.estimate - mine.low, theirs.high - theirs.estimate)
    high = value + math.hypot(mine.high - mine.estimate, theirs.estimate - theirs.low)
    p = 1.0 if low <= 0 <= high else LEVEL
    return Paired(value, low, high, p, *counts)


def _unseen(a: np.ndarray, b: np.ndarray, alike: bool) -> tuple[float, float] | None:
    """Return the least and greatest difference of a pair that nobody saw.

    Two sides that are at the same value differ in few pairs, of which Student's
    interval claims too little rather than too much.

    Args:
        a, b: [N] finite scores.
        alike: whether all differences are equal, so that any may be otherwise.

    Returns:
        None if rare runs do not decide.
    """
    at_one_value = np.array([stats.saturated(x) for x in (a, b)])
    rare = at_one_value | alike
    same = not alike and bool(rare.all()) and np.median(a) == np.median(b)
    if not rare.any() or same:
        return None
    scores = np.concatenate([a, b])
    size = np.abs(scores).max() if at_one_value.any() else 0.0
    fall = float(max(np.ptp(scores), size))
    least = min((a - b).min(), -fall * rare[0], (a.min() - scores.max()) * rare[1])
    greatest = max((a - b).max(), fall * rare[1], (scores.max() - b.min()) * rare[0])
    return float(least), float(greatest)


def interval_of_equals(
    value: float, reach: float, num: int, confidence: float
) -> tuple[float, float]:
    """Return an interval of the mean from N differences that are all equal.

    At most a share q = 1 - ((1 - confidence) / 2)^(1/N) of all runs differ otherwise
    (exact binomial), and these by no more than the scores do.

    Args:
        value: each of the differences.
        reach: greatest less least of all scores of both sides.
        num: N.
        confidence: level of the two-sided interval, in (0, 1).

    Returns:
        (1 - q) value - q reach, and (1 - q) value + q reach.
    """
    share = 1 - ((1 - confidence) / 2) ** (1 / num)
    return (1 - share) * value - share * reach, (1 - share) * value + share * reach


def crossed_difference(
    a: np.ndarray,
    b: np.ndarray,
    searched: tuple[bool, bool],
    confidence: float = 0.95,
) -> Paired:
    """Return the mean difference of two groups' results, for other searches and seeds.

    The result of search i of a group on seed s is modelled as group + search(i) +
    seed(s) + group x seed + search x seed. Both groups share the seeds, so seed(s)
    cancels. The square of the half-width adds

    * t² V, V the variance of the mean over searches (each search's mean over seeds),
      summed over both groups, with the degrees of freedom of Welch and Satterthwaite,
      or where the numbers of searches differ with those of the smaller one;
    * t² W, W the variance of the mean over seeds (the mean over searches of each),
      less that of search x seed, which V holds already

    and is at least the greater of t² V and t² W (W in full). Each has its own t: sums
    of squared half-widths (Zou and Donner, 2008, https://doi.org/10.1002/sim.3095) keep
    their level with two or three searches, where one t for the sum of variances does
    not.

    Against a rival that was not searched for the interval is over seeds alone, of the
    mean over the searches, and about these results: the searches that succeeded say
    nothing of a share that fails, and a rival that has none does not share it. How many
    searches are better, each by itself, is counted instead.

    Args:
        a: [searches, N] scores; not finite where the run failed. A search of which
            every run failed counts as failed only.
        b: [searches, N] scores on the same seeds.
        searched: whether a, and b, were searched for. If a side that was has a single
            search, the interval is over seeds alone, and about these results.
        confidence: level of the two-sided interval, in (0, 1).
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    counts = {
        "num_failed": (int((~np.isfinite(a)).sum()), int((~np.isfinite(b)).sum())),
        "num_runs": (a.size, b.size),
    }
    a, b = (x[np.isfinite(x).any(1)] for x in (a, b))
    means = _mean(a, 0), _mean(b, 0)
    over_seeds = paired_difference(*means, confidence)._replace(**counts)
    if not all(searched):
        if searched[0] and len(a) > 1:
            words = [paired_difference(x, means[1], confidence).verdict for x in a]
            each = words.count("better"), words.count("worse"), len(words)
            return over_seeds._replace(each=each)
        return over_seeds
    sides = [a - means[1], means[0] - b]
    sides = [x[np.isfinite(x).any(1)] for x in sides]
    everything = np.concatenate([x[np.isfinite(x)] for x in sides])
    if (
        over_seeds.num_pairs < 2
        or any(len(x) < 2 for x in sides)
        or np.ptp(everything) <= over_seeds.resolution
    ):
        return over_seeds
    num = over_seeds.num_pairs
    variances = np.array([_mean(x, 1).var(ddof=1) / len(x) for x in sides])
    freedom = np.array([len(x) - 1 for x in sides])
    total = variances.sum()
    welch = total**2 / (variances**2 / freedom).sum() if total > 0 else 1.0
    welch = min(freedom) if np.ptp(freedom) else welch
    seeds = float(np.nanvar(means[0] - means[1], ddof=1) / num)
    beyond = seeds - sum(_interaction(x) / x.size for x in sides)

    def half_width(confidence: float) -> float:
        t, t_seeds = (stats.student(x, confidence) for x in (welch, num - 1))
        return math.sqrt(
            max(
                t**2 * total + t_seeds**2 * max(beyond, 0.0),
                t_seeds**2 * seeds,
            )
        )

    average = float(_mean(sides[0], 1).mean())
    half = half_width(confidence)
    return over_seeds._replace(
        difference=average,
        low=average - half,
        high=average + half,
        p_value=_p_value(half_width, abs(average)),
        num_searches=(len(sides[0]), len(sides[1])),
    )


def _mean(x: np.ndarray, axis: int) -> np.ndarray:
    """Return the mean of the finite entries along an axis; NaN if there are none."""
    finite = np.isfinite(x)
    num = finite.sum(axis)
    total = np.where(finite, x, 0.0).sum(axis)
    return np.where(num > 0, total / np.maximum(num, 1), np.nan)


def _interaction(x: np.ndarray) -> float:
    """Return the variance of search x seed in differences, [searches, N]."""
    rest = x - _mean(x, 1)[:, None] - _mean(x, 0) + _mean(x.reshape(1, -1), 1)
    return float(np.nansum(rest**2) / ((x.shape[0] - 1) * (x.shape[1] - 1)))


def _p_value(half_width: Callable[[float], float], distance: float) -> float:
    """Return 1 - the confidence at which an interval's half-width is `distance`."""
    from scipy import optimize

    def excess(log_p: float) -> float:
        return half_width(1 - math.exp(log_p)) - distance

    least = math.log(1e-15)
    if excess(least) < 0:
        return 1e-15
    return math.exp(float(np.asarray(optimize.brentq(excess, least, 0.0))))


def holm(family: Sequence[Paired]) -> list[Paired]:
    """Return comparisons with p-values corrected for their number (Holm, 1979).

    The chance that a family has any false verdict stays below 5 %. Intervals are left
    as they are: each covers 95 % by itself.

    Args:
        family: all comparisons whose verdicts are read together.

    >>> two = [Paired(1, 0, 2, p, 9, (0, 0), (9, 9)) for p in (0.04, 0.03)]
    >>> [round(x.p_corrected, 3) for x in holm(two)]
    [0.06, 0.06]
    """
    order = sorted(range(len(family)), key=lambda i: family[i].p_value)
    corrected, largest = list(family), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, family[i].p_value * (len(family) - rank)))
        corrected[i] = family[i]._replace(num_verdicts=len(family), p_corrected=largest)
    return corrected
