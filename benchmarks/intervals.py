"""Coverage of intervals and rates of false verdicts, by simulation.

    python -m benchmarks.intervals        # writes benchmarks/results/intervals.jsonl
    python -m benchmarks.intervals tables # prints the tables of docs/log/intervals.md

Scores are drawn from distributions as reinforcement learning has them, whose IQM is
known exactly, and groups of searches from a crossed model without any effect. A false
verdict is one on such groups. 1,000 simulations each; a share of 5 % is then good to
about ±1.4 points, twice its standard error. About five minutes on one core.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats as scipy_stats

from metaevo.analysis import differences, distill, stats

RESULTS = Path(__file__).parent / "results" / "intervals.jsonl"
NUM = 1000
SEEDS = 32


# --- the IQM of one candidate ---------------------------------------------------------


Draw = Callable[[np.random.Generator, int], np.ndarray]


class Scores(NamedTuple):
    """A distribution of scores.

    Attributes:
        draw: (rng, n) -> [n] scores.
        iqm: exact mean of the middle half of the distribution.
        atom: True if that is a score which many runs have. An interval that holds it
            then does so nearly always.
    """

    draw: Draw
    iqm: float
    atom: bool = False


def _lognormal_iqm() -> float:
    z = scipy_stats.norm.ppf([0.25, 0.75]) - 1
    return 2 * math.exp(0.5) * float(np.diff(scipy_stats.norm.cdf(z))[0])


def _saturated(p: float) -> Scores:
    """500 with probability `p`, else uniform on 100 to 500."""

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        return np.where(rng.random(n) < p, 500.0, rng.uniform(100, 500, n))

    # Quantiles below 1 - p are uniform; the middle half starts at 0.25.
    below = max(1 - p - 0.25, 0.0)
    middle = 100 + 400 * (0.25 + (1 - p)) / 2 / (1 - p)
    return Scores(draw, 2 * (below * middle + (0.5 - below) * 500), below == 0)


def _bimodal() -> Scores:
    """81 with probability 0.6, else N(150, 10²)."""

    def draw(rng: np.random.Generator, n: int) -> np.ndarray:
        return np.where(rng.random(n) < 0.6, 81.0, rng.normal(150, 10, n))

    # The least 0.15 / 0.4 of the normal part lie in the middle half.
    part = 0.15 / 0.4
    density = scipy_stats.norm.pdf(scipy_stats.norm.ppf(part))
    return Scores(draw, 2 * (0.35 * 81 + 0.4 * (part * 150 - 10 * float(density))))


TWO_MODES = "81 in 60 %, else normal 150 ± 10"
SCORES: Mapping[str, Scores] = {
    "normal": Scores(lambda rng, n: rng.normal(size=n), 0.0),
    "log-normal, skewed": Scores(
        lambda rng, n: np.exp(rng.normal(size=n)), _lognormal_iqm()
    ),
    "500 in 50 %, else uniform 100 to 500": _saturated(0.5),
    "500 in 70 %, else uniform 100 to 500": _saturated(0.7),
    "500 in 80 %, else uniform 100 to 500": _saturated(0.8),
    TWO_MODES: _bimodal(),
}


def iqm_hits(
    name: str, num_seeds: int, num: int, num_resamples: int = 2000
) -> np.ndarray:
    """Return whether each of `num` intervals of the IQM holds the true one.

    Raises:
        AssertionError: an interval reaches beyond the scores it was made from.
    """
    rng, truth = np.random.default_rng(0), SCORES[name].iqm
    tiny = 1e-9 * abs(truth)
    hits = np.zeros(num, bool)
    for i in range(num):
        scores = SCORES[name].draw(rng, num_seeds)
        found = stats.bootstrap(scores, num_resamples=num_resamples, seed=i)
        assert scores.min() - tiny <= found.low <= found.high <= scores.max() + tiny
        hits[i] = found.low - tiny <= truth <= found.high + tiny
    return hits


# --- two candidates whose scores differ in shape alone --------------------------------

MEAN = 475.5
"""True mean of each of `SHAPES`."""


def _saturated_at_mean(p: float) -> Draw:
    """500 with probability `p`, else uniform below, down to what makes the mean."""
    least = 500 - 2 * (500 - MEAN) / (1 - p)
    return lambda rng, n: np.where(rng.random(n) < p, 500, rng.uniform(least, 500, n))


def _lognormal_at_mean(rng: np.random.Generator, n: int) -> np.ndarray:
    """exp(N(0, 1)), scaled to a deviation of 40."""
    sd = math.sqrt(math.e * (math.e - 1))
    return MEAN + 40 * (np.exp(rng.normal(size=n)) - math.sqrt(math.e)) / sd


SHAPES: Mapping[str, Draw] = {
    "normal ± 20": lambda rng, n: rng.normal(MEAN, 20, n),
    "log-normal ± 40": _lognormal_at_mean,
    "two modes": lambda rng, n: SCORES[TWO_MODES].draw(rng, n) - 108.6 + MEAN,
    "500 in 50 %": _saturated_at_mean(0.5),
    "500 in 70 %": _saturated_at_mean(0.7),
    "500 in 95 %, else 10": lambda rng, n: np.where(rng.random(n) < 0.95, 500.0, 10.0),
}
"""Scores of one mean by name."""


def unequal_shapes(
    solution: str, rival: str, num_seeds: int, num: int, effect: float = 0.0
) -> dict[str, float]:
    """Compare candidates whose scores have one true mean and two shapes.

    Args:
        solution, rival: names in `SHAPES`.
        num_seeds: number of pairs.
        num: number of simulations.
        effect: true difference.

    Returns:
        `verdicts`: share of simulations with a verdict; `students`: the same of
        Student's interval; `width`: median width over that of Student's.
    """
    rng, found, alone = np.random.default_rng(0), [], []
    for _ in range(num):
        a = SHAPES[solution](rng, num_seeds) + effect
        b = SHAPES[rival](rng, num_seeds)
        found.append(differences.paired_difference(a, b))
        if np.ptp(a - b):
            test = scipy_stats.ttest_rel(a, b)
            low, high = test.confidence_interval(0.95)
            alone.append((high - low, test.pvalue <= 0.05))
    width = np.median([x.high - x.low for x in found])
    return {
        "verdicts": sum(x.verdict in ("better", "worse") for x in found) / num,
        "students": sum(claimed for _, claimed in alone) / num,
        "width": float(width / np.median([x for x, _ in alone])),
    }


def power(difference: float, sd: float, num: int) -> dict[str, float]:
    """Return how often a true difference is found on 32 pairs of that deviation.

    Returns:
        `share`, of simulations; `students`: of Student's test, exactly.
    """
    rng = np.random.default_rng(0)
    pairs = (rng.normal(difference, sd, SEEDS) for _ in range(num))
    noise = rng.normal(size=SEEDS)
    found = (differences.paired_difference(x + noise, noise) for x in pairs)
    share = sum(x.verdict == "better" for x in found) / num
    distance = math.sqrt(SEEDS) * difference / sd
    least = scipy_stats.t.ppf(0.975, SEEDS - 1)
    students = float(scipy_stats.nct.sf(least, SEEDS - 1, distance))
    return {"share": share, "students": students}


# --- groups of searches ---------------------------------------------------------------


def _crossed(a: np.ndarray, b: np.ndarray) -> bool:
    found = differences.crossed_difference(a, b, (True, True))
    return found.verdict in ("better", "worse")


def _wider_of_two(a: np.ndarray, b: np.ndarray) -> bool:
    """The wider of the intervals over seeds and over the first side's searches."""
    both = [
        scipy_stats.ttest_1samp(x, 0.0)
        for x in (a.mean(0) - b.mean(0), a.mean(1) - b.mean())
    ]
    intervals = [x.confidence_interval() for x in both]
    widest = max(range(2), key=lambda i: intervals[i].high - intervals[i].low)
    return bool(both[widest].pvalue <= 0.05)


