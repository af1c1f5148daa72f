"""`metaevo runs`: the overview of runs, from their files."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from metaevo.analysis import overview
from metaevo.cli import commands
from metaevo.errors import ConfigError


@pytest.fixture(scope="module")
def place(tiny_run, tmp_path_factory):
    """A folder with a finished run `a`, and `b`, as if it had been killed."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("a", "deep/b"):
        shutil.copytree(tiny_run, folder / name)
    events = (folder / "deep/b/history.jsonl").read_text().splitlines()
    (folder / "deep/b/history.jsonl").write_text(events[0] + "\n")
    shutil.rmtree(folder / "deep/b/solution")
    log = folder / "deep/b/metrics.jsonl"
    log.write_text(log.read_text().splitlines()[0] + '\n{"torn": ')
    manifest = json.loads((folder / "deep/b/manifest.json").read_text())
    manifest["identity"]["settings"]["inner"] = {"lr": 0.25}
    (folder / "deep/b/manifest.json").write_text(json.dumps(manifest))
    return folder


def test_a_row_holds_state_cost_and_verdict(place):
    row = overview.read(place / "a")
    last = json.loads((place / "a/metrics.jsonl").read_text().splitlines()[-1])
    assert (row.search, row.seed, row.state) == ("tiny", 0, "finished")
    assert (row.generation, row.asked) == (4, 4)
    assert row.frames == last["frames"]
    assert row.fitness == last["fitness_mean"]
    assert 0 < row.seconds < 3600
    kept = json.loads((place / "a/solution/manifest.json").read_text())
    assert row.verdict == kept["evidence"]["verdicts"][0]


@pytest.mark.parametrize(("later", "state"), [(60, "going on"), (3600, "broken off")])
def test_a_run_that_has_not_finished(place, later, state):
    folder = place / "deep/b"
    written = (folder / "metrics.jsonl").stat().st_mtime
    row = overview.read(folder, written + later)
    assert row.state == state
    assert overview.done(row) == "1/4"  # the torn last line is no record
    assert row.verdict == ""


def test_the_command_lists_runs_and_sets_them_beside_each_other(place, capsys):
    page = place / "page.html"
    commands.execute("runs", [str(place), f"page={page}"])
    out = capsys.readouterr().out
    assert "finished" in out
    assert "4/4" in out
    assert out.index("settings in which they differ") < out.index("inner.lr")
    text = page.read_text()
    assert 'href="a/report/index.html"' in text
    assert "deep/b" in text
    commands.execute("runs", [str(place), "limit=1"])
    assert "settings in which" not in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no runs in"):
        commands.execute("runs", [str(place / "a" / "report")])


def test_a_damaged_run_has_a_row_that_says_so(place, tmp_path, capsys):
    shutil.copytree(place / "a", tmp_path / "x")
    (tmp_path / "x/history.jsonl").write_text('{"time": "now"}\n')
    row = overview.read(tmp_path / "x")
    assert row.state == "unreadable"
    assert "no time in seconds" in row.verdict
    (tmp_path / "x/manifest.json").write_text('{"identity"')
    commands.execute("runs", [str(tmp_path / "x")])
    out = capsys.readouterr().out
    assert "unreadable" in out
    assert "manifest.json" in out


def test_of_a_long_log_the_end_is_read(place, monkeypatch):
    lines = (place / "a/metrics.jsonl").read_bytes().splitlines(keepends=True)
    monkeypatch.setattr(overview, "TAIL", len(lines[-1]) + 10)
    assert overview.read(place / "a").generation == 4
    # A record that is longer than what is looked at is left out, and the rest is shown.
    monkeypatch.setattr(overview, "TAIL", len(lines[-1]) - 10)
    row = overview.read(place / "a")
    assert (row.state, row.generation) == ("finished", 0)


def test_text_of_a_stranger_is_escaped(place, tmp_path, capsys):
    shutil.copytree(place / "a", tmp_path / "x")
    path = tmp_path / "x/solution/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["evidence"]["verdicts"] = ["<script>\x1b[31m"]
    path.write_text(json.dumps(manifest))
    commands.execute("runs", [str(tmp_path), f"page={tmp_path / 'p.html'}"])
    assert "\x1b" not in capsys.readouterr().out
    assert "<script>" not in (tmp_path / "p.html").read_text()


def test_a_run_that_stopped_or_goes_on_with_other_versions(place, tmp_path):
    shutil.copytree(place / "deep/b", tmp_path / "x")
    path = tmp_path / "x/history.jsonl"
    begun = json.loads(path.read_text())
    changed = "a.py has changed since this run was started"
    notes = [begun, begun | {"event": changed, "time": begun["time"] + 1}]
    path.write_text("".join(json.dumps(x) + "\n" for x in notes))
    now = (tmp_path / "x/metrics.jsonl").stat().st_mtime
    assert overview.read(tmp_path / "x", now + 5).state == "going on"
    with open(path, "a") as file:
        why = {"event": "stopped before generation 1", "time": begun["time"] + 60}
        file.write(json.dumps(begun | why) + "\n")
    row = overview.read(tmp_path / "x")
    assert (row.state, row.verdict) == ("stopped", "stopped before generation 1")
    assert row.seconds == pytest.approx(60)
    assert row.left is None


def test_a_run_whose_process_has_ended_is_broken_off_at_once(place, tmp_path):
    shutil.copytree(place / "deep/b", tmp_path / "x")
    path = tmp_path / "x/history.jsonl"
    begun = json.loads(path.read_text())
    now = (tmp_path / "x/metrics.jsonl").stat().st_mtime
    assert begun["pid"] == os.getpid()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for facts, state in (
        ({"pid": ended.pid}, "broken off"),
        ({"pid": ended.pid, "machine": "another"}, "going on"),
        ({"pid": "1"}, "going on"),
        ({"pid": 1 << 80}, "going on"),
    ):
        path.write_text(json.dumps(begun | facts) + "\n")
        assert overview.read(tmp_path / "x", now + 5).state == state, facts


def test_long_generations_and_steps_of_the_comparison_keep_a_run_going(place, tmp_path):
    shutil.copytree(place / "deep/b", tmp_path / "x")
    path = tmp_path / "x/metrics.jsonl"
    record = json.loads(path.read_text().splitlines()[0]) | {"seconds": 900.0}
    path.write_text(json.dumps(record) + "\n")
    now = path.stat().st_mtime
    row = overview.read(tmp_path / "x", now + 3600)
    assert (row.state, row.left) == ("going on", 3 * 900.0)
    assert "45m00s" in overview.table([row])
    assert overview.read(tmp_path / "x", now + 10_000).state == "broken off"
    step = tmp_path / "x/conclusion/solution"
    step.mkdir(parents=True)
    os.utime(step, (now + 9_900, now + 9_900))
    assert overview.read(tmp_path / "x", now + 10_000).state == "going on"
