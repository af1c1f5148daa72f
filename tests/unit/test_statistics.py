"""Intervals and verdicts: definitions, how often they are wrong, odd data."""

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchmarks import intervals
from metaevo import critic_losses, drifts, losses
from metaevo.analysis import differences, distill, holdout, stats, verdicts
from metaevo.analysis.differences import (
    clause,
    crossed_difference,
    paired_difference,
    unpaired_difference,
)
from metaevo.engine import records


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# --- intervals of one candidate -------------------------------------------------------


def test_bootstrap_refuses_too_few_seeds_and_nan():
    for scores in ([1.0, 2.0], [1.0, np.nan, 2.0]):
        with pytest.raises(ValueError, match="at least 3 seeds"):
            stats.bootstrap(np.array(scores))


def test_equal_scores_are_said_to_be_equal():
    found = stats.bootstrap(np.ones(5))
    assert found == (1.0, 1.0, 1.0, 5)
    assert found.text == "1 [all 5 scores are equal]"
    assert stats.bootstrap(np.array([1.0, 1.0, 1.0, 2.0])).num_equal == 0


def test_an_interval_stays_within_the_scores():
    """CartPole's: most reach 500, and no run can do better."""
    for scores in (
        [500.0] * 7 + [100, 200, 300],
        [500.0] * 25 + [*range(100, 450, 50)],
    ):
        found = stats.bootstrap(np.array(scores))
        assert 100 <= found.low < found.estimate <= found.high <= 500
        assert found.high - found.low > 1


def test_percentiles_of_few_seeds_are_as_wide_as_students_interval():
    """Plain ones of a mean have three quarters of its width at eight seeds."""
    rng, num_seeds = np.random.default_rng(0), 8
    found, students = [], []
    for seed in range(20):
        scores = rng.normal(size=num_seeds)
        interval = stats.bootstrap(scores, stats.mean, seed=seed)
        found.append(interval.high - interval.low)
        error = scores.std(ddof=1) / math.sqrt(num_seeds)
        students.append(2 * scipy_stats.t.ppf(0.975, num_seeds - 1) * error)
    assert np.mean(found) == pytest.approx(np.mean(students), rel=0.1)


def test_the_cost_is_linear_in_seeds():
    """2,000 seeds take well under a second; the square of that took minutes."""
    scores = np.random.default_rng(0).normal(size=2000)
    began = time.process_time()
    stats.bootstrap(scores)
    assert time.process_time() - began < 1.5


def test_exact_iqms_of_populations():
    """Against the mean of the middle half of a large sample."""
    for scores in intervals.SCORES.values():
        sample = scores.draw(np.random.default_rng(0), 400_000)
        assert scores.iqm == pytest.approx(float(stats.iqm(sample)), rel=0.01, abs=0.01)


def simulated_coverage(name, num_seeds, num):
    hits = intervals.iqm_hits(name, num_seeds, num, num_resamples=500)
    share, error = hits.mean(), math.sqrt(0.9 * 0.1 / num)
    print(f"coverage {share}, {name}, {num_seeds} seeds")
    assert share >= 0.9 - 2 * error
    if not intervals.SCORES[name].atom:
        assert share <= 0.98 + 2 * math.sqrt(0.98 * 0.02 / num)


@pytest.mark.parametrize("name", intervals.SCORES)
def test_intervals_of_the_iqm_cover_in_a_few_simulations(name):
    """At 200 the test fails in 2 % of cases where the true coverage is 90 %."""
    simulated_coverage(name, 10, 200)


@pytest.mark.slow
@pytest.mark.parametrize("num_seeds", [10, 32])
@pytest.mark.parametrize("name", intervals.SCORES)
def test_intervals_of_the_iqm_cover(name, num_seeds):
    simulated_coverage(name, num_seeds, 1000)


def test_searches_are_not_pooled_with_seeds(rng):
    """3 searches x 32 seeds that vary alike: pooled, the interval covers 38 %."""
    hits = 0
    for _ in range(100):
        scores = rng.normal(size=(3, 1)) + rng.normal(size=(3, 32))
        found = stats.grouped(scores)
        hits += found.low <= 0 <= found.high
    assert hits >= 84


