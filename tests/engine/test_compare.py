"""`metaevo compare`: candidates on common seeds, tuned baselines, random controls."""

import csv
import inspect
import shutil
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
import runs as files
import toys

import metaevo
from metaevo.analysis import comparison, differences, holdout, verdicts
from metaevo.analysis import score_tables as by_seed
from metaevo.analysis.comparison import AS_TRAINED, TUNED
from metaevo.analysis.verdicts import HAND_MADE, TableCell
from metaevo.cli import api
from metaevo.cli.options import CompareOptions
from metaevo.engine import candidates, compare, result
from metaevo.engine.result import Again
from metaevo.errors import ConfigError, LockedError
from metaevo.storage import run_directory
from strategies.open_es import open_es


def search(num_generations=10, **options):
    """The toy's learning rate, which starts far too low."""
    loop = toys.quadratic(**options)._replace(tunable=toys.space())
    strategy = open_es(toys.space(), 16, 0.2, optax.sgd(0.2))
    return toys.search(strategy, loop, num_generations=num_generations)


@pytest.fixture(scope="module", autouse=True)
def short_reports():
    with pytest.MonkeyPatch.context() as patch:
        files.write_short_reports(patch)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two searches that differ in their seed."""
    folder = tmp_path_factory.mktemp("runs")
    return [finished(folder / str(seed), search(), seed) for seed in range(2)]


def compared(runs, out, make=lambda run, changes: search(), **settings):
    given = {"seeds": 8, "controls": 5, "control_seeds": 4} | settings
    return compare.compare({"toy": runs}, make, out, jax.devices()[:1], **given)


@pytest.fixture(scope="module")
def whole(runs, tmp_path_factory):
    """The folder of a comparison of both, and its sentences; not to be changed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        files.drawn(patch)
        return out, compared(runs, out, optimum=1e3)


def test_results_are_compared_as_their_directories_are(
    whole, runs, tmp_path, monkeypatch
):
    """And the same command trains nothing twice."""
    out, lines = tmp_path / "out", whole[1]
    shutil.copytree(whole[0], out)
    again = Again(lambda changes=(): search(), api._compared)
    first, second = (result.read(x)._replace(again=again) for x in runs)
    given = {"seeds": 8, "controls": 5, "control_seeds": 4, "optimum": 1e3}
    with monkeypatch.context() as patch:
        patch.setattr(holdout, "_trained", None)
        assert compared(runs, out, **given) == lines
    found = first.compare(second, out=out, **given)
    assert list(found.sentences) == lines
    assert found.page == out / "index.html"
    assert found._repr_markdown_().startswith(f"* {lines[0]}\n* ")


def test_what_was_learned_is_told_from_what_was_not(whole):
    out, lines = whole
    assert "toy: better than the hand-made one (+" in lines[0]
    assert "2 searches x 8 seeds" in lines[0]
    assert lines[1].startswith("toy beats the 95th percentile of 5 random searches")
    rows = rows_of(out)
    named = {row["candidate"]: row for row in rows}
    assert set(named) == {"hand-made", "toy", "tuned hand-made"}
    assert named["toy"]["runs"] == "16"
    for row in rows:  # All are below the optimum.
        gap = float(row["optimality_gap"])
        assert gap == pytest.approx(1e3 - float(row["mean"]), abs=1e-3)
    kept = by_seed.read(out)
    found = {(x.candidate, x.search, len(x.scores)) for x in kept}
    assert found == {(x, i, 8) for x in named for i in range(2)} - {("hand-made", 1, 8)}
    of_toy = [
        x.scores
        for x in kept
        if (x.candidate, x.measure) == ("toy", search().fitness.name)
    ]
    assert np.mean(of_toy) == pytest.approx(float(named["toy"]["mean"]), rel=1e-5)
    # Tuned in the very space that was searched: nothing is left to be better at.
    difference, interval = named["toy"]["against_tuned"].split(" ", 1)
    low, high = (float(x) for x in interval.strip("[]").split(", "))
    assert low <= 0 <= high or abs(float(difference)) < 0.05
    page = (out / "index.html").read_text()
    assert "tuned hand-made" in page
    assert "optimality gap" in page
    assert "<svg" in page


