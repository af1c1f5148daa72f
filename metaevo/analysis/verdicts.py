"""Tables of scores, verdicts on them, and what makes a result doubtful."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from metaevo import fitness, text
from metaevo.analysis import differences, stats
from metaevo.analysis.holdout import HeldOut
from metaevo.fitness import final_return as FINAL_RETURN  # noqa: N812
from metaevo.learned import operations
from metaevo.portable import properties

SOLUTION, HAND_MADE, SIMPLEST = "solution", "hand-made", "best simple"
STATIC = "best static"
CHOSEN = (HAND_MADE, SIMPLEST, STATIC)
"""Rivals that were not searched for, or chosen from a few."""

NOISE_LEVEL = 0.05
"""Level at which evaluations or seeds must agree in rank to tell members apart."""


class TableCell(NamedTuple):
    """Place in a table of scores.

    Attributes:
        place: setting and task in words.
        candidate: name of what was trained.
        measure: name of the fitness, or `final return`.
    """

    place: str
    candidate: str
    measure: str


Table = Mapping[TableCell, np.ndarray]
"""Scores [searches, N], not finite where a run failed. The N seeds are the same for all
candidates of a place; what no search found has one row."""


class Verdict(NamedTuple):
    """Comparison of two candidates in one measure.

    Attributes:
        subject: name of the candidate that is judged.
        rival: name of the candidate that it is compared with.
        measure: name of the fitness, or `final return`.
        place: the task in words, such as `on gymnax/Acrobot-v1`; empty if there is one.
        paired: subject - rival, paired by seed.
        agent: the independent agent in words; empty for the agent of the search.
        at: the same at each step size of the independent agent.
    """

    subject: str
    rival: str
    measure: str
    place: str
    paired: differences.Paired
    agent: str = ""
    at: tuple[differences.Paired, ...] = ()

    @property
    def sentence(self) -> str:
        """The comparison as a sentence, without a full stop.

        >>> paired = differences.Paired(3.1, 1.2, 5.0, 0.002, 32, (0, 0), (32, 32))
        >>> one = Verdict("solution", "hand-made", "return", "", paired)
        >>> one.sentence.partition(" (")[0]
        'the solution is better than the hand-made one: return +3.10 [+1.20, +5.00]'
        """
        paired = self.paired
        rival = f"the {self.rival} one"
        said = differences.clause(paired, f"the {self.subject}", rival)
        said = f"{self.place}, {said}" if self.place else said
        if self.agent:
            said = f"in {self.agent}{',' * bool(self.place)} {said}"
        if paired.num_pairs < 2:
            return f"{said}: {self.measure}"
        more = ""
        if self.at:
            each = ", ".join(f"{x.difference:+.3g}" for x in self.at)
            more = f"; at each step size {each}"
        elif any(paired.num_failed):
            mine, theirs = paired.num_failed
            more = f"; {mine} of its runs failed, {theirs} of the {self.rival}"
        return (
            f"{said}: {self.measure} {paired.text} (95 % interval, "
            f"{paired.num_pairs} paired seeds{more})"
        )


def measures(measure: str) -> dict[str, str]:
    """Return the field of `HeldOut` of each measure; one if both are the same.

    Args:
        measure: name of the fitness.
    """
    if measure == fitness.score.name:  # it is all that is known of a run
        return {measure: "fitness"}
    return {measure: "fitness", FINAL_RETURN.name: "final_return"}


def table(
    candidate: str, searches: Sequence[HeldOut], places: Sequence[str], measure: str
) -> dict[TableCell, np.ndarray]:
    """Return the scores of a candidate in each place and measure.

    Args:
        searches: the runs of what each search found.
        places: the tasks of the runs in words.
        measure: name of the fitness.
    """
    return {
        TableCell(place, candidate, name): np.stack(
            [getattr(x, field)[i] for x in searches]
        )
        for i, place in enumerate(places)
        for name, field in measures(measure).items()
    }


def compared(
    scores: Table, subjects: Collection[str], rivals: Sequence[str] = (HAND_MADE,)
) -> list[Verdict]:
    """Compare candidates with each rival in the same place and measure.

    Args:
        scores: of all of them. All but those in `CHOSEN` come from searches.
        subjects: names of the candidates that are judged.
        rivals: names of others, which need not be in the table.
    """
    return [
        Verdict(
            cell.candidate,
            rival,
            cell.measure,
            cell.place,
            differences.crossed_difference(x, other, (True, rival not in CHOSEN)),
        )
        for cell, x in scores.items()
        if cell.candidate in subjects
        for rival in rivals
        if rival != cell.candidate
        and (other := scores.get(cell._replace(candidate=rival))) is not None
    ]


def corrected(family: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Return verdicts corrected for their number, see `differences.holm`."""
    pairs = differences.holm([x.paired for x in family])
    return tuple(x._replace(paired=y) for x, y in zip(family, pairs, strict=True))


