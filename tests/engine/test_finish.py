"""The end of a run: it can be stopped anywhere, and loses nothing that was there."""

import contextlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny_search
import toys
from runs import solution_bytes, write_short_reports

import metaevo
from metaevo import fitness
from metaevo.analysis import holdout, overview, report
from metaevo.analysis.steps import Steps
from metaevo.config import RunConfig
from metaevo.engine import costs, dry_run, finish, job, kept_rivals, loop
from metaevo.engine.loggers.console import ConsoleLogger
from metaevo.errors import ConfigError, InterruptedRunError
from metaevo.evaluators import choose
from metaevo.storage import checkpoint, history

LOGS = ("history.jsonl", "metrics.jsonl")
SEEDS = 6  # in two rounds of two devices with two members each


def run(directory, generations=2, should_stop=lambda: False, search=None, **config):
    config = {"held_out_seeds": SEEDS, "devices": 2, "wandb": "disabled"} | config
    return metaevo.run(
        search or tiny_search.search(num_generations=generations),
        RunConfig(directory=str(directory), **config),
        "tiny",
        should_stop=should_stop,
    )


def after(number):
    """A flag that is set from its `number`-th asking on."""
    asked = iter(range(10**6))
    return lambda: next(asked) >= number


def files(directory, *but):
    """All files with their bytes and the time at which they were written."""
    return {
        path.relative_to(directory): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in (".lock", *but)
    }


def events(directory):
    return [e["event"] for e in history.read(directory)]


def steps_kept(directory):
    return sorted((directory / "conclusion").glob("*/*"))


def same_results(a, b):
    for name in ("solution", "held_out", "agents/solution", "agents/hand-made"):
        arrays = [(x / name / "arrays.safetensors").read_bytes() for x in (a, b)]
        assert arrays[0] == arrays[1], name


@pytest.fixture(autouse=True, scope="module")
def short_report():
    """Runs write a page in a moment; `report.write` is called where it matters."""
    with pytest.MonkeyPatch.context() as patch:
        write_short_reports(patch)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 2 generations with its comparison and a closed form; do not change."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    run(directory)
    (directory / "closed_form").mkdir()
    (directory / "closed_form" / "mine").write_text("of this solution")
    return directory


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    """A run of 3 generations, in one go; not to be changed."""
    directory = tmp_path_factory.mktemp("longer") / "run"
    run(directory, 3)
    return directory


@pytest.fixture
def copied(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "copied"))


# --- stopping and continuing ----------------------------------------------------------