def test_a_group_of_one_search_has_the_interval_over_seeds():
    scores = np.random.default_rng(0).normal(size=32)
    alone, one = stats.bootstrap(scores), stats.grouped(scores[None])
    assert one.estimate == pytest.approx(alone.estimate)
    assert one.low == pytest.approx(alone.low, abs=0.05)
    assert one.high == pytest.approx(alone.high, abs=0.05)


def test_a_group_at_the_ceiling_stays_below_it():
    scores = np.full((3, 32), 500.0)
    scores[0, :20] = 300.0
    assert stats.grouped(scores).high == 500
    # Scores that do not tie show no bound.
    free = np.array([[0.0], [10.0]]) + np.random.default_rng(0).normal(size=(2, 32))
    assert stats.grouped(free).high > free.max()


def test_failed_runs_are_left_out_of_a_group():
    scores = np.random.default_rng(0).normal(size=(3, 32))
    broken = scores.copy()
    broken[0] = np.nan
    assert stats.grouped(broken) == stats.grouped(scores[1:])
    assert stats.grouped(np.full((2, 8), np.nan)) is None


# --- differences ----------------------------------------------------------------------


def test_paired_difference_is_the_paired_t_interval(rng):
    a, b = rng.normal(1.0, 1.0, 20), rng.normal(0.0, 1.0, 20)
    paired = paired_difference(a, b)
    test = scipy_stats.ttest_rel(a, b)
    low, high = test.confidence_interval(0.95)
    assert (paired.low, paired.high) == (pytest.approx(low), pytest.approx(high))
    assert paired.difference == pytest.approx((a - b).mean())
    assert paired.p_value == pytest.approx(test.pvalue)


def test_verdicts():
    noise = np.tile([0.1, -0.1], 8)
    for shift, verdict in ((1.0, "better"), (-1.0, "worse"), (0.0, "no difference")):
        assert paired_difference(noise + shift, np.zeros(16)).verdict == verdict


def test_failed_pairs_are_counted_and_left_out():
    paired = paired_difference(np.array([1.0, np.nan, 2.0]), np.zeros(3))
    assert (paired.num_pairs, paired.num_failed) == (2, (1, 0))
    failed = paired_difference(np.array([1.0, np.inf]), np.zeros(2))
    assert (failed.low, failed.high) == (-np.inf, np.inf)


def failing(num, scores):
    return np.where(np.arange(32) < num, np.nan, scores)


@pytest.mark.parametrize(("num", "where_trained"), [(1, 31), (31, 1), (32, 0)])
def test_a_solution_that_fails_is_called_failing(num, where_trained):
    good = 50 + np.random.default_rng(0).normal(size=32)
    rival = np.random.default_rng(1).normal(size=32)
    paired = paired_difference(failing(num, good), rival)
    assert paired.verdict == "fails"
    said = clause(paired, "the solution", "the hand-made one")
    assert said.startswith(f"the solution fails on {num} of 32 seeds, the hand-made")
    assert ("where both train, the solution is better" in said) == (where_trained > 1)
    assert "not distinguishable" not in said


def test_both_that_fail_everywhere_fail():
    nothing = np.full(8, np.nan)
    assert paired_difference(nothing, nothing).verdict == "fails"


def test_a_rival_that_fails_more_is_said_to(rng):
    bad = failing(20, rng.normal(size=32))
    paired = paired_difference(np.zeros(32), bad)
    assert paired.verdict == "rival fails"
    said = clause(paired, "the solution", "the hand-made one")
    assert said.startswith("the hand-made one fails on 20 of 32 seeds, the solution on")
    assert paired_difference(bad + 9, np.zeros(32)).verdict == "fails"
    assert paired_difference(np.full(32, 9.0), bad).verdict == "better"
    assert paired_difference(bad + 9, bad).verdict == "better"  # both fail as often


def test_a_difference_of_rounding_is_none(rng):
    """Two programs that compute the same numbers differ in the last bits."""
    scores = np.float32(rng.normal(-100.0, 30.0, 32))
    other = np.nextafter(scores, np.float32(-np.inf))
    paired = paired_difference(other, scores)
    assert paired.high < 0  # which Student's t takes for sure
    assert paired.verdict == "equal"
    assert "equal, up to rounding" in clause(paired, "it", "the other")
    assert paired_difference(scores, scores).verdict == "equal"


