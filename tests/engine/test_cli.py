"""The command line: accepted arguments, and messages about refused ones."""

import ast
import contextlib
import dataclasses
import os
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
import tiny_search

import metaevo
from inner_loops import ppo
from metaevo.cli import commands, config, found, listing, main, program, runs
from metaevo.config import RunConfig, wandb_mode
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


def test_no_arguments_give_the_defaults():
    config = parse()
    assert config["inner"] == ppo.Config(1000, features=(8, 8))
    assert config["meta"] == Meta(lr=1e-2)
    assert config["run"] == RunConfig()
    assert {
        k: config[k] for k in ("size", "rate", "name", "kind", "flag", "maybe")
    } == {
        "size": 4,
        "rate": 1.0,
        "name": "x",
        "kind": "a",
        "flag": False,
        "maybe": None,
    }


def test_values_get_their_types():
    config = parse(
        "size=8",
        "rate=3",
        "kind=b",
        "flag=true",
        "maybe=2",
        "inner.features=[16,32,64]",
        "inner.num_steps=1_000",
        "inner.anneal_lr=off",
        "meta.lr=3e-4",
        "run.seed=7",
        "run.directory=/tmp/a b",
    )
    assert config["size"] == 8
    assert isinstance(config["rate"], float)
    assert (config["kind"], config["flag"], config["maybe"]) == ("b", True, 2)
    assert config["inner"].features == (16, 32, 64)
    assert config["inner"].num_steps == 1000
    assert config["inner"].num_envs == 4  # untouched
    assert config["inner"].anneal_lr is False
    assert config["meta"] == Meta(lr=3e-4)
    assert config["meta"].function is print
    assert config["run"].directory == "/tmp/a b"


def test_the_last_value_wins():
    assert parse("size=8", "size=2")["size"] == 2


@pytest.mark.parametrize(
    "text", ["1e3", "true", "~", "a: b", "{x}", "#x", "[1", "%s", "'q'", "a=b", " x "]
)
def test_text_is_taken_as_it_is(text):
    assert parse(f"run.directory={text}")["run"].directory == text
    assert parse(f"name={text}")["name"] == text
    given = config.changes(search, parse(f"run.directory={text}"))
    assert parse(*given)["run"].directory == text


@pytest.mark.parametrize(
    "argument",
    [
        "name=${oc.env:HOME}",
        "size=${oc.env:HOME}",
        "maybe=${rate}",
        "run.directory=${oc.env:HOME}",
        "inner.features=[1,${size}]",
        'kind="\\x24{oc.env:HOME}"',
        "${oc.env:HOME}=3",
    ],
)
def test_nothing_is_interpolated(argument):
    with pytest.raises(ConfigError, match="not expanded"):
        parse(argument)


@pytest.mark.parametrize("seed", [-1, 1 << 32, 1 << 40, 10**20])
def test_seed_of_more_than_32_bits_is_refused(seed):
    with pytest.raises(ConfigError, match=f"seed={seed} must be at least 0 and below"):
        parse(f"run.seed={seed}")
    assert parse(f"run.seed={(1 << 32) - 1}")["run"].seed == (1 << 32) - 1


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("sizee=3", ["unknown key 'sizee'", "'size'", "--help"]),
        ("inner.num_env=3", ["unknown key 'inner.num_env'", "num_envs"]),
        ("meta.functoin=3", ["unknown key 'meta.functoin'", "function"]),
        ("run.sed=3", ["unknown key 'run.sed'", "seed"]),
        ("size=abc", ["size=abc", "expected an integer"]),
        ("size=1.5", ["size=1.5", "expected an integer"]),
        ("rate=fast", ["rate=fast", "expected a number"]),
        ("kind=c", ["kind=c", "one of a, b"]),
        ("flag=perhaps", ["flag=perhaps"]),
        ("inner=3", ["inner=3"]),
        ("inner.features=x", ["inner.features=x", "a list of integers"]),
        ("inner.features=[a]", ["inner.features=[a]"]),
        ("size=null", ["size=null"]),
        ("size", ["'size'", "expected key=value"]),
        ("--size=3", ["--size=3", "expected key=value"]),
        ("=3", ["expected key=value"]),
        ("size=${nothing}", ["size="]),
        ("size=[", ["size=["]),
        ("size.x=3", ["size.x"]),
    ],
)
def test_a_wrong_argument_is_one_line_that_names_the_key(argument, parts):
    with pytest.raises(ConfigError) as error:
        parse(argument)
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


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