def verdicts(
    held_out: Mapping[str, HeldOut], facts: Mapping[str, Any], rival: str = HAND_MADE
) -> tuple[Verdict, ...]:
    """Compare the solution and a rival, paired by seed.

    Verdicts are corrected for their number, see `differences.holm`.

    Args:
        held_out: runs by name; empty if there are none.
        facts: about them: `measure`, the name of the fitness, and for several tasks
            `tasks`, their names, of which the search had the first `num_searched`.
        rival: its name in `held_out`, or one that is not there.

    Returns:
        for each task one comparison in the fitness and one in the final return; one if
        the fitness is the final return. Empty if there are no runs.
    """
    scores: dict[TableCell, np.ndarray] = {}
    for name, runs in held_out.items():
        tasks = places(facts, len(runs.fitness))
        scores |= table(name, [runs], tasks, facts["measure"])
    return corrected(compared(scores, [SOLUTION], [rival]))


def every(
    held_out: Mapping[str, HeldOut], facts: Mapping[str, Any]
) -> tuple[Verdict, ...]:
    """Return `verdicts` against the best simple function and the hand-made algorithm.

    Each rival's are corrected for their own number: that a solution beats both is said
    only where it beats each.
    """
    return (*verdicts(held_out, facts, SIMPLEST), *verdicts(held_out, facts))


def simplest(facts: Mapping[str, Any]) -> str | None:
    """Say which simple function is the best; None if none was tried.

    Args:
        facts: about the runs; `simple` are those of `rivals.Best`.

    >>> tried = {"td_loss Huber": [1.5], "td_loss square": [1.0]}
    >>> simplest({"simple": {"name": "td_loss Huber", "tried": tried, "num_seeds": 4}})
    'the best of 2 simple functions on 4 other seeds is td_loss Huber'
    """
    found = facts.get("simple")
    if not found:
        return None
    return (
        f"the best of {len(found['tried'])} simple functions on {found['num_seeds']} "
        f"other seeds is {found['name']}"
    )


def places(facts: Mapping[str, Any], num_tasks: int) -> list[str]:
    """Return each task in words; by its number if `facts` do not name it.

    >>> places({"tasks": ["a", "b"], "num_searched": 1}, 2)
    ['on a', 'on b, which the search never saw']
    """
    if num_tasks == 1:
        return [""]
    names = facts.get("tasks") or [f"task {i}" for i in range(num_tasks)]
    seen = facts.get("num_searched", num_tasks)
    never = ", which the search never saw"
    return [f"on {name}{never * (i >= seen)}" for i, name in enumerate(numbered(names))]


def numbered(names: Sequence[str]) -> list[str]:
    """Return names of tasks, with their numbers if two are equal.

    >>> numbered(["a", "b"]), numbered(["a", "a"])
    (['a', 'b'], ['a (task 0)', 'a (task 1)'])
    """
    if len(set(names)) == len(names):
        return [*names]
    return [f"{name} (task {i})" for i, name in enumerate(names)]