def test_small_numbers_are_no_rounding(rng):
    """A difference is judged by the size of its scores, and keeps its digits."""
    a, b = rng.normal(2e-6, 1e-6, 32), rng.normal(1e-6, 1e-7, 32)
    paired = paired_difference(a, b)
    assert paired.verdict == "better"
    assert "0.00 " not in paired.text


@pytest.mark.parametrize(
    ("num", "verdict"), [(2, "no difference"), (6, "no difference"), (7, "better")]
)
def test_equal_differences_allow_for_a_run_that_nobody_saw(num, verdict):
    """500 and 100 on every seed: a pair that was not seen differs by -500 at most.

    Its weight is Beta(1, N): it has to be 4/9 to take back what was seen.
    """
    paired = paired_difference(np.full(num, 500.0), np.full(num, 100.0))
    assert paired.p_value == pytest.approx(min(1, 2 * (5 / 9) ** num), rel=0.2)
    assert paired.low < paired.difference
    assert paired.verdict == verdict


def test_scores_that_are_all_alike_are_not_proved_equal():
    """Both at the ceiling on three seeds: a third of the runs of either may fail."""
    paired = paired_difference(np.full(3, 500.0), np.full(3, 500.0))
    assert paired.verdict == "no difference"
    assert paired_difference(np.zeros(32), np.zeros(32)).verdict == "no difference"
    share = 1 - 0.025 ** (1 / 3)
    assert paired.low == pytest.approx(-500 * share, rel=0.02)


@pytest.mark.parametrize(
    ("pair", "num_seeds"),
    [
        (("500 in 95 %, else 10", "normal ± 20"), 8),
        (("500 in 70 %", "500 in 95 %, else 10"), 32),
        (("log-normal ± 40", "normal ± 20"), 8),
    ],
)
def test_verdicts_on_unequal_shapes_are_rarely_false(pair, num_seeds):
    """400 simulations of equal means; 8 % and two standard errors are allowed."""
    found = intervals.unequal_shapes(*pair, num_seeds, 400)
    assert found["verdicts"] <= 0.08 + 2 * math.sqrt(0.08 * 0.92 / 400)
    if "else 10" in pair[0]:  # the negative control
        assert found["students"] > 0.15


def test_a_rare_failure_does_not_hide_a_great_difference(rng):
    rival = rng.normal(300, 40, 32)
    paired = paired_difference(np.full(32, 500.0), rival)
    assert paired.verdict == "better"
    alone = scipy_stats.ttest_rel(np.full(32, 500.0), rival).confidence_interval()
    assert paired.low < alone.low - 40  # a tenth may fail, at 0
    close = paired_difference(np.full(32, 500.0), rng.normal(475, 20, 32))
    assert close.verdict == "no difference"


