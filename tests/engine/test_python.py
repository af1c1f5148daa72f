"""`metaevo.run` from Python keeps settings, name and source, as a command line does."""

import json

import pytest

import metaevo
from inner_loops import ppo
from metaevo import drifts
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
        api.loop, "run", lambda *given, **more: made.update(given=given)
    )

    def local(num_generations: int = 2):
        return pbt_toy.search(num_generations)

    metaevo.run(local, options(tmp_path / "run"), num_generations=3)
    assert "cannot make this search again" in capsys.readouterr().err
    _, _, name, settings, changes, _, source, defaults = made["given"]
    assert (name, settings, changes) == (
        "local",
        {"num_generations": 3, "strategy": None},
        ["num_generations=3"],
    )
    assert (source, defaults) == (None, {"num_generations": 2, "strategy": None})


def test_a_search_is_run_by_its_name(finished, capsys):
    again = metaevo.run(
        "pbt_toy", options(finished.directory), num_generations=3, noise=0.2
    )
    assert again is not None
    assert again.directory == finished.directory
    assert "warning" not in capsys.readouterr().err
