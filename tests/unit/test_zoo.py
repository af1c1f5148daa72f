"""Artifacts that are installed with metaevo."""

import pytest

import metaevo
from metaevo.cli import listing, verify
from metaevo.errors import ArtifactError
from metaevo.storage import verified

NAMES = verified.zoo()


def test_there_is_a_zoo():
    assert NAMES
    assert all(name in listing.text("zoo") for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_artifact_of_the_zoo_is_whole_and_has_evidence(name):
    found = verify.verify(f"zoo:{name}")
    assert all(x.ok for x in found)
    artifact = metaevo.load(f"zoo:{name}")
    evidence = artifact.manifest["evidence"]
    kept = "by_seed" in evidence["scores"][0]
    said = "agrees with its scores" if kept else "cannot be recomputed: it keeps no"
    assert said in found[1].message
    assert evidence["verdicts"]
    assert evidence["scores"]
    assert evidence["cost"]["frames"]
    assert evidence["elsewhere"], "no verdict in an agent in which it did not evolve"
    assert evidence["limits"], "it does not say where it fails"
    assert evidence["license"] == "Apache-2.0"
    card = (verified.ZOO / name / verified.CARD).read_text(encoding="utf-8")
    assert "## Evidence" in card
    assert card.startswith(f"# zoo:{name}\n".replace("_", "\\_"))
    assert f'metaevo.load("zoo:{name}")' in card
    assert artifact._repr_markdown_().startswith(card[: card.index("\n")])


def test_an_unknown_name_is_refused_with_those_that_are_known():
    for name in ("no_such", "", "../learned", "."):
        with pytest.raises(ArtifactError, match=f"expected one of zoo:{NAMES[0]}"):
            metaevo.load(f"zoo:{name}")
