"""Streams, names and numbers that must not stop a run or change it."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import unicodedata
import warnings
from pathlib import Path

import numpy as np
import pytest

from metaevo.analysis import lineage
from metaevo.analysis.plots import figures
from metaevo.cli import signals
from metaevo.engine.loggers import streams
from metaevo.engine.loggers.console import ConsoleLogger
from metaevo.errors import ConfigError, printable
from metaevo.storage import jsonl

ROOT = Path(__file__).parents[2]
RECORD = {
    "generation": 0,
    "fitness_best": 1.0,
    "fitness_mean": 1.0,
    "fitness_median": 1.0,
    "fitness_sd": 0.0,
    "failed": 0,
    "frames_per_second": 10.0,
}


@pytest.fixture
def no_reader(monkeypatch):
    """Standard output is a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        yield stream


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_that_nobody_reads_is_dropped(no_reader, monkeypatch, terminal):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    console = ConsoleLogger(2)
    assert console.console.is_terminal == terminal
    console.now("compiling")
    console.say("a line", "x" * 100_000)
    console.log(RECORD)
    console.close()


def test_output_on_a_full_disk_is_dropped(monkeypatch):
    with open("/dev/full", "w", encoding="utf-8") as full:
        stream = streams.Unbreakable("stdout", full)
        assert stream.write("x" * 100_000) == 100_000
        stream.flush()
    stream.write("after it was closed")
    monkeypatch.setattr("sys.stdout", None)
    print("nowhere", file=streams.Unbreakable("stdout"), flush=True)


def test_characters_that_the_encoding_lacks_are_escaped():
    buffer = io.BytesIO()
    stream = streams.Unbreakable("stdout", io.TextIOWrapper(buffer, encoding="ascii"))
    print("0.9 ± ε", file=stream, flush=True)
    assert buffer.getvalue() == b"0.9 \\xb1 \\u03b5\n"


@pytest.mark.parametrize("ignored", [False, True])
def test_the_end_of_a_terminal_stops_a_run_unless_the_parent_ignores_it(ignored, capfd):
    names = [*signals.NAMES]
    before = {name: signal.getsignal(getattr(signal, name)) for name in names}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        stop = signals.on_signals("stopping")
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)
        assert stop.is_set() != ignored
        assert capfd.readouterr().err == ("" if ignored else "\nstopping\n")
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


# --- names ----------------------------------------------------------------------------

ODD = ["$\\frac{$", "a $ b $", "<b>bold</b>", "é 漢字 😀 \x00" + 500 * "x"]


def test_odd_names_are_drawn_as_text(tmp_path):
    def draw(*panels):
        for name, panel in zip(ODD, panels, strict=True):
            panel.plot([1, 10], [1, 100], label=name)
            panel.set(title=name, xlabel=name, ylabel=name)
            panel.set_yscale("log")
            figures.legend_above(panel, 1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = figures.figure(
            tmp_path, "odd", "odd", draw, (ODD, [range(4)]), "", len(ODD)
        )
    assert "$\\frac{$" in found["svgs"][0]
    assert "<b>" not in found["svgs"][2]
    shown = re.findall(r"<text.*?</text>", found["svgs"][0], re.DOTALL)
    assert not any("mathdefault" in text for text in shown)  # 10² on the axis is math
    with open(tmp_path / "odd.csv", encoding="utf-8", newline="") as file:
        assert next(csv.reader(file)) == ODD


def test_a_panel_without_labels_has_no_legend_and_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figures.png(lambda panel: figures.legend_above(panel, 2), 1, dpi=20)


# --- numbers --------------------------------------------------------------------------


def test_float32_is_logged_with_few_digits_and_read_to_the_bit(tmp_path):
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, np.uint32)
    with np.errstate(invalid="ignore"):
        x = bits.view(np.float32)
    x = np.concatenate([x[np.isfinite(x)], np.float32([0.1, 1e-45, 16777217, -0.0])])
    log = jsonl.JsonlLogger(tmp_path / "metrics.jsonl")
    log.log({"parents": np.full(len(x), -1), "numbers/lr": x, "mean": x[0]})
    log.log({"x": [np.float32("nan"), np.float32(0.1)], "y": np.float64(1 / 3)})
    log.close()
    first, second = jsonl.read(tmp_path / "metrics.jsonl")
    read = lineage.numbers(first)["lr"].astype(np.float32)
    assert read.tobytes() == x.tobytes()
    assert np.float32(first["mean"]) == x[0]
    short = sum(len(json.dumps(y)) for y in first["numbers/lr"])
    assert short < 0.75 * sum(len(json.dumps(float(y))) for y in x)
    assert second == {"x": [None, 0.1], "y": 1 / 3}
    one = np.float32(first["numbers/lr"][-4])
    assert json.dumps(first["numbers/lr"][-4]) == "0.1"
    assert one == np.float32(0.1)


