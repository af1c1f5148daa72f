"""`space.NUMBER=RANGE` in place of a search's space, and the table of trials."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import runs as files
import toys

import metaevo
from metaevo.analysis import trials
from metaevo.cli import commands, config, help, program, strategies
from metaevo.errors import ConfigError
from metaevo.fitness import final_return
from metaevo.storage import jsonl
from searches import ppo_pbt, td3_dvd
from strategies.snes import snes

QUICK = ["run.held_out_seeds=0", "run.wandb=disabled"]


def search(
    population_size: int = 4, num_generations: int = 2, meta: toys.Meta = toys.Meta()
) -> metaevo.Search:
    """A search over the toy's learning rate."""
    space = toys.space()
    strategy = snes(space, population_size, 0.5)
    loop = toys.quadratic()._replace(meta=meta)
    return metaevo.Search(loop, space, strategy, num_generations, final_return)


def made(argv, function=search):
    keyed = strategies.in_arguments(function, argv)
    given = config.parse(keyed, argv)
    del given["run"]
    return config.call(keyed, given)


def printed(capsys, *arguments):
    commands.execute("trials", list(map(str, arguments)))
    return capsys.readouterr().out


def test_a_grid_from_the_command_line_and_its_table(tmp_path, capsys):
    directory = tmp_path / "run"
    given = ["space.lr=grid([.1, 1e-2, .5])", "space.target=grid([1,2])"]
    program.run(search, [*given, *QUICK, f"run.directory={directory}"], lambda: False)
    capsys.readouterr()
    records = files.records(directory)
    pairs = list(
        zip(records[0]["numbers/lr"], records[0]["numbers/target"], strict=True)
    )
    assert sorted(pairs) == [(a, b) for a in (0.01, 0.1, 0.5) for b in (1.0, 2.0)]
    scores = list(zip(*(r["population"] for r in records), strict=True))
    expected = {pair: sum(x) / 2 for pair, x in zip(pairs, scores, strict=True)}

    table = printed(capsys, directory)
    first = table.splitlines()[1].split()
    best = max(expected, key=expected.get)
    assert tuple(map(float, first[:2])) == best
    assert first[4:6] == ["2", "0"]
    short = printed(capsys, directory, "limit=2").splitlines()
    assert [x.split() for x in short[:3]] == [x.split() for x in table.splitlines()[:3]]
    assert short[3:] == ["4 more; limit=0 shows all"]
    rows = list(csv.DictReader(printed(capsys, directory, "to=csv").splitlines()))
    shown = {(float(r["lr"]), float(r["target"])): float(r["fitness"]) for r in rows}
    assert shown == pytest.approx(expected)
    assert [float(r["fitness"]) for r in rows] == sorted(shown.values(), reverse=True)
    # The figure of the report has the same rows.
    drawn = list(csv.DictReader((directory / "report" / "trials.csv").open()))
    assert [float(r["fitness"]) for r in drawn] == sorted(shown.values(), reverse=True)


def test_trials_that_failed_stand_last_and_agents_that_live_on_are_a_row_each():
    record = {"generation": 3, "population": [1.0, None, 2.0], "numbers/lr": [1, 1, 2]}
    found = trials.trials([record])
    assert [(x.fitness, x.scores, x.failed) for x in found] == [(2, 1, 0), (1, 1, 1)]
    found = trials.trials([{**record, "parents": [-1, 0, 2]}])
    assert [(x.member, x.parent, x.failed) for x in found] == [
        (2, 2, 0),
        (0, -1, 0),
        (1, 0, 1),
    ]
    shown = trials.table(trials.trials([{**record, "numbers/\x1b[2J": [1, 2, 3]}]), 9)
    assert "\\x1b[2J" in shown.splitlines()[0]
    assert trials.trials([]) == trials.trials([{"population": [1.0]}]) == []


def test_a_run_in_which_no_numbers_evolve_has_no_trials(tiny_run, tmp_path):
    directory = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    log = [
        {key: x for key, x in record.items() if not key.startswith("numbers/")}
        for record in files.records(directory)
    ]
    written = "".join(json.dumps(record) + "\n" for record in log)
    for text, message in ((written, "in which no numbers evolve"), ("", "is logged")):
        (directory / "metrics.jsonl").write_text(text)
        with pytest.raises(ConfigError, match=message):
            commands.execute("trials", [str(directory)])


def test_a_log_without_a_number_for_each_member_is_damaged(tmp_path):
    record = {
        **{f"fitness_{x}": 1.0 for x in ("best", "mean", "median", "sd", "worst")},
        "fitness_q25": 1.0,
        "fitness_q75": 1.0,
        "failed": 0,
        "generation": 0,
        "population": [1.0, 2.0],
        "numbers/lr": [0.1, 0.2],
    }
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(record) + "\n")
    assert jsonl.read_generations(path)
    path.write_text(json.dumps({**record, "numbers/lr": [0.1]}) + "\n")
    with pytest.raises(metaevo.CheckpointError, match="one number for each member"):
        jsonl.read_generations(path)


def test_ranges_are_searched_by_the_strategy_that_is_named_or_draws_from_them():
    drawn = made(["space.lr=log_uniform(1e-4, 1)", "strategy=random_search"])
    assert list(drawn.space.spec) == ["lr"]
    assert drawn.strategy.settings["population_size"] == 4
    mixed = ["space.lr=grid([.1,.2])", "space.target=uniform(0,1)", "strategy=grid"]
    assert len(made([*mixed, "strategy.num_points=3"]).strategy.init(None).mean) == 6
    kept = made(["space.lr=uniform(0,1)"], ppo_pbt.search)
    assert kept.strategy.settings["strategy"] == "strategies.pbt:pbt"
    assert list(kept.space.spec) == ["lr"]
    for argv, function, said in (
        (["space.lr=uniform(0,1)"], search, "draws no numbers from ranges; give"),
        (["space.lr=gird([1,2])"], search, r"expected a range, grid\(\[A,B"),
        (["space.lr=uniform(2,1)"], search, "low < high"),
        (["space.lr=grid([1])"], search, "at least two different numbers"),
        (["space.lrr=grid([1,2])"], search, "Did you mean 'space.lr'"),
        (mixed, search, "num_points=null: it is needed, since 'target'"),
        (
            ["space.actor_lr=grid([1,2])"],
            td3_dvd.search,
            "the space of this search cannot be replaced, since its members train",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            made(argv, function)


def test_the_configuration_of_a_grid_is_shown_and_taken_again(capsys):
    given = ["space.lr=grid([.1,.2])"]
    program.run(search, [*given, "--cfg"], lambda: False)
    lines = capsys.readouterr().out.splitlines()
    assert {"space.target=null", "strategy=null"} < {*lines}
    program.run(search, [*lines, "--cfg-diff"], lambda: False)
    assert capsys.readouterr().out.splitlines() == given
    assert list(made(lines).space.spec) == ["lr"]


def test_help_says_how_and_lists_the_numbers_once_one_is_given():
    text = " ".join(help.help_text(strategies.in_search(search), "mine").split())
    assert "space.NUMBER=RANGE Numbers of `meta` that evolve in place of" in text
    assert "space.lr=" not in text
    keyed = strategies.in_arguments(search, ["space.lr=grid([1,2])"])
    assert "space.target=null" in help.help_text(keyed, "mine")
