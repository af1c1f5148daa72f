"""The card of an artifact, and the evidence that it shows."""

import copy
import json

import jax
import numpy as np
import pytest

import metaevo
from metaevo import losses
from metaevo.analysis import evidence as evidences
from metaevo.analysis import verdicts
from metaevo.analysis.evidence import evidence, kept
from metaevo.analysis.holdout import HeldOut
from metaevo.errors import CheckpointError
from metaevo.storage import artifacts, card

SEEDS = 8


def runs(level):
    scores = level + np.arange(float(SEEDS))[None]
    scores += level / 50 * np.tile([1.0, -1.0], SEEDS // 2)  # differences vary
    return HeldOut(scores, scores + 100, ())


@pytest.fixture
def found():
    held_out = {"solution": runs(50.0), "start": runs(20.0), "hand-made": runs(10.0)}
    records = [{"frames": 512, "seconds": 1.5}, {"frames": 1024, "seconds": 61.0}]
    facts = {"measure": "mean return", "noise": {"p_value": 0.4, "num_members": 9}}
    facts["noise"]["rank_correlation"] = 0.1
    return evidence(held_out, facts, (), ["gymnax/CartPole-v1"], records, "9.9")


@pytest.fixture
def artifact(tmp_path, found):
    learned = losses.residual_network()
    params = {"value_loss": learned.init(jax.random.key(0))}
    spec = {"value_loss": learned.spec}
    provenance = {"search": "ppo_value_loss"}
    visited = {"value_loss": (-2.0, 3.0)}
    artifacts.save(tmp_path, params, spec, {}, provenance, visited, found)
    return metaevo.load(tmp_path)


def test_evidence_has_scores_of_controls_and_what_the_search_cost(found):
    means = {row["name"]: row["fitness"] for row in found["scores"]}
    assert means == {"solution": 53.5, "start": 23.5, "hand-made": 13.5}
    assert {row["seeds"] for row in found["scores"]} == {SEEDS}
    assert found["cost"] == {"generations": 2, "frames": 1024, "seconds": 62.5}
    assert "the solution is better than the hand-made one" in found["verdicts"][0]
    assert "cannot be told apart from noise" in found["warnings"][0]


def test_scores_that_are_not_finite_are_not_given():
    bad = HeldOut(np.full((1, 3), np.nan), np.full((1, 3), np.nan), ())
    made = {"solution": bad, "hand-made": bad}
    rows = evidence(made, {"measure": "return"}, (), [], [], None)["scores"]
    assert [row["fitness"] for row in rows] == [None, None]


def noisy(seed):
    """Runs on two tasks, of which one failed."""
    scores = np.random.default_rng(seed).normal(0, 9, (2, 2, SEEDS))
    scores[0, 1, seed] = np.nan
    return HeldOut(*scores.astype(np.float32), ())


def test_verdicts_follow_from_the_scores_that_evidence_keeps(monkeypatch):
    made = {"solution": noisy(1), "hand-made": noisy(2), "best simple": noisy(3)}
    facts = {"measure": "return", "tasks": ["a", "b"], "num_searched": 1, "noise": None}
    found = json.loads(json.dumps(evidence(made, facts, (), [], [], None)))
    assert found["scores"][1]["task"] == "b, which the search never saw"
    assert found["scores"][1]["by_seed"]["fitness"][1] is None
    held_out, of_them = kept(found)
    for name, runs in made.items():
        np.testing.assert_array_equal(held_out[name].fitness, runs.fitness)
        np.testing.assert_array_equal(held_out[name].final_return, runs.final_return)
    again = [x.sentence for x in verdicts.every(held_out, of_them)]
    assert again == found["verdicts"]
    assert len(again) == len(set(again)) >= 8
    monkeypatch.setattr(evidences, "MOST", 6 * SEEDS - 1)
    assert kept(evidence(made, facts, (), [], [], None)) == ({}, {})


CHANGES = (
    lambda rows: rows[1].pop("by_seed"),
    lambda rows: rows[1]["by_seed"]["fitness"].pop(),
    lambda rows: rows[1]["by_seed"].update(final_return=["x"] * SEEDS),
    lambda rows: rows[1]["by_seed"].update(final_return=[10**400] * SEEDS),
    lambda rows: rows[1]["by_seed"].update(final_return=[[1.0]] * SEEDS),
    lambda rows: [x.update(by_seed={"fitness": [], "final_return": []}) for x in rows],
    lambda rows: rows[1].update(fitness=24.0),
    lambda rows: rows[1].update(fitness=None),
    lambda rows: rows[1].update(seeds=9),
    lambda rows: rows[1].update(task="maze"),
    lambda rows: rows[1].update(name=3),
)


def test_scores_that_do_not_fit_together_are_refused(found):
    assert kept(found)[0].keys() == {"solution", "start", "hand-made"}
    for number, change in enumerate(CHANGES):
        changed = copy.deepcopy(found)
        change(changed["scores"])
        with pytest.raises(CheckpointError, match="do not fit together"):
            pytest.fail(f"change {number} is kept: {kept(changed)}")


def test_evidence_of_an_older_artifact_keeps_no_scores(found):
    for row in found["scores"]:
        del row["by_seed"]
    assert kept(found) == ({}, {})
    assert kept({"scores": "x"}) == kept({"scores": [1]}) == kept({}) == ({}, {})


PRINTED = [
    "the solution is better than the hand-made one: mean return +40.00",
    "warning: the members of the last generation cannot be told apart from noise",
    "hand-made: mean return 13.5, final return 113.5, 8 seeds",
    "environment: gymnax/CartPole-v1",
    "cost: 2 generations, 1,024 frames, 1m02s",
    "metaevo: 9.9",
    "license: none chosen by its author",
    "visited in training: value - target from -2 to 3 return",
]


def test_loaded_artifact_prints_its_evidence(artifact):
    printed = str(artifact)
    for text in PRINTED:
        assert text in printed


def test_card_stands_beside_the_arrays_and_is_what_a_notebook_shows(artifact, tmp_path):
    written = (tmp_path / "README.md").read_text()
    assert written == artifact._repr_markdown_()
    assert "| hand-made | 13.5 | 113.5 | 8 |" in written
    assert "## Evidence" in written
    assert "from -2 to 3 return" in written


def test_card_is_replaced_with_its_artifact(artifact, tmp_path):
    (tmp_path / "README.md").write_text("old")
    learned = losses.residual_network()
    params = {"value_loss": learned.init(jax.random.key(1))}
    artifacts.save(tmp_path, params, {"value_loss": learned.spec}, {}, {})
    assert (tmp_path / "README.md").read_text().startswith("# value\\_loss")


def test_fitness_that_is_the_final_return_is_shown_once(artifact, found):
    manifest = {**artifact.manifest, "evidence": {**found, "measure": "final return"}}
    assert "hand-made: final return 13.5, 8 seeds" in card.lines(manifest)
    shown = card.markdown(manifest, artifact.properties)
    assert "|  | final return | held-out seeds |" in shown
    assert "| hand-made | 13.5 | 8 |" in shown


def test_several_environments_have_a_column(artifact, found):
    rows = [{**x, "task": "maze"} for x in found["scores"]]
    manifest = {**artifact.manifest, "evidence": {**found, "scores": rows}}
    shown = card.markdown(manifest, artifact.properties)
    assert "|  | environment | " in shown
    assert "| hand-made | maze | " in shown


def test_artifact_without_evidence_has_a_card(artifact):
    manifest = {k: x for k, x in artifact.manifest.items() if k != "evidence"}
    assert card.lines(manifest) == ["search: ppo_value_loss"]
    shown = card.markdown(manifest, artifact.properties)
    assert "not compared on held-out seeds" in shown


MARKS = {
    "# BIG": "- \\# BIG",
    "- [x] done": "- \\- \\[x\\] done",
    "12. twelve": "- 12\\. twelve",
    "  ---": "- \\---",
    "~~x~~ $y$": "- \\~\\~x\\~\\~ \\$y\\$",
    "https://evil.example": "- https\\://evil.example",
    "Www.evil.example, @me": "- Www\\.evil.example, \\@me",
}


def test_marks_of_a_stranger_have_no_meaning_in_markdown(artifact):
    manifest = {**artifact.manifest, "evidence": {"verdicts": list(MARKS)}}
    shown = card.markdown(manifest, artifact.properties).splitlines()
    assert set(MARKS.values()) <= set(shown)


ODD_EVIDENCE = (
    {"verdicts": ["<script>alert(1)</script>\n# loud", 3, None]},
    {"verdicts": "not a list", "scores": [1, {"name": [], "fitness": 10**5000}]},
    {"cost": [], "environments": {}, "scores": {}, "date": {"a": 1}},
    {"warnings": ["x" * 10**6] * 1000},
    ["nothing"],
)


def test_evidence_of_a_stranger_is_shown_as_short_text(artifact):
    for evil in ODD_EVIDENCE:
        manifest = {**artifact.manifest, "evidence": evil}
        shown = card.markdown(manifest, artifact.properties)
        assert "<script>" not in shown
        assert "\n# loud" not in shown
        assert len(shown) < 100_000
        assert len("\n".join(card.lines(manifest))) < 100_000
