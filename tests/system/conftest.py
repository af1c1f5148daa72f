"""Tests of this folder that share a process."""

from pathlib import Path

import pytest

# Each opens one cluster for all of its tests, on ports of its own.
TOGETHER = {"test_ray", "test_distributed"}


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).stem in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(Path(item.fspath).stem))
