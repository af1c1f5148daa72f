"""Count the programs that each test file makes JAX trace and compile.

A plugin of pytest. `--programs=check` compares the counts of the files that ran with
`tests/programs.json`, and fails if one has grown; `--programs=write` writes them there.
Most of the time of the tests is spent on tracing, lowering and compiling, or on
fetching what is compiled. Counts do not depend on the machine, as seconds do.

Tests that share programs are one group, run in one process, and cached results are
released between groups. `--programs=write` releases programs too, so that the counts
that it writes do not depend on what ran before. Otherwise they are kept while there is
room: a fifth are single operations that the next group needs again. A file then makes
at most as many as are written.
"""

import collections
import ctypes
import functools
import gc
import json
import os
import resource
import sys
from pathlib import Path

import jax
import pytest

TESTS = Path(__file__).parents[1]
BUDGET = TESTS / "programs.json"
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "traced",
    "/jax/core/compile/backend_compile_duration": "compiled",
}
SLACK, MORE = 1.5, 50
"""A file may make so many times its programs, and so many more: processes that share a
file set up its fixtures each, and releases of memory make programs again."""

# A process may have 65,530 memory maps, and XLA takes some for every program: up to
# 6,000 in one test. A process that has more of them than allowed is killed.
MAPS = 30_000
RESIDENT = 2 << 30  # bytes of a process, of which there are three

COUNTS = collections.defaultdict(collections.Counter)
_current = {"file": None}


def _count(event, seconds, **_):
    if event in EVENTS and _current["file"]:
        COUNTS[_current["file"]][EVENTS[event]] += 1


jax.monitoring.register_event_duration_secs_listener(_count)


def forget_programs():
    """Release all programs of this process, and give their memory back."""
    jax.clear_caches()
    gc.collect()
    # Without this glibc keeps it, so that the process stays full for ever.
    getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: None)(0)


def forget_results():
    """Clear what functions of tests and helpers have cached."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and file.startswith(f"{TESTS}{os.sep}"):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


# --- groups ---------------------------------------------------------------------------


def group_of(item):
    """Return the group of a test: its file, or one loop, case or strategy of it.

    The contracts of a loop share its programs, and the loops of a file are spread over
    processes.
    """
    path = Path(item.location[0])
    marker = item.get_closest_marker("xdist_group")
    if marker is not None:
        return marker.args[0]
    if path.parent.name != "contracts" or not hasattr(item, "callspec"):
        return str(path)
    parameters = item.callspec.params
    for key in ("name", "loop", "strategy", "case"):
        if key in parameters:
            value = parameters[key]
            shown = value if isinstance(value, str) else item.callspec.id
            return f"{path} {shown}".translate({ord(x): "_" for x in "[]@"})
    return str(path)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Order tests by group, and tell xdist to run a group in one process.

    xdist reads the marks in the same hook, so they are set before it.
    """
    groups = collections.defaultdict(list)
    for item in items:
        groups[group_of(item)].append(item)
    for name, members in groups.items():
        for item in members:
            if item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group(name))
    items[:] = [item for members in groups.values() for item in members]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Count for this test's file, and release what later tests have no room for."""
    _current["file"] = item.location[0]
    try:
        return (yield)
    finally:
        _current["file"] = None
        if nextitem is None or group_of(nextitem) != group_of(item):
            forget_results()
            if item.config.option.programs == "write" or _full():
                forget_programs()
        if _many_maps():
            forget_programs()


def _many_maps():
    maps = Path("/proc/self/maps")
    return maps.exists() and maps.read_bytes().count(b"\n") > MAPS


def _full():
    """Return True if this process holds more than `RESIDENT`, where that is known."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return False
    return int(pages.read_text().split()[1]) * resource.getpagesize() > RESIDENT


# --- the budget -----------------------------------------------------------------------


def pytest_addoption(parser):
    parser.addoption(
        "--programs",
        choices=("check", "write"),
        help="compare programs by file with tests/programs.json, or write them there",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Add what a process of xdist counted."""
    for file, counts in getattr(node, "workeroutput", {}).get("programs", {}).items():
        COUNTS[file].update(counts)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    config = session.config
    if hasattr(config, "workeroutput"):
        config.workeroutput["programs"] = {k: dict(v) for k, v in COUNTS.items()}
    elif config.option.programs == "write":
        known = json.loads(BUDGET.read_text()) if BUDGET.exists() else {}
        files = {k: v for k, v in known.items() if (TESTS.parent / k).exists()}
        files |= {k: dict(sorted(v.items())) for k, v in COUNTS.items()}
        lines = [f'"{k}": {json.dumps(v)}' for k, v in sorted(files.items())]
        BUDGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    elif config.option.programs == "check" and exceeded():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    if config.option.programs != "check" or hasattr(config, "workerinput"):
        return
    total = sum(counts["compiled"] for counts in COUNTS.values())
    terminalreporter.write_line(f"{total} programs compiled or fetched")
    for line in exceeded():
        terminalreporter.write_line(line, red=True)


def exceeded():
    """Return a line for each file that made more programs than its budget.

    A file without an entry has no budget yet.
    """
    budget = json.loads(BUDGET.read_text())
    lines = []
    for file in sorted(COUNTS.keys() & budget.keys()):
        for kind, number in COUNTS[file].items():
            allowed = SLACK * budget[file].get(kind, 0) + MORE
            if number > allowed:
                lines.append(
                    f"{file}: {number} programs {kind}, more than {allowed:.0f}; share "
                    "programs between its tests, or run make test-programs and say why"
                )
    return lines
