"""Tests of this folder that share a process."""

from pathlib import Path

import pytest

# Each opens one cluster, writes one folder of files or runs one sweep, for all of its
# tests.
TOGETHER = {
    "test_ray",
    "test_ray_hosts",
    "test_distributed",
    "test_exports",
    "test_sweep",
}


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).stem in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(Path(item.fspath).stem))
