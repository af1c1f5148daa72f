"""Intervals of README and docs are those of scores that are committed."""

import json

import numpy as np
import pytest

from benchmarks import claims
from metaevo.analysis import differences


@pytest.mark.parametrize("page", sorted({x["page"] for x in claims.claims()}))
def test_claims_of_a_page_are_recomputed(page):
    found = [claims.wrong(x) for x in claims.claims() if x["page"] == page]
    assert [x for x in found if x] == []


@pytest.mark.parametrize("page", sorted(set(claims.pages()) - {*claims.EXAMPLES}))
def test_a_page_shows_no_interval_without_scores(page):
    assert claims.without_scores(page) == []


@pytest.mark.parametrize("page", claims.GENERATED)
def test_tables_are_those_of_the_results(page):
    assert claims.changed_rows(page) == []


def test_a_changed_row_is_told(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("| a | 1 |\n| b | 2 |\n")
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    monkeypatch.setitem(claims.GENERATED, "page.md", lambda: "| a | 1 |\n| b | 3 |")
    assert claims.changed_rows("page.md") == ["| b | 3 |"]


def test_intervals_are_found_with_either_minus():
    assert claims._intervals("a -1.0 [-2, +3.0] b \u22124 [\u22125, \u22123]") == [
        "-1.0 [-2, +3.0]",
        "\u22124 [\u22125, \u22123]",
    ]


def test_a_wrong_claim_is_told():
    claim = next(x for x in claims.claims() if "less" in x)
    other = claim | {"of": claim["less"], "less": claim["of"]}
    assert "but the scores say" in claims.wrong(other)
    assert "is not on the page" in claims.wrong(claim | {"claim": "+1.0 [+0.0, +2.0]"})


def test_scores_are_paired_by_seed(tmp_path, monkeypatch):
    """Of a line with a list, of lines with seeds, and of lines with lists of seeds."""
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    claims._lines.cache_clear()
    lines = (
        '{"x": "a", "y": {"z": [5.0, 7.0, 9.5, 11.0]}}',
        '{"x": "b", "seed": 2, "y": {"z": 2.0}}',
        '{"x": "b", "seed": 0, "y": {"z": 1.0}}',
        '{"x": "c", "seeds": [3, 1], "y": {"z": [4.0, 3.0]}}',
        '{"x": "c", "seeds": [0], "y": {"z": [1.0]}}',
        '{"x": "e", "seed": 0, "y": {"z": null}}',
        *['{"x": "d", "seed": 0, "y": {"z": 1.0}}'] * 2,
    )
    (tmp_path / "s.jsonl").write_text("\n".join(lines))
    expected = {
        "a": {0: 5.0, 1: 7.0, 2: 9.5, 3: 11.0},
        "b": {0: 1.0, 2: 2.0},
        "c": {0: 1.0, 1: 3.0, 3: 4.0},
        "e": {0: None},
    }
    for x, by_seed in expected.items():
        assert claims.scores("s.jsonl", {"x": x}, ["y", "z"]) == {(None, 0): by_seed}
    claim = {"file": "s.jsonl", "key": ["y", "z"], "of": {"x": "a"}}
    claim |= {"less": {"x": "c"}, "claim": "0.0 [0, +0.00]"}
    # Differences of 4, 4 and 7: 5 with Student's interval of three.
    assert claims.recomputed(claim) == "5.0 [1, +9.30]"
    # Without another side the mean, here 8.125 ± 3.182 * 1.329.
    alone = {k: x for k, x in claim.items() if k != "less"} | {"claim": "8.1 [0, 0.0]"}
    assert claims.recomputed(alone) == "8.1 [4, 12.4]"
    with pytest.raises(ValueError, match="several lines"):
        claims.scores("s.jsonl", {"x": "d"}, ["y", "z"])
    claims._lines.cache_clear()


def test_searches_are_rows_of_scores(tmp_path, monkeypatch):
    """One side that was searched is judged over seeds, two over searches as well."""
    monkeypatch.setattr(claims, "ROOT", tmp_path)
    claims._lines.cache_clear()
    rng = np.random.default_rng(0)
    mine, rival = rng.normal(size=(3, 8)) + 5, rng.normal(size=(2, 8))
    lines = [{"x": "a", "search": i, "s": x.tolist()} for i, x in enumerate(mine)]
    lines += [{"x": "b", "search": i, "s": x.tolist()} for i, x in enumerate(rival)]
    lines += [{"x": "d", "seed": i, "s": x.tolist()} for i, x in enumerate(rival)]
    lines += [{"x": "c", "s": rival.tolist()}, {"x": "b", "other": rival[0].tolist()}]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, lines)))
    claim = {"file": "s.jsonl", "key": ["s"], "of": {"x": "a"}, "less": {"x": "b"}}
    for more, other, searched in (
        ({}, rival, True),
        ({"less": {"x": "c"}}, rival, True),
        ({"less": {"x": "d"}}, rival, True),
        ({"less_key": ["other"]}, rival[:1], False),
    ):
        found = claims.recomputed(claim | more | {"claim": "0.000 [0.000, 0.000]"})
        expected = differences.crossed_difference(mine, other, (True, searched))
        numbers = expected.difference, expected.low, expected.high
        assert found == "{:.3f} [{:.3f}, {:.3f}]".format(*numbers)
    alone = claim | {"paired": False, "less": {"x": "b"}, "less_key": ["other"]}
    with pytest.raises(ValueError, match="too many values"):
        claims.recomputed(alone)
    alone |= {"of": {"x": "a", "search": 0}, "claim": "0.000 [0.000, 0.000]"}
    expected = differences.unpaired_difference(mine[0], rival[0])
    numbers = expected.difference, expected.low, expected.high
    assert claims.recomputed(alone) == "{:.3f} [{:.3f}, {:.3f}]".format(*numbers)
    with pytest.raises(ValueError, match=r"no line of \{'x': 'b'\} has \['none'\]"):
        claims.scores("s.jsonl", {"x": "b"}, ["none"])
    claims._lines.cache_clear()
