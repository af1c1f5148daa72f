"""Statistics of comparisons on shared seeds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

__all__ = ["Paired", "paired_difference"]


class Paired(NamedTuple):
    """Mean paired difference a − b with its confidence interval.

    Attributes:
        difference, low, high: in the units of the scores.
        num_pairs: how many pairs both of which are finite.
        num_failed: pairs left out because one of them is not.
    """

    difference: float
    low: float
    high: float
    num_pairs: int
    num_failed: int

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `no difference`: of a against b."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "no difference"


def paired_difference(a: np.ndarray, b: np.ndarray, confidence: float = 0.95) -> Paired:
    """Student's interval of the mean of a − b, paired by position.

    Args:
        a, b: [N] scores on the same seeds, N >= 2.
        confidence: of the two-sided interval.

    Raises:
        ValueError: fewer than two pairs are finite.
    """
    difference = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    finite = difference[np.isfinite(difference)]
    if len(finite) < 2:
        raise ValueError(f"{len(finite)} of {len(difference)} pairs are finite")
    mean = float(finite.mean())
    if np.ptp(finite) == 0:
        low = high = mean
    else:
        low, high = stats.ttest_1samp(finite, 0.0).confidence_interval(confidence)
    failed = len(difference) - len(finite)
    return Paired(mean, float(low), float(high), len(finite), failed)
