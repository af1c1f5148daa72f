"""Static settings of an algorithm, chosen before its numbers are tuned.

Settings that change a program cannot be members of one population: three-step returns,
a dueling network, normalized observations. So each is trained in the place of what the
algorithm has, with the algorithm's own numbers, on the same seeds.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from metaevo.analysis import holdout
from metaevo.analysis.differences import RESOLUTION, Paired, holm, paired_difference
from metaevo.engine import candidates, checks, identity
from metaevo.engine.candidates import Candidate
from metaevo.errors import ConfigError
from metaevo.types import Search

NUM_SEEDS = 16
"""Agents that each setting is judged by."""

_CHOOSING = 0xC401CE  # role for which the run's key is split


def choose(
    choices: Sequence[str],
    score: Callable[[tuple[str, ...]], np.ndarray],
    say: Callable[[str], None],
    tasks: Sequence[str],
) -> tuple[str, ...]:
    """Return the static settings that are better than what the algorithm has.

    The best setting is taken if its difference by seed is above 0 beyond doubt,
    corrected for the number that was tried. The others that are ahead alone are tried
    beside what was taken, best first and each once, and stay if they help beyond doubt
    as well. A rival of `metaevo compare` is chosen less strictly: there the strongest
    is asked for, here one that will help.

    Over several tasks a run is told by its rank on each, so that no task counts for
    more than another: a difference is the mean over tasks of the share of runs, of all
    settings alone, that are worse. What is better so may be worse on a task beyond
    doubt, corrected for the number of tasks; that is said.

    Args:
        choices: Settings, each `key=value` or several joined by `;`.
        score: `changes -> [tasks, N]`, the fitness by seed of the algorithm with these
            `key=value`, not finite where a run failed. Such a run counts as the least.
        say: Is told each difference, and the choice.
        tasks: Names of the tasks.
    """
    usual = score(())
    alone = _filled({"": usual} | {x: score((*x.split(";"),)) for x in choices})
    pool = np.concatenate([*alone.values()], 1)
    several = len(pool) > 1

    def told(found: Paired, scores: np.ndarray, best: np.ndarray) -> str:
        if not several:
            return found.text
        each = holm([paired_difference(*x) for x in zip(scores, best, strict=True)])
        worse = [x for x, y in zip(tasks, each, strict=True) if y.verdict == "worse"]
        where = f"; worse on {', '.join(worse)}" if worse else ""
        return f"{found.text} (in shares of runs, mean of {len(pool)} tasks{where})"

    def gain(scores: np.ndarray, best: np.ndarray) -> Paired:
        place = functools.partial(shares, pool) if several else lambda x: x
        return paired_difference(*(place(x).mean(0) for x in (scores, best)))

    each = holm([gain(alone[x], alone[""]) for x in choices])
    gains = dict(zip(choices, each, strict=True))
    for x, found in gains.items():
        say(f"{' '.join(x.split(';'))}: {told(found, alone[x], alone[''])}")
    ahead = [x for x in choices if gains[x].difference > 0]
    ahead.sort(key=lambda x: -gains[x].difference)
    now: tuple[str, ...] = ()
    if ahead and gains[ahead[0]].verdict == "better":
        first, *rest = ahead
        now, best = (*first.split(";"),), alone[first]
        for x in rest:
            more = (*now, *x.split(";"))
            beside = _filled({"": best, x: score(more)})
            found = gain(beside[x], beside[""])
            corrected = min(1.0, len(rest) * found.p_value)
            found = found._replace(num_verdicts=len(rest), p_corrected=corrected)
            say(f"{' '.join(more)}: {told(found, beside[x], beside[''])}")
            if found.verdict == "better":
                now, best = more, beside[x]
    say(f"chosen: {' '.join(now) or 'none'}")
    return now


def _filled(tried: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Scores with a task's least in the place of those of runs that failed there."""
    each = np.concatenate([*tried.values()], 1)
    least = np.where(np.isfinite(each), each, np.inf).min(1, keepdims=True)
    least = np.where(np.isfinite(least), least, 0.0)  # of a task where all failed
    return {name: np.where(np.isfinite(x), x, least) for name, x in tried.items()}


def shares(pool: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return which share of a task's runs each score is above, and half of its equals.

    Args:
        pool: [tasks, M] scores; those that differ by rounding are equal.
        scores: [tasks, N].
    """
    mine, others = scores[:, :, None], pool[:, None]
    rounding = RESOLUTION * np.maximum(np.abs(mine), np.abs(others))
    above = mine > others + rounding
    equal = np.abs(mine - others) <= rounding
    return above.mean(2) + equal.mean(2) / 2


def scorer(
    make: Callable[[tuple[str, ...]], Search],
    out: Path,
    seed: int,
    devices: list,
    should_stop: Callable[[], bool],
) -> Callable[[tuple[str, ...]], np.ndarray]:
    """Return a function that trains an algorithm as it is, for `choose`.

    Args:
        make: `changes -> search`, whose own loops are trained.
        out: Folder in which the scores are kept, so that the same call continues.
        seed: Determines the seeds.
        devices: JAX devices.
        should_stop: Asked often; True abandons the training.
    """
    key = jax.random.fold_in(jax.random.key(seed), _CHOOSING)
    as_it_is = Candidate(holdout.HAND_MADE, [holdout.NOTHING])

    def score(changes: tuple[str, ...]) -> np.ndarray:
        search = make(changes)
        (runs,) = candidates.trained(
            search, as_it_is, NUM_SEEDS, out, key, devices, should_stop
        )
        return runs.fitness

    return score


def valid(
    make: Callable[[Sequence[str]], Search],
    check: Callable[[Search], object] = checks.check,
    on: Sequence[str] = (),
) -> list[str]:
    """Return the static choices of a search that change it and that it takes.

    An algorithm of a user's, or a task, may refuse one: normalized pixels. One whose
    key a setting has as well would change the setting, and is left out.

    Args:
        make: `changes -> search`.
        check: Raises ConfigError for a search that cannot run.
        on: Other settings in which a choice has to be valid as well, each `key=value`
            or several joined by `;`.
    """
    settings = [[], *(changes.split(";") for changes in on)]
    keys = {_key(x) for setting in settings for x in setting}
    usual, found = make(()), []
    without = described(usual)
    for choice in usual.tasks[0].choices:
        changes = choice.split(";")
        if keys & {_key(x) for x in changes}:
            continue
        with contextlib.suppress(ConfigError):
            first, *others = (make((*setting, *changes)) for setting in settings)
            for search in (first, *others):
                check(search)
            if described(first) != without:
                found.append(choice)
    return found


def _key(change: str) -> str:
    """Return KEY of `KEY=VALUE`."""
    return change.partition("=")[0]


def described(search: Search) -> dict:
    """Describe what a search trains, without what it is compared with."""
    loops = [loop._replace(hand_made=None) for loop in search.tasks]
    return identity.lifetime(search._replace(inner_loop=loops))