@pytest.mark.parametrize("num_seeds", [8, 32])
def test_the_interval_of_a_mean_covers_rare_failures(num_seeds):
    """500 in nine of ten runs, else 0: the bootstrap covers 52 to 85 %."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(300):
        found = stats.mean_interval(np.where(rng.random(num_seeds) < 0.9, 500.0, 0.0))
        hits += found.low <= 450 <= found.high
    assert hits / 300 >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / 300)


def test_few_scores_have_no_interval_of_their_iqm():
    few = np.arange(3.0 * stats.MIN_SEEDS - 3).reshape(3, -1)
    assert stats.grouped(few) is None
    assert stats.grouped(np.tile(few, 2)) is not None


# --- groups of searches ---------------------------------------------------------------


def test_one_search_each_is_the_paired_interval_over_seeds(rng):
    a, b = rng.normal(size=(1, 12)), rng.normal(size=(1, 12))
    for searched in ((True, True), (True, False)):
        assert crossed_difference(a, b, searched) == paired_difference(a[0], b[0])


def test_without_variance_over_seeds_it_is_welchs(rng):
    a, b = rng.normal(size=(4, 1)), 2 * rng.normal(size=(4, 1))
    found = crossed_difference(
        np.tile(a, 16) + np.arange(16.0), np.tile(b, 16) + np.arange(16.0), (True, True)
    )
    test = scipy_stats.ttest_ind(a[:, 0], b[:, 0], equal_var=False)
    assert found.p_value == pytest.approx(test.pvalue, rel=1e-6)
    low, high = test.confidence_interval()
    assert found[1:3] == (pytest.approx(low), pytest.approx(high))
    assert found.num_searches == (4, 4)


def test_unequal_groups_have_the_freedom_of_the_smaller(rng):
    a, b = rng.normal(size=(3, 1)), rng.normal(size=(10, 1))
    seeds = np.arange(16.0)
    found = crossed_difference(
        np.tile(a, 16) + seeds, np.tile(b, 16) + seeds, (True, True)
    )
    error = math.sqrt(a.var(ddof=1) / 3 + b.var(ddof=1) / 10)
    half = scipy_stats.t.ppf(0.975, 2) * error
    assert found.high - found.difference == pytest.approx(half)


def test_what_searches_and_seeds_share_counts_once():
    """The docstring's sum, for results in which nearly all is search x seed."""
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(4, 6)), rng.normal(size=(4, 6))
    found = crossed_difference(a, b, (True, True))

    def shared_by(x):
        rest = x - x.mean(1)[:, None] - x.mean(0) + x.mean()
        return (rest**2).sum() / (3 * 5) / 24

    variances = [x.mean(1).var(ddof=1) / 4 for x in (a, b)]
    over_searches = sum(variances)
    over_seeds = (a.mean(0) - b.mean(0)).var(ddof=1) / 6
    shared = shared_by(a - b.mean(0)) + shared_by(a.mean(0) - b)
    freedom = 3 * over_searches**2 / sum(x**2 for x in variances)
    t, t_seeds = (scipy_stats.t.ppf(0.975, n) ** 2 for n in (freedom, 5))
    square = t * over_searches + t_seeds * max(over_seeds - shared, 0)
    square = max(square, t_seeds * over_seeds)
    assert found.high - found.difference == pytest.approx(math.sqrt(square))
    assert square < t * over_searches + t_seeds * over_seeds


def test_against_a_fixed_rival_searches_are_counted(rng):
    """Three searches do not show a tenth that fails, so nothing is claimed."""
    base = rng.normal(size=(1, 12))
    mine = base + np.array([[0.0], [9.0], [-5.0]]) + 0.1 * rng.normal(size=(3, 12))
    found = crossed_difference(mine, base, (True, False))
    assert found[:3] == paired_difference(mine.mean(0), base[0])[:3]
    assert found.each == (1, 1, 3)
    assert found.about_results
    said = found.each_text
    assert said == "; better in 1 of 3 searches, each by itself, worse in 1"


def test_interval_and_p_value_agree(rng):
    for shift in (0.3, 0.6, 0.9):
        a, b = rng.normal(shift, 1, (4, 32)), rng.normal(size=(3, 32))
        found = crossed_difference(a, b, (True, True))
        level = 1 - found.p_value
        low = crossed_difference(a, b, (True, True), level).low
        assert low == pytest.approx(0, abs=1e-6)


def test_failed_runs_of_groups_are_left_out_and_counted(rng):
    a, b = rng.normal(5, 1, (3, 32)), rng.normal(size=(3, 32))
    a[0] = np.nan
    a[1, 3] = np.nan
    found = crossed_difference(a, b, (True, True))
    assert found.num_failed == (33, 0)
    assert found.num_searches == (2, 3)
    assert 4 < found.difference < 6
    assert clause(found, "it", "the rival").startswith("it fails in 33 of 96 runs")


def test_a_search_whose_rivals_fail_wherever_it_trains_is_left_out(rng):
    a, b = rng.normal(size=(3, 32)), rng.normal(size=(3, 32))
    a[0, 2:] = np.nan
    b[:, :2] = np.nan
    found = crossed_difference(a, b, (True, True))
    assert found.num_searches == (2, 3)
    assert np.isfinite(found[:4]).all()