# --- text of a stranger ---------------------------------------------------------------

FORGED = "x\x1b]0;title\x07\x1b[2J\x1b[32mwhole\x1b[0m \u202etxt.exe\u2066 \x9b31m\r"


def raw(text):
    """Characters of a text that steer a terminal or are not seen."""
    return [c for c in text if unicodedata.category(c) in UNSEEN and c not in "\n\t"]


UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def test_characters_that_are_not_seen_are_escaped_and_all_others_stay():
    for number in range(0x110000):
        c = chr(number)
        shown = printable(c)
        if unicodedata.category(c) in UNSEEN:
            assert shown.isascii(), hex(number)
            assert shown.isprintable(), hex(number)
        elif unicodedata.category(c) != "Cn":
            assert shown == c, hex(number)
    assert printable("a\nb\tc", "\n") == "a\nb\\tc"
    assert printable(printable(FORGED)) == printable(FORGED)


def test_errors_and_streams_escape_what_a_terminal_would_obey():
    forged = FORGED + "\nwhole: everything verified\n  more"
    shown = str(ConfigError(forged, forged))
    assert raw(shown) == []
    assert shown.count("\n") == 1  # ours, between the two
    assert shown.count("\n  x") == 1
    assert len(str(ConfigError("x" * 100_000))) < 5000
    for name in ("stdout", "stderr"):
        buffer = io.StringIO()
        print(FORGED, end="", file=streams.Unbreakable(name, buffer))
        assert raw(buffer.getvalue()) == []
        assert "\\x1b]0;title\\x07" in buffer.getvalue()


BAR = "\r 50%|\x1b[32m#####\x1b[0m     |"
OWN = f"""
import sys

print({BAR!r}, file=sys.stderr)

def search(width: int = 3):
    print({BAR!r})
    raise ValueError("none") if width == 4 else SystemExit(0)
"""


@pytest.mark.parametrize("start", [["run", "mine.py"], ["mine.py"]])
def test_what_a_users_own_search_prints_is_left_as_it_is(tmp_path, start):
    program = OWN + "\nif __name__ == '__main__':\n    metaevo.main(search)\n"
    (tmp_path / "mine.py").write_text("import metaevo\n" + program)
    command = [sys.executable, *(["-m", "metaevo"] if start[0] == "run" else [])]

    def ended(*arguments):
        done = subprocess.run(
            [*command, *start, *arguments],
            cwd=tmp_path,
            capture_output=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    line = BAR + "\n"
    assert ended() == (0, line, line)
    code, out, err = ended(FORGED.strip() + "=1")
    assert (code, out, raw(err.removeprefix(line))) == (2, "", [])


def test_the_console_escapes_its_lines_and_keeps_its_own_codes(monkeypatch):
    buffer = io.StringIO()
    monkeypatch.setattr("sys.stdout", buffer)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    streams.protect()
    console = ConsoleLogger(2)
    console.say(FORGED)
    assert raw(buffer.getvalue()) == []
    console.now(FORGED)
    console.say("another line")
    console.say("and one more")
    console.close()
    assert "\x1b[2K" in buffer.getvalue()  # rich's, once it shows something live
    assert "\\x1b[2K" not in buffer.getvalue()
    assert "\x1b]0;" not in buffer.getvalue()
    assert not set("\u202e\u2066\x9b\x07") & set(buffer.getvalue())