def average(scores: np.ndarray) -> float:
    """Return the mean of the finite scores; NaN if there are none.

    >>> average(np.array([1.0, np.nan, 3.0]))
    2.0
    """
    finite = scores[np.isfinite(scores)]
    return float(finite.mean()) if len(finite) else float("nan")


def noise(first: np.ndarray, second: np.ndarray) -> dict[str, Any]:
    """Estimate the noise of the fitness from two evaluations of one population.

    Args:
        first: [P] fitness; not finite where a member failed.
        second: [P] fitness of the same members on other seeds.

    Returns:
        `rank_correlation`: Spearman's; 1 without noise, 0 if there is nothing else.
        `p_value`: chance of at least this correlation if the ranks are noise.
        `num_members`: number of members that failed in neither evaluation.
        `sd_members`: standard deviation of the members' true fitness.
        `sd_noise`: standard deviation of the noise of one evaluation. Both are
        estimated from the variance components. All but the number are None for fewer
        than three members, or equal ones.
    """
    both = np.isfinite(first) & np.isfinite(second)
    first, second = first[both], second[both]
    names = ("rank_correlation", "p_value", "sd_members", "sd_noise")
    found: dict[str, Any] = dict.fromkeys(names) | {"num_members": len(first)}
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return found
    # The covariance is free of noise; half the mean squared difference is noise.
    centred = first - first.mean(), second - second.mean()
    covariance = float((centred[0] * centred[1]).sum() / (len(first) - 1))
    variance = float(np.var(centred[0] - centred[1], ddof=1) / 2)
    correlation, p = stats.rank_correlation(first, second)
    return found | {
        "rank_correlation": correlation,
        "p_value": p,
        "sd_members": max(covariance, 0.0) ** 0.5,
        "sd_noise": variance**0.5,
    }


