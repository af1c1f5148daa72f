"""`metaevo new`: what it writes runs as it is."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import toys
from pages import FENCE

from metaevo import envs, population
from metaevo.cli import config, new, resolve, strategies, train
from metaevo.engine import checks
from metaevo.errors import ConfigError
from metaevo.learned import operations

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Stand in an empty folder, as a user; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(operations, "_OWN", {})
    names = "mine", "searches.mine", "strategies.mine", "inner_loops.mine"
    for name in names:  # of another test, too
        sys.modules.pop(name, None)
    yield tmp_path
    for name in names:
        sys.modules.pop(name, None)


def search_of(kind):
    """The search that runs a new file, as its commands make it."""
    if kind in ("search", "loss"):
        return resolve.function("mine", "searches")()
    if kind == "strategy":
        strategy = strategies.named("mine")(toys.space(), 8, 0.3)
        return toys.search(strategy, toys.quadratic())
    name, given = ("mine", {}) if kind == "loop" else ("ppo", {"env": "mine:make"})
    made = train.as_search(resolve.function(name, "inner_loops"))
    arguments = config.defaults(made) | given
    del arguments["run"]
    return config.call(made, arguments)


@pytest.mark.parametrize("kind", new.TEMPLATES)
def test_what_is_written_fits_together(kind, here):
    lines = new.write(kind, "mine")
    folder = new.TEMPLATES[kind].package
    (path,) = here.rglob("*.py")
    assert path == here / folder / "mine.py"
    assert lines[0].startswith(f"{path.relative_to(here)}: ")
    assert all("mine" in line and "NAME" not in line for line in lines)
    importlib.invalidate_caches()
    assert population.size(checks.check(search_of(kind)).params) >= 2
    if kind == "env":
        assert envs.make("mine:make").name == "mine"
    if kind == "loss":
        assert operations.get("mine").build(scale=2.0).starts_hand_made


def test_a_new_strategy_is_a_key_of_every_search(here):
    new.write("strategy", "mine")
    importlib.invalidate_caches()
    search = resolve.function("ppo_value_loss", "searches")
    keyed = strategies.in_search(search, {"strategy": "mine"})
    own = [x for x in keyed.further_keys if x.startswith("strategy.")]
    assert own == ["strategy.fraction", "strategy.decay"]
    described = [keyed.further_keys[x].description for x in own]
    assert all(described)


def test_the_files_are_written_as_our_own_are():
    """By ruff, which lints them, with a name as long as NAME."""
    ruff = [sys.executable, "-m", "ruff"]
    for kind in new.TEMPLATES:
        text = new.text(kind, "mine")
        for command in (["check", "--quiet", "-"], ["format", "--check", "-"]):
            out = subprocess.run(
                [*ruff, *command], input=text, cwd=ROOT, capture_output=True, text=True
            )
            assert out.returncode == 0, f"{kind}: {out.stdout}{out.stderr}"


@pytest.mark.parametrize("kind", ["search", "env"])
def test_the_docs_show_the_file_that_is_written(kind):
    """Line by line, so that there is one model and not two."""
    shown = [
        (info, block)
        for page in ROOT.glob("docs/**/*.md")
        for info, block in FENCE.findall(page.read_text(encoding="utf-8"))
        if 'title="' in info
    ]
    names = {
        info: Path(info.split('title="')[1].split('"')[0]).stem for info, _ in shown
    }
    assert any(block == new.text(kind, names[info]) for info, block in shown)


def test_no_file_is_overwritten(here):
    new.write("search", "mine")
    path = here / "searches" / "mine.py"
    path.write_text("mine = 1\n")
    with pytest.raises(ConfigError, match=r"searches/mine\.py is there already"):
        new.write("loss", "mine")
    assert path.read_text() == "mine = 1\n"


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("strategy", "snes", r"would hide .*strategies/snes\.py"),
        ("env", "numpy", r"mpy\.py would hide .*numpy/__init__\.py"),
        ("env", "searches", r"would hide .*searches"),
        ("loop", "class", "expected a name for a Python file"),
        ("loop", "_mine", "expected a name for a Python file"),
        ("loop", "../mine", "expected a name for a Python file"),
    ],
)
def test_a_name_that_is_taken_or_no_name_is_refused(kind, name, expected, here):
    with pytest.raises(ConfigError, match=expected):
        new.write(kind, name)
    assert not [*here.iterdir()]


def test_a_folder_that_hides_the_installed_ones_is_refused(here, monkeypatch):
    monkeypatch.delitem(sys.modules, "strategies")
    (here / "strategies").mkdir()
    (here / "strategies" / "__init__.py").touch()
    importlib.invalidate_caches()
    with pytest.raises(ConfigError, match="hides those that are installed"):
        new.write("strategy", "mine")
