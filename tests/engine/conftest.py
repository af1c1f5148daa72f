"""Fixtures of the engine's tests: a run that they share, and stubs of what is slow."""

import functools
import os

import programs
import pytest
import runs
import tiny_search

import metaevo
from metaevo.storage import provenance


@pytest.fixture(scope="module", autouse=True)
def _quick():
    """Reports have no figures but where a test asks for them.

    Git is asked once about a folder, and no file has to outlive a power cut. All of
    this holds for the runs that tests of a file share, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        runs.undrawn(patch)
        patch.setattr(provenance, "_git", functools.cache(provenance._git))
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """A whole run of four generations, with its comparison on three seeds.

    It is not to be changed, and in no record of the user's runs.
    """
    folder = tmp_path_factory.mktemp("tiny")
    config = metaevo.RunConfig(
        directory=str(folder / "run"), held_out_seeds=3, wandb="disabled", devices=1
    )
    with pytest.MonkeyPatch.context() as patch:
        runs.undrawn(patch)
        # Its programs are counted here, not for the file that asks for it first.
        patch.setitem(programs._current, "file", "tests/engine/conftest.py")
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        metaevo.run(tiny_search.search(num_generations=4), config, "tiny")
    return folder / "run"


@pytest.fixture
def drawn(monkeypatch):
    """Reports have their figures."""
    runs.drawn(monkeypatch)