def _hierarchical(a: np.ndarray, b: np.ndarray) -> bool:
    """Percentiles of resampled searches and seeds."""
    rng = np.random.default_rng(0)
    seeds = rng.integers(a.shape[1], size=(400, 1, a.shape[1]))
    means = []
    for side in (a, b):
        rows = rng.integers(len(side), size=(400, len(side), 1))
        means.append(side[rows, seeds].mean((1, 2)))
    low, high = np.quantile(means[0] - means[1], [0.025, 0.975])
    return bool(low > 0 or high < 0)


METHODS: Mapping[str, Callable[[np.ndarray, np.ndarray], bool]] = {
    "crossed": _crossed,
    "wider of two": _wider_of_two,
    "hierarchical bootstrap": _hierarchical,
}


def false_verdicts(
    searches: tuple[int, int],
    ratio: float,
    noise: str,
    num: int,
    methods: tuple[str, ...] = tuple(METHODS),
    effect: float = 0.0,
    failing: float = 0.0,
) -> dict[str, float]:
    """Return the share of simulations in which each method claims a difference.

    Args:
        searches: number of searches of the two groups.
        ratio: standard deviation of searches over that of a single search on one seed.
        noise: what seeds interact with: `search x seed`, each search on its own, or
            `group x seed`, all searches of a group alike.
        num: number of simulations.
        methods: names of methods.
        effect: true difference, in standard deviations of a single run.
        failing: share of searches of both groups that end 10 deviations lower.
    """
    rng = np.random.default_rng(0)
    claims = dict.fromkeys(methods, 0)
    for _ in range(num):
        seed = 3 * rng.normal(size=SEEDS)
        sides = []
        for rows in searches:
            of_search = ratio * rng.normal(size=(rows, 1))
            of_search -= 10 * (rng.random((rows, 1)) < failing)
            shape = (rows, SEEDS) if noise == "search x seed" else (1, SEEDS)
            sides.append(seed + of_search + rng.normal(size=shape))
        sides[0] = sides[0] + effect * math.hypot(ratio, 1.0)
        for name in methods:
            claims[name] += METHODS[name](sides[0], sides[1])
    return {name: count / num for name, count in claims.items()}


