"""Terminals that close, pipes that nobody reads, and locales without UTF-8."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_search
from runs import records

TINY = Path(tiny_search.__file__)
ROOT = TINY.parents[2]


def run(directory, *arguments, held_out=2, **options):
    program = [sys.executable, TINY.name, f"run.directory={directory}"]
    settings = f"run.held_out_seeds={held_out}", "run.wandb=disabled", *arguments
    return subprocess.Popen([*program, *settings], cwd=TINY.parent, **options)


def unread():
    """The writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "wb")


@pytest.mark.parametrize("where", ["pipe", "full disk", "closed"])
def test_output_that_cannot_be_written_stops_no_run(tmp_path, where):
    command = [sys.executable, TINY.name, "num_generations=3", "run.wandb=disabled"]
    # Of the comparison the lines are printed as all others.
    held_out = 2 if where == "pipe" else 0
    command += [f"run.directory={tmp_path}", f"run.held_out_seeds={held_out}"]
    if where == "closed":
        command = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *command]
    with open("/dev/full", "wb") if where == "full disk" else unread() as out:
        code = subprocess.call(command, cwd=TINY.parent, stdout=out, stderr=out)
    assert code == 0
    assert len(records(tmp_path)) == 3
    assert (tmp_path / "report" / "index.html").exists()


@pytest.mark.parametrize(
    "command",
    [
        [str(TINY), "--help"],
        ["-c", "from metaevo.cli.main import command; command()", "list", "searches"],
    ],
    ids=lambda command: command[-1],
)
def test_commands_whose_output_nobody_reads_end_quietly(command):
    with unread() as out:
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, stdout=out, stderr=subprocess.PIPE
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_lost_terminal_saves_the_run_and_nohup_keeps_it(tmp_path):
    log = tmp_path / "run" / "metrics.jsonl"
    num = 10
    # Generations of a seventh of a second: the run has not ended when it is hung up.
    sizes = f"num_generations={num}", "population_size=512"

    def hang_up(directory, ignored):
        log = directory / "metrics.jsonl"
        # These tests may have been started by nohup themselves.
        answer = signal.SIG_IGN if ignored else signal.SIG_DFL
        reader, writer = os.pipe()
        process = run(
            directory,
            *sizes,
            held_out=0,
            stdout=writer,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, answer),
        )
        os.close(writer)
        deadline = time.monotonic() + 120
        while not log.exists() or not log.stat().st_size:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.close(reader)
        process.send_signal(signal.SIGHUP)
        _, stderr = process.communicate(timeout=120)
        return process.returncode, stderr

    code, stderr = hang_up(tmp_path / "run", ignored=False)
    assert code == 75, stderr
    assert b"run the same command again" in stderr
    assert 0 < len(records(log.parent)) < num
    code, stderr = hang_up(tmp_path / "kept", ignored=True)
    assert (code, stderr) == (0, b"")
    assert len(records(tmp_path / "kept")) == num
    again = run(log.parent, *sizes, held_out=0, stdout=subprocess.DEVNULL)
    assert again.wait() == 0
    assert records(log.parent) == records(tmp_path / "kept")


def test_a_locale_without_utf8_stops_no_run(tmp_path):
    english = os.environ | {
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": "0",
    }
    for sizes in ("num_generations=2", "num_generations=3"):
        process = run(
            tmp_path,
            sizes,
            env=english,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, stderr = process.communicate(timeout=120)
        assert (process.returncode, stderr) == (0, b"")
        assert out.isascii()
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert not page.isascii()
