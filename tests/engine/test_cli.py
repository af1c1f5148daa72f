"""The command line: accepted arguments, and messages about refused ones."""

import ast
import contextlib
import dataclasses
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
import tiny_search

import metaevo
from inner_loops import ppo
from metaevo.cli import (
    commands,
    config,
    listing,
    main,
    program,
    resolve,
    runs,
    strategies,
)
from metaevo.config import RunConfig, wandb_mode
from metaevo.engine import compare
from metaevo.errors import ConfigError, InterruptedRunError
from metaevo.storage.own_runs import Source

ROOT = Path(__file__).parents[2]


class Meta(NamedTuple):
    lr: float = 1e-3
    steps: int = 3
    function: object = print


def search(
    size: int = 4,
    rate: float = 1.0,
    name: str = "x",
    kind: Literal["a", "b"] = "a",
    flag: bool = False,
    maybe: int | None = None,
    inner: ppo.Config = ppo.Config(1000, features=(8, 8)),
    meta: Meta = Meta(lr=1e-2),
):
    """A signature with everything in it."""


def parse(*argv):
    return config.parse(search, argv)


def test_the_last_value_wins():
    assert parse("size=8", "size=2")["size"] == 2


TEXTS = ("1e3", "true", "~", "a: b", "{x}", "#x", "[1", "%s", "'q'", "a=b", " x ")


def test_text_is_taken_as_it_is():
    for text in TEXTS:
        assert parse(f"run.directory={text}")["run"].directory == text
        assert parse(f"name={text}")["name"] == text
        given = config.changes(search, parse(f"run.directory={text}"))
        assert parse(*given)["run"].directory == text


def test_no_generated_argument_makes_a_traceback():
    rng = random.Random(0)
    keys = ["size", "rate", "kind", "inner", "inner.num_envs", "meta.lr", "run.seed"]
    values = [
        "",
        "x",
        "1e999",
        "[]",
        "{}",
        "{a: 1}",
        "[[",
        "${x}",
        "null",
        "-1",
        "é",
        "\\",
    ]
    for _ in range(200):
        key = rng.choice([*keys, "".join(rng.choices("abc.[]=$ ", k=5))])
        with contextlib.suppress(ConfigError):
            parse(f"{key}={rng.choice(values)}")


COMMAND = (
    "import sys; sys.argv[0] = 'metaevo'; "
    "from metaevo.cli.main import command; command()"
)

EACH = """
import sys
from metaevo.cli.main import command
for line in sys.argv[1:]:
    sys.argv = ["metaevo", *line.split()]
    try:
        command()
    except SystemExit as end:
        assert not end.code, end.code
    print("END", flush=True)
"""


def metaevo_command(monkeypatch, *arguments):
    """Run `metaevo` in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["metaevo", *arguments])
    with pytest.raises(SystemExit) as exit:
        main.command()
    return exit.value.code


def test_without_a_command_it_says_which_there_are(monkeypatch, capsys):
    assert metaevo_command(monkeypatch) == 2
    assert capsys.readouterr().out == f"{commands.usage()}\n"


@pytest.mark.parametrize(
    ("ended", "line"),
    [
        (InterruptedRunError("stopped before generation 30"), "stopped before gener"),
        (KeyboardInterrupt(), "stopped; run the same command again to continue"),
    ],
)
def test_a_run_that_was_asked_to_stop_is_no_error(ended, line, capsys):
    def body():
        raise ended

    assert program.guard(body) == 75
    assert capsys.readouterr().err.startswith(line)


def test_a_search_function_needs_defaults():
    with pytest.raises(ConfigError, match="'size' has no default"):
        config.parse(lambda size: None, [])


def test_cfg_and_cfg_diff_print_and_start_nothing(capsys, tmp_path):
    arguments = ["population_size=4", f"run.directory={tmp_path / 'x'}"]
    for flag in ("--cfg", "--cfg-diff"):
        with pytest.raises(SystemExit) as exit:
            metaevo.main(tiny_search.search, [*arguments, flag])
        assert exit.value.code == 0
        lines = capsys.readouterr().out.splitlines()
        if flag == "--cfg-diff":
            assert lines == arguments
        else:
            assert "num_generations=150" in lines
            search = strategies.in_search(tiny_search.search)
            parsed = config.parse(search, lines)  # what it prints, it takes
            assert config.assignments(parsed) == lines
    assert not (tmp_path / "x").exists()


def test_dry_run_says_what_it_would_cost_and_writes_nothing(capsys, tmp_path):
    with pytest.raises(SystemExit) as exit:
        metaevo.main(
            tiny_search.search, ["--dry-run", f"run.directory={tmp_path / 'x'}"]
        )
    assert exit.value.code == 0
    text = capsys.readouterr().out
    assert "8 members x 1 seeds" in text
    assert "32 a generation, 4,800 in all" in text
    for word in ("memory", "time", "disk", "nothing was started"):
        assert word in text
    assert not (tmp_path / "x").exists()
    assert not any(tmp_path.iterdir())


def test_resume_and_report_commands(tmp_path, monkeypatch, capsys):
    """`metaevo resume` finds search and settings in the record of the user's run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def command(*arguments):
        return metaevo_command(monkeypatch, *arguments)

    run = str(tmp_path / "run")
    first = ["num_generations=2", "population_size=4", "run.wandb=disabled"]
    first.append("run.held_out_seeds=0")
    with pytest.raises(SystemExit) as exit:
        metaevo.main(tiny_search.search, [*first, f"run.directory={run}"])
    assert exit.value.code == 0
    assert command("resume", run, "num_generations=3") == 0
    metrics = tmp_path / "run" / "metrics.jsonl"
    assert len(metrics.read_text().splitlines()) == 3
    # An extension that was interrupted is continued to its own horizon.
    assert command("resume", run, "num_generations=5", "run.max_seconds=1e-9") == 75
    shown = capsys.readouterr().err
    assert "before generation 4; run the same command again" in shown
    assert "error" not in shown
    assert command("report", run) == 0
    assert command("resume", run) == 0
    assert len(metrics.read_text().splitlines()) == 5
    assert command("resume", run, "num_generations=4") == 2
    assert "holds 5 generations" in capsys.readouterr().err
    page = tmp_path / "run" / "report" / "index.html"
    page.unlink()
    assert command("report", run) == 0
    assert page.exists()
    capsys.readouterr()
    for name in ("resume", "report", "play", "wandb-push"):
        assert command(name, str(tmp_path)) == 2
    assert command("play", run) == 2  # no comparison, so no agents
    assert command("distill", run) == 2  # nothing but a number
    assert len(capsys.readouterr().err.splitlines()) == 6


