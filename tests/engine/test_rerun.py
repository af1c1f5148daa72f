"""One member of a former generation, trained again to the bit."""

import json
import shutil

import numpy as np
import pytest
import tiny_search
import toys
from runs import write_short_reports

import metaevo
from metaevo import fitness
from metaevo.cli import rerun as cli
from metaevo.cli.options import RerunOptions
from metaevo.config import RunConfig
from metaevo.engine import rerun
from metaevo.errors import ConfigError
from metaevo.storage import run_directory
from searches import pbt_toy

FAIL_BELOW = 0.1  # at the start half of the members are below
GENERATIONS = 4


def run(directory, search, **options):
    options = {"held_out_seeds": 0, "wandb": "disabled", "devices": 1} | options
    with pytest.MonkeyPatch.context() as patch:
        write_short_reports(patch)
        metaevo.run(search, RunConfig(directory=str(directory), **options), "toy")
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return directory, [json.loads(line)["population"] for line in lines]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run in which members fail, in chunks of two, and its logged fitness."""
    search = tiny_search.search(num_generations=GENERATIONS, fail_below=FAIL_BELOW)
    return run(tmp_path_factory.mktemp("rerun") / "run", search), search


def bits(x):
    return np.float32(np.nan if x is None else x).tobytes()


@pytest.mark.parametrize("kept", ["checkpoints", "log alone"])
def test_fitness_is_the_logged_one_to_the_bit(finished, kept, tmp_path):
    (directory, logged), search = finished
    shutil.copytree(directory, tmp_path / "run")
    if kept == "log alone":
        shutil.rmtree(tmp_path / "run" / "checkpoints")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")}
    for generation, member in [(0, 1), (GENERATIONS - 1, 6)]:
        found = rerun.rerun(search, tmp_path / "run", generation, member)
        assert found.same
        assert bits(found.fitness) == bits(logged[generation][member])
        assert found.train[0]["return"].shape == (1, 4)
    after = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*")}
    assert after == before


def test_fitness_by_ranks_is_the_logged_one(tmp_path):
    search = tiny_search.search(num_generations=1)
    search = search._replace(aggregate=fitness.rank_sum)
    directory, ((*scores,),) = run(tmp_path / "run", search)
    assert len(set(scores)) > 2
    assert rerun.rerun(search, directory, 0, int(np.argmax(scores))).same


def failed_and_healthy(logged):
    """A generation's number, and a member of each kind in it."""
    for generation, scores in enumerate(logged):
        bad = [i for i, x in enumerate(scores) if x is None]
        good = [i for i, x in enumerate(scores) if x is not None]
        if bad and good:
            return generation, bad[0], good[0]
    raise AssertionError("no generation with failed and healthy members")


def test_first_number_that_is_not_finite_is_found(finished, capsys):
    (directory, logged), search = finished
    generation, bad, good = failed_and_healthy(logged)
    options = RerunOptions(generation, bad)
    found = cli.rerun(search, directory, options)
    (failure,) = found.failures
    assert failure.segment.index == 0
    assert failure.origin is not None
    assert failure.origin.file == toys.__file__
    assert failure.origin.function.endswith("train")
    assert not rerun.rerun(search, directory, generation, good).failures
    printed = capsys.readouterr().out
    assert "the logged one to the bit" in printed
    assert "not finite from segment 0 on" in printed
    assert "toys.py:" in printed


def test_segment_is_stepped_without_jit(finished, monkeypatch):
    """`breakpoint()` in a loop stops with numbers, not with tracers."""
    (directory, logged), search = finished
    generation, _, good = failed_and_healthy(logged)
    seen = []
    train = search.inner_loop.train

    def spied(key, meta, state):
        seen.append(type(state.agent + 0).__name__)
        return train(key, meta, state)

    spied_loop = search.inner_loop._replace(train=spied)
    search = search._replace(inner_loop=spied_loop)
    cli.rerun(search, directory, RerunOptions(generation, good, segment=2))
    assert seen[-1] == "ArrayImpl"
    assert "Tracer" in seen[0]
    monkeypatch.setattr(rerun, "rerun", None)  # it is said before anything trains
    with pytest.raises(ConfigError, match="segment=9, seed=0: the search has 4"):
        cli.rerun(search, directory, RerunOptions(generation, good, segment=9))


def test_member_that_lives_on_is_trained_from_the_start_again(tmp_path):
    search = pbt_toy.search(num_generations=3)
    directory, logged = run(tmp_path / "run", search)
    for generation in (0, 2):
        found = rerun.rerun(search, directory, generation, 1)
        assert bits(found.fitness) == bits(logged[generation][1])
    assert set(found.numbers) == {"h0", "h1"}


def test_changed_code_is_noticed(finished, capsys):
    (directory, logged), search = finished
    generation, _, good = failed_and_healthy(logged)
    loop = toys.quadratic(fail_below=FAIL_BELOW)

    def evaluate(key, meta, state):
        found = loop.evaluate(key, meta, state)
        return found | {"return": found["return"] + 1.0}

    changed = search._replace(inner_loop=loop._replace(evaluate=evaluate))
    found = cli.rerun(changed, directory, RerunOptions(generation, good))
    assert not found.same
    assert "the code, versions or devices are not those" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("generation", "member", "message"),
    [
        (99, 0, r"generation=99: the run has generations 0 to 3"),
        (-1, 0, r"generation=-1: the run has generations 0 to 3"),
        (0, 8, r"member=8: the population has members 0 to 7"),
    ],
)
def test_what_the_run_does_not_have_is_refused(finished, generation, member, message):
    (directory, _), search = finished
    assert run_directory.has_manifest(directory)
    with pytest.raises(ConfigError, match=message):
        rerun.rerun(search, directory, generation, member)