def test_a_search_of_numbers_is_no_rival_of_itself(tmp_path, capfd):
    strategy = open_es(toys.space(), 16, candidates.TUNING_SIGMA, optax.sgd(0.2))
    numbers = search()._replace(strategy=strategy, num_generations=2)
    lines = compared(
        [finished(tmp_path / "run", numbers)],
        tmp_path / "out",
        lambda run, changes: numbers,
        controls=0,
    )
    note = "tuned hand-made: left out, it is the search of toy"
    assert note in lines
    assert note in capfd.readouterr().out
    named = {x.candidate for x in by_seed.read(tmp_path / "out")}
    assert named == {"hand-made", "toy"}


def test_another_setting_is_trained_and_named(runs, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        compare, "task_names", lambda search: [f"toy/{search.tasks[0].num_segments}"]
    )

    def make(run, changes):
        asked.append(list(changes))
        return search(num_segments=2) if changes else search()

    lines = compared(
        runs, tmp_path / "out", make, tuned=False, controls=0, on=("a=1;b=2",)
    )
    assert ["a=1", "b=2"] in asked
    assert lines[1].startswith("toy on a=1;b=2: ")
    assert len(lines) == 2
    page = (tmp_path / "out" / "index.html").read_text()
    assert f"as trained: on toy/{search().tasks[0].num_segments}." in page
    assert "a=1;b=2: on toy/2." in page


def with_choices(run, changes):
    """Choices: one helps, one harms, one is unknown, and one has no effect."""
    if "c=1" in changes:
        raise ConfigError("unknown key 'c'")
    factor = 5.0 ** (("a=1" in changes) - ("b=1" in changes))
    loop = toys.quadratic()
    meta = loop.meta._replace(lr=factor * loop.meta.lr)
    loop = loop._replace(meta=meta, choices=("a=1", "b=1", "c=1", "d=1"))
    return search()._replace(inner_loop=loop._replace(tunable=toys.space()))


def test_static_choices_are_rivals(runs, tmp_path, capfd):
    out = tmp_path / "out"
    lines = compared(runs[:1], out, with_choices, rivals="all", controls=0)
    told = capfd.readouterr().out.splitlines()
    assert "best static: a=1" in told
    assert "choosing rivals, on 4 seeds: static choices (2)" in told
    assert not any("best simple" in x for x in told)
    named = {row["candidate"]: row for row in rows_of(out)}
    assert set(named) == {
        "hand-made", "toy", "tuned hand-made", "best static", "tuned static"
    }  # fmt: skip
    made = with_choices(None, ("a=1",))
    (alone,) = candidates.trained(
        made,
        candidates.Candidate(holdout.HAND_MADE, [holdout.NOTHING]),
        8,
        tmp_path / "alone",
        jax.random.fold_in(jax.random.key(0), 0x5EED),
        jax.devices()[:1],
        lambda: False,
    )
    mean = float(named["best static"]["mean"])
    assert mean == pytest.approx(float(alone.fitness.mean()), rel=1e-5)
    assert mean > float(named["hand-made"]["mean"])
    means = {x: float(named[x]["mean"]) for x in named if x != "toy"}
    hardest = max(means, key=means.get)
    assert f" the {hardest} one" in lines[0]
    assert lines[0].endswith("of all rivals that one was the best on other seeds")
    assert "best static" in lines[1]


