"""`strategy=NAME`: a run by another strategy than the search's own, and its keys."""

import json

import pytest
import runs as files
import tiny_search

import metaevo
from metaevo.cli import commands, config, help, program, runs, strategies
from metaevo.engine import identity
from metaevo.errors import ConfigError
from metaevo.storage import manifests
from searches import ppo_hyperparameters, ppo_pbt, ppo_value_loss

SEARCH = tiny_search.search
QUICK = ["num_generations=2", "run.held_out_seeds=0", "run.wandb=disabled"]
CHOSEN = ["strategy=simple_ga", "strategy.sigma=0.5", "strategy.elite_ratio=0.25"]


def parsed(search, *argv):
    """The search function with the keys of `argv`, and its arguments."""
    keyed = strategies.in_arguments(search, argv)
    given = config.parse(keyed, argv)
    del given["run"]
    return keyed, given


def made(search, *argv):
    return config.call(*parsed(search, *argv))


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A run of two generations by a genetic algorithm, started as a command does."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files.write_short_reports(monkeypatch)
    directory = tmp_path / "run"
    argv = [*CHOSEN, *QUICK, f"run.directory={directory}"]
    program.run(SEARCH, argv, lambda: False)
    return directory


def test_a_run_is_recorded_continued_and_repeated(finished, capsys):
    manifest = json.loads((finished / "manifest.json").read_text())
    settings = manifest["identity"]["settings"]
    assert set(CHOSEN) < set(manifest["changes"])
    assert settings["strategy"] == "simple_ga"
    assert settings["strategy.elite_ratio"] == 0.25
    assert settings["search"]["strategy"]["elite_ratio"] == 0.25
    before = files.records(finished)
    with pytest.raises(SystemExit) as ended:
        commands.execute("resume", [str(finished), "num_generations=3"])
    assert ended.value.code == 0
    records = files.records(finished)
    assert len(records) == 3
    assert records[:2] == before
    commands.execute("rerun", [str(finished), "generation=1", "member=1"])
    assert "the logged one to the bit" in capsys.readouterr().out
    (finished / "report" / "index.html").unlink()
    commands.execute("report", [str(finished)])
    assert "simple_ga" in (finished / "report" / "index.html").read_text()
    for other, said in (
        (["strategy=snes", "strategy.sigma=0.5"], "strategy: simple_ga -> snes"),
        ([*CHOSEN[:2], "strategy.elite_ratio=0.5"], r"elite_ratio: 0\.25 -> 0\.5"),
        ([], "strategy: simple_ga -> None"),
    ):
        argv = [*other, *QUICK, f"run.directory={finished}"]
        with pytest.raises(ConfigError, match=said):
            program.run(SEARCH, argv, lambda: False)
    # As `metaevo compare` makes it, in its setting and in another.
    other = runs.remade(runs.finished(finished), ["population_size=4"])
    assert other.strategy.settings["population_size"] == 4
    assert other.strategy.settings["elite_ratio"] == 0.25


def test_what_was_run_before_there_was_the_key_is_the_same_run():
    settings = config.settings(*parsed(SEARCH, "population_size=4"))
    old = config.settings(SEARCH, {"population_size": 4, "num_generations": 150})
    assert manifests.differences(old, settings) == []


@pytest.mark.parametrize(
    ("search", "argv", "chosen"),
    [
        (ppo_value_loss.search, ["strategy=ars"], {"sigma": 0.5, "elite_ratio": 0.5}),
        (ppo_value_loss.search, ["strategy=ars", "sigma=2"], {"sigma": 2.0}),
        (ppo_value_loss.search, ["strategy=de"], {"population_size": 64}),
        (ppo_pbt.search, ["strategy=pb2", "fraction=0.5"], {"fraction": 0.5}),
        (
            ppo_pbt.search,
            ["strategy=pbt", "factors=[0.5,2]"],
            {"factors": (0.5, 2.0), "explore": None, "resample": 0.25},
        ),
    ],
)
def test_an_argument_is_a_key_of_the_search_or_of_the_strategy(search, argv, chosen):
    found = made(search, *argv).strategy.settings
    assert {key: found[key] for key in chosen} == chosen