def call(*command):
    """Exit code, stderr and CPU seconds of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return out.returncode, out.stderr, seconds


COMMAND = (
    "import sys; sys.argv[0] = 'metaevo'; "
    "from metaevo.cli.main import command; command()"
)


@pytest.mark.parametrize(
    ("arguments", "message", "seconds"),
    [
        ("popultion_size=3", "Did you mean 'population_size'", 3),
        ("inner.num_steps=abc", "inner.num_steps=abc: expected an integer", 3),
        ("start=nowhere", "start=nowhere: expected one of scratch, residual", 3),
        ("population_size=7", "must be even; use 8", 3),
        ("run.directory=/proc/no", "give another directory", 3),
        ("run.directory={file}/x", "give another directory", 3),
        ("run.wandb=later", "must be one of auto, offline, online, disabled", 3),
        ("run.held_out_seeds=1", "at least 2; 0 turns the comparison off", 3),
        ("env=gymna/CartPole-v1", "Did you mean gymnax/CartPole-v1", 3),
        ("env=gymnax/CartPol-v1", "Did you mean gymnax/CartPole-v1", 8),
        ("resume {missing}", "no run here", 3),
        ("report {missing}", "no run here", 3),
        ("play {missing}", "no run here", 3),
        ("wandb-push {missing}", "no run here", 3),
        ("distill {missing}", "no run here", 3),
        ("distill {missing} seeds=2", "seeds=2 must be at least 16", 3),
        ("play {missing} agent=nobody", "agent=nobody: expected one of solution", 3),
        ("play {missing} run.seed=1", "unknown key 'run.seed'", 3),
        ("report", "expected report RUN; metaevo report --help", 3),
        ("list losses", "expected one of searches, algorithms", 3),
        ("reprot x", "unknown command 'reprot'. Did you mean 'report'?", 3),
        ("wandb-push {missing} later", "expected wandb-push RUN [online|offline]", 3),
        ("compare {missing} seeds=2", "seeds=2 must be at least 3", 3),
        ("run ppo_value_los", "Did you mean 'ppo_value_loss'", 3),
        ("run ppo_value_loss size=1", "unknown key 'size'", 3),
        ("train pppo", "no algorithm 'pppo'. Did you mean 'ppo'?", 3),
        ("train ppo inner.totl=1", "unknown key 'inner.totl'", 3),
        ("train ppo num_seeds=0", "num_seeds=0 must be at least 1", 8),
        ("train ppo run.stop=return=475", "expected METRIC>=NUMBER", 3),
        ("train ppo run.stop=retrun>=475", "Did you mean 'return'?", 12),
        ("train ppo meta.drift={missing}", "no artifact here", 8),
    ],
)
def test_bad_input_exits_2_with_one_line_and_soon(
    arguments, message, seconds, tmp_path
):
    """CPU seconds, of a whole process."""
    (tmp_path / "file").touch()
    given = arguments.format(file=tmp_path / "file", missing=tmp_path / "run").split()
    program = ["-m", "searches.ppo_value_loss"] if "=" in given[0] else ["-c", COMMAND]
    code, stderr, used = call(*program, *given)
    assert code == 2
    (line,) = stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert used <= seconds
    assert not (tmp_path / "run").exists()


def test_without_a_command_it_says_which_there_are():
    assert call("-c", COMMAND)[0] == 2
    assert call("-c", COMMAND, "list", "searches")[0] == 0


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


def test_settings_are_plain_data():
    given = config.parse(tiny_search.search, ["population_size=4"])
    arguments = {k: v for k, v in given.items() if k != "run"}
    values = {"population_size": 4, "num_generations": 150, "fail_below": -1.0}
    assert config.settings(tiny_search.search, arguments) == (
        values,
        values | {"population_size": 8},
    )


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
            parsed = config.parse(tiny_search.search, lines)  # what it prints, it takes
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
        monkeypatch.setattr(sys, "argv", ["metaevo", *arguments])
        with pytest.raises(SystemExit) as exit:
            main.command()
        return exit.value.code

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
    text = listing.text()
    for folder in ("searches", "inner_loops", "strategies"):
        for path in sorted((ROOT / folder).glob("[a-z]*.py")):
            doc = ast.get_docstring(ast.parse(path.read_text()))
            assert f"\n  {path.stem:21} {doc.split()[0]} " in text
    for name, default in ppo.Meta()._asdict().items():
        shown = f"{default:g}" if isinstance(default, float) else ""
        assert f"{name}={shown}" in text
    for kind in ("drift=drifts.ppo_clip", "tune ", "gymnax/ ", "CartPole-v1"):
        assert kind in text
    assert max(map(len, text.splitlines())) <= 80
    assert "CartPole" not in listing.text("spaces")
    with pytest.raises(ConfigError, match="expected one of searches, algorithms"):
        listing.text("losses")


def test_list_imports_nothing_that_it_lists():
    program = (
        "import sys; from metaevo.cli import listing\n"
        "for kind in ('searches', 'algorithms', 'strategies', 'spaces'):\n"
        "    assert listing.text(kind)\n"
        "heavy = {'flax', 'optax', 'gymnax', 'evosax', 'inner_loops', 'searches'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    code, stderr, _ = call("-c", program)
    assert (code, stderr) == (0, "")


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_every_command_has_an_example_in_its_help(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["metaevo", name, "--help"])
    with pytest.raises(SystemExit) as exit:
        main.command()
    assert exit.value.code == 0
    text = capsys.readouterr().out
    assert f"example: metaevo {name} " in text
    assert max(map(len, text.splitlines())) <= 80
    assert commands.usage().count(f"  metaevo {name} ") == 2
    options = commands.COMMANDS[name].options
    for field in dataclasses.fields(options) if options else ():
        (shown,) = config.assignments({field.name: field.default})
        assert f"  {shown} " in text


def test_version_is_that_of_the_package(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["metaevo", "--version"])
    with pytest.raises(SystemExit) as exit:
        main.command()
    assert exit.value.code == 0
    assert capsys.readouterr().out == f"metaevo {metaevo.__version__}\n"


def test_old_spelling_of_a_command_still_works(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["metaevo", "distil", str(tmp_path)])
    with pytest.raises(SystemExit) as exit:
        main.command()
    assert exit.value.code == 2
    assert "no run here" in capsys.readouterr().err


def test_searches_of_the_current_folder_are_found_beside_the_installed_ones(tmp_path):
    """Neither hides the other, and of two of one name the current folder's counts."""
    (tmp_path / "searches").mkdir()
    for name in ("mine", "ppo_value_loss"):
        source = Path(tiny_search.__file__).read_text()
        head, _, rest = source.partition("\n")
        assert head.startswith('"""')
        source = f'"""Search of the current folder, {name}."""\n{rest}'
        (tmp_path / "searches" / f"{name}.py").write_text(source)

    def metaevo_command(*arguments):
        return subprocess.run(
            [sys.executable, "-c", COMMAND, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/tests/helpers"},
            capture_output=True,
            text=True,
        )

    listed = metaevo_command("list", "searches").stdout
    assert "Search of the current folder, mine." in listed
    assert "Search of the current folder, ppo_value_loss." in listed
    assert "\n  ppo_drift " in listed
    for name in ("mine", "ppo_value_loss"):
        found = metaevo_command("run", name, "--cfg")
        assert found.returncode == 0, found.stderr
        assert "fail_below=-1.0" in found.stdout
    found = metaevo_command("run", "ppo_drift", "--cfg")
    assert found.returncode == 0, found.stderr


NOT_EDITABLE = (
    "import sys; "
    "sys.meta_path[:] = [x for x in sys.meta_path if 'ditable' not in repr(x)]; "
)
"""As from a wheel: editable installs may find modules behind a user's package."""


def from_folder(folder, *arguments):
    """A command in a folder of a user's own, in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", NOT_EDITABLE + COMMAND, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
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
RAISES = {
    "divides": ("x = 1\ny = x / 0\n", 2, "ZeroDivisionError: division by zero"),
    "imports": ("\n\nimport optaxx\n", 3, "ModuleNotFoundError: No module named 'opt"),
    "asserts": ("assert False\n", 1, "AssertionError"),
    "lines": ("raise ValueError('a\\nb')\n", 1, "ValueError: a"),
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


@pytest.mark.parametrize("name", [*BROKEN, *RAISES])
def test_a_search_that_cannot_be_imported_is_one_line_with_its_place(
    tmp_path, monkeypatch, name
):
    text, line, message = (BROKEN | RAISES)[name]
    words = {
        "mine.py": "mine.py",
        "broken_one": "searches/broken_one.py",
        "package_of_mine.mine:search": "package_of_mine/mine.py",
        "broken_package.mine:search": "broken_package/__init__.py",
    }
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    for word, place in words.items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(text)
        with pytest.raises(ConfigError) as error:
            found.function(word, "searches")
        assert f"{place}:{line}: {message}" in str(error.value)
        assert "\n" not in str(error.value)


def test_the_place_is_in_the_file_that_failed(tmp_path):
    """Of a module that the search imports, not where it imports it."""
    (tmp_path / "mine.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("import json\n\njson.loads('{')\n")
    code, out, err = from_folder(tmp_path, "run", "mine.py")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "helper.py:3: JSONDecodeError: Expecting property name" in err


@pytest.mark.parametrize(
    "place",
    [
        "strategies/__init__.py",
        "searches/__init__.py",
        "inner_loops/__init__.py",
        "strategies.py",
    ],
)
def test_a_package_of_ones_own_named_like_ours_is_named_with_the_remedy(
    tmp_path, place
):
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    file.write_text('"""Mine."""\n')
    code, out, err = from_folder(tmp_path, "run", "ppo_value_loss", "--cfg")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    rename = file.parent if file.stem == "__init__" else file
    remedy = f"{file} hides those that are installed: remove it, or rename {rename}"
    assert remedy in err
    if place == "strategies.py":
        code, out, err = from_folder(tmp_path, "list", "strategies")
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
        manifest = {"identity": identity}
        source = Source(tmp_path / "mine.py")
        return runs.Run(tmp_path / name, manifest, source, (), True)

    new = [found("a"), found("b", lr_factor=1.0), found("c", lr_factor=2.0)]
    groups = commands._grouped(new)
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
    evolve = found.function(f"{file}:evolve", "searches")
    # Imported as searches.mine, which it is not in its folder.
    assert Source.of(evolve) == Source(file, None, "evolve")
    assert Source.of(eval("lambda: 0")) is None


@pytest.mark.parametrize(
    ("asked", "environment", "mode"),
    [
        ("auto", {}, "offline"),
        ("auto", {"WANDB_MODE": "disabled"}, "disabled"),
        ("auto", {"WANDB_MODE": "dryrun", "WANDB_SWEEP_ID": "s"}, "offline"),
        ("auto", {"WANDB_MODE": "nonsense"}, "offline"),
        ("auto", {"WANDB_SWEEP_ID": "s"}, "online"),
        ("offline", {"WANDB_SWEEP_ID": "s"}, "offline"),
        ("offline", {"WANDB_MODE": "disabled"}, "offline"),
    ],
)
def test_wandb_is_online_in_a_sweep_and_respects_its_variable(
    asked, environment, mode, monkeypatch
):
    for name in ("WANDB_MODE", "WANDB_SWEEP_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert wandb_mode(RunConfig(wandb=asked)) == mode