def test_rivals_learn_as_the_hand_made_algorithm_does(whole, runs, tmp_path):
    """Not under the static settings in which the numbers of a run were searched."""

    def make(run, changes):
        (usual,) = search().tasks
        loop = usual._replace(meta=usual.meta._replace(target=0.5), hand_made=usual)
        return search()._replace(inner_loop=loop)

    compared(runs[:1], tmp_path / "out", make, rivals="all", controls=0)
    found = {x["candidate"]: float(x["mean"]) for x in rows_of(tmp_path / "out")}
    plain = {
        x.candidate: np.mean(x.scores)
        for x in by_seed.read(whole[0])
        if (x.measure, x.search) == (search().fitness.name, 0)
    }
    for name in ("hand-made", "tuned hand-made"):
        assert found[name] == pytest.approx(plain[name], rel=1e-5)
    assert found["toy"] < plain["toy"]


def test_a_wrong_setting_is_refused_before_anything_is_trained(runs, tmp_path):
    def make(run, changes):
        if changes:
            raise ConfigError("unknown key 'a'")
        return search()

    with pytest.raises(ConfigError, match="on=a=1: unknown key 'a'"):
        compared(runs, tmp_path / "out", make, on=("a=1",))
    assert not (tmp_path / "out").exists()


def test_random_searches_go_nowhere_in_particular():
    found = candidates.random_solutions(search(), 200, 0)
    ends = np.array([x["lr"] for x in found])
    assert len(set(ends)) == 200
    assert abs(ends.mean()) < 4 * ends.std() / np.sqrt(200)


def scores(rng, searches, mean):
    """Scores of searches with sd 1 on seeds with sd 1, [searches, 32]."""
    return mean + rng.normal(size=(searches, 1)) + rng.normal(size=(searches, 32))


MEASURE = "mean return"


def written(tmp_path, found, groups, **controls):
    """Sentences and rows; the final return of all candidates is their fitness."""
    frames = dict.fromkeys(groups, 1000)
    table = {
        TableCell(AS_TRAINED, name, measure): x
        for name, x in found.items()
        for measure in verdicts.measures(MEASURE)
    }
    controls = {TableCell(AS_TRAINED, name, MEASURE): x for name, x in controls.items()}
    lines = comparison.write(tmp_path, table, frames, MEASURE, controls)
    rows = list(csv.DictReader((tmp_path / "table.csv").open()))
    return lines, {row["candidate"]: row for row in rows}


def test_searches_of_both_sides_are_told_apart_from_single_ones(tmp_path):
    rng = np.random.default_rng(0)
    found = {
        HAND_MADE: rng.normal(size=(1, 32)),
        "several": scores(rng, 5, 20.0),
        "one": scores(rng, 1, 20.0),
        TUNED: scores(rng, 5, 0.0),
    }
    lines, rows = written(tmp_path, found, ["several", "one"])
    assert len(lines) == 4  # fitness and final return of each
    assert lines[0].startswith("several: better than the hand-made one (+")
    assert "better than the tuned hand-made one (+" in lines[0]
    assert "; better in 5 of 5 searches, each by itself)" in lines[0]
    assert "mean return, 5 searches x 32 seeds, 95 % intervals; against" in lines[0]
    assert "final return, 5 searches" in lines[1]
    assert "1 search x 32 seeds" in lines[2]
    assert lines[2].endswith(
        "about these results on new seeds, no claim about searching"
    )
    # Against the hand-made algorithm the interval is over seeds; what was searched for
    # on both sides is told apart by the variance over searches, too.
    of_seeds, of_both = (
        np.diff([float(x) for x in rows["several"][name].split("[")[1][:-1].split(",")])
        for name in ("against_hand_made", "against_tuned")
    )
    assert of_both > of_seeds
    assert rows["several"]["final_return_against_tuned"].startswith("+")
    page = (tmp_path / "index.html").read_text()
    assert "of the 8 verdicts above are corrected" in page
    assert page.count("<th>final return") == 3


