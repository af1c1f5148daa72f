"""Measure the CPU seconds of test files, with the compilation cache empty and full.

    python tests/helpers/cpu_seconds.py [pytest arguments]

Run pytest twice in processes of their own, which share a new compilation cache, and
print a table. Child processes count. The time to start Python, import JAX and collect
the tests is not part of any test. `-k ppo` measures what one loop costs every file.
"""

import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORD = "METAEVO_CPU_SECONDS"
SPENT = collections.Counter()


def cpu_seconds() -> float:
    """CPU time of this process and of its children that ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Add a test, its fixtures included, to what its file has spent."""
    began = cpu_seconds()
    try:
        return (yield)
    finally:
        SPENT[item.location[0]] += cpu_seconds() - began


def pytest_sessionfinish():
    """Write the sums where the parent process reads them."""
    if path := os.environ.get(RECORD):
        Path(path).write_text(json.dumps(SPENT))


def measure(arguments: list[str], cache: Path) -> tuple[dict[str, float], int]:
    """CPU seconds by file of one pytest process, and its exit code."""
    helpers = f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'helpers'}"
    paths = os.pathsep.join(filter(None, (helpers, os.environ.get("PYTHONPATH"))))
    with tempfile.NamedTemporaryFile() as record:
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "PYTHONPATH": paths,
            RECORD: record.name,
        }
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "cpu_seconds",
            "--durations=20",
        ]
        command += ["-q", "-m", "not slow and not gpu", *arguments]
        code = subprocess.run(command, cwd=ROOT, env=environment).returncode
        return json.loads(Path(record.name).read_text() or "{}"), code


def main() -> int:
    with tempfile.TemporaryDirectory() as cache:
        cold, first = measure(sys.argv[1:], Path(cache))
        warm, second = measure(sys.argv[1:], Path(cache))
    width = max(map(len, [*cold, "file"]))
    print(f"\n{'file':{width}}  cold s  warm s")
    for path in sorted(cold, key=lambda x: -cold[x]):
        print(f"{path:{width}}  {cold[path]:6.1f}  {warm.get(path, 0):6.1f}")
    total = sum(cold.values()), sum(warm.values())
    print(f"{'all':{width}}  {total[0]:6.1f}  {total[1]:6.1f}")
    return first or second


if __name__ == "__main__":
    sys.exit(main())