def test_its_own_strategy_by_its_name_is_the_same_search():
    plain = made(ppo_value_loss.search)
    named = made(ppo_value_loss.search, "strategy=open_es")
    assert identity.identity(named) == identity.identity(plain)


def test_an_optimizer_is_adam_by_its_step_size_or_stays():
    def first_step(*argv):
        optimizer = made(*argv).strategy.settings["optimizer"]
        return float(optimizer.update(1.0, optimizer.init(1.0))[0])

    step = first_step(ppo_value_loss.search, "strategy=pgpe")
    assert step == pytest.approx(-0.3, rel=1e-4)
    # One that has a default keeps it, whatever the search's step size is for.
    assert first_step(ppo_value_loss.search, "strategy=snes") == -1.0
    given = ["strategy=open_es", "strategy.learning_rate=0.1"]
    assert first_step(ppo_hyperparameters.search, *given) == pytest.approx(
        -0.1, rel=1e-4
    )


def test_members_of_a_generation_live_as_the_strategy_has_them():
    def segments(search, *argv):
        return made(search, *argv).segments_per_generation

    assert segments(ppo_pbt.search) == 1
    assert segments(ppo_pbt.search, "strategy=random_search") is None
    horizon = "strategy=pes", "strategy.horizon=4"
    assert segments(ppo_value_loss.search, *horizon) == 4
    horizon = "strategy=asha", "strategy.horizon=8"
    assert segments(ppo_pbt.search, *horizon) == 4


def test_help_has_the_key_and_the_arguments_of_the_strategy():
    def words(search, *argv):
        text = help.help_text(strategies.in_arguments(search, argv), "mine")
        return " ".join(text.split())

    plain = words(ppo_value_loss.search)
    assert "strategy=null strategy in place of the search's own, open_es" in plain
    assert "strategy.*" not in plain
    text = words(ppo_value_loss.search, "strategy=ars")
    assert "strategy.* Augmented random search from the mean `space.init`" in text
    assert "strategy.elite_ratio=0.5 fraction of the pairs that are used" in text
    assert "strategy.sigma=" not in text
    for search, own in (
        (ppo_hyperparameters.search, "snes"),
        (ppo_pbt.search, "pbt"),
        (SEARCH, "open_es"),
    ):
        assert strategies.own_name(search) == own


def test_the_configuration_is_shown_and_taken_again(capsys):
    program.run(SEARCH, [*CHOSEN, "--cfg"], lambda: False)
    lines = capsys.readouterr().out.splitlines()
    assert set(CHOSEN) < set(lines)
    assert "strategy.crossover_rate=0.0" in lines
    program.run(SEARCH, [*lines, "--cfg-diff"], lambda: False)
    assert capsys.readouterr().out.splitlines() == CHOSEN


def test_a_search_with_a_parameter_of_this_name_keeps_it():
    def search(strategy: str = "mine"):
        return strategy

    assert made(search, "strategy=theirs") == "theirs"
    assert strategies.in_search(search) is search


def test_from_python_it_is_an_argument(tmp_path):
    options = metaevo.RunConfig(
        directory=str(tmp_path / "run"), held_out_seeds=0, wandb="disabled"
    )
    with pytest.raises(ConfigError, match=r"strategy=simple_ga: give strategy\.sigma="):
        metaevo.run(SEARCH, options, strategy="simple_ga")


def test_a_strategy_of_the_users_own_is_found(tmp_path, monkeypatch):
    (tmp_path / "strategies").mkdir()
    source = "from strategies.snes import snes\n\n\ndef mine(space, size: int = 6):"
    source += "\n    return snes(space, size, 0.1)\n"
    (tmp_path / "strategies" / "mine.py").write_text(source)
    (tmp_path / "strategies" / "broken.py").write_text("x = (\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = made(ppo_value_loss.search, "strategy=mine", "strategy.size=8")
    assert found.strategy.settings["population_size"] == 8
    with pytest.raises(ConfigError, match=r"broken\.py:1: SyntaxError"):
        made(ppo_value_loss.search, "strategy=broken")