def test_failed_searches_are_headlines(tmp_path):
    rng = np.random.default_rng(0)
    broken = scores(rng, 2, 20.0)
    broken[:, :30] = np.nan
    nothing = np.full((1, 32), np.nan)
    found = {
        HAND_MADE: rng.normal(size=(1, 32)),
        "broken": broken,
        "nothing": nothing,
    }
    lines, _ = written(tmp_path, found, ["broken", "nothing"])
    assert lines[0].startswith(
        "broken: it fails in 60 of 64 runs, the hand-made one in 0 of 32; where both "
    )
    assert lines[2].startswith(
        "nothing: it fails on 32 of 32 seeds, the hand-made one on 0"
    )
    assert "not distinguishable" not in "".join(lines[2:])
    assert "nan" not in "".join(lines)


def test_a_group_is_compared_with_the_means_of_random_searches(tmp_path):
    """Single runs of random searches vary by 100, the means of searches by 1."""
    control = np.arange(20.0)[:, None] + np.array([-100.0, 100.0, -50.0, 50.0])
    control[3, 0] = control[4] = np.nan  # a run failed, and all of a search
    group = np.full((2, 32), 30.0)
    group[:, 4:] = 0.0  # the control has the first four seeds alone
    found = {HAND_MADE: np.zeros((1, 32)), "toy": group}
    lines, _ = written(tmp_path, found, ["toy"], toy=control)
    means = [i for i in range(20) if i not in (3, 4)] + [3 + 100 / 3]
    assert lines[-1] == (
        "toy beats the 95th percentile of 20 random searches: 30.00 against "
        f"{np.percentile(means, 95):.2f}"
    )


def test_options_of_the_command_are_those_of_the_function():
    defaults = inspect.signature(compare.compare).parameters
    options = CompareOptions().comparison
    assert options == {name: defaults[name].default for name in options}


def test_verdicts_are_corrected_for_their_number(tmp_path):
    """Alone each is sure at 5 %; ten of them are not."""
    base = np.random.default_rng(0).normal(size=(1, 32))
    other = np.random.default_rng(1).normal(size=(1, 32))
    other -= other.mean()
    mine = base + other + 0.39 * other.std()
    one, _ = written(tmp_path, {HAND_MADE: base, "g0": mine}, ["g0"])
    # Fitness and final return: two verdicts on the same numbers.
    assert "after Holm's correction for 2 verdicts" in one[0]
    assert "not distinguishable" in one[0]
    assert differences.paired_difference(mine[0], base[0]).verdict == "better"


def finished(folder, made, seed=0):
    """The directory of a finished search."""
    config = metaevo.RunConfig(
        seed=seed,
        directory=str(folder),
        held_out_seeds=0,
        wandb="disabled",
        devices=1,
    )
    metaevo.run(made, config, "toy")
    return folder


def rows_of(out):
    return list(csv.DictReader((out / "table.csv").open()))


def test_baseline_of_an_extended_run_is_tuned_for_as_long(tmp_path):
    made = search(1)  # as the manifest has it
    finished(tmp_path / "run", made)
    finished(tmp_path / "run", made._replace(num_generations=3))
    compared(
        [tmp_path / "run"], tmp_path / "out", lambda run, changes: made, controls=0
    )
    learned, tuned = rows_of(tmp_path / "out")[1:]
    assert learned["frames"] == tuned["frames"] == str(3 * 16 * 4)
    (tuned_run,) = (tmp_path / "out" / "tuned").glob("*/seed0")
    assert compare.generations(tuned_run) == 3


@pytest.mark.parametrize("sigma", [0.05, 0.3, 4.0])
def test_a_baseline_is_tuned_at_a_spread_of_its_own(sigma):
    """Numbers move by e^N(0, 1) at first, whatever suits what they stand against."""
    strategy = open_es(toys.space(), 512, sigma, optax.sgd(0.2))
    tuning = candidates.tuning(search()._replace(strategy=strategy))
    assert tuning.strategy.settings == strategy.settings
    key = jax.random.key(0)
    proposal, _ = tuning.strategy.ask(key, tuning.strategy.init(key))
    meta = tuning.tasks[0].meta
    bound = jax.vmap(lambda params: tuning.space.bind(params, meta))(proposal.params)
    moves = np.log(np.asarray(bound.lr) / meta.lr)
    assert moves.std() == pytest.approx(candidates.TUNING_SIGMA, rel=0.1)


