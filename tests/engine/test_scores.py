"""`metaevo scores`: scores by seed of runs, artifacts and comparisons."""

import csv
import json
import shutil

import numpy as np
import pytest

import metaevo
from metaevo.analysis import holdout, results, scores, verdicts
from metaevo.analysis.independent import judge
from metaevo.cli import commands
from metaevo.errors import ConfigError


@pytest.fixture
def printed(capsys):
    def printed(*arguments):
        commands.execute("scores", list(map(str, arguments)))
        return capsys.readouterr().out

    return printed


def rows(text):
    """The scores of CSV by all that tells them apart."""
    found = list(csv.DictReader(text.splitlines()))
    keys = ("candidate", "measure", "agent", "step_size", "search", "seed")
    return {tuple(x[key] for key in keys): x["score"] for x in found}


def test_a_run_and_its_artifact_show_the_same_scores(tiny_run, printed, tmp_path):
    held_out, facts = holdout.load(tiny_run / "held_out")
    shown = rows(printed(tiny_run, "to=csv"))
    assert len(shown) == sum(x.fitness.size for x in held_out.values())
    assert facts["measure"] == "final return"
    for name, runs in held_out.items():
        mine = [shown[name, "final return", "", "", "0", str(i)] for i in range(3)]
        assert np.array_equal(np.float32(mine), runs.fitness[0])
    assert rows(printed(tiny_run / "solution", "to=csv")) == shown
    out = tmp_path / "new" / "scores.json"
    assert printed(tiny_run, "to=json", f"out={out}") == f"{out}\n"
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [x["candidate"] for x in lines] == list(held_out)
    assert np.array_equal(
        np.float32(lines[0]["scores"]), held_out["solution"].fitness[0]
    )
    title, head, mean, sd, failed, *seeds = printed(tiny_run).splitlines()
    assert title.startswith("final return")
    assert head.split() == [*held_out]
    assert failed.split() == ["failed", *("0" for _ in held_out)]
    of_solution = [float(line.split()[2]) for line in seeds]
    assert of_solution == pytest.approx(held_out["solution"].fitness[0], rel=1e-5)
    assert float(mean.split()[1]) == pytest.approx(np.mean(of_solution), rel=1e-5)
    assert float(sd.split()[1]) == pytest.approx(np.std(of_solution, ddof=1), rel=1e-4)


def test_scores_in_an_independent_agent_and_on_fresh_episodes(
    tiny_run, printed, tmp_path
):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    returns = [
        judge.Returns(at, at + 10)
        for at in np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    ]
    returns[1].final_return[1, 2] = np.nan
    one, other = ((x,) for x in returns)
    given = judge.Judged("dqn", ("td_loss",), ("maze",), (1e-3, 0.5), one, other)
    judge.save(run / "independent", given)
    agents = results.Scores(0, {"best agent": np.array([1.5, np.nan])})
    results.write_scores(run, agents)
    shown = rows(printed(run, "to=csv"))
    lifetime, final = judge.MEASURES
    agent = "independent DQN"
    assert shown["solution", lifetime, agent, "0.5", "0", "1"] == "4.0"
    assert shown["hand-made", final, agent, "0.5", "0", "1"] == "20.0"
    assert shown["hand-made", final, agent, "0.5", "0", "2"] == ""
    assert shown["best agent", "return on fresh episodes", "", "", "0", "0"] == "1.5"
    table = printed(run)
    assert "final return, maze, independent DQN, step size 0.5\n" in table
    assert "failed         0          1\n" in table
    # These are what a run of agents alone has.
    shutil.rmtree(run / "held_out")
    shutil.rmtree(run / "independent")
    assert len(rows(printed(run, "to=csv"))) == 2


def test_a_comparison_shows_each_of_its_searches(printed, tmp_path):
    found = np.float32([[1, 2], [3, np.nan]])
    cells = {
        verdicts.TableCell("as trained", "toy, a", "return"): found,
        verdicts.TableCell("as trained", "hand-made", "return"): found[:1],
    }
    text = scores.json_lines(scores.of_table(cells))
    (tmp_path / scores.FILE).write_text(text)
    assert printed(tmp_path, "to=json") == text
    shown = rows(printed(tmp_path, "to=csv"))
    assert shown["toy, a", "return", "", "", "1", "0"] == "3.0"
    assert len(shown) == 6
    assert "toy, a 0  toy, a 1  hand-made" in printed(tmp_path)
    for damaged in ("[]", '{"candidate": 3}', text.replace("[1.0", '["x"')):
        (tmp_path / scores.FILE).write_text(f"{damaged}\n")
        with pytest.raises(metaevo.CheckpointError, match=str(tmp_path)):
            printed(tmp_path)


def test_where_there_are_no_scores_the_message_says_what_keeps_them(
    tiny_run, printed, tmp_path
):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    shutil.rmtree(run / "held_out")
    for path, said in (
        (run, "metaevo resume RUN run.held_out_seeds=32"),
        ("zoo:ally", "zoo:ally: no scores by seed here"),
        (tmp_path, "holds 1 run"),
    ):
        with pytest.raises(metaevo.MetaevoError, match=said):
            printed(path)
    (tmp_path / "sentences.txt").write_text("toy: better\n")
    with pytest.raises(ConfigError, match="no scores by seed here"):
        printed(tmp_path)
    with pytest.raises(ConfigError, match="to="):
        printed(tiny_run, "to=xml")