def last_third(records: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the records of the last third of generations, of at least one."""
    return records[-max(1, len(records) // 3) :]


def noise_between_seeds(
    records: Sequence[Mapping[str, Any]], num_seeds: int
) -> dict[str, Any] | None:
    """Tell members from noise by their seeds in the last third of generations.

    Args:
        records: of generations of one task, each with `population`, the members'
            fitness, None or NaN where one failed; and with `agreement`, see
            `engine.records.signal`, or without where there is none.
        num_seeds: S, at least 2.

    Returns:
        `rank_correlation`: the mean agreement between two seeds.
        `p_value`: chance of at least that one if the ranks are noise. Correlations
        between seeds are then uncorrelated, with a variance of 1/(P - 1) each, and
        their mean is about normal.
        `num_members`: number of members of a generation that did not fail.
        `num_seeds`. None if no generation has an agreement.

    >>> noise_between_seeds([{"population": [0.0] * 17, "agreement": 0.25}], 2)
    {'rank_correlation': 0.25, 'p_value': 0.1587, 'num_members': 17, 'num_seeds': 2}
    """
    from scipy import special

    agreements, variances, num_members = [], [], 0
    for record in last_third(records):
        scores = np.array(record["population"], np.float64)
        num, agreement = int(np.isfinite(scores).sum()), record.get("agreement")
        if num >= 3 and isinstance(agreement, float | int) and abs(agreement) <= 1:
            num_members = num
            agreements.append(agreement)
            variances.append(2 / (num_seeds * (num_seeds - 1) * (num - 1)))
    if not agreements:
        return None
    z = sum(agreements) / sum(variances) ** 0.5
    return {
        "rank_correlation": float(np.mean(agreements)),
        "p_value": round(float(special.ndtr(-z)), 4),
        "num_members": num_members,
        "num_seeds": num_seeds,
    }


def warnings(facts: Mapping[str, Any], held_out: Mapping[str, HeldOut]) -> list[str]:
    """Return sentences on what makes the result of a search doubtful.

    A population is noise if its two evaluations do not agree in rank beyond chance, at
    5 % by Spearman's test, or its seeds. The best rival that is kept for
    the setting of the search counts if it is better than the solution beyond the
    interval of their difference, though it is chosen by the scores that are compared.

    Args:
        facts: those of `load`, and `measure`, the name of the fitness.
        held_out: runs by name; without any there is nothing to doubt.
    """
    if SOLUTION not in held_out:
        return []
    return [*_noisy(facts), *_kept(facts, held_out[SOLUTION].fitness[0])]


def _kept(facts: Mapping[str, Any], solution: np.ndarray) -> list[str]:
    """Say which rival that is kept for the setting is the best, if it is better."""
    kept = [x for x in facts.get("kept_rivals", ()) if facts["measure"] in x["scores"]]
    if not kept:
        return []
    best = max(kept, key=lambda x: average(np.array(x["scores"][facts["measure"]])))
    scores = np.array(best["scores"][facts["measure"]])
    found = differences.unpaired_difference(scores, solution)
    if found.verdict not in ("better", "rival fails"):
        return []
    num = int(np.isfinite(solution).sum())
    fails = f", which fails on {len(solution) - num}" if num < len(solution) else ""
    how = [" ".join(best["changes"])] if best["changes"] else []
    how += [f"numbers tuned by {best['tuned']:,} frames"] if best["tuned"] else []
    return [
        f"a rival that is kept for this setting is better: {facts['measure']} "
        f"{text.score(average(scores))} against {text.score(average(solution))}, "
        f"{found.text} "
        f"({len(scores)} and {len(solution)} seeds, not paired{fails}), with "
        f"{' and '.join(how)}"
    ]


def _noisy(facts: Mapping[str, Any]) -> list[str]:
    found = facts.get("noise") or {}
    p = found.get("p_value")
    if p is None or p <= NOISE_LEVEL:
        return []
    where = "the last generation"
    agree = f"two evaluations of {found['num_members']} members"
    if "num_seeds" in found:
        where = "the last third of generations"
        agree = f"the {found['num_seeds']} seeds of {found['num_members']} members"
    return [
        f"the members of {where} cannot be told apart from noise: {agree} agree in "
        f"rank by {found['rank_correlation']:.2f} (p = {p:.2f}, chance if above "
        f"{NOISE_LEVEL}). Either all are alike by now, or the search drifts at random: "
        "more seeds per member (num_seeds) or more members would tell"
    ]


def visited(
    held_out: Mapping[str, HeldOut],
    spec: Mapping[str, Mapping],
    facts: Mapping[str, Any],
) -> dict[str, tuple[float, float]]:
    """Return the ranges of value − target while the solution trained: mean ± 2 sd.

    Args:
        spec: slot -> its operation and settings.
        facts: about the runs; `num_searched` tasks are the search's own.

    Returns:
        slot -> lower and upper end, for the losses of critics. In units of return, or
        of the targets' standard deviation in the same segment of a lifetime for a
        scale-equivariant loss. Over all tasks of the search; empty if the inner loops
        do not report them.
    """
    solution = held_out.get("solution")
    found = {}
    for slot, op in spec.items():
        if op["op"] == "number":
            continue
        if operations.get(op["op"]).slot not in ("value_loss", "td_loss"):
            continue
        names = ["value_error_mean", "value_error_rms"]
        unit = properties.unit(op)
        if unit == "return_std":
            names.append("return_std")
        train = () if solution is None else solution.train
        train = train[: facts.get("num_searched", len(train))]
        if not train or not all(name in task for task in train for name in names):
            continue
        mean, rms, *scale = (
            np.concatenate([np.ravel(task[name]) for task in train]) for name in names
        )
        with np.errstate(all="ignore"):
            mean, rms = (x / (scale[0] if scale else 1.0) for x in (mean, rms))
        middle, square = average(mean), average(rms**2)
        if np.isfinite([middle, square]).all():
            sd = max(square - middle**2, 0.0) ** 0.5
            found[slot] = middle - 2 * sd, middle + 2 * sd
    return found
