"""Run the tests that must fail on each change of `mutants.jsonl`.

`make test-mutants` starts it. Every change is made in a copy of the tree, and the file
of tests that it names runs there. Exit code 1: too few changes were caught, one that
was caught the last time (`results.jsonl`) survives, or one does not apply. Exit code 2:
a test file fails without a change.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
RECORDS = Path(__file__).with_name("mutants.jsonl")
RESULTS = Path(__file__).with_name("results.jsonl")
TESTED = ("tests/unit/", "tests/contracts/", "tests/engine/")  # by `make test`
MUST_CATCH = 74 / 80
NOT_COPIED = shutil.ignore_patterns(
    *(".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info"),
    *("runs", "site", "build"),
)
SURVIVED, DOES_NOT_APPLY = "survived", "does not apply"
RUNNING: set[subprocess.Popen] = set()


class Outcome(NamedTuple):
    """The end of a run of tests.

    Attributes:
        how: `failed`, `error` (in a fixture), `collection`, `time-out` or `signal N` if
            the change was caught; otherwise why not.
        by: the test.
    """

    caught: bool
    how: str
    by: str
    seconds: float


def read(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def problem(record):
    """Return why a record cannot be used, or None."""
    path, test = ROOT / record["path"], ROOT / record["test"]
    if not path.is_file():
        return f"{record['path']} is not there"
    if not test.is_file() or not record["test"].startswith(TESTED):
        return f"{record['test']} is no test file of `make test`"
    if (count := path.read_text("utf-8").count(record["old"])) != 1:
        return f"`old` stands {count} times in {record['path']}"
    return "`new` equals `old`" if record["old"] == record["new"] else None


def pytest(tree, test, only, limit):
    """Run a test file in a copy of the tree, for at most `limit` seconds."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += [test, "-m", "not slow and not gpu", *(["-k", only] if only else [])]
    environment = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"}
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    RUNNING.add(process)
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        kill(process)
        process.communicate()
        return Outcome(True, "time-out", test, limit)
    finally:
        RUNNING.discard(process)
    caught, how, by = outcome(process.returncode, output, test)
    return Outcome(caught, how, by, round(time.monotonic() - start, 1))


def kill(process):
    """End a run of tests and the processes that these started."""
    os.killpg(process.pid, signal.SIGKILL)


def outcome(code, output, test):
    """Return what pytest's exit code and summary say: caught, how, by which test."""
    summary = re.findall(r"^(FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if code == 0:
        return False, SURVIVED, ""
    if summary and code in (1, 2):
        kind, name = summary[0]
        in_a_test = "failed" if kind == "FAILED" else "error"
        return True, in_a_test if "::" in name else "collection", name
    if code == 4 and "while loading conftest" in output:
        return True, "collection", "conftest.py"
    if code < 0:
        return True, f"signal {-code}", test
    return False, f"pytest ended with {code}: {output.strip()[-200:]}", ""


class Copies:
    """One copy of the tree for each worker."""

    def __init__(self, folder, limit):
        self.folder, self.limit = Path(folder), limit
        self.own = threading.local()

    def tree(self):
        if not hasattr(self.own, "tree"):
            self.own.tree = self.folder / f"tree{threading.get_ident()}"
            shutil.copytree(ROOT, self.own.tree, ignore=NOT_COPIED, symlinks=True)
        return self.own.tree

    def unchanged(self, test, only):
        result = pytest(self.tree(), test, only, self.limit)
        told = "passes" if result.how == SURVIVED else f"{result.how} {result.by}"
        print(f"{result.seconds:5.0f} s  {test} {only}: {told}", flush=True)
        return result

    def changed(self, record):
        if why := problem(record):
            return Outcome(False, DOES_NOT_APPLY, why, 0.0)
        path = self.tree() / record["path"]
        text = path.read_text("utf-8")
        path.write_text(text.replace(record["old"], record["new"]), "utf-8")
        try:
            rest = record["test"], record.get("only", ""), self.limit
            return pytest(self.tree(), *rest)
        finally:
            path.write_text(text, "utf-8")


def save(records, results):
    """Write outcomes, and return who survives now and was caught the last time.

    Outcomes of changes that did not run stay.
    """
    known = {x["id"]: x for x in (read(RESULTS) if RESULTS.exists() else [])}
    caught = [name for name, x in known.items() if x["caught"]]
    lost = [name for name in caught if name in results and not results[name].caught]
    known |= {name: {"id": name, **x._asdict()} for name, x in results.items()}
    kept = [known[r["id"]] for r in records if r["id"] in known]
    RESULTS.write_text("".join(json.dumps(x) + "\n" for x in kept), "utf-8")
    return lost


def line(record, result):
    told = f"caught, {result.how}" if result.caught else result.how.upper()
    place = f"{record['id']}  {record['kind']:<14}{record['path']:<38}"
    return f"{place} {told:<20} {result.seconds:5.0f} s  {result.by}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="ID", help="these changes alone")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=int, default=300, help="seconds of a run")
    parser.add_argument(
        "--unchecked", action="store_true", help="do not run the unchanged code first"
    )
    options = parser.parse_args()
    every = read(RECORDS)
    records = [r for r in every if not options.only or r["id"] in options.only]
    uses = sorted({(r["test"], r.get("only", "")) for r in records})
    start, results = time.monotonic(), {}

    def run(record):
        results[record["id"]] = copies.changed(record)
        print(line(record, results[record["id"]]), flush=True)

    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        ThreadPoolExecutor(options.workers) as pool,
    ):
        copies = Copies(folder, options.limit)
        try:
            if not options.unchecked:
                whole = list(pool.map(lambda use: copies.unchanged(*use), uses))
                if any(result.how != SURVIVED for result in whole):
                    print("a test file fails without a change")
                    return 2
            list(pool.map(run, records))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in [*RUNNING]:
                kill(process)
            raise
    print("", *(line(r, results[r["id"]]) for r in records), sep="\n")
    if lost := save(every, results):
        print(f"caught the last time: {', '.join(lost)}")
    caught = sum(result.caught for result in results.values())
    minutes = (time.monotonic() - start) / 60
    print(f"{caught} of {len(records)} caught, {minutes:.1f} minutes")
    misfits = any(result.how == DOES_NOT_APPLY for result in results.values())
    return int(misfits or bool(lost) or caught < MUST_CATCH * len(records))


if __name__ == "__main__":
    sys.exit(main())