def group_coverage(ratio: float, searches: int, num: int) -> float:
    """Return how often the interval of a group's IQM holds the true one."""
    rng = np.random.default_rng(0)
    hits = 0
    for i in range(num):
        scores = ratio * rng.normal(size=(searches, 1))
        scores = scores + rng.normal(size=(searches, SEEDS))
        found = stats.grouped(scores, seed=i)
        assert found is not None
        hits += found.low <= 0 <= found.high
    return hits / num


# --- equivalence ----------------------------------------------------------------------


def kept_forms(
    name: str, num_seeds: int, alike: float, worse: float, num: int
) -> float:
    """Return the share of closed forms that `metaevo distill` keeps.

    Args:
        name: distribution of the scores.
        num_seeds: number of pairs.
        alike: share of seeds on which both runs score the same but for `worse`; on the
            others they have nothing in common.
        worse: by how much the form is worse, in standard deviations over seeds.
        num: number of simulations.
    """
    rng, draw = np.random.default_rng(0), SCORES[name].draw
    sd = float(draw(np.random.default_rng(1), 100_000).std())
    kept = 0
    for _ in range(num):
        original = draw(rng, num_seeds)
        closed = np.where(rng.random(num_seeds) < alike, original, draw(rng, num_seeds))
        check = distill.equivalence(original, closed - worse * sd, distill.MARGIN)
        kept += check.refused_for is None
    return kept / num


# --- the record -----------------------------------------------------------------------


def records() -> Iterator[dict]:
    """Run every simulation."""
    for name in SCORES:
        for n in (10, 32):
            share = float(iqm_hits(name, n, NUM).mean())
            yield {"what": "iqm", "scores": name, "seeds": n, "covers": share}
    for solution, rival in itertools.product(SHAPES, SHAPES):
        cells = {n: unequal_shapes(solution, rival, n, NUM) for n in (8, 16, 32)}
        for n, found in cells.items():
            yield {"what": "shapes", "pair": [solution, rival], "seeds": n, **found}
    yield {"what": "power", **power(20, 40, 4 * NUM)}
    for ratio in (0.2, 1.0, 3.0):
        for n in (2, 3, 10):
            share = group_coverage(ratio, n, NUM)
            yield {"what": "group", "searches": n, "ratio": ratio, "covers": share}
    for noise in ("search x seed", "group x seed"):
        for n in (3, 5, 10):
            for ratio in (0.2, 1.0, 3.0):
                case = {"noise": noise, "searches": n, "ratio": ratio}
                given = (n, n), ratio, noise, NUM
                wrong = false_verdicts(*given)
                finds = false_verdicts(*given, ("crossed",), effect=1.0)["crossed"]
                yield {"what": "groups", **case, "false": wrong, "power": finds}
    for searches in ((3, 3), (3, 10), (5, 5), (5, 10)):
        for failing in (0.0, 0.1, 0.3):
            for ratio in (0.2, 1.0):
                case = {"searches": searches, "failing": failing, "ratio": ratio}
                given = searches, ratio, "search x seed", NUM, ("crossed",)
                wrong = false_verdicts(*given, failing=failing)["crossed"]
                yield {"what": "failing", **case, "false": wrong}
    for name in ("normal", "81 in 60 %, else normal 150 ± 10"):
        for n in (16, 32, 64):
            for alike in (0.0, 0.9):
                kept = {
                    str(worse): kept_forms(name, n, alike, worse, NUM)
                    for worse in (0.0, 0.5, 1.0)
                }
                yield {
                    "what": "distill", "scores": name, "seeds": n, "alike": alike,
                    "kept": kept,
                }  # fmt: skip


