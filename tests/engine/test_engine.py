"""Runs: determinism, resume, failures, locks, what is refused."""

import json
import os
import shutil
from pathlib import Path

import filelock
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_search
import toys
from runs import records, solution_bytes, write_short_reports

import metaevo
from metaevo import fitness, losses, spaces
from metaevo.analysis import holdout
from metaevo.cli import commands, program
from metaevo.engine import finish, job
from metaevo.errors import CheckpointError, ConfigError
from metaevo.evaluators import choose
from metaevo.evaluators.local import LocalEvaluator
from metaevo.storage import artifacts, checkpoint
from metaevo.types import FitnessFn
from strategies.open_es import open_es


def es(population_size=8, sigma=0.5):
    return open_es(toys.space(), population_size, sigma, optax.adam(0.1))


def run(directory, search=None, **config):
    config = {"held_out_seeds": 0, "devices": 2, "wandb": "disabled"} | config
    search = search or tiny_search.search(num_generations=4)
    return metaevo.run(
        search, metaevo.RunConfig(directory=str(directory), **config), "tiny"
    )


@pytest.fixture(autouse=True)
def short_report(request, monkeypatch):
    """Runs write a page in a moment, but for tests that ask for `whole_report`."""
    if "whole_report" not in request.fixturenames:
        write_short_reports(monkeypatch)


@pytest.fixture
def whole_report():
    """Reports are written as a user gets them."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The default run: 4 generations on 2 devices; not to be changed."""
    return made(tmp_path_factory.mktemp("finished"), 4)


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    """The default run with 6 generations, in one go; not to be changed."""
    return made(tmp_path_factory.mktemp("longer"), 6)


SEEN = []
"""The programs that runs of `made` compiled."""