@pytest.mark.parametrize(("searches", "failing"), [((3, 3), 0.0), ((3, 10), 0.3)])
def test_false_verdicts_on_groups_are_rare(searches, failing):
    """400 simulations without effect; 7 % and two standard errors are allowed."""
    for ratio in (0.2, 3.0):
        wrong = intervals.false_verdicts(
            searches, ratio, "search x seed", 400, ("crossed",), failing=failing
        )
        assert wrong["crossed"] <= 0.07 + 2 * math.sqrt(0.07 * 0.93 / 400)


def test_verdicts_that_are_read_together_are_corrected(rng):
    one = paired_difference(rng.normal(size=32), np.zeros(32))
    family = [one._replace(p_value=p) for p in (0.01, 0.04, 0.03, 0.5)]
    found = differences.holm(family)
    corrected = [x.p_corrected for x in found]
    assert corrected == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert [x.verdict == "no difference" for x in found] == [False, True, True, True]
    said = clause(found[1], "it", "the other")
    assert said.endswith("after Holm's correction for 4 verdicts")
    assert "Holm" not in clause(found[3], "it", "the other")


# --- verdicts of a run ----------------------------------------------------------------


def held_out(fitness, final_return):
    return holdout.HeldOut(fitness[None], final_return[None], ({},))


def test_a_sure_loss_in_final_return_is_not_hidden_by_the_lifetime():
    """The demo's: as good over the lifetime, and 77 lower at its end."""
    rng = np.random.default_rng(1)
    base = rng.normal(290, 30, 32)
    runs = {
        "solution": held_out(
            base + rng.normal(0, 50, 32), base + rng.normal(93, 130, 32)
        ),
        "hand-made": held_out(base, base + 170),
    }
    lifetime, final = verdicts.verdicts(
        runs, {"measure": "mean return over the lifetime"}
    )
    assert lifetime.paired.verdict == "no difference"
    assert final.measure == "final return"
    assert final.paired.verdict == "worse"
    assert "worse than the hand-made one: final return -" in final.sentence
    assert lifetime.paired.num_verdicts == 2
    (only,) = verdicts.verdicts(runs, {"measure": "final return"})
    assert only.paired.difference == final.paired.difference
    assert verdicts.verdicts({}, {}) == ()


def test_a_population_that_is_noise_is_warned_of(rng):
    noise = rng.normal(size=(2, 32))
    runs = {"solution": held_out(np.zeros(4), np.zeros(4))}
    (sentence,) = verdicts.warnings({"noise": verdicts.noise(*noise)}, runs)
    assert "32 members" in sentence
    assert verdicts.warnings({"noise": verdicts.noise(*noise)}, {}) == []
    apart = verdicts.noise(*(noise + 3 * np.arange(32)))
    # Agents that live on, and populations of equal members.
    for noise in (apart, None, verdicts.noise(np.ones(8), np.ones(8))):
        assert verdicts.warnings({"noise": noise}, runs) == []


@pytest.mark.parametrize(
    ("seeds", "spread", "generations"), [(2, 1.0, 1), (2, 0.0, 12)]
)
def test_seeds_tell_members_from_noise(seeds, spread, generations):
    """Three searches of four, and at most one false alarm in ten, of unlike noise."""
    rng = np.random.default_rng(seeds)
    noise = 2 * np.exp(spread * rng.normal(size=24))

    def generation(deviation):
        members, worlds = deviation * rng.normal(size=24), rng.normal(size=(seeds, 1))
        scores = members + 5 * worlds + noise * rng.normal(size=(seeds, 24))
        told = records.signal(scores[None])
        return told | {"population": [None, *scores.mean(0)]}  # one has failed

    first = [generation(10) for _ in range(2 * generations)]  # do not count

    def p_value(deviation):
        last = [generation(deviation) for _ in range(generations)]
        return verdicts.noise_between_seeds(first + last, seeds)["p_value"]

    apart = [p_value(3.0) < 0.05 for _ in range(100)]
    assert np.mean(apart) > 0.75
    alike = [p_value(0.0) < 0.05 for _ in range(300)]
    assert 0.01 < np.mean(alike) < 0.1