def tables(lines: list[dict]) -> str:
    """Return the tables of docs/log/intervals.md."""
    chosen = {what: [x for x in lines if x["what"] == what] for what in WHAT}
    out = []

    def table(*header: str) -> None:
        out.extend(["", row(header), "|---" * len(header) + "|"])

    def row(cells) -> str:
        return "| " + " | ".join(cells) + " |"

    table("scores", "10 seeds", "32 seeds")
    for ten, many in zip(chosen["iqm"][::2], chosen["iqm"][1::2], strict=True):
        out.append(row([ten["scores"], *(f"{x['covers']:.1%}" for x in (ten, many))]))
    of_pair = {(*x["pair"], x["seeds"]): x for x in chosen["shapes"]}
    for field, seeds, form in (
        ("verdicts", (8, 16, 32), ".1%"),
        ("students", (8, 16, 32), ".1%"),
        ("width", (32,), ".2f"),
    ):
        table(f"solution, {TITLES[field]}", *SHAPES)
        for a in SHAPES:
            cells = (
                (format(of_pair[a, b, n][field], form) for n in seeds) for b in SHAPES
            )
            out.append(row([a, *map(" / ".join, cells)]))
    table("true difference of half a deviation, 32 pairs", "found in", "by Student's")
    share, students = (chosen["power"][0][x] for x in ("share", "students"))
    out.append(row(["normal", f"{share:.1%}", f"{students:.1%}"]))
    table("sd(search) / sd(seed)", "2 searches", "3 searches", "10 searches")
    for i in range(0, len(chosen["group"]), 3):
        part = chosen["group"][i : i + 3]
        out.append(
            row([f"{part[0]['ratio']:g}", *(f"{x['covers']:.1%}" for x in part)])
        )
    table(
        "seeds act on", "searches", "sd(search) / sd(seed)", "false verdicts",
        "wider of two", "hierarchical bootstrap", "finds 1 sd",
    )  # fmt: skip
    for x in chosen["groups"]:
        on = "each search" if x["noise"] == "search x seed" else "whole groups"
        wrong = [f"{share:.1%}" for share in x["false"].values()]
        side = f"{x['searches']} each"
        cells = [on, side, f"{x['ratio']:g}", *wrong, f"{x['power']:.0%}"]
        out.append(row(cells))
    table("searches", "sd(search) / sd(seed)", "none fail", "10 % fail", "30 % fail")
    for place in dict.fromkeys((*x["searches"], x["ratio"]) for x in chosen["failing"]):
        few, many, ratio = place
        cells = [
            f"{x['false']:.1%}"
            for x in chosen["failing"]
            if (*x["searches"], x["ratio"]) == place
        ]
        out.append(row([f"{few} against {many}", f"{ratio:g}", *cells]))
    table("scores", "seeds alike", "seeds", "identical", "½ sd worse", "1 sd worse")
    for x in chosen["distill"]:
        kept = [f"{share:.1%}" for share in x["kept"].values()]
        out.append(row([x["scores"], f"{x['alike']:.0%}", str(x["seeds"]), *kept]))
    # The names of distributions have the space already.
    return "\n".join(out).replace("%", " %").replace("  %", " %")


WHAT = ("iqm", "shapes", "power", "group", "groups", "failing", "distill")
TITLES = {
    "verdicts": "false verdicts of 8 / 16 / 32 pairs",
    "students": "those of Student's interval",
    "width": "width of 32 pairs over Student's",
}


def main() -> None:
    if sys.argv[1:] == ["tables"]:
        print(tables([json.loads(line) for line in RESULTS.read_text().splitlines()]))
        return
    with RESULTS.open("w") as file:
        for record in records():
            file.write(json.dumps(record) + "\n")
            print(record, flush=True)


if __name__ == "__main__":
    main()
