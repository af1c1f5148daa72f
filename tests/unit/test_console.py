"""The console of a run: bars, colours, and the one output of a notebook."""

import io
import sys
import types

import numpy as np
import pytest
from rich.console import Console

from metaevo.analysis.steps import Steps
from metaevo.engine.loggers import console as consoles
from metaevo.engine.loggers.console import ConsoleLogger

VERDICT = "verdict: the solution is {} than the hand-made one: return +1.00"
RED, GREEN = "\x1b[31m", "\x1b[32m"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal(monkeypatch):
    """Make standard output and error a terminal of 80 columns; return what it shows."""
    stream = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", stream)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    return stream


def test_verdicts_and_errors_have_colours_in_a_terminal(monkeypatch):
    stream, console = terminal(monkeypatch), ConsoleLogger(2)
    console.say(VERDICT.format("better"), VERDICT.format("worse"), "plain [x] :smile:")
    consoles.error("none")
    shown = stream.getvalue()
    assert f"{GREEN}verdict: the solution is better" in shown
    assert f"{RED}verdict: the solution is worse" in shown
    assert "plain [x] :smile:\n" in shown
    assert "\x1b[1;31merror: none" in shown


@pytest.mark.parametrize("how", ["NO_COLOR", "pipe"])
def test_there_is_no_colour_where_it_is_not_wanted_and_in_pipes(monkeypatch, how):
    stream = terminal(monkeypatch)
    if how == "pipe":
        monkeypatch.setattr(stream, "isatty", lambda: False)
    else:
        monkeypatch.setenv(how, "1")
    ConsoleLogger(2).say(VERDICT.format("better") + "x" * 100)
    consoles.error("y" * 100)
    shown = stream.getvalue()
    assert "better than the hand" in shown.replace("\n", " ")
    assert GREEN not in shown
    assert RED not in shown
    if how == "pipe":
        lines = [VERDICT.format("better") + "x" * 100, f"error: {'y' * 100}"]
        assert shown == "\n".join([*lines, ""])


def drawn(status):
    buffer = io.StringIO()
    Console(file=buffer, width=80, force_terminal=True, color_system=None).print(status)
    return buffer.getvalue().rstrip("\n")


def test_the_bar_counts_what_was_kept_and_what_is_made(monkeypatch, tmp_path):
    now = [100.0]
    monkeypatch.setattr(consoles.time, "monotonic", lambda: now[0])
    console = ConsoleLogger(12)
    console.now("comparing on 8 held-out seeds", 40)
    steps = Steps(
        tmp_path, "d", count=lambda x: console.advance(x["fitness"].shape[-1])
    )

    def make():
        now[0] += 30
        return {"fitness": np.zeros((1, 10))}

    line = drawn(console._status)
    assert "0/40, ? left" in line
    steps.step("a", make, {})
    line = drawn(console._status)
    assert "comparing on 8 held-out seeds ... 30s" in line
    assert "10/40, 1m30s left" in line
    assert "━" in line
    steps.step("a", make, {})
    assert "20/40, 30s left" in drawn(console._status)
    console.now_in_search("generation 4, 3 saved", 3)
    assert "3/12, ? left" in drawn(console._status)
    console.now_in_search("x" * 200, 3)
    assert "\n" not in drawn(console._status)


def test_a_notebook_has_one_output_that_is_written_again(monkeypatch):
    outputs = []

    class Handle:
        def update(self, data, raw):
            outputs.append(data["text/plain"])

    def display(data, raw, display_id):
        outputs.append("new")
        return Handle()

    fake = types.ModuleType("IPython.display")
    fake.display = display
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    monkeypatch.setattr(
        consoles, "console", lambda: types.SimpleNamespace(is_jupyter=True)
    )
    console = ConsoleLogger(300)
    console.say("head")
    console.now("comparing", 4)
    assert outputs[-1] == "head\ncomparing ... 0s, 0/4, ? left"
    console.say(*map(str, range(100)))
    shown = outputs[-1].splitlines()
    assert (shown[0], shown[-1]) == ("head", "99")
    assert len(shown) == consoles.SHOWN
    assert "... 42 lines ..." in shown
    console.close()
    assert outputs.count("new") == 1


def test_the_time_left_counts_programs_that_are_compiled_after_the_search(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(consoles.time, "monotonic", lambda: now[0])
    console = ConsoleLogger(3, following=1.0, programs=2)
    record = dict.fromkeys(("fitness_best", "fitness_mean", "fitness_median"), 1.0)
    record |= {"fitness_sd": 0.0, "failed": 0, "frames_per_second": 1.0}
    for generation, now[0] in enumerate([12.0, 14.0]):  # the first one compiles for 10
        console.log(record | {"generation": generation})
    assert console._left(2) == "24s"