def test_seeds_that_agree_by_chance_are_warned_of():
    runs = {"solution": held_out(np.zeros(4), np.zeros(4))}
    drifts = [{"population": np.arange(24.0), "agreement": 0.0}]
    told = {"noise": verdicts.noise_between_seeds(drifts, 3)}
    (sentence,) = verdicts.warnings(told, runs)
    assert "the 3 seeds of 24 members agree in rank by 0.00" in sentence
    agreed = verdicts.noise_between_seeds([drifts[0] | {"agreement": 0.5}], 3)
    assert verdicts.warnings({"noise": agreed}, runs) == []
    # Equal members, a log that anybody wrote, and too few members.
    for record in (
        *({"population": np.ones(24)} | x for x in ({}, {"agreement": None})),
        {"population": np.ones(24), "agreement": 1e9},
        {"population": [1.0, None, 2.0], "agreement": 0.5},
    ):
        assert verdicts.noise_between_seeds([record], 3) is None


def test_agreement_is_spearmans(rng):
    scores = rng.integers(0, 9, size=(2, 12)).astype(float)
    expected = scipy_stats.spearmanr(*scores).statistic
    assert stats.rank_agreement(scores) == pytest.approx(expected)
    three = np.stack([*scores, scores[0]])
    assert stats.rank_agreement(three) == pytest.approx((1 + 2 * expected) / 3)
    told = records.signal(np.stack([scores, scores[::-1]]))
    assert told["agreement"] == pytest.approx(expected)
    assert stats.rank_agreement(np.ones((2, 12))) is None
    assert "agreement" not in records.signal(np.ones((1, 2, 12)))


def test_a_kept_rival_that_is_better_is_warned_of(rng):
    """The best of those that are, beyond the interval of means over other seeds."""
    solution = rng.normal(100, 10, 32)
    kept = [
        {"changes": ["a=1"], "tuned": 0, "scores": {"x": rng.normal(120, 10, 16)}},
        {"changes": ["b=1", "c=1"], "tuned": 9000, "scores": {"x": solution + 50}},
        {"changes": ["d=1"], "tuned": 0, "scores": {"x": solution}},
        {"changes": ["e=1"], "tuned": 0, "scores": {"y": solution + 99}},
    ]
    runs = {"solution": held_out(solution, solution)}
    (said,) = verdicts.warnings({"measure": "x", "kept_rivals": kept}, runs)
    assert f"x {solution.mean() + 50:.2f} against {solution.mean():.2f}, +50.00" in said
    assert "(32 and 32 seeds, not paired), with b=1 c=1 and numbers tuned by" in said
    assert not verdicts.warnings({"measure": "x", "kept_rivals": kept[2:]}, runs)
    runs = {"solution": held_out(np.full(32, np.nan), solution)}
    (said,) = verdicts.warnings({"measure": "x", "kept_rivals": kept}, runs)
    assert "against nan" in said
    assert "not paired, which fails on 32)" in said


def test_unpaired_difference_is_welchs_where_scores_are_normal():
    rng = np.random.default_rng(1)
    a, b = rng.normal(3, 1, 200), rng.normal(0, 5, 200)
    found = unpaired_difference(a, b)
    half = 1.972 * np.sqrt(a.var(ddof=1) / 200 + b.var(ddof=1) / 200)
    assert found.difference == pytest.approx(a.mean() - b.mean())
    assert found.low == pytest.approx(found.difference - half, rel=0.02)
    assert found.high == pytest.approx(found.difference + half, rel=0.02)
    assert found.verdict == "better"
    assert unpaired_difference(b, a).verdict == "worse"
    assert unpaired_difference(a, a[::-1]).verdict == "no difference"
    assert unpaired_difference(a[:2], b).low == -np.inf


# --- signal of a generation -----------------------------------------------------------


def drawn(rng, seeds, members=200):
    """Members with deviation 1, seeds with 5, and noise with 2."""
    noise = 2 * rng.normal(size=(seeds, members))
    return rng.normal(size=members) + 5 * rng.normal(size=(seeds, 1)) + noise