def made(directory, num_generations):
    original = finish.finish

    def finishing(job, state, journal):
        SEEN.append(job.programs._asdict() | job.evaluator.programs)
        return original(job, state, journal)

    with pytest.MonkeyPatch.context() as patch:
        write_short_reports(patch)
        patch.setattr(finish, "finish", finishing)
        run(directory, tiny_search.search(num_generations=num_generations))
    return directory


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the default run, to be changed."""
    return Path(shutil.copytree(finished, tmp_path / "copied"))


# --- results --------------------------------------------------------------------------


def test_search_improves_on_the_hand_made_algorithm(tmp_path):
    search = tiny_search.search(num_generations=12)
    result = run(tmp_path, search, held_out_seeds=8)
    log = records(tmp_path)
    assert [r["generation"] for r in log] == list(range(12))
    assert log[-1]["fitness_mean"] > log[0]["fitness_mean"]
    (verdict,) = result.verdicts
    assert verdict.measure == "final return"
    assert verdict.paired.verdict == "better"
    assert verdict.paired.num_pairs == 8
    # A tuned number starts as the default: the start is the hand-made algorithm.
    assert set(result.held_out) == {"solution", "hand-made"}
    artifact = metaevo.load(tmp_path)
    expected = 0.1 * np.exp(np.asarray(result.solution["lr"]))
    assert artifact.lr == pytest.approx(float(expected), rel=1e-5)


def test_another_seed_gives_another_search(tmp_path, finished):
    run(tmp_path, seed=1)
    assert solution_bytes(tmp_path) != solution_bytes(finished)


def test_every_program_compiles_once(finished):
    """The weak types of evosax would compile the second generation again."""
    counts = {name: program._cache_size() for name, program in SEEN[0].items()}
    names = ("ask", "tell", "metrics", "solution", "numbers", "init/0", "run/0")
    unused = ("members/0", "evaluate/0")
    assert counts == dict.fromkeys(names, 1) | dict.fromkeys(unused, 0)


def test_adding_a_constant_to_all_fitness_changes_nothing(tmp_path, finished):
    """Ranks shape the fitness, so its level is of no account."""
    base = tiny_search.search(num_generations=4)
    shifted = base._replace(
        fitness=FitnessFn(
            lambda train, evaluation: evaluation["return"] + 64.0, True, "shifted"
        )
    )
    run(tmp_path, shifted)
    assert solution_bytes(tmp_path) == solution_bytes(finished)


def test_coupled_search_runs_and_resumes(tmp_path):
    def search(generations):
        return toys.search(
            es(4),
            toys.shared_critic(),
            num_generations=generations,
            segments_per_generation=1,
        )

    run(tmp_path / "whole", search(2))
    run(tmp_path / "halves", search(1))
    run(tmp_path / "halves", search(2), held_out_seeds=4)
    assert records(tmp_path / "whole") == records(tmp_path / "halves")


def test_several_tasks_and_rank_sum(tmp_path):
    loops = [toys.quadratic(), toys.quadratic(dim=5)]
    search = toys.search(es(), loops, num_generations=1, aggregate=fitness.rank_sum)
    result = run(tmp_path, search, held_out_seeds=4)
    assert len(result.verdicts) == 2
    assert result.held_out["solution"].fitness.shape == (2, 4)


# --- resume ---------------------------------------------------------------------------


def test_search_starts_from_an_artifact(tmp_path):
    first = run(tmp_path / "first", tiny_search.search(num_generations=2))
    again = run(
        tmp_path / "again",
        tiny_search.search(num_generations=1),
        start_from=str(tmp_path / "first"),
        held_out_seeds=4,
    )
    start = again.held_out["start"].fitness
    key = job.keys(0).held_out
    expected, _ = holdout.train(
        tiny_search.search(),
        toys.space(),
        {"first": first.solution},
        key,
        4,
        choose.local_factory(jax.devices()[:2]).make,
    )
    np.testing.assert_array_equal(start, expected["first"].fitness)
    with pytest.raises(ConfigError, match=r"other settings.*start_from"):
        run(tmp_path / "again", tiny_search.search(num_generations=1))


def test_artifact_of_another_space_is_refused(tmp_path):
    space = spaces.replace(value_loss=losses.residual_network())
    params = space.init(jax.random.key(0))
    artifacts.save(tmp_path / "other", params, space.spec, {}, {})
    for path, message in (("nowhere", "no artifact here"), ("other", "other shapes")):
        with pytest.raises(ConfigError, match=f"run.start_from=.*{message}"):
            run(tmp_path / "run", start_from=str(tmp_path / path))


def test_more_generations_extend_a_finished_run_without_foreign_lines(copied, longer):
    """Those behind its log are left out; one before the end is named."""
    search, stop = tiny_search.search(num_generations=6), "fitness_best>=1e9"
    log = copied / "metrics.jsonl"
    log.write_bytes(log.read_bytes() + b'{"my": "data"}\n{"a": 1')
    run(copied)
    run(copied, stop=stop)
    run(copied, search)
    assert solution_bytes(copied) == solution_bytes(longer)
    assert records(copied) == records(longer)
    log.write_bytes(b'{"my": "data"}\n' + log.read_bytes())
    with pytest.raises(CheckpointError, match="line 1: expected generation 0"):
        run(copied, search, stop=stop)


def test_run_has_the_same_bits_on_any_number_of_devices(tmp_path, finished):
    """And resumes on another number of them."""
    run(tmp_path, tiny_search.search(num_generations=2), devices=1)
    run(tmp_path, devices=4)
    assert solution_bytes(tmp_path) == solution_bytes(finished)
    assert records(tmp_path) == records(finished)


def test_corrupt_checkpoint_falls_back_to_the_one_before(copied, longer):
    newest = copied / "checkpoints" / "generation-00000004"
    data = bytearray((newest / "arrays.safetensors").read_bytes())
    data[-1] ^= 1
    (newest / "arrays.safetensors").write_bytes(data)
    run(copied, tiny_search.search(num_generations=6))
    assert solution_bytes(copied) == solution_bytes(longer)
    assert records(copied) == records(longer)


def test_run_without_a_valid_checkpoint_is_refused_and_not_started_anew(copied):
    for folder in (copied / "checkpoints").iterdir():
        (folder / "arrays.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        run(copied)


def test_interrupted_generation_is_abandoned_and_the_state_before_it_saved(tmp_path):
    """Also between checkpoints, and with agents that live on, in a toy PBT."""

    def search(generations):
        return toys.search(
            toys.pbt(),
            num_generations=generations,
            segments_per_generation=1,
            chunk_size=2,
        )

    asked = iter([False] * 5 + [True] * 9)  # two rounds a generation
    config = metaevo.RunConfig(
        directory=str(tmp_path / "parts"),
        devices=1,
        held_out_seeds=0,
        checkpoint_every=100,
        wandb="disabled",
    )
    with pytest.raises(metaevo.InterruptedRunError, match="before generation 2"):
        metaevo.run(search(4), config, "tiny", should_stop=lambda: next(asked))
    assert checkpoint.Store(tmp_path / "parts" / "checkpoints").generations() == [2]
    for generations in (3, 4):
        run(tmp_path / "parts", search(generations), devices=1, checkpoint_every=100)
    run(tmp_path / "whole", search(4))
    log = records(tmp_path / "whole")
    assert log == records(tmp_path / "parts")
    assert solution_bytes(tmp_path / "whole") == solution_bytes(tmp_path / "parts")
    assert log[-1]["fitness_mean"] > log[0]["fitness_mean"]


# --- failed members -------------------------------------------------------------------


def test_bad_fitness_ranks_strictly_last():
    for bad in (np.nan, np.inf, -np.inf):
        scores = np.array([3.0, bad, -7.0, 5.0])
        clean, failed = fitness.sanitize(scores, mirrored=False)
        assert np.argsort(clean).tolist()[0] == 1
        assert clean[1] < -7.0
        assert failed.tolist() == [False, True, False, False]
        np.testing.assert_array_equal(clean[[0, 2, 3]], [3.0, -7.0, 5.0])


def test_mirrored_pair_with_a_failed_member_has_no_pull():
    scores = np.array([1.0, np.nan, 3.0, 2.0, 9.0, 4.0])
    clean, _ = fitness.sanitize(scores, mirrored=True)
    assert clean[1] == clean[4] < 1.0
    strategy = es(6)
    key = jax.random.key(0)
    state = strategy.init(key)
    proposal, state = strategy.ask(key, state)
    step = strategy.tell(key, state, proposal, jnp.asarray(clean))
    # Whatever the good half of the pair scored, the step is the same.
    scores[4] = -100.0
    other = strategy.tell(
        key, state, proposal, jnp.asarray(fitness.sanitize(scores, True)[0])
    )
    assert strategy.solution(step)["lr"] == strategy.solution(other)["lr"]


def test_fitness_of_only_failures_is_finite():
    clean, failed = fitness.sanitize(np.array([np.nan, np.inf]), mirrored=True)
    assert failed.all()
    assert np.isfinite(clean).all()


def test_member_that_was_not_scored_ranks_in_the_middle():
    """It is healthy, and nothing is known of it: no reason to select against it."""
    scores = np.array([1.0, np.nan, 3.0, np.nan, 8.0])
    waiting = np.array([False, True, False, False, False])
    clean, failed = fitness.sanitize(scores, False, waiting)
    assert failed.tolist() == [False, False, False, True, False]
    np.testing.assert_array_equal(clean[[0, 1, 2, 4]], [1.0, 3.0, 3.0, 8.0])
    assert clean[3] < 1.0
    nobody, failed = fitness.sanitize(np.full(3, np.nan), False, np.arange(3) > 0)
    assert nobody.tolist() == [-1.0, 0.0, 0.0]


def test_mirrored_pair_with_a_member_that_was_not_scored_has_no_pull():
    scores = np.array([1.0, np.nan, np.nan, 2.0, 9.0, 4.0])
    waiting = np.array([False, True, False, False, False, False])
    clean, _ = fitness.sanitize(scores, True, waiting)
    assert clean[1] == clean[4] == 3.0
    assert clean[2] == clean[5] < 1.0


def test_largest_fitness_stays_finite_and_in_order():
    for scale in (1.0, 3e38, np.finfo(np.float32).max):
        raw = scale * np.array([1.0, np.nan, -1.0, 0.5], np.float32)
        clean, _ = fitness.sanitize(raw, mirrored=False)
        assert np.isfinite(clean).all()
        assert np.argsort(clean).tolist() == [1, 2, 3, 0]
        assert len(set(clean.tolist())) == 4


def test_lifetimes_in_which_no_episode_ends_are_no_numerical_failure(tmp_path):
    search = toys.search(
        es(),
        toys.quadratic(num_segments=2, first_episode=99),
        num_generations=9,
        fitness=fitness.area_under_curve,
        chunk_size=2,
    )
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"no episode ended .*total_timesteps"):
            run(tmp_path, search)
    log = records(tmp_path)
    assert [(r["failed"], r["not_scored"]) for r in log] == [(0, 8)] * 6
    arrays, _ = checkpoint.Store(tmp_path / "checkpoints").load()
    (mean,) = (x for name, x in arrays.items() if name.endswith(".mean"))
    assert mean.tolist() == [0.0]  # where it began


def test_failing_members_never_win(tmp_path):
    """Learning rates below 0.05 break the agent: the search moves away from them."""
    search = tiny_search.search(num_generations=12, fail_below=0.05)
    result = run(tmp_path, search)
    log = records(tmp_path)
    assert log[0]["failed"] + log[1]["failed"] + log[2]["failed"] > 0
    assert all(np.isfinite(r["fitness_mean"]) for r in log)
    assert 0.1 * np.exp(result.solution["lr"]) > 0.1


def test_a_run_of_only_failures_has_no_solution_and_stops_after_three(tmp_path):
    search = tiny_search.search(num_generations=2, fail_below=1e9)
    for _ in range(2):
        with pytest.raises(metaevo.NumericalError, match="every member failed in"):
            run(tmp_path, search)
    assert not (tmp_path / "solution").exists()
    with pytest.raises(metaevo.NumericalError, match="3 generations in a row"):
        run(tmp_path, search._replace(num_generations=9))
    log = records(tmp_path)
    assert [r["failed"] for r in log] == [8, 8, 8]
    assert log[0]["fitness_best"] is None
    arrays, manifest = checkpoint.Store(tmp_path / "checkpoints").load()
    assert manifest["generation"] == 3
    (mean,) = (x for name, x in arrays.items() if name.endswith(".mean"))
    assert mean.tolist() == [0.0]  # where it began


def test_generations_of_only_failures_that_are_not_in_a_row_stop_nothing(tmp_path):
    search = tiny_search.search(num_generations=5, fail_below=1e-6)

    def ask(key, state):
        """Every second generation breaks all members, as the keys of seed 0 fall."""
        proposal, state = search.strategy.ask(key, state)
        broken = jax.random.bernoulli(jax.random.fold_in(key, 10))
        params = jax.tree.map(lambda x: x - 100.0 * broken, proposal.params)
        return proposal._replace(params=params), state

    run(tmp_path, search._replace(strategy=search.strategy._replace(ask=ask)))
    assert [r["failed"] for r in records(tmp_path)] == [8, 0, 8, 0, 8]


def test_living_agents_survive_generations_of_only_failures(tmp_path):
    """What is kept is the state before them, and another start tries again."""
    search = toys.search(
        toys.pbt(),
        toys.quadratic(num_segments=8, breaks_at=2),
        num_generations=8,
        segments_per_generation=1,
        chunk_size=2,
    )
    for _ in range(2):
        with pytest.raises(metaevo.NumericalError):
            run(tmp_path, search)
        arrays, _ = checkpoint.Store(tmp_path / "checkpoints").load()
        agents = [x for name, x in arrays.items() if "agent" in name]
        assert agents
        assert all(np.isfinite(x).all() for x in agents)
    with pytest.raises(metaevo.NumericalError):  # no generations left: still an error
        run(tmp_path, search)


def test_living_agents_without_an_episode_yet_have_not_failed(tmp_path, whole_report):
    search = toys.search(
        toys.pbt(),
        toys.quadratic(num_segments=6, first_episode=4),
        num_generations=6,
        segments_per_generation=1,
        fitness=fitness.last_segments(1),
        chunk_size=2,
    )
    run(tmp_path, search)
    log = records(tmp_path)
    assert [r["failed"] for r in log] == [0] * 6
    assert [r["not_scored"] for r in log] == [4] * 4 + [0] * 2
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Members that failed, in all of the 6 generations: 0." in page
    assert "none of their episodes had ended: 16." in page
    assert [r["fitness_mean"] is None for r in log] == [True] * 4 + [False] * 2


# --- what is refused ------------------------------------------------------------------


def test_locked_directory_is_refused(tmp_path):
    with filelock.FileLock(tmp_path / ".lock"):
        with pytest.raises(metaevo.LockedError, match="in use"):
            run(tmp_path)
        with pytest.raises(SystemExit) as exit:
            metaevo.main(
                tiny_search.search,
                [f"run.directory={tmp_path}", "run.wandb=disabled"],
            )
        assert exit.value.code == 3


def test_search_that_cannot_run_is_refused_before_compilation(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalEvaluator, "__call__", None)
    search = tiny_search.search(num_generations=2)
    for change, message in (
        ({"num_generations": 0}, "num_generations=0"),
        ({"num_seeds": 0}, "num_seeds=0"),
        ({"chunk_size": 0}, "chunk_size=0"),
        ({"seeds_at_once": 2}, "seeds_at_once=2: expected 1 to num_seeds, 1"),
        ({"segments_per_generation": 9}, "segments_per_generation=9"),
        ({"space": spaces.tune(lrr=spaces.log())}, "Did you mean 'lr'"),
        ({"strategy": toys.pbt()}, "set segments_per_generation"),
        ({"segments_per_generation": 1}, "members are newborn in each generation"),
        ({"space": toys.nameless_space()}, "its operations of"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(tmp_path, search._replace(**change))


def test_a_search_without_settings_needs_a_directory():
    with pytest.raises(ConfigError, match="directory"):
        metaevo.run(tiny_search.search(num_generations=2))


def test_run_that_lost_its_checkpoints_is_not_started_anew(copied):
    before = (copied / "metrics.jsonl").read_bytes()
    shutil.rmtree(copied / "checkpoints")
    with pytest.raises(CheckpointError, match="has 4 generations"):
        run(copied)
    assert (copied / "metrics.jsonl").read_bytes() == before


def test_log_that_lost_lines_is_refused(copied):
    log = copied / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="shorter"):
        run(copied, tiny_search.search(num_generations=6))


def test_altered_checkpoint_manifest_is_not_used(copied):
    newest = copied / "checkpoints" / "generation-00000004" / "manifest.json"
    newest.write_text(newest.read_text().replace('"generation": 4', '"generation": 5'))
    _, manifest = checkpoint.Store(copied / "checkpoints").load()
    assert manifest["generation"] == 3


def test_old_comparison_is_not_shown_with_a_new_solution(
    tiny_run, tmp_path, whole_report
):
    directory = Path(shutil.copytree(tiny_run, tmp_path / "run"))
    page = directory / "report" / "index.html"
    assert "verdict" in page.read_text()
    run(directory, tiny_search.search(num_generations=5), devices=1)
    assert not (directory / "held_out").exists()
    assert "No comparison on held-out seeds" in page.read_text()


# --- checkpoints ----------------------------------------------------------------------


def test_checkpoints_hold_keys_and_refuse_other_trees(tmp_path):
    tree = {"key": jax.random.key(3), "x": jnp.arange(3.0)}
    store = checkpoint.Store(tmp_path)
    store.save(0, tree, {})
    arrays, _ = store.load()
    template = jax.eval_shape(lambda: tree)
    restored = checkpoint.from_arrays(template, arrays)
    assert jax.random.key_data(restored["key"]).tolist() == [0, 3]
    assert restored["x"].tolist() == [0, 1, 2]
    with pytest.raises(CheckpointError, match="of another search"):
        checkpoint.from_arrays({"y": tree["x"]}, arrays)
    with pytest.raises(CheckpointError, match="shape"):
        checkpoint.from_arrays(tree | {"x": jnp.arange(4.0)}, arrays)


def test_checkpoint_appears_complete_or_not_at_all(tmp_path, monkeypatch):
    store = checkpoint.Store(tmp_path)
    store.save(0, {"x": np.zeros(3)}, {})
    for stage in ("fsync", "rename"):
        with monkeypatch.context() as patch:

            def fail(*args, stage=stage):
                raise OSError(28, f"no space at {stage}")

            patch.setattr(os, stage, fail)
            with pytest.raises(OSError, match="no space"):
                store.save(1, {"x": np.ones(3)}, {})
        arrays, _ = store.load()
        assert arrays["['x']"].tolist() == [0, 0, 0]


def test_only_the_newest_checkpoints_are_kept(longer):
    assert checkpoint.Store(longer / "checkpoints").generations() == [6, 5, 4]


def test_a_full_disk_exits_6(tmp_path, monkeypatch, capsys):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", fail)
    arguments = ["num_generations=2", "run.wandb=disabled"]
    with pytest.raises(SystemExit) as exit:
        metaevo.main(tiny_search.search, [*arguments, f"run.directory={tmp_path}"])
    assert exit.value.code == 6
    assert "No space left on device" in capsys.readouterr().err


def test_an_export_to_a_full_disk_exits_6_and_leaves_no_file(
    finished, tmp_path, monkeypatch, capsys
):
    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    out = tmp_path / "evolved.py"
    argv = [str(finished), "to=numpy", f"out={out}"]
    assert program.guard(lambda: commands.execute("export", argv)) == 6
    assert f"No space left on device: '{out}'" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_manifest_holds_the_chunk_size_the_seed_and_the_versions(finished):
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["chunk_size"] == 2
    assert manifest["identity"]["seed"] == 0
    assert manifest["versions"]["jax"] == jax.__version__
    solution = json.loads((finished / "solution" / "manifest.json").read_text())
    assert solution["provenance"]["search"] == "tiny"
    assert artifacts.load(finished).slots.keys() == {"lr"}
