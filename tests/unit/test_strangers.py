"""Evolved functions in agents that others wrote: choice, pairing, table, exports."""

import doctest
import json
import runpy

import jax
import numpy as np
import pytest

import metaevo
from benchmarks import strangers, zoo
from benchmarks.strangers import Row
from metaevo.analysis.differences import paired_difference
from metaevo.learned import operations
from metaevo.slots import Context

OWN, OTHER = "Huber", "reluctant"
ROW = Row(*strangers.OF_TD, strangers.SB3_DQN, "CartPole-v1", (OWN, OTHER), 8)


def line(function, seeds, lifetime, final=None, **changes):
    """A line of the results."""
    scores = {"lifetime": lifetime, "final_return": final or lifetime}
    found = strangers.place(ROW, function) | {"seeds": seeds} | scores
    return json.dumps(found | changes)


def lines_of(evolved, own, other):
    seeds = list(range(len(evolved)))
    named = {ROW.of: evolved, OWN: own, OTHER: other}
    return [line(name, seeds, x) for name, x in named.items()]


def judged(lines):
    found = strangers.judged(ROW, strangers.known(lines, ROW))
    assert found is not None
    return found


def is_judged(lines):
    return strangers.judged(ROW, strangers.known(lines, ROW)) is not None


def test_examples_of_docstrings():
    done = doctest.testmod(strangers)
    assert done.failed == 0 < done.attempted


def test_a_half_of_the_seeds_is_judged_against_what_the_other_half_chose():
    own, other = [5.0, 1, 5, 1, 5, 1, 5, 1], [2.0] * 8
    found = judged(lines_of([10.0] * 8, own, other))
    # Odd seeds choose `other`, which gives 2; even ones choose `own`, 1 on the odd.
    assert found.chosen == (OTHER, OWN)
    assert found.beyond_simple["lifetime"].difference == pytest.approx((8 + 9) / 2)
    assert found.beyond_own["lifetime"].difference == pytest.approx(10 - 3)
    # Even seeds do not choose the function that they are judged against.
    own[::2] = [100.0] * 4
    assert judged(lines_of([10.0] * 8, own, other)).chosen[0] == OTHER


def test_a_function_that_failed_is_not_chosen():
    own, other = [None, None, *[9.0] * 6], [2.0] * 8
    assert judged(lines_of([10.0] * 8, own, other)).chosen == (OTHER, OTHER)
    failed = judged(lines_of([None] * 8, own, other))
    assert "fails: 8 and 2 of 8" in strangers.cell(failed.beyond_own["lifetime"])


def test_scores_are_paired_by_seed_whatever_the_order_of_lines():
    """The artifact is 1 above what the agent has; seeds differ by far more."""
    levels = {seed: 100.0 * seed for seed in range(6)}
    order = [4, 0, 5, 1, 3, 2]
    lines = [line(ROW.of, [i], [levels[i] + 1]) for i in order]
    lines += [line(OWN, order[::-1], [levels[i] for i in order[::-1]])]
    lines += [line(OTHER, [0, 1, 2, 3, 5], [0.0] * 5)]
    found = judged(lines)
    assert found.seeds == 5  # one has no score of `other`
    assert found.beyond_own["lifetime"].difference == pytest.approx(1.0)
    assert found.means[OWN] == pytest.approx(np.mean([0, 100, 200, 300, 500]))


def test_lines_of_another_place_or_artifact_do_not_count():
    lines = lines_of([3.0] * 8, [1.0] * 8, [2.0] * 8)
    strange = [
        line(OWN, [0], [99.0], agent=strangers.DQN),
        line(OWN, [0], [99.0], task="Acrobot-v1"),
        line(OWN, [0], [99.0], slot="value_loss"),
        line(ROW.of, [0], [99.0], artifact="another"),
    ]
    assert strangers.known(lines + strange, ROW) == strangers.known(lines, ROW)
    moved = [json.dumps(json.loads(x) | {"artifact": "old"}) for x in lines]
    assert not is_judged(moved)


def test_fewer_than_four_seeds_are_not_judged():
    scores = [3.0, 4.0, 5.0, 6.0], [1.0] * 4, [2.0] * 4
    assert judged(lines_of(*scores)).seeds == 4
    assert not is_judged(lines_of(*(x[:3] for x in scores)))
    assert not is_judged(lines_of(*scores)[:2])


def test_only_what_lacks_is_trained(monkeypatch, tmp_path):
    asked = []

    def run(row, missing):
        asked.append(sorted(missing))
        for seed, name in sorted(missing):
            yield json.loads(line(name, [seed], [1.0]))

    monkeypatch.setattr(strangers, "in_sb3", run)
    results = strangers.Results("strangers", folder=tmp_path)
    row = ROW._replace(seeds=2)
    results.lines = [line(OWN, [1], [7.0]), line(ROW.of, [0, 1], [7.0, 7.0])]
    strangers.train(row, results)
    strangers.train(row, results)
    assert asked == [[(0, OWN), (0, OTHER), (1, OTHER)]]
    again = strangers.Results("strangers", keep=True, folder=tmp_path)
    assert strangers.known(again.lines, row)[OTHER].keys() == {0, 1}


def test_the_table_tells_the_verdicts():
    rng = np.random.default_rng(0)
    own = rng.normal(100, 1, 8)
    evolved, other = own + rng.normal(50, 1, 8), own + rng.normal(50, 20, 8)
    lines = lines_of(*(x.tolist() for x in (evolved, own, other)))
    head, _, row = strangers.table(lines, [ROW]).splitlines()[2:]
    cells = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert cells["seeds"] == "8"
    assert cells["by itself"] == f"{OWN} {own.mean():.4g}"
    assert cells["evolved - by itself"].startswith("**+")
    assert cells["best simple"] == OTHER
    assert not cells["evolved - best simple"].startswith("**")
    assert strangers.table(lines[:1], [ROW]) == ""


