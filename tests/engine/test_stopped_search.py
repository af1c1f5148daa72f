"""Searches whose members are stopped early: log, resume, rerun, command line."""

import numpy as np
import pytest
import runs
import tiny_search

import metaevo
from metaevo import fitness
from metaevo.cli import config, strategies
from metaevo.config import RunConfig
from metaevo.engine import rerun
from metaevo.errors import ConfigError
from metaevo.evaluators.stages import lengths
from metaevo.fitness import Halving
from searches import ppo_pbt, ppo_value_loss
from strategies.snes import snes

RULE = Halving(4, factor=2)


def run(directory, num_generations=4, held_out_seeds=0):
    search = tiny_search.search(num_generations=num_generations)
    search = search._replace(
        strategy=snes(search.space, 8, 0.5),
        fitness=fitness.area_under_curve,
        stopping=RULE,
        num_seeds=2,
    )
    config = RunConfig(
        directory=str(directory), held_out_seeds=held_out_seeds, wandb="disabled"
    )
    metaevo.run(search, config, "toy")
    return search


def test_a_run_counts_what_it_trained_and_resumes_to_the_bit(tmp_path, monkeypatch):
    runs.write_short_reports(monkeypatch)
    search = run(tmp_path / "whole")
    run(tmp_path / "halves", 2)
    run(tmp_path / "halves", held_out_seeds=2)
    whole = runs.records(tmp_path / "whole")
    assert [x["population"] for x in whole] == [
        x["population"] for x in runs.records(tmp_path / "halves")
    ]
    solutions = map(runs.solution_bytes, (tmp_path / "whole", tmp_path / "halves"))
    assert len({*solutions}) == 1
    assert lengths(search, 8) == [8, 4, 2, 2]
    assert [x["frames"] for x in whole] == [2 * 16 * n for n in (1, 2, 3, 4)]
    assert {x["stopped"] for x in whole} == {6}
    assert {x["failed"] for x in whole} == {0}
    # A member that lived on, and one that was stopped.
    scores = np.array(whole[1]["population"])
    for member in (int(scores.argmax()), int(scores.argmin())):
        assert rerun.rerun(search, tmp_path / "whole", 1, member).same
    given = RunConfig(directory=str(tmp_path / "whole"), wandb="disabled")
    with pytest.raises(ConfigError, match="stopping"):
        metaevo.run(search._replace(stopping=None), given, "toy")


def test_the_key_sets_the_rule():
    def made(search, *argv):
        keyed = strategies.in_arguments(search, argv)
        given = config.parse(keyed, argv)
        del given["run"]
        return config.call(keyed, given)

    assert made(ppo_value_loss.search).stopping is None
    assert made(ppo_value_loss.search, "halving=4").stopping == RULE
    other = made(ppo_pbt.search, "halving=2", "strategy=random_search")
    assert other.stopping == Halving(2, factor=2)
    with pytest.raises(ConfigError, match=r"halving=.*: expected an integer or null"):
        made(ppo_value_loss.search, "halving=often")
