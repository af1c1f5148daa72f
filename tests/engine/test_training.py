"""Training agents as they are: `metaevo.train`, its run directories, `run.stop`."""

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from runs import drawn, records, write_short_reports

import metaevo
from inner_loops import dqn, ppo
from metaevo import envs, fitness, losses, schedules, spaces
from metaevo.analysis import holdout, report, training_curve
from metaevo.cli import config as cli
from metaevo.cli import runs, several, train
from metaevo.engine import loop as engine
from metaevo.engine import play, training
from metaevo.errors import CheckpointError, ConfigError, InterruptedRunError
from metaevo.evaluators.local import LocalEvaluator
from metaevo.storage import artifacts, history, run_directory

NUM_SEEDS = 3
AUC = fitness.area_under_curve
TINY = ppo.Config(512, num_envs=2, num_steps=16, num_segments=4, features=(4,))


@pytest.fixture(scope="module")
def loop():
    return ppo.make(envs.make("gymnax/CartPole-v1"), TINY)


def options(directory, **others):
    others = {"devices": 2, "wandb": "disabled"} | others
    return metaevo.RunConfig(directory=str(directory), **others)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, loop):
    """A finished training run, and what `train` returned; not to be changed."""
    directory = tmp_path_factory.mktemp("training") / "run"
    with pytest.MonkeyPatch.context() as patch:
        drawn(patch)
        return directory, metaevo.train(loop, NUM_SEEDS, options(directory))


@pytest.fixture(autouse=True)
def short_report(monkeypatch):
    """Runs write a page in a moment; `report.write` is called where it matters."""
    write_short_reports(monkeypatch)


def assert_same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def test_training_returns_metrics_and_agents_of_each_seed(finished, loop):
    directory, found = finished
    assert found.directory == directory
    assert found.metrics["return"].shape == (NUM_SEEDS, 4)
    assert found.frames.tolist() == [128, 256, 384, 512]
    assert np.isfinite(found.final_return).all()
    weights = jax.tree.leaves(found.agents)[-1]
    assert len(weights) == NUM_SEEDS
    agent = jax.tree.map(lambda x: x[1], found.agents)
    action, _ = loop.act(jax.random.key(0), loop.meta, agent, (), jnp.zeros(4))
    assert action in (0, 1)
    # Seeds differ, in what they learn and in what they meet.
    assert len(set(found.metrics["return"][:, 0].tolist())) == NUM_SEEDS


def test_training_in_memory_gives_the_same_bits(finished, loop):
    _, kept = finished
    found = metaevo.train(loop, NUM_SEEDS, metaevo.RunConfig(devices=2))
    assert found.directory is None
    assert_same(found._replace(directory=None), kept._replace(directory=None))


