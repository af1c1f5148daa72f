"""Decide which members of a generation go on at its rungs.

A decision depends on the trials that ended before it, in the order of the log, and on
nothing else. So a run that is resumed reads the log and decides the same, and each line
at a rung says why its member went on.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from metaevo.engine.trials.log import Given, TrialLog
from metaevo.engine.trials.processes import Ended
from metaevo.fitness import Halving, of_stopped

Life = Sequence[Sequence[Given]]
"""[S, K] trials of a member: for each seed those that continue each other."""


class Arrivals:
    """Members of a generation at its rungs, each at its seeds' mean score.

    Args:
        halving: the rule; it does not `wait`.
        lives: of the members.
        log: trials that ended. Those of `lives` are taken in their order.

    Attributes:
        stopped: last trials of members that were stopped.
    """

    def __init__(self, halving: Halving, lives: Sequence[Life], log: TrialLog):
        self._halving, self._log = halving, log
        self._scores: dict[int, list[float]] = {age: [] for age in halving.ages}
        self._lock = threading.Lock()
        self.stopped: set[str] = set()
        places = {
            given.name: (life, age)
            for life in lives
            for row in life
            for age, given in enumerate(row, 1)
        }
        seen: dict[str, Ended] = {}
        for name, ended in log.ended.items():
            if name in places:
                seen[name] = ended
                self._arrive(*places[name], seen)

    def add(self, life: Life, age: int, given: Given, ended: Ended) -> None:
        """Record how a trial ended, and what that decides.

        Args:
            life: of its member.
            age: 1 of the first trial.
            given: the trial.
            ended: how it ended.
        """
        with self._lock:
            notes = self._arrive(
                life, age, ChainMap({given.name: ended}, self._log.ended)
            )
            self._log.add(given, ended, notes)

    def _arrive(
        self, life: Life, age: int, ended: Mapping[str, Ended]
    ) -> dict[str, Any]:
        """Decide about a member once all its seeds' trials at a rung have ended."""
        if age not in self._scores:
            return {}
        names = [row[age - 1].name for row in life]
        score = mean_score(names, ended)
        if score is None:
            return {}
        there = self._scores[age]
        there.append(score)
        better = sum(x > score for x in there)
        stops = self._halving.stops(better, len(there))
        if stops:
            self.stopped |= {*names}
        return {"rung": age, "seen": len(there), "better": better, "stopped": stops}


def mean_score(names: Sequence[str], ended: Mapping[str, Ended]) -> float | None:
    """Return the mean score of trials; -inf if one failed, None if some are missing."""
    found = [ended[name].score for name in names if name in ended]
    if None in found:
        return -math.inf
    if len(found) < len(names):
        return None
    return statistics.fmean(x for x in found if x is not None)


def ahead(
    halving: Halving, lives: Sequence[Life], age: int, log: TrialLog
) -> list[Life]:
    """Return the lives that go on at a rung, for which all have waited.

    Args:
        halving: the rule.
        lives: those that were to come to it.
        age: of the rung.
        log: trials that ended.
    """
    scores = [
        mean_score([row[age - 1].name for row in life], log.ended) for life in lives
    ]
    # Those that failed before the rung did not come to it.
    there = [-math.inf if x is None else x for x in scores]

    def goes_on(score):
        better = sum(x > score for x in there)
        return score > -math.inf and not halving.stops(better, len(there))

    return [life for life, x in zip(lives, there, strict=True) if goes_on(x)]


def fitness(scores: np.ndarray, ran: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the fitness of members of which some were stopped.

    Args:
        scores: [S, P, K], NaN of a trial that failed or did not run.
        ran: [S, P, K] bool.

    Returns:
        fitness [S, P], NaN of members that failed; and which did not [S, P] bool.

    >>> fitness(np.array([[[1.0, 5], [7, np.nan]]]), np.array([[[1, 1], [1, 0]]]) > 0)
    (array([[5., 5.]]), array([[ True,  True]]))
    """
    failed = (ran & ~np.isfinite(scores)).any((0, 2))
    healthy = np.broadcast_to(~failed, scores.shape[:2])
    last = np.maximum(ran.sum(-1, keepdims=True) - 1, 0)
    found = np.where(healthy, np.take_along_axis(scores, last, -1)[..., 0], np.nan)
    whole = np.asarray(ran.all((0, 2)) & ~failed)
    return of_stopped(found, whole), healthy