def test_the_table_goes_between_its_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{strangers.BEGIN}old\n{strangers.END}after\n")
    for text in ("first", "second"):
        strangers.write(text, page)
        expected = f"before\n{strangers.BEGIN}\n{text}\n{strangers.END}after\n"
        assert page.read_text() == expected
    assert strangers.DOCS.read_text().count(strangers.BEGIN) == 1


def test_intervals_beyond_the_best_of_equals_keep_their_level():
    """Against the best on the judged seeds themselves they would be too low."""
    rng, names = np.random.default_rng(0), "abcde"
    held, fooled, num = 0, 0, 600
    for _ in range(num):
        evolved, *others = rng.normal(size=(6, 8))
        simple = dict(zip(names, others, strict=True))
        chosen = strangers.best_by_halves(simple)
        rival = np.where(np.arange(8) % 2 == 0, *(simple[x] for x in chosen))
        found = paired_difference(evolved, rival)
        held += found.low <= 0 <= found.high
        lucky = max(others, key=np.mean)
        fooled += paired_difference(evolved, lucky).high < 0
    assert 0.925 < held / num < 0.975
    assert fooled / num > 0.045  # 0.025 are due


def given(slot):
    """Inputs of a function, 6 elements, and what it reads of its context."""
    rng = np.random.default_rng(0)
    if slot == "reward":
        obs, next_obs = rng.uniform([-1.2, -0.07], [0.6, 0.07], (2, 6, 2))
        flags = np.arange(6) % 2
        return [obs, np.zeros(6), -np.ones(6), next_obs, flags], {"gamma": 0.9}
    return list(rng.normal(size=(3 if slot == "value_loss" else 2, 6))), {}


@pytest.mark.parametrize("slot", strangers.SIMPLE)
def test_exported_simple_functions_are_the_simple_functions(
    slot, tmp_path, monkeypatch
):
    # They are operations of this test alone.
    monkeypatch.setattr(operations, "_OWN", {})
    strangers.operation_of.cache_clear()
    inputs, stats = given(slot)
    inputs = [np.float32(x) for x in inputs]
    context = Context(return_std=2.0, stats=stats)
    for name, function in strangers.SIMPLE[slot].items():
        out = strangers.export(slot, name, tmp_path / "exported.py", "numpy")
        exported = runpy.run_path(str(out))[slot]
        more = {"return_std": 2.0} if name == "shifted" else stats
        if slot == "td_loss":
            q, target = inputs
            expected = function(target - q, q, target, context)
        elif slot == "reward":
            *first, flags = inputs
            axes = 0, 0, 0, 0, 0, None
            expected = jax.vmap(function, axes)(*first, flags != 0, context)
        else:
            expected = function(*inputs, context)
        np.testing.assert_allclose(exported(*inputs, **more), expected, rtol=2e-5)


def test_every_row_can_be_trained():
    for row in strangers.ROWS:
        assert set(row.simple) <= set(strangers.SIMPLE[row.slot])
        assert row.own in row.simple
        assert row.seeds >= strangers.LEAST_SEEDS
    assert len({(x.of, x.agent, x.task) for x in strangers.ROWS}) == len(strangers.ROWS)
    scaled = strangers.world(strangers.CAR + strangers.SCALED + strangers.LONG)
    assert scaled.env.max_steps == 1000
    assert scaled.raw is not None
    assert np.allclose(scaled.env.observation.high, 1.0)
    plain = strangers.world(strangers.CARTPOLE)
    assert (plain.env.name, plain.raw) == ("gymnax/CartPole-v1", None)


def test_wrong_words_are_refused():
    with pytest.raises(SystemExit, match="expected an artifact of zoo:td_signed"):
        strangers.main(["of=zoo:shaper"])
    with pytest.raises(SystemExit, match="expected one of of=, only="):
        strangers.main(["agent=dqn"])


# --- cards of the zoo -----------------------------------------------------------------


def test_a_card_says_first_whether_a_simple_function_does_as_well():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1, (3, 8))
    tied = judged(lines_of(*(list(x) for x in 50 + noise)))
    rows, limits = zoo.sentences(strangers.corrected([tied]))
    assert rows[0].startswith(f"in {strangers.SB3_DQN} on CartPole-v1, 8 seeds, over")
    assert limits[0].startswith("a demonstration: in none of 1 rows")
    assert len(limits) == 1
    better = judged(lines_of(*(list(x) for x in noise + np.array([[90], [50], [50]]))))
    worse = judged(lines_of(*(list(x) for x in noise + np.array([[20], [50], [50]]))))
    _, limits = zoo.sentences(strangers.corrected([better, worse]))
    assert limits[0].startswith("in 1 of 2 rows")
    assert limits[1].startswith(f"in {strangers.SB3_DQN} on CartPole-v1, 8 seeds, it")
    assert zoo.sentences([]) == ([], [])


def test_cards_have_the_rows_that_were_measured():
    for name in ("td_loss", "td_signed", "value_loss", "potential"):
        rows, limits = zoo.of_strangers(name)
        found = metaevo.load(f"zoo:{name}").manifest["evidence"]
        assert rows, f"no row of benchmarks.strangers for {name}"
        assert found["elsewhere"][: len(rows)] == rows
        assert found["limits"][: len(limits)] == limits
