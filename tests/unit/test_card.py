"""The card of an artifact, and the evidence that it shows."""

import jax
import numpy as np
import pytest

import metaevo
from metaevo import losses
from metaevo.analysis.evidence import evidence
from metaevo.analysis.holdout import HeldOut
from metaevo.storage import artifacts, card

SEEDS = 8


def runs(level):
    scores = level + np.arange(float(SEEDS))[None]
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


@pytest.mark.parametrize(
    "text",
    [
        "the solution is better than the hand-made one: mean return +40.00",
        "warning: the members of the last generation cannot be told apart from noise",
        "hand-made: mean return 13.5, final return 113.5, 8 seeds",
        "environment: gymnax/CartPole-v1",
        "cost: 2 generations, 1,024 frames, 1m02s",
        "metaevo: 9.9",
        "license: none chosen by its author",
        "visited in training: value - target from -2 to 3 return",
    ],
)
def test_loaded_artifact_prints_its_evidence(artifact, text):
    assert text in str(artifact)


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


@pytest.mark.parametrize(
    ("evil", "shown"),
    [
        ("# BIG", "- \\# BIG"),
        ("- [x] done", "- \\- \\[x\\] done"),
        ("12. twelve", "- 12\\. twelve"),
        ("  ---", "- \\---"),
        ("~~x~~ $y$", "- \\~\\~x\\~\\~ \\$y\\$"),
        ("https://evil.example", "- https\\://evil.example"),
        ("Www.evil.example, @me", "- Www\\.evil.example, \\@me"),
    ],
)
def test_marks_of_a_stranger_have_no_meaning_in_markdown(artifact, evil, shown):
    manifest = {**artifact.manifest, "evidence": {"verdicts": [evil]}}
    assert shown in card.markdown(manifest, artifact.properties).splitlines()


@pytest.mark.parametrize(
    "evil",
    [
        {"verdicts": ["<script>alert(1)</script>\n# loud", 3, None]},
        {"verdicts": "not a list", "scores": [1, {"name": [], "fitness": 10**5000}]},
        {"cost": [], "environments": {}, "scores": {}, "date": {"a": 1}},
        {"warnings": ["x" * 10**6] * 1000},
        ["nothing"],
    ],
)
def test_evidence_of_a_stranger_is_shown_as_short_text(artifact, evil):
    manifest = {**artifact.manifest, "evidence": evil}
    shown = card.markdown(manifest, artifact.properties)
    assert "<script>" not in shown
    assert "\n# loud" not in shown
    assert len(shown) < 100_000
    assert len("\n".join(card.lines(manifest))) < 100_000
