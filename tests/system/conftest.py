"""Tests of this folder that share a process, and files whose tests do not."""

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

# Their tests start processes of their own, some for minutes.
APART = {"test_docs", "test_kills", "test_searches_run"}


@pytest.hookimpl(tryfirst=True)  # a file without a mark is a group
def pytest_collection_modifyitems(items):
    for item in items:
        file = Path(item.fspath).stem
        if file in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(file))
        if file in APART:
            name = "".join(x if x.isalnum() else "_" for x in item.name)
            item.add_marker(pytest.mark.xdist_group(f"{file} {name}"))
