"""Messages about wrong input: the command lines and calls of `messages.txt`.

That file holds command lines, `$ metaevo ...`, and calls in Python, `>>> ...`, under
headings, each with what it prints. `python tests/helpers/golden.py` runs them again and
writes what they print now. A new message is a new line there.

Everything is done that precedes the first generation, in this process, in a folder with
runs and artifacts as people find them. Nothing compiles and nothing is trained.
"""

import contextlib
import importlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import metaevo
from inner_loops import ppo
from metaevo import losses
from metaevo.cli import api, config, main
from metaevo.config import RunConfig
from metaevo.engine import identity
from metaevo.errors import ConfigError
from metaevo.evaluators import chunking
from metaevo.storage import run_directory, verified
from searches import ppo_value_loss

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests/golden/messages.txt"
PROMPTS = ("$ metaevo ", ">>> ")
RUNS = ("first", "demo/seed0-1", "demo/seed1-1", "demo/seed2-1", "z")
BROKEN = {
    "mine.py": "x = 1\ny = x / 0\n",
    "searches/syntax.py": "import os\n\ndef search(:\n",
    "package_of_mine/unclosed.py": "x = (\n",
    "broken_package/__init__.py": "\n\nimport optaxx\n",
    "asserts.py": "assert False\n",
    "lines.py": "raise ValueError('a\\nb')\n",
    "imports.py": "import helper\n",
    "helper.py": "import json\n\njson.loads('{')\n",
    "evolve.py": "def serch(): pass\n",
    "bare.py": "def search(size): pass\n",
}
NOT_EVERYWHERE = {
    r"\d+(\.\d+)? GiB": "N GiB",
    r"there are \d+ devices": "there are N devices",
    r"(such environment; expected one of [^,]+, [^,]+, ).*": r"\1...",
}
"""Texts that depend on the machine or on versions, and their replacements."""

NAMES = {
    "metaevo": metaevo,
    "ppo": ppo,
    "ppo_value_loss": ppo_value_loss,
    "losses": losses,
    "RunConfig": RunConfig,
    "arguments": lambda **given: api._arguments(ppo_value_loss.search, given),
}
"""Names that calls in Python may use."""


def sections(text: str) -> dict[str, str]:
    """Return the parts of the file by heading, the lines of each with its heading."""
    return {
        part.partition("\n")[0]: f"# {part}".rstrip() + "\n"
        for part in re.split(r"(?m)^# ", text)[1:]
    }


def inputs(section: str) -> list[str]:
    """Return the command lines and calls of a section."""
    return [line for line in section.splitlines() if line.startswith(PROMPTS)]


def answered(section: str) -> str:
    """Return a section with what its command lines and calls print now."""
    heading = section.partition("\n")[0]
    with folder():
        lines = [x for line in inputs(section) for x in (line, *answer(line))]
    return "\n".join([heading, "", *lines, ""])


def answer(line: str) -> list[str]:
    """Return the lines that a command line or a call prints, the exit code before."""
    prompt = next(x for x in PROMPTS if line.startswith(x))
    text = line.removeprefix(prompt)
    if prompt == "$ metaevo ":
        code, shown = command(text)
    else:
        code, shown = 2, call(text)
    for pattern, word in NOT_EVERYWHERE.items():
        shown = re.sub(pattern, word, shown)
    shown = shown.replace(str(Path.cwd()), "FOLDER").replace(str(ROOT), "METAEVO")
    return [f"[{code}] {x}" for x in shown.splitlines() or [""]]


def call(text: str) -> str:
    """Return what a call in Python raises."""
    try:
        eval(text, NAMES.copy())
    except ConfigError as error:
        return str(error)
    return "accepted"


def command(line: str) -> tuple[Any, str]:
    """Run a command line up to its first program; return exit code and stderr."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.modules.copy()
    with (
        mock.patch.object(sys, "argv", ["metaevo", *shlex.split(line)]),
        mock.patch.object(sys, "path", sys.path[:]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main.command()
            raise AssertionError(f"{line!r} does not end the process")
        except SystemExit as end:
            code = end.code
    for name in sys.modules.keys() - before.keys():
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(Path.cwd()):
            del sys.modules[name]
    return code, err.getvalue()


@contextlib.contextmanager
def folder() -> Iterator[None]:
    """Stand in a folder with runs and artifacts, none of which was trained."""

    def accepted(evaluator, proposal):
        print("accepted: it would compile now", file=sys.stderr)
        raise SystemExit(0)

    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        fill(place)
        environment = {"XDG_CACHE_HOME": str(place / "cache"), "COLUMNS": "80"}
        with (
            mock.patch.dict(os.environ, environment),
            mock.patch.object(chunking, "needed", accepted),
            mock.patch.object(chunking, "available", return_value=8 << 30),
            contextlib.chdir(place),
        ):
            importlib.invalidate_caches()  # of packages with a part in this folder
            yield


def fill(folder: Path) -> None:
    """Make runs, artifacts and files of a user's own."""
    zoo = verified.ZOO / "value_loss"
    shutil.copytree(zoo, folder / "artifact")
    given, lines, _ = api._arguments(ppo_value_loss.search, {"population_size": 8})
    search = ppo_value_loss.search(**given)._replace(chunk_size=4)
    made = identity.identity(search)
    settings = config.settings(ppo_value_loss.search, given)
    settings = settings._replace(values=settings.values | {"search": made})
    for name in ("unfinished", "finished", "truncated", *(f"runs/{x}" for x in RUNS)):
        (folder / name).mkdir(parents=True)
        run_directory.create_manifest(
            folder / name, "ppo_value_loss", RunConfig(), settings, search, "cpu", lines
        )
    for name in RUNS:
        (folder / "runs" / name / "wandb").mkdir()
        (folder / "runs" / name / "wandb" / "latest-run").symlink_to(".")
    shutil.copytree(zoo, folder / "finished" / "solution")
    (folder / "truncated" / "manifest.json").write_text('{"schema": ')
    for name in ("half", "files", "empty"):
        (folder / name).mkdir()
    shutil.copy(zoo / "manifest.json", folder / "half")
    (folder / "files" / "notes.txt").touch()
    for name, text in BROKEN.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def write() -> None:
    """Write the file again."""
    parts = map(answered, sections(FILE.read_text()).values())
    FILE.write_text("\n".join(parts))
