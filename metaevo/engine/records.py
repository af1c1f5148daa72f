"""Records of generations: counts and statistics over the members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from metaevo.analysis import stats
from metaevo.types import Evaluated, Search


def has_signal(search: Search, size: int, record: Mapping[str, Any]) -> bool:
    """Return True if any member of a generation has a score to tell the strategy.

    Agents that live on and have no score yet go on, equal to each other.
    """
    failed, lives_on = record["failed"], search.segments_per_generation is not None
    return failed < size and (lives_on or failed + record["not_scored"] < size)


def summary(scores: np.ndarray) -> dict[str, float]:
    """Return statistics of the members that did not fail; NaN if there are none.

    Args:
        scores: [N] finite fitness.

    >>> summary(np.array([1.0, 2.0, 6.0]))["fitness_mean"].item()
    3.0
    """
    if not len(scores):
        scores = np.array([np.nan])
    quantiles = np.quantile(scores, (0.0, 0.25, 0.5, 0.75, 1.0))
    return {
        "fitness_best": quantiles[4],
        "fitness_mean": scores.mean(),
        "fitness_median": quantiles[2],
        "fitness_sd": scores.std(),
        "fitness_worst": quantiles[0],
        "fitness_q25": quantiles[1],
        "fitness_q75": quantiles[3],
    }


def signal(scores: np.ndarray) -> dict[str, float]:
    """Return how much of the spread between members their seeds agree on.

    Not for members that are stopped early by the mean of their seeds, which then seem
    to agree.

    A member's score is a mean over S seeds. Of the variance of these means over members
    the share 1 - E / B is signal, where B is the mean square between members and E that
    of what is left without the effects of members and seeds: the intraclass correlation
    ICC(C, k) (McGraw and Wong, 1996, https://doi.org/10.1037/1082-989X.1.1.30).

    Args:
        scores: [tasks, S, P] fitness; members that are not finite on a seed are left
            out of a task.

    Returns:
        `signal`, in [0, 1], its mean over tasks; `signal_twice`, what it would be with
        twice as many seeds (Spearman and Brown); and `agreement`, in [-1, 1], the mean
        of Spearman's correlations between seeds and over tasks, unless all members of a
        task are equal. Empty for a single seed, or fewer than three members.

    >>> scores = np.array([[[0.0, 1.0, 2.0], [0.5, 1.5, 2.5]]])
    >>> {name: round(x, 2) for name, x in signal(scores).items()}
    {'signal': 1.0, 'signal_twice': 1.0, 'agreement': 1.0}
    """
    shares, agreements = [], []
    for x in np.asarray(scores, np.float64):
        x = x[:, np.isfinite(x).all(0)]
        seeds, num = x.shape
        if seeds < 2 or num < 3:
            continue
        centred = x - x.mean(1, keepdims=True)
        means = centred.mean(0)
        between = seeds * (means**2).sum() / (num - 1)
        rest = ((centred - means) ** 2).sum() / ((seeds - 1) * (num - 1))
        shares.append(max(0.0, 1 - rest / between) if between > 0 else 0.0)
        agreements.append(stats.rank_agreement(x))
    if not shares:
        return {}
    share = float(np.mean(shares))
    found = {"signal": share, "signal_twice": 2 * share / (1 + share)}
    if None not in agreements:
        found["agreement"] = float(np.mean(agreements))
    return found


def means(evaluated: Evaluated) -> dict[str, float]:
    """Mean over seeds and members of the last segment's metrics, finite ones.

    Of several tasks the fitness on each as well.
    """
    record = {}
    for task, train in enumerate(evaluated.train):
        prefix = f"task{task}/" if len(evaluated.train) > 1 else ""
        metrics = {f"train/{name}": np.asarray(x)[..., -1] for name, x in train.items()}
        for name, x in evaluated.evaluation[task].items():
            metrics[f"evaluation/{name}"] = np.asarray(x)
        if prefix:
            metrics["fitness"] = np.asarray(evaluated.fitness[task])
        for name, x in metrics.items():
            x = x[np.isfinite(x)]
            record[f"{prefix}{name}"] = x.mean() if len(x) else np.nan
    return record


def members(evaluated: Evaluated) -> dict[str, np.ndarray]:
    """Return each member's metrics of the first task's last segment, [P] each.

    Values of the first seed, `members/METRIC`, and whether the agent is `healthy`.
    """
    found = {
        f"members/{name}": np.asarray(x)[0, :, -1]
        for name, x in evaluated.train[0].items()
    }
    healthy = np.asarray(evaluated.healthy)[0, 0]
    return found | {"members/healthy": healthy.astype(int)}
