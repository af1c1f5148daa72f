"""Reports of these tests have no figures, which take seconds, but where one asks."""

import pytest
import runs


@pytest.fixture(scope="module", autouse=True)
def _undrawn():
    """Nor have those of runs that the tests of a file share."""
    with pytest.MonkeyPatch.context() as patch:
        runs.undrawn(patch)
        yield


@pytest.fixture
def drawn(monkeypatch):
    """Reports have their figures."""
    runs.drawn(monkeypatch)