def test_a_training_run_has_curve_report_and_agents(finished):
    directory, found = finished
    with (directory / "report" / "learning_curve.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["frames", "mean", "low", "high", "seed0", "seed1", "seed2"]
    table = np.array(rows, float)
    np.testing.assert_allclose(table[:, 4:].T, found.metrics["return"], rtol=1e-6)
    np.testing.assert_allclose(table[:, 2], table[:, 4:].min(1))  # too few seeds
    assert (directory / "report" / "learning_curve.png").stat().st_size > 1000
    page = (directory / "report" / "index.html").read_text()
    assert "Learning curve" in page
    assert "unfinished" not in page
    assert "held-out" not in page


def test_a_finished_training_run_is_not_repeated(finished, loop, capsys):
    directory, kept = finished
    before = (directory / "history.jsonl").read_bytes()
    found = metaevo.train(loop, NUM_SEEDS, options(directory))
    assert "already finished" in capsys.readouterr().out
    assert_same(found._replace(directory=None), kept._replace(directory=None))
    assert (directory / "history.jsonl").read_bytes() == before


def test_training_of_other_settings_is_refused(finished, loop):
    directory, _ = finished
    with pytest.raises(ConfigError, match=r"num_seeds|population_size"):
        metaevo.train(loop, 2, options(directory))
    other = loop._replace(meta=loop.meta._replace(lr=0.5))
    with pytest.raises(ConfigError, match="lr"):
        metaevo.train(other, NUM_SEEDS, options(directory))


def test_trained_agents_can_be_played(finished, loop, tmp_path):
    directory, _ = finished
    search = training.as_search(loop, NUM_SEEDS)
    path, steps, total = play.play(
        lambda: search, directory, seed=2, out=str(tmp_path / "x.gif")
    )
    assert path.is_file()
    assert steps == total > 1


def test_load_refuses_agents_of_another_loop(finished):
    from metaevo.engine.train import load

    directory, _ = finished
    other = ppo.make(envs.make("gymnax/Acrobot-v1"), TINY)
    with pytest.raises(CheckpointError, match="shape"):
        load(directory, other)


def test_an_agent_whose_numbers_break_counts_as_failed_from_then_on(tmp_path):
    def record(number, healthy):
        returns = [float(number), 10.0 + number]
        return {
            "generation": number,
            "frames": 10 * (number + 1),
            "population": returns,
            "members/return": returns,
            "members/healthy": healthy,
        }

    log = [record(0, [1, 1]), record(1, [0, 1]), record(2, [1, 1])]
    curve = training_curve.metrics(log)["return"]
    np.testing.assert_array_equal(curve, [[0, np.nan, np.nan], [10, 11, 12]])
    assert training_curve.alive(log).tolist() == [False, True]
    assert training_curve.sentence(np.array([np.nan, 3.0])).endswith("1 failed")


def test_training_in_memory_stops_after_three_segments_of_only_failures():
    loop = toys.quadratic(num_segments=9, breaks_at=0)
    with pytest.raises(metaevo.NumericalError, match="failed in 3 segments in a row"):
        metaevo.train(loop, 2, metaevo.RunConfig(devices=1))


def test_several_seeds_and_comparisons_are_for_searches(tmp_path, loop):
    search = training.as_search(loop, 2)
    with pytest.raises(ConfigError, match="num_seeds=2"):
        several.run(
            search, options(tmp_path, seeds=2), "ppo", lambda _: None, lambda: 0
        )
    with pytest.raises(ConfigError, match="equal budgets"):
        options(tmp_path, seeds=2, stop="return>=1")
    for option in ({"held_out_tasks": ("gymnax/Acrobot-v1",)}, {"independent": True}):
        with pytest.raises(ConfigError, match="nothing evolves in a training run"):
            engine.run(search, options(tmp_path / "run", **option), "training")
    assert not (tmp_path / "run").exists()


def test_commands_on_evolved_things_refuse_a_training_run(finished):
    with pytest.raises(ConfigError, match="a training run, in which nothing evolved"):
        run_directory.require_finished(finished[0])


def test_environments_with_tasks_are_refused_in_words_of_training():
    tasks = ppo.make(envs.make("gymnax/CartPole-v1?length=0.25..1"), TINY)
    with pytest.raises(ConfigError, match="trained segment by segment"):
        metaevo.train(tasks, 2)


def test_an_algorithm_outside_a_search_is_trained_as_in_a_comparison():
    """As the candidate that leaves the learning rate as it is, on the same seeds."""
    loop, key, devices = toys.quadratic(), jax.random.key(3), jax.devices()[:1]
    found = holdout.train_hand_made(loop, AUC, key, NUM_SEEDS, devices)
    assert found.fitness.shape == (1, NUM_SEEDS)
    start = {"start": {"lr": jnp.zeros(())}}
    compared, _ = holdout.train(
        toys.search(toys.pbt(), loop, fitness=AUC),
        toys.space(),
        start,
        key,
        NUM_SEEDS,
        lambda search, **options: LocalEvaluator(search, devices=devices, **options),
    )
    for a, b in zip(found[:2], compared["start"][:2], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    assert len(np.unique(found.final_return)) == NUM_SEEDS


def test_a_coupled_loop_cannot_be_trained_alone():
    with pytest.raises(ConfigError, match="coupled"):
        training.as_search(toys.quadratic()._replace(coupled=True), 2)


# --- run.stop -------------------------------------------------------------------------


def test_training_stops_when_the_condition_holds_and_resumes_to_the_bit(
    tmp_path, finished, loop, capsys
):
    whole, kept = finished
    bound = np.float32(kept.metrics["return"][:, 1].mean())
    first = int(np.argmax(kept.metrics["return"].mean(0) >= bound))
    stop = f"return>={bound - 1e-3}"
    found = metaevo.train(loop, NUM_SEEDS, options(tmp_path, stop=stop))
    assert found.frames.tolist() == [128, 256, 384, 512][: first + 1]
    assert first < 3
    assert f"run.stop={stop} holds" in capsys.readouterr().out
    assert "unfinished" not in report.write(tmp_path).read_text()
    # The same call finds it finished; without the condition it goes on.
    metaevo.train(loop, NUM_SEEDS, options(tmp_path, stop=stop))
    assert "already finished" in capsys.readouterr().out
    stops = iter([False] + [True] * 9)
    search = training.as_search(loop, NUM_SEEDS)
    with pytest.raises(InterruptedRunError):
        engine.run(
            search, options(tmp_path), "training", should_stop=lambda: next(stops)
        )
    assert first < len(records(tmp_path)) < 4
    found = metaevo.train(loop, NUM_SEEDS, options(tmp_path))
    assert records(tmp_path) == records(whole)
    assert_same(found._replace(directory=None), kept._replace(directory=None))


def test_a_search_stops_when_the_condition_holds(tmp_path):
    import optax

    from strategies.open_es import open_es

    space = toys.space()
    search = toys.search(
        strategy=open_es(space, 4, 0.5, optax.adam(0.1)), num_generations=6
    )
    config = options(tmp_path, stop="fitness>-1e9", held_out_seeds=0)
    metaevo.run(search, config, "tiny")
    assert len(records(tmp_path)) == 1
    assert (tmp_path / "solution").is_dir()
    assert history.generation_finished(tmp_path) == 1


def test_stop_on_an_unknown_metric_is_refused_before_anything_runs(tmp_path, loop):
    with pytest.raises(ConfigError, match="Did you mean 'return'"):
        metaevo.train(loop, 2, options(tmp_path / "run", stop="retrun>=3"))
    assert not (tmp_path / "run").exists()
    for text in ("return=3", "return>=", ">=3", "return>=x"):
        with pytest.raises(ConfigError, match="expected METRIC>=NUMBER"):
            metaevo.RunConfig(stop=text)


# --- from the command line ------------------------------------------------------------


def test_slots_take_numbers_and_artifacts(tmp_path):
    learned = losses.residual_network("square", (4,))
    space = spaces.replace(value_loss=learned)
    params = space.init(jax.random.key(0))
    artifacts.save(tmp_path, params, space.spec, {}, {})
    search = train.as_search(ppo.make)
    given = cli.parse(search, [f"meta.value_loss={tmp_path}", "meta.lr=0.5"])
    assert cli.changes(search, given) == ["meta.lr=0.5", f"meta.value_loss={tmp_path}"]
    made = cli.call(search, {k: x for k, x in given.items() if k != "run"})
    meta = made.inner_loop.meta
    assert meta.lr == 0.5
    assert meta.drift is ppo.Meta().drift
    value, target = jnp.array([1.0, 2.0]), jnp.zeros(2)
    expected = learned.apply(params["value_loss"], value, target, value, None)
    np.testing.assert_allclose(meta.value_loss(value, target, value, None), expected)
    with pytest.raises(ConfigError, match="no slot 'drift', but value_loss"):
        cli.call(search, {"meta": given["meta"]._replace(drift=str(tmp_path))})


def test_slots_take_functions_by_name():
    search = train.as_search(ppo.make)
    given = cli.parse(search, ["meta.value_loss=metaevo.losses:square"])
    made = cli.call(search, {k: x for k, x in given.items() if k != "run"})
    assert made.inner_loop.meta.value_loss is losses.square
    for text in ("metaevo.losses:sqare", "metaevo.loses:square", ":"):
        given = {"meta": ppo.Meta()._replace(value_loss=text)}
        with pytest.raises(ConfigError, match=f"meta.value_loss={text}: "):
            cli.call(search, given)


def test_slots_without_a_plain_default_take_numbers():
    search = train.as_search(dqn.make)
    meta = cli.parse(search, ["meta.max_grad_norm=10", "meta.epsilon=0.1"])["meta"]
    assert (meta.max_grad_norm, meta.epsilon) == (10, 0.1)
    assert cli.parse(search, [])["meta"].epsilon is dqn.Meta().epsilon
    assert isinstance(schedules.linear(1.0, 0.1, 0.5), jax.tree_util.Partial)


def test_a_stranger_s_run_loads_no_artifact(tmp_path):
    run = runs.Run(tmp_path, {}, tmp_path / "ppo.py", (), trusted=False)
    search = train.as_search(ppo.make)
    parsed = cli.parse(search, ["meta.drift=/etc/x"])
    with pytest.raises(ConfigError, match=r"meta.drift=/etc/x names a module .*"):
        runs._check_imports(run, parsed)
