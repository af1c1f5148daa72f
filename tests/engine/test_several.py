"""`run.seeds`: several searches and their comparison by one command."""

import dataclasses

import optax
import pytest
import runs as files
import tiny_search
import toys

import metaevo
from metaevo.analysis import holdout
from metaevo.cli import several
from metaevo.errors import ConfigError, InterruptedRunError
from strategies.open_es import open_es


def search():
    loop = toys.quadratic()._replace(tunable=toys.space())
    strategy = open_es(toys.space(), 8, 0.2, optax.sgd(0.2))
    return toys.search(strategy, loop, num_generations=1)


def config(folder, **options):
    given = {"seeds": 2, "held_out_seeds": 4, "wandb": "disabled", "devices": 1}
    return metaevo.RunConfig(directory=str(folder), **given | options)


@pytest.fixture
def run(capsys, monkeypatch):
    """Run several searches; returns what was printed."""
    files.write_short_reports(monkeypatch)
    made = search()

    def call(config, should_stop=lambda: False):
        several.run(
            made,
            config,
            "toy",
            lambda one: metaevo.run(made, one, "toy", should_stop=should_stop),
            should_stop,
        )
        return capsys.readouterr().out

    return call


def verdicts(printed):
    return [line for line in printed.splitlines() if "95 % intervals" in line]


def test_the_same_command_continues_where_it_stopped(run, tmp_path, monkeypatch):
    with pytest.raises(InterruptedRunError):
        run(config(tmp_path, seed=5), (tmp_path / "seed6").exists)
    assert (tmp_path / "seed5" / "solution").exists()
    assert not (tmp_path / "compare" / "index.html").exists()
    whole = run(config(tmp_path, seed=5))
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["compare", "seed5", "seed6"]
    assert "2 searches x 4 seeds" in whole
    assert verdicts(whole)

    monkeypatch.setattr(holdout, "_trained", None)  # nothing is trained again
    assert verdicts(run(config(tmp_path, seed=5))) == verdicts(whole)


def test_shell_command_continues_and_adds_searches(tmp_path, capsys):
    def shell(num_seeds):
        arguments = [f"run.directory={tmp_path / 'runs'}", f"run.seeds={num_seeds}"]
        arguments += ["num_generations=1", "population_size=4"]
        arguments += ["run.held_out_seeds=0", "run.wandb=disabled"]
        with pytest.raises(SystemExit) as exit:
            metaevo.main(tiny_search.search, arguments)
        return exit.value.code, capsys.readouterr()

    assert shell(2)[0] == 0
    assert shell(3)[0] == 0
    made = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert made == ["seed0", "seed1", "seed2"]
    (tmp_path / "runs" / "seed1" / "manifest.json").unlink()
    code, printed = shell(3)
    assert code == 2
    assert "seed1" in printed.err


def test_time_limit_counts_all_searches(run, tmp_path):
    with pytest.raises(InterruptedRunError):
        run(config(tmp_path / "runs", max_seconds=0.0))
    assert not (tmp_path / "runs" / "seed1").exists()


def test_what_cannot_be_several_is_refused(run, tmp_path):
    one = dataclasses.replace(config(tmp_path / "one"), seeds=1, held_out_seeds=0)
    metaevo.run(search(), one, "toy")
    with pytest.raises(ConfigError, match="holds a run"):
        run(config(tmp_path / "one"))
    for options in ({"seeds": 0}, {"evaluator": "ray", "devices": None}):
        with pytest.raises(ConfigError, match=r"run\.seeds"):
            config(tmp_path, **options)
    with pytest.raises(ConfigError, match="one seed at a time"):
        metaevo.run(search(), config(tmp_path / "two"), "toy")


def test_comparison_is_left_out_if_asked(run, tmp_path, monkeypatch):
    monkeypatch.setattr(holdout, "_trained", None)
    printed = run(config(tmp_path / "runs", held_out_seeds=0))
    assert "no comparison of the searches: run.held_out_seeds=0" in printed


def test_a_directory_of_several_stands_for_its_runs(tmp_path):
    for name in ("seed10", "seed9", "other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "manifest.json").touch()
    named = [path.name for path in several.expanded(tmp_path / "runs")]
    assert named == ["seed9", "seed10"]
    alone = tmp_path / "runs" / "seed9"
    assert several.expanded(alone) == [alone]
