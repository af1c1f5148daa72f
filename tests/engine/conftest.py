"""Reports of these tests have no figures, which take seconds, but where one asks."""

import pytest
import runs


@pytest.fixture
def drawn():
    """Reports have their figures."""


@pytest.fixture(autouse=True)
def _undrawn(request, monkeypatch):
    if "drawn" not in request.fixturenames:
        runs.undrawn(monkeypatch)
