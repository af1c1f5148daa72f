"""`metaevo.run` from Python keeps settings, name and source, as a command line does."""

import json

import numpy as np
import pytest

import metaevo
from inner_loops import ppo
from metaevo import drifts, losses
from metaevo.analysis import curves, holdout
from metaevo.cli import api, commands, config, runs
from metaevo.config import RunConfig
from metaevo.errors import ConfigError
from searches import pbt_toy, ppo_value_loss


def options(directory, **more):
    return RunConfig(
        directory=str(directory),
        held_out_seeds=3,
        wandb="disabled",
        devices=1,
        **more,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run from Python, its record of this user's runs, and its result."""
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(cache))
        directory = tmp_path_factory.mktemp("python") / "run"
        made = metaevo.run(
            pbt_toy.search, options(directory), num_generations=3, noise=0.2
        )
        yield made


def test_run_of_a_function_keeps_its_name_and_settings(finished):
    manifest = json.loads((finished.directory / "manifest.json").read_text())
    assert manifest["identity"]["search"] == "pbt_toy"
    assert manifest["changes"] == ["num_generations=3", "noise=0.2"]
    settings = manifest["identity"]["settings"]
    assert (settings["noise"], settings["exploit"]) == (0.2, True)
    page = finished.report.read_text()
    assert "pbt_toy" in page
    assert "<td>noise</td><td>0.2</td>" in page


def test_its_search_is_made_again_for_the_commands(finished):
    run = runs.finished(finished.directory)
    assert run.trusted
    assert run.changes == ("num_generations=3", "noise=0.2")
    search = runs.remade(run, ["num_generations=4"])
    assert search.num_generations == 4


def test_result_holds_what_evolved_and_its_evidence(finished):
    assert set(finished.artifact.slots) == {"h0", "h1"}
    assert {"fitness", "lineage"} <= set(finished.figures)
    assert all(path.is_file() for path in finished.figures.values())
    assert [x["generation"] for x in finished.metrics] == [0, 1, 2]
    (verdict, *_) = finished.verdicts
    assert "than" in verdict.sentence or "from" in verdict.sentence
    shown = finished._repr_markdown_()
    assert str(finished.report) in shown
    assert "h0" in shown


def test_one_member_is_trained_again(finished, capsys):
    given = [str(finished.directory), "generation=1", "member=1"]
    commands.execute("rerun", given)
    assert "the logged one to the bit" in capsys.readouterr().out


def test_same_call_resumes_it_and_a_larger_horizon_extends_it(finished):
    directory = finished.directory
    before = (directory / "metrics.jsonl").read_bytes()
    given = {"num_generations": 3, "noise": 0.2}
    again = metaevo.run(pbt_toy.search, options(directory), **given)
    assert again.directory == directory
    assert (directory / "metrics.jsonl").read_bytes() == before
    with pytest.raises(ConfigError, match=r"noise: 0\.2 -> 0\.3"):
        metaevo.run(pbt_toy.search, options(directory), num_generations=3, noise=0.3)


def arguments(**given):
    return api._arguments(ppo_value_loss.search, given)


def test_arguments_are_those_of_the_command_line():
    given, lines, unnamed = arguments(
        env="gymnax/Acrobot-v1",
        sigma=1,  # an int, where the command line reads 1.0
        inner={"num_envs": 8, "features": (16,)},
        meta=ppo.Meta(lr=3e-3, drift=drifts.dpo),
    )
    assert lines == [
        "env=gymnax/Acrobot-v1",
        "sigma=1.0",
        "inner.num_envs=8",
        "inner.features=[16]",
        "meta.lr=0.003",
        "meta.drift=metaevo.drifts:dpo",
    ]
    assert not unnamed
    parsed = config.parse(ppo_value_loss.search, lines)
    del parsed["run"]
    assert parsed == given
    assert given["inner"].total_timesteps == 65_536


def test_function_without_a_name_is_kept_and_said_to_be_unnamed():
    loss = lambda value, target, old, context: (value - target) ** 2  # noqa: E731
    given, lines, unnamed = arguments(meta={"value_loss": loss})
    assert given["meta"].value_loss is loss
    assert lines == []
    assert unnamed == {"meta.value_loss": loss}


