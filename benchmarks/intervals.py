"""Coverage of intervals and rates of false verdicts, by simulation.

    python -m benchmarks.intervals        # writes benchmarks/results/intervals.jsonl
    python -m benchmarks.intervals tables # prints the tables of docs/report.md

Scores are drawn from distributions as reinforcement learning has them, whose IQM is
known exactly, and groups of searches from a crossed model without any effect. A false
verdict is one on such groups. 1,000 simulations each; a share of 5 % is then good to
about ±1.4 points, twice its standard error. About five minutes on one core.
"""

from __future__ import annotations

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


class Scores(NamedTuple):
    """A distribution of scores.

    Attributes:
        draw: (rng, n) -> [n] scores.
        iqm: exact mean of the middle half of the distribution.
        atom: True if that is a score which many runs have. An interval that holds it
            then does so nearly always.
    """

    draw: Callable[[np.random.Generator, int], np.ndarray]
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


SCORES: Mapping[str, Scores] = {
    "normal": Scores(lambda rng, n: rng.normal(size=n), 0.0),
    "log-normal, skewed": Scores(
        lambda rng, n: np.exp(rng.normal(size=n)), _lognormal_iqm()
    ),
    "500 in 50 %, else uniform 100 to 500": _saturated(0.5),
    "500 in 70 %, else uniform 100 to 500": _saturated(0.7),
    "500 in 80 %, else uniform 100 to 500": _saturated(0.8),
    "81 in 60 %, else normal 150 ± 10": _bimodal(),
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


def pair_misses(name: str, num_seeds: int, num: int) -> float:
    """Return the share of false verdicts on two candidates with equal distributions."""
    rng, draw = np.random.default_rng(0), SCORES[name].draw
    found = (
        differences.paired_difference(draw(rng, num_seeds), draw(rng, num_seeds))
        for _ in range(num)
    )
    return sum(x.verdict in ("better", "worse") for x in found) / num


# --- groups of searches ---------------------------------------------------------------


def _crossed(a: np.ndarray, b: np.ndarray, searched: tuple[bool, bool]) -> bool:
    found = differences.crossed_difference(a, b, searched)
    return found.verdict in ("better", "worse")


def _wider_of_two(a: np.ndarray, b: np.ndarray, searched: tuple[bool, bool]) -> bool:
    """The wider of the intervals over seeds and over the first side's searches."""
    del searched
    zero = np.full(len(a), b.mean())
    both = (
        differences.paired_difference(a.mean(0), b.mean(0)),
        differences.paired_difference(a.mean(1), zero),
    )
    return max(both, key=lambda x: x.high - x.low).p_value <= 0.05


def _hierarchical(a: np.ndarray, b: np.ndarray, searched: tuple[bool, bool]) -> bool:
    """Percentiles of resampled searches and seeds."""
    rng = np.random.default_rng(0)
    seeds = rng.integers(a.shape[1], size=(400, 1, a.shape[1]))
    means = []
    for side, is_search in zip((a, b), searched, strict=True):
        rows = np.zeros((400, len(side), 1), int)
        if is_search:
            rows = rng.integers(len(side), size=rows.shape)
        means.append(side[rows, seeds].mean((1, 2)))
    low, high = np.quantile(means[0] - means[1], [0.025, 0.975])
    return bool(low > 0 or high < 0)


METHODS: Mapping[str, Callable[[np.ndarray, np.ndarray, tuple[bool, bool]], bool]] = {
    "crossed": _crossed,
    "wider of two": _wider_of_two,
    "hierarchical bootstrap": _hierarchical,
}


def false_verdicts(
    searches: int,
    rival: str,
    ratio: float,
    noise: str,
    num: int,
    methods: tuple[str, ...] = tuple(METHODS),
    effect: float = 0.0,
) -> dict[str, float]:
    """Return the share of simulations in which each method claims a difference.

    Args:
        searches: number of searches of the group, and of a rival that is searched.
        rival: `searched` or `fixed`.
        ratio: standard deviation of searches over that of a single search on one seed.
        noise: what seeds interact with: `search x seed`, each search on its own, or
            `group x seed`, all searches of a group alike.
        num: number of simulations.
        methods: names of methods.
        effect: true difference, in standard deviations of a single run.
    """
    rng = np.random.default_rng(0)
    searched = True, rival == "searched"
    claims = dict.fromkeys(methods, 0)
    for _ in range(num):
        seed = 3 * rng.normal(size=SEEDS)
        sides = []
        for is_search in searched:
            rows = searches if is_search else 1
            of_search = ratio * is_search * rng.normal(size=(rows, 1))
            shape = (rows, SEEDS) if noise == "search x seed" else (1, SEEDS)
            sides.append(seed + of_search + rng.normal(size=shape))
        sides[0] = sides[0] + effect * math.hypot(ratio, 1.0)
        for name in methods:
            claims[name] += METHODS[name](sides[0], sides[1], searched)
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
    for name in SCORES:
        for n in (10, 32):
            wrong = pair_misses(name, n, NUM)
            yield {"what": "pairs", "scores": name, "seeds": n, "false": wrong}
    for ratio in (0.2, 1.0, 3.0):
        for n in (2, 3, 10):
            share = group_coverage(ratio, n, NUM)
            yield {"what": "group", "searches": n, "ratio": ratio, "covers": share}
    for rival in ("searched", "fixed"):
        for noise in ("search x seed", "group x seed"):
            for n in (3, 5, 10):
                for ratio in (0.2, 1.0, 3.0):
                    case = {"rival": rival, "noise": noise, "searches": n}
                    case |= {"ratio": ratio}
                    wrong = false_verdicts(n, rival, ratio, noise, NUM)
                    power = false_verdicts(
                        n, rival, ratio, noise, NUM, ("crossed",), effect=1.0
                    )["crossed"]
                    yield {"what": "groups", **case, "false": wrong, "power": power}
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
    """Return the tables of docs/report.md."""
    chosen = {what: [x for x in lines if x["what"] == what] for what in WHAT}
    out = []

    def table(*header: str) -> None:
        out.extend(["", row(header), "|---" * len(header) + "|"])

    def row(cells) -> str:
        return "| " + " | ".join(cells) + " |"

    for what, field in (("iqm", "covers"), ("pairs", "false")):
        table("scores", "10 seeds", "32 seeds")
        for ten, many in zip(chosen[what][::2], chosen[what][1::2], strict=True):
            out.append(row([ten["scores"], *(f"{x[field]:.1%}" for x in (ten, many))]))
    table("sd(search) / sd(seed)", "2 searches", "3 searches", "10 searches")
    for i in range(0, len(chosen["group"]), 3):
        part = chosen["group"][i : i + 3]
        out.append(
            row([f"{part[0]['ratio']:g}", *(f"{x['covers']:.1%}" for x in part)])
        )
    table(
        "rival", "seeds act on", "searches", "sd(search) / sd(seed)", "false verdicts",
        "wider of two", "hierarchical bootstrap", "finds 1 sd",
    )  # fmt: skip
    for x in chosen["groups"]:
        on = "each search" if x["noise"] == "search x seed" else "whole groups"
        wrong = [f"{share:.1%}" for share in x["false"].values()]
        side = str(x["searches"]) if x["rival"] == "fixed" else f"{x['searches']} each"
        cells = [x["rival"], on, side, f"{x['ratio']:g}", *wrong, f"{x['power']:.0%}"]
        out.append(row(cells))
    table("scores", "seeds alike", "seeds", "identical", "½ sd worse", "1 sd worse")
    for x in chosen["distill"]:
        kept = [f"{share:.1%}" for share in x["kept"].values()]
        out.append(row([x["scores"], f"{x['alike']:.0%}", str(x["seeds"]), *kept]))
    # The names of distributions have the space already.
    return "\n".join(out).replace("%", " %").replace("  %", " %")


WHAT = ("iqm", "pairs", "group", "groups", "distill")


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