def test_each_group_is_trained_in_its_own_setting(tmp_path):
    """A group's rows are the same beside one of another problem as alone."""

    def made(dim, target):
        loop = toys.quadratic(dim=dim)._replace(tunable=toys.space())
        loop = loop._replace(meta=toys.Meta(target=target))
        return search(1)._replace(inner_loop=loop)

    searches = {tmp_path / "a": made(3, 1.0), tmp_path / "b": made(5, 2.0)}
    groups = {run.name: [finished(run, made)] for run, made in searches.items()}

    def rows(groups, out):
        compare.compare(
            groups,
            lambda run, _: searches[run],
            out,
            jax.devices()[:1],
            seeds=8,
            controls=0,
        )
        found = rows_of(out)
        for row in found:
            del row["setting"]
        return found

    together = rows(groups, tmp_path / "together")
    alone = rows({"b": groups["b"]}, tmp_path / "alone")
    assert [row["candidate"] for row in together[:2]] == ["hand-made", "a"]
    assert together[3:] == alone
    first, second = ({x["mean"] for x in part} for part in (together[:3], alone))
    assert len(first) == 3
    assert not first & second
    assert len([*(tmp_path / "together" / "tuned").iterdir()]) == 2


def test_unequal_budgets_are_refused_or_asked_for(runs, tmp_path):
    long, short = runs[0], finished(tmp_path / "short", search(2))
    strategy = open_es(toys.space(), 8, 0.2, optax.sgd(0.2))
    other = finished(tmp_path / "other", search()._replace(strategy=strategy))

    def make(run, changes):
        return search()._replace(strategy=strategy) if run == other else search()

    def both(groups, **options):
        options |= {"seeds": 8, "controls": 0, "tuned": False}
        compare.compare(groups, make, tmp_path / "out", jax.devices()[:1], **options)

    with pytest.raises(ConfigError, match="did 10 generations and"):
        both({"toy": [long, short]})
    with pytest.raises(ConfigError, match="640 frames and small for 320"):
        both({"toy": [long], "small": [other]})
    both({"toy": [long], "small": [other]}, unequal_budgets=True)
    frames = {row["candidate"]: row["frames"] for row in rows_of(tmp_path / "out")}
    assert (frames["toy"], frames["small"]) == ("640", "320")


def test_what_cannot_be_compared_is_refused(runs, tmp_path):
    def other(run, changes):
        return search(num_segments=2 if Path(run).name == "1" else 4)

    with pytest.raises(ConfigError, match="cannot be compared"):
        compared(runs, tmp_path / "a", other)

    def no_numbers(run, changes):
        return search()._replace(inner_loop=toys.quadratic())

    with pytest.raises(ConfigError, match="names no hyperparameters"):
        compared(runs, tmp_path / "b", no_numbers)


def test_an_artifact_is_a_space_of_one_member(runs):
    from metaevo.storage import artifacts

    space, params = artifacts.as_space(runs[0])
    meta = space.bind(params, toys.Meta())
    assert float(meta.lr) == pytest.approx(metaevo.load(runs[0]).lr)
    spec = {"lr": {"op": "number", "transform": "log", "scale": 1.0}}
    assert space.spec == spec == toys.space().spec


def test_a_folder_that_another_process_writes_to_is_refused(runs, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with (
        run_directory.lock(out),
        pytest.raises(LockedError, match="out is in use by another process"),
    ):
        compared(runs, out)
    compared(runs, out, tuned=False, controls=0)  # what is left there is no obstacle