def test_signal_is_the_share_of_variance_that_is_of_the_members(rng):
    """Of a mean over S seeds it is 1 / (1 + 4 / S)."""
    for seeds, share in ((4, 1 / 2), (8, 2 / 3)):
        found = [records.signal(drawn(rng, seeds)[None]) for _ in range(50)]
        assert np.mean([x["signal"] for x in found]) == pytest.approx(share, abs=0.03)
    four = np.mean([records.signal(drawn(rng, 4)[None])["signal_twice"] for _ in "50"])
    assert four == pytest.approx(2 / 3, abs=0.1)
    nothing = [records.signal(rng.normal(size=(1, 4, 200))) for _ in range(20)]
    assert np.mean([x["signal"] for x in nothing]) < 0.1


def test_members_that_failed_tell_nothing_of_the_signal():
    rng = np.random.default_rng(1)
    scores = drawn(rng, 4)[None]
    broken = np.concatenate([scores, np.full((1, 4, 3), np.nan)], 2)
    assert records.signal(broken) == pytest.approx(records.signal(scores))
    assert records.signal(scores[:, :1]) == {}
    assert records.signal(scores[:, :, :2]) == {}


# --- docs ---------------------------------------------------------------------------


def test_the_docs_show_what_was_measured():
    lines = [json.loads(line) for line in intervals.RESULTS.read_text().splitlines()]
    page = Path(__file__).parents[2] / "docs" / "log" / "intervals.md"
    shown = page.read_text()
    measured = [x for x in intervals.tables(lines).splitlines() if x]
    assert len(measured) > 60
    assert [x for x in measured if x not in shown] == []


# --- equivalence ----------------------------------------------------------------------


def test_a_form_one_sd_worse_is_hardly_ever_kept():
    assert intervals.kept_forms("normal", 16, 0.0, 1.0, 400) <= 0.1


def test_an_identical_form_is_mostly_kept():
    """Its runs have nothing in common but the seeds' distribution."""
    assert intervals.kept_forms("normal", 32, 0.0, 0.0, 200) > 0.7


def test_a_form_is_not_kept_for_want_of_spread():
    same = np.full(32, 500.0)
    assert "no margin" in distill.equivalence(same, same, 0.75).refused_for
    # The same bits on every seed: the interval has a width for seeds not tried.
    scores = np.random.default_rng(0).normal(size=16)
    found = distill.equivalence(scores, scores, 0.75)
    assert found.low < 0 < found.high
    assert found.refused_for is None
    few = distill.equivalence(scores[:15], scores[:15], 0.75)
    assert "fewer than 16" in few.refused_for


# --- what was visited -----------------------------------------------------------------


def test_the_range_visited_is_of_all_tasks_in_the_units_of_the_loss():
    """Two tasks with errors of −1 and of 3; twice that in the targets' deviation."""
    tasks = tuple(
        {
            "value_error_mean": np.full((2, 3), x),
            "value_error_rms": np.full((2, 3), abs(x)),
            "return_std": np.full((2, 3), 0.5),
        }
        for x in (-1.0, 3.0)
    )
    scores = np.zeros((2, 2))
    held_out = {"solution": holdout.HeldOut(scores, scores, tasks)}
    weighted, plain = critic_losses.weighted_square(), losses.residual_network()
    spec = {"value_loss": weighted.spec, "td_loss": plain.spec}
    spec |= {"lr": {"op": "number"}, "drift": drifts.drift_network().spec}
    found = verdicts.visited(held_out, spec, {})
    assert found == {"value_loss": (-6.0, 10.0), "td_loss": (-3.0, 5.0)}
    del tasks[1]["return_std"]
    assert verdicts.visited(held_out, spec, {}).keys() == {"td_loss"}
    assert verdicts.visited({}, spec, {}) == {}


@pytest.mark.parametrize("num", [3, 33])
def test_rank_correlations_are_scipys(num):
    rng = np.random.default_rng(num)
    for _ in range(20):
        first, second = rng.integers(0, 5, (2, num)).astype(float)  # some are equal
        first[:2], second[-2:] = (0, 9), (0, 9)
        expected = scipy_stats.spearmanr(first, second, alternative="greater")
        found = stats.rank_correlation(first, second)
        np.testing.assert_allclose(found, tuple(expected), rtol=1e-9, atol=1e-12)