def test_function_of_no_file_is_run_with_a_warning(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = {}
    monkeypatch.setattr(
        api.engine, "run", lambda *given, **more: made.update(given=given)
    )

    def local(num_generations: int = 2):
        return pbt_toy.search(num_generations)

    metaevo.run(local, options(tmp_path / "run"), num_generations=3)
    assert "cannot make this search again" in capsys.readouterr().err
    _, _, name, settings, changes, _, source, defaults = made["given"]
    assert (name, settings, changes) == (
        "local",
        {"num_generations": 3, "strategy": None, "halving": None},
        ["num_generations=3"],
    )
    expected = {"num_generations": 2, "strategy": None, "halving": None}
    assert (source, defaults) == (None, expected)


CELL = """
import metaevo
from searches import pbt_toy


def search(num_generations: int = 2, noise: float = 0.1) -> metaevo.Search:
    return pbt_toy.search(num_generations, noise=noise)
"""


def test_a_search_of_a_cell_is_known_in_its_session_without_a_warning(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    session: dict = {"__name__": "__main__"}
    exec(compile(CELL, "<stdin>", "exec"), session)
    config = metaevo.RunConfig(
        directory=str(tmp_path / "run"), held_out_seeds=0, wandb="disabled", devices=1
    )
    made = metaevo.run(session["search"], config, num_generations=1)
    assert made is not None
    assert "warning" not in capsys.readouterr().err
    assert made.again is not None
    assert made.again.make(()).num_generations == 1
    assert made.again.make(["num_generations=3"]).num_generations == 3
    with pytest.raises(ConfigError, match="noise=x: expected a number"):
        made.again.make(["noise=x"])
    with pytest.raises(ConfigError, match=r"'search' is none .* result\.play\(\)"):
        metaevo.result(made.directory)


def test_unnamed_functions_stay_where_a_search_is_made_again():
    loss = lambda value, target, old, context: (value - target) ** 2  # noqa: E731
    _, lines, unnamed = arguments(meta={"value_loss": loss}, sigma=0.25)
    remade = api._made(ppo_value_loss.search, lines, unnamed, ["meta.lr=0.5"])
    meta = remade.tasks[0].meta
    assert (meta.value_loss.func, meta.lr) == (loss, 0.5)
    assert remade.strategy.settings["sigma"] == 0.25
    named = ["meta.value_loss=metaevo.losses:clipped_square"]
    changed = api._made(ppo_value_loss.search, lines, unnamed, named)
    assert changed.tasks[0].meta.value_loss is losses.clipped_square


def test_a_search_put_together_by_hand_has_no_keys():
    search = pbt_toy.search()
    assert api._unchanged(search) is search
    with pytest.raises(ConfigError, match=r"noise=1: a metaevo\.Search has no keys"):
        api._unchanged(search, ["noise=1"])


def test_a_result_is_read_again_by_its_directory(finished):
    read = metaevo.result(finished.directory)
    assert read.verdicts == finished.verdicts
    assert read.solution.keys() == finished.solution.keys()
    for slot, x in finished.solution.items():
        np.testing.assert_array_equal(read.solution[slot], x)
    for name, runs_ in finished.held_out.items():
        np.testing.assert_array_equal(read.held_out[name].fitness, runs_.fitness)
    assert read.again is not None
    assert read.again.make(["num_generations=7"]).num_generations == 7


def test_scores_and_curves_of_a_result(finished):
    rows = finished.scores
    agents = {"best agent", "population mean"}  # on fresh episodes
    assert {row["candidate"] for row in rows} == {*finished.held_out} | agents
    mine = [
        row["score"]
        for row in rows
        if (row["candidate"], row["measure"]) == ("solution", "final return")
    ]
    expected = finished.held_out["solution"].final_return[0]
    np.testing.assert_array_equal(np.float32(mine), expected)
    drawn = finished.curves
    assert list(drawn.search["generation"]) == [0, 1, 2]
    means = [x["fitness_mean"] for x in finished.metrics]
    assert list(drawn.search["fitness_mean"]) == means
    assert "population" not in drawn.search
    for name, runs_ in finished.held_out.items():
        (curve,) = drawn.held_out[name]
        np.testing.assert_array_equal(curve, runs_.train[0]["return"])


def test_curves_count_the_frames_of_each_task(tmp_path):
    returns = np.zeros((3, 4)), np.zeros((3, 2))
    scores, train = np.zeros((2, 3)), tuple({"return": x} for x in returns)
    found = {"solution": holdout.HeldOut(scores, scores, train)}
    holdout.save(tmp_path / "held_out", found, {"frames_per_segment": [8, 5]})
    read = curves.read(tmp_path)
    assert [list(x) for x in read.frames] == [[8, 16, 24, 32], [5, 10]]
    assert not read.search


def test_a_result_is_exported(finished, tmp_path):
    assert finished.export() == finished.directory / "export" / "evolved_torch.py"
    out = finished.export("numpy", tmp_path / "h0.py", slot="h0")
    assert out == tmp_path / "h0.py"
    assert "H0 = " in out.read_text()
    with pytest.raises(ConfigError, match="to=tf: expected one of jax, torch"):
        finished.export("tf")


def test_what_needs_a_search_that_is_not_known_says_so(finished):
    unknown = finished._replace(again=None)
    asked = [
        unknown.play,
        unknown.compare,
        unknown.distill,
        lambda: finished.compare(unknown),
    ]
    for ask in asked:
        with pytest.raises(ConfigError, match="is not known here; expected a result"):
            ask()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 2}, "seeds=2 must be at least 3"),
        ({"rivals": "none"}, "rivals=none: expected one of tuned, all"),
        ({"sedes": 3}, "unknown key 'sedes'. Did you mean 'seeds'"),
    ],
)
def test_options_of_a_comparison_are_those_of_the_command(finished, options, message):
    with pytest.raises(ConfigError, match=message):
        finished.compare(**options)


def test_a_search_is_run_by_its_name(finished, capsys):
    again = metaevo.run(
        "pbt_toy", options(finished.directory), num_generations=3, noise=0.2
    )
    assert again is not None
    assert again.directory == finished.directory
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"lr": "foo"}, r"space\.lr=foo: expected a range"),
        ({"x": "uniform(0, 1)"}, r"'space\.x'\. Did you mean 'space\.lr'"),
        (3, "space=3: expected a range by number"),
    ],
)
def test_ranges_of_numbers_are_given_as_a_mapping(space, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        metaevo.run("ppo_hyperparameters", options(tmp_path / "run"), space=space)
    assert not (tmp_path / "run").exists()