def test_list_finds_what_lies_in_the_folders():
    folders = {"searches": "searches", "algorithms": "inner_loops"}
    for kind, folder in (folders | {"strategies": "strategies"}).items():
        text = listing.text(kind)
        for path in sorted((ROOT / folder).glob("[a-z]*.py")):
            doc = ast.get_docstring(ast.parse(path.read_text()))
            assert f"\n  {path.stem:21} {doc.split()[0]} " in text
        assert max(map(len, text.splitlines())) <= 80
    assert "drift=drifts.ppo_clip" in listing.text("algorithms")


def test_list_imports_nothing_that_it_lists():
    program = (
        "import sys; from metaevo.cli import listing\n"
        "for kind in ('searches', 'algorithms', 'strategies', 'spaces'):\n"
        "    assert listing.text(kind)\n"
        "heavy = {'flax', 'optax', 'gymnax', 'evosax', 'inner_loops', 'searches'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert (out.returncode, out.stderr) == (0, "")


def test_every_command_has_an_example_in_its_help(monkeypatch, capsys):
    for name, command in commands.COMMANDS.items():
        assert metaevo_command(monkeypatch, name, "--help") == 0
        text = capsys.readouterr().out
        assert f"example: metaevo {name} " in text
        assert max(map(len, text.splitlines())) <= 80
        assert commands.usage().count(f"  metaevo {name} ") == 2
        options = command.options
        for field in dataclasses.fields(options) if options else ():
            (shown,) = config.assignments({field.name: field.default})
            assert f"  {shown} " in text


def test_version_is_that_of_the_package(monkeypatch, capsys):
    assert metaevo_command(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"metaevo {metaevo.__version__}\n"


def test_searches_of_the_current_folder_are_found_beside_the_installed_ones(tmp_path):
    """Neither hides the other, and of two of one name the current folder's counts."""
    (tmp_path / "searches").mkdir()
    for name in ("mine", "ppo_value_loss"):
        source = Path(tiny_search.__file__).read_text()
        head, _, rest = source.partition("\n")
        assert head.startswith('"""')
        source = f'"""Search of the current folder, {name}."""\n{rest}'
        (tmp_path / "searches" / f"{name}.py").write_text(source)

    lines = ["list searches"]
    lines += [f"run {x} --cfg" for x in ("mine", "ppo_value_loss", "ppo_drift")]
    path = f"{ROOT}{os.pathsep}{ROOT}/tests/helpers"
    code, out, err = from_folder(tmp_path, EACH, *lines, PYTHONPATH=path)
    assert (code, err) == (0, "")
    listed, *shown = out.split("END\n")[:-1]
    assert "Search of the current folder, mine." in listed
    assert "Search of the current folder, ppo_value_loss." in listed
    assert "\n  ppo_drift " in listed
    assert ["fail_below=-1.0" in x for x in shown] == [True, True, False]


NOT_EDITABLE = (
    "import sys; "
    "sys.meta_path[:] = [x for x in sys.meta_path if 'ditable' not in repr(x)]; "
)
"""As from a wheel: editable installs may find modules behind a user's package."""


def from_folder(folder, program, *arguments, **environment):
    """Run a command in a folder of a user's own, in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


BROKEN = {
    "syntax": ("import os\n\ndef search(:\n", 3, "SyntaxError: invalid syntax"),
    "indented": ("def search():\nreturn\n", 2, "IndentationError: expected an ind"),
    "unclosed": ("x = (\n", 1, "SyntaxError: '(' was never closed"),
}


def test_a_broken_file_is_one_line_of_the_list_and_the_rest_are_listed(
    tmp_path, monkeypatch
):
    for package in ("searches", "inner_loops", "strategies"):
        (tmp_path / package).mkdir()
        for name, (text, _, _) in BROKEN.items():
            (tmp_path / package / f"{name}.py").write_text(text)
        (tmp_path / package / "bytes.py").write_bytes(b"\xff\xfe")
        (tmp_path / package / "zero.py").write_bytes(b"x = '\0'")
    shown = {
        "searches": "ppo_drift",
        "algorithms": "gumbel_alphazero",
        "strategies": "open_es",
    }
    monkeypatch.chdir(tmp_path)
    # Another test may have imported the packages from its own folder.
    monkeypatch.syspath_prepend(tmp_path)
    for kind, other in shown.items():
        out = listing.text(kind)
        assert f"\n  {other} " in out
        text = " ".join(out.split())
        for name, (_, line, message) in BROKEN.items():
            assert f" {name} cannot be read: " in text
            assert f"/{name}.py:{line}: {message}" in text
        assert "bytes.py: UnicodeDecodeError" in text
        assert "/zero.py" in text


def test_a_file_of_ones_own_named_like_a_package_is_named_with_the_remedy(tmp_path):
    file = tmp_path / "strategies.py"
    file.write_text('"""Mine."""\n')
    program = NOT_EDITABLE + COMMAND
    code, out, err = from_folder(tmp_path, program, "run", "ppo_value_loss", "--cfg")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    remedy = f"{file} hides those that are installed: remove it, or rename {file}"
    assert remedy in err
    code, out, err = from_folder(tmp_path, program, "list", "strategies")
    assert (code, err) == (0, "")
    assert "hides those that are installed" in " ".join(out.split())


def test_public_names_are_listed_once_and_can_be_imported():
    assert set(metaevo.__all__) == {*metaevo._HOME, "reference"}
    for name in metaevo.__all__:
        assert getattr(metaevo, name) is not None


def test_runs_from_before_a_setting_was_new_are_compared_as_one_candidate(tmp_path):
    def found(name, **settings):
        identity = {"search": "mine", "settings": {"size": 4, **settings}}
        identity["defaults"] = dict.fromkeys(settings, 1.0)
        return {tmp_path / name: {"identity": identity}}

    new = found("a") | found("b", lr_factor=1.0) | found("c", lr_factor=2.0)
    groups = compare.grouped(new)
    names = {k: [path.name for path in v] for k, v in groups.items()}
    assert names == {"mine": ["a", "b"], "mine 2": ["c"]}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import metaevo\nmetaevo.main(print)\n", r"put it under `if __name__"),
        ("def another(): pass\n", "no function `search` to make it by"),
    ],
)
def test_file_that_makes_no_search_is_explained(code, message, tmp_path, monkeypatch):
    """A run must not start because its file is imported to make the search again."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    file = tmp_path / "mine.py"
    file.write_text(code)
    run = runs.Run(tmp_path / "run", {}, Source(file), (), True)
    with pytest.raises(ConfigError, match=message):
        runs.function(run)


def test_place_of_a_function_names_a_module_that_fits_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path[:])
    assert Source.of(tiny_search.search) == Source(
        Path(tiny_search.__file__), "tiny_search", "search"
    )
    file = tmp_path / "mine.py"
    file.write_text("def evolve(): pass\n")
    evolve = resolve.function(f"{file}:evolve", "searches")
    # Imported as searches.mine, which it is not in its folder.
    assert Source.of(evolve) == Source(file, None, "evolve")
    assert Source.of(eval("lambda: 0")) is None


def test_wandb_is_online_in_a_sweep_and_respects_its_variable(monkeypatch):
    for asked, environment, mode in (
        ("auto", {}, "offline"),
        ("auto", {"WANDB_MODE": "disabled"}, "disabled"),
        ("auto", {"WANDB_MODE": "dryrun", "WANDB_SWEEP_ID": "s"}, "offline"),
        ("auto", {"WANDB_MODE": "nonsense"}, "offline"),
        ("auto", {"WANDB_SWEEP_ID": "s"}, "online"),
        ("offline", {"WANDB_SWEEP_ID": "s"}, "offline"),
        ("offline", {"WANDB_MODE": "disabled"}, "offline"),
    ):
        for name in ("WANDB_MODE", "WANDB_SWEEP_ID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert wandb_mode(RunConfig(wandb=asked)) == mode
