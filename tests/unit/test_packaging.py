"""What pyproject.toml says of the package, and the versions that are locked."""

import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_lock_has_a_version_of_all_that_the_extras_name():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked = {canonicalize_name(x.name): x.specifier for x in map(Requirement, lines)}
    extras = PROJECT["optional-dependencies"]
    named = [x for extra, of in extras.items() if "cuda" not in extra for x in of]
    for text in [*PROJECT["dependencies"], *named]:
        wanted = Requirement(text)
        (version,) = locked[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(version.version, prereleases=True), text


def test_the_citation_has_the_name_and_version_of_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["authors"] == PROJECT["authors"]