def test_comparison_in_rounds_has_the_bits_of_one_in_one_go(finished):
    held_out, _ = holdout.load(finished / "held_out")
    whole, agents = holdout.train(
        tiny_search.search(),
        holdout.HAND_MADE,
        {"hand-made": holdout.NOTHING},
        job.keys(0).held_out,
        SEEDS,
        choose.local_factory(jax.devices()[:2]).make_after,
    )
    for a, b in zip(
        jax.tree.leaves(whole["hand-made"]),
        jax.tree.leaves(held_out["hand-made"]),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    kept, _ = checkpoint.read(finished / "agents" / "hand-made")
    expected = checkpoint.to_arrays(agents["hand-made"])
    for path, x in expected.items():
        np.testing.assert_array_equal(kept[path], x)


def test_run_stopped_in_its_comparison_continues_there(tmp_path, finished):
    directory = tmp_path / "run"
    kept = {}
    # Two generations ask 4 times, each round of the comparison twice.
    for number in (6, 5, 1, 10**6):
        stopped = pytest.raises(InterruptedRunError, match="stopped in the comparison")
        with stopped if number < 10**6 else contextlib.nullcontext():
            run(directory, should_stop=after(number))
        if number < 10**6:
            where = "stopped in the comparison on held-out seeds"
            assert events(directory)[-1] == where
            assert "finished" not in events(directory)
            assert not (directory / "solution").exists()
            now = {path: path.stat().st_ino for path in steps_kept(directory)}
            assert len(now) > len(kept)
            assert kept.items() <= now.items()  # none was made again
            kept = now
    assert events(directory)[-2:] == ["finished", "reported"]
    assert not (directory / "conclusion").exists()
    same_results(directory, finished)


def test_max_seconds_ends_the_comparison_too(copied):
    shutil.rmtree(copied / "held_out")
    for number in (1, 2):
        with pytest.raises(InterruptedRunError, match=r"over, stopped in the compar"):
            run(copied, max_seconds=1e-9)
        assert len(steps_kept(copied)) == number


def test_max_seconds_ends_a_run_before_its_comparison(tmp_path):
    with pytest.raises(InterruptedRunError, match="what follows the last generation"):
        run(tmp_path, 1, max_seconds=1e-9)
    assert not (tmp_path / "conclusion").exists()


def test_a_kept_rival_that_is_better_is_said_and_written(tmp_path, monkeypatch, capsys):
    scores = {"final return": [0.0, 0.1, 0.2, 0.3]}  # the toy's are below 0
    rival = {"name": "x", "changes": ["a=1"], "tuned": 0, "scores": scores}
    monkeypatch.setattr(kept_rivals, "of", lambda search: [rival])
    result = run(tmp_path, 1)
    said = "a rival that is kept for this setting is better: final return 0.15 against"
    assert f"warning: {said}" in capsys.readouterr().out
    shown = result.artifact.manifest["evidence"]["warnings"]
    assert any(x.startswith(said) for x in shown)


def test_report_can_be_stopped(copied):
    (copied / "report" / "index.html").unlink()
    with pytest.raises(InterruptedRunError, match="stopped in the report"):
        run(copied, should_stop=lambda: True)
    # As if it had been killed there.
    log = copied / "history.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    run(copied)
    assert (copied / "report" / "index.html").is_file()
    assert overview.read(copied).state == "finished"


def test_step_is_made_again_when_what_determines_it_differs(tmp_path):
    made = []

    def step(digest="a", x=1.0, fact=1):
        def make():
            made.append((digest, x, fact))
            return {"y": np.array(x)}

        found = Steps(tmp_path, digest).step("s", make, {"x": np.array(x)}, fact)
        assert found["y"] == x

    for given in (
        {},
        {},
        {"x": 2.0},
        {"x": 2.0},
        {"x": 2.0, "fact": 2},
        {"digest": "b"},
    ):
        step(**given)
    assert made == [("a", 1.0, 1), ("a", 2.0, 1), ("a", 2.0, 2), ("b", 1.0, 1)]
    (tmp_path / "s" / "arrays.safetensors").write_bytes(b"")
    step(digest="b")
    assert len(made) == 5


# --- a finished run -------------------------------------------------------------------


def test_same_command_on_a_finished_run_changes_nothing(copied, capsys):
    before = files(copied)
    for seeds in (SEEDS, 0, 2):
        result = run(copied, held_out_seeds=seeds)
        assert files(copied) == before
        assert "already finished" in capsys.readouterr().out
        assert result.verdicts[0].paired.num_pairs == SEEDS


def test_missing_report_is_made_again_and_nothing_else(copied):
    before = files(copied, *LOGS)
    (copied / "report" / "index.html").unlink()
    run(copied)
    now = files(copied, *LOGS)
    assert now.keys() == before.keys()
    for path in before:
        assert path.name == "index.html" or now[path] == before[path]


def test_more_seeds_replace_the_comparison_when_they_are_done(copied):
    before = files(copied, *LOGS)
    old, _ = holdout.load(copied / "held_out")
    with pytest.raises(InterruptedRunError):
        run(copied, held_out_seeds=10, should_stop=after(4))
    now = files(copied, *LOGS)
    assert before.items() <= now.items()
    result = run(copied, held_out_seeds=10)
    assert result.verdicts[0].paired.num_pairs == 10
    assert (copied / "closed_form" / "mine").exists()  # the solution is the same
    held_out, _ = holdout.load(copied / "held_out")
    np.testing.assert_array_equal(
        held_out["solution"].fitness[:, :SEEDS], old["solution"].fitness
    )


def test_extension_keeps_the_old_results_until_the_new_ones_are_made(copied, longer):
    ours = ("solution", "held_out", "agents", "closed_form")

    def evidence():
        return {k: x for k, x in files(copied).items() if k.parts[0] in ours}

    before = evidence()
    with pytest.raises(InterruptedRunError, match="comparison"):
        run(copied, 3, should_stop=after(5))
    assert evidence() == before
    run(copied, 3)
    same_results(copied, longer)
    assert not (copied / "closed_form").exists()


def test_agents_that_live_on_are_scored_once(tmp_path):
    search = toys.search(
        toys.pbt()._replace(persistent_agents=True),
        toys.shared_critic(),
        num_generations=2,
        segments_per_generation=1,
    )
    run(tmp_path, search=search, held_out_seeds=8)
    scores = json.loads((tmp_path / "agents" / "scores.json").read_text())
    assert len(scores["evaluations"]["best agent"]) == 2
    before = files(tmp_path)
    for seeds in (8, 0):
        run(tmp_path, search=search, held_out_seeds=seeds)
        assert files(tmp_path) == before
    # Those of another generation are not taken for its own.
    run(tmp_path, search=search._replace(num_generations=3), held_out_seeds=8)
    now = json.loads((tmp_path / "agents" / "scores.json").read_text())
    assert now["evaluations"] != scores["evaluations"]


def test_fewer_generations_than_were_done_are_refused(copied):
    before = files(copied)
    with pytest.raises(ConfigError, match=r"num_generations=1: .* holds 2 generations"):
        run(copied, 1)
    assert files(copied) == before


# --- how far a run is -----------------------------------------------------------------


def test_horizon_is_the_largest_asked_for_since_the_run_finished(copied):
    """And the report of an unfinished run says how far it is."""
    assert history.generations_done(copied) == 2
    assert history.generations_asked(copied) == 2
    with pytest.raises(InterruptedRunError):
        run(copied, 9, should_stop=after(2))
    assert history.generations_asked(copied) == 9
    page = report.write(copied).read_text()
    assert "unfinished: generation 3 of 9 is done." in page
    assert "those of an earlier end of the run, generation 2." in page
    with pytest.raises(InterruptedRunError):
        run(copied, 5, should_stop=after(2))
    assert history.generations_asked(copied) == 9
    run(copied, 4, held_out_seeds=0)
    assert history.generations_asked(copied) == 4
    assert history.generations_done(copied) == 4
    assert "is unfinished" not in report.write(copied).read_text()


def test_report_of_a_run_that_never_finished_says_how_far_it_is(tmp_path):
    with pytest.raises(InterruptedRunError):
        run(tmp_path, 4, should_stop=after(3))
    page = report.write(tmp_path).read_text()
    assert "unfinished: generation 1 of 4 is done. There is no solution yet." in page
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"generation": 1, "fit')  # killed here
    report.write(tmp_path)


def test_report_of_a_run_that_did_nothing_yet(finished, tmp_path):
    shutil.copy(finished / "manifest.json", tmp_path)
    assert "unfinished: generation 0" in report.write(tmp_path).read_text()


# --- what it costs --------------------------------------------------------------------


def test_time_left_counts_what_follows_the_last_generation(monkeypatch):
    search = tiny_search.search(num_generations=4)
    config = RunConfig(held_out_seeds=32)
    # Two candidates on 32 seeds and three earlier solutions on 8, against 8 members;
    # and a population twice.
    assert costs.milestones(search, config) == (1, 2, 3)
    following = costs.generations_after(search, config, 8, 2, "cpu")
    assert following == (2 * 32 + 3 * 8) / 8 + 2
    assert (
        costs.generations_after(search, RunConfig(held_out_seeds=0), 8, 2, "cpu") == 0
    )
    several = search._replace(num_seeds=2)  # which tell the noise by themselves
    assert costs.generations_after(several, config, 8, 2, "cpu") == 22 * 4 / 16
    tasks = several._replace(inner_loop=[*search.tasks] * 2)
    stopped = several._replace(stopping=fitness.Halving(2, factor=2))
    for one in (tasks, stopped):
        assert costs.num_repeats(one, config) == 2
    # A round of two accelerators trains 4 at once: 2 x 8 + 3 x 2 rounds, against 2.
    assert costs.generations_after(search, config, 8, 2, "gpu") == 22 / 2 + 2

    console = ConsoleLogger(4, following)
    console._times = [0.0, 10.0, 20.0, 30.0]
    assert console._left(4) == "2m10s"
    assert console._left(3) == "2m20s"


def test_earlier_solutions_are_kept_scored_and_told(finished, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(finished, directory)
    assert [x.name for x in (directory / "earlier_solutions").iterdir()] == [
        "generation-00000001"
    ]
    held_out, facts = holdout.load(directory / "held_out")
    scores = facts["earlier"]["1"]
    assert len(scores) == costs.milestone_seeds(RunConfig(held_out_seeds=SEEDS)) == 2
    # Another solution than those at the start and at the end, on the same seeds.
    for name in ("hand-made", "solution"):
        assert (np.array(scores) != held_out[name].fitness[0, :2]).all()
    report.write(directory)
    table = (directory / "report" / "held_out_over_generations.csv").read_text()
    assert [row.split(",")[0] for row in table.splitlines()[1:]] == ["0", "1", "2"]


def test_dry_run_times_members_that_live_on_and_plans_the_comparison(
    tmp_path, monkeypatch
):
    parents, places = [], []
    original = loop.generation

    def generation(job, progress):
        proposal, _ = job.programs.ask(jax.random.key(0), progress.state.strategy)
        parents.append(np.asarray(proposal.parents))
        places.append(job.directory.parent)
        return original(job, progress)

    monkeypatch.setattr(loop, "generation", generation)
    search = toys.search(
        toys.pbt(), num_generations=50, segments_per_generation=1, chunk_size=2
    )
    config = RunConfig(directory=str(tmp_path / "run"), devices=2)
    text = dry_run.plan(search, config)
    assert (parents[0] < 0).all()
    assert len(parents) > 3
    assert all((x >= 0).all() for x in parents[1:])
    # Checkpoints are tried in the folder of the run, and removed.
    assert set(places) == {tmp_path}
    assert not any(tmp_path.iterdir())
    assert "2 candidates x 32 held-out seeds, 384 frames" in text
    assert f"what was written to {tmp_path} was removed" in text
    assert "held-out" not in dry_run.plan(
        search, RunConfig(held_out_seeds=0, devices=2, directory=config.directory)
    )


def test_solution_is_the_same_with_and_without_a_comparison(finished, tmp_path):
    run(tmp_path, held_out_seeds=0)
    assert solution_bytes(tmp_path) == solution_bytes(finished)
    assert not (tmp_path / "held_out").exists()


def test_baseline_that_cannot_be_told_from_other_candidates_is_refused():
    search = tiny_search.search()
    for name in ("solution", "start", "hand-made", "a/b", "..", ""):
        taken = search.tasks[0]._replace(baselines={name: {}, "LOLA": {}})
        with pytest.raises(ConfigError, match="cannot be a name"):
            holdout.baselines(search._replace(inner_loop=taken))


def test_steps_kept_for_other_baselines_are_made_again(tmp_path):
    search = tiny_search.search()

    def kept(value):
        loop = search.tasks[0]._replace(baselines={"other": {"x": value}})
        given = SimpleNamespace(
            search=search._replace(inner_loop=loop),
            config=RunConfig(),
            directory=tmp_path,
        )
        return finish._steps(given, SimpleNamespace(generation=2)).digest

    assert kept(0.1) == kept(0.1) != kept(0.2)
