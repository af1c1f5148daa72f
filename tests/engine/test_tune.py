"""`metaevo tune`: a search over an algorithm's numbers, its budget and its preset."""

import contextlib
import functools
import importlib
import io
import json

import jax
import numpy as np
import pytest
import runs as files
import scipy.stats
import tiny_loop

import metaevo
from inner_loops import ppo
from metaevo import envs, fitness
from metaevo.analysis import first_screen, holdout, report
from metaevo.cli import commands, config, help, presets, program, runs, train, tune
from metaevo.engine import choices, dry_run, identity, job
from metaevo.engine.dry_run import Times
from metaevo.errors import ConfigError, LockedError
from metaevo.losses import clipped_square, square
from metaevo.storage import run_directory
from searches import ppo_value_loss

SIZES = ["population_size=4", "run.wandb=disabled", "run.held_out_seeds=3"]
FRAMES = 4 * 4 * 2  # of a generation of four members with two seeds


@pytest.fixture
def tuned(tmp_path, monkeypatch, capsys):
    """A function that tunes the toy in one directory and returns what is printed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    files.write_short_reports(monkeypatch)

    def run(*argv):
        given = [*SIZES, *argv, f"run.directory={tmp_path / 'run'}"]
        tune._tune(tiny_loop.make, given, lambda: False)
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """A finished run of two generations, and what was printed; not to be changed."""
    directory, printed = tmp_path_factory.mktemp("tuned") / "run", io.StringIO()
    given = [*SIZES, f"frames={2 * FRAMES + 1}", "meta.target=1.5"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setenv("XDG_CACHE_HOME", str(directory.parent / "cache"))
        files.write_short_reports(patch)
        tune._tune(
            tiny_loop.make, [*given, f"run.directory={directory}"], lambda: False
        )
    return directory, printed.getvalue()


def test_numbers_are_found_kept_and_used(command, tmp_path, monkeypatch):
    """With a verdict against the algorithm's own; a preset repeats them."""
    files.write_short_reports(monkeypatch)
    directory, said = command
    assert len(files.records(directory)) == 2
    assert "verdict: the solution is " in said
    found = metaevo.load(directory).lr
    assert found != pytest.approx(0.1)
    assert "The numbers belong to this length of life" in said
    path = directory / "export" / "preset.txt"
    assert f"metaevo train {tiny_loop.__file__} preset={path}" in said
    lines = path.read_text().splitlines()[1:]
    env, target, lr = lines
    assert [env, target] == ["env=gymnax/CartPole-v1", "meta.target=1.5"]
    assert float(lr.removeprefix("meta.lr=")) == pytest.approx(float(found), rel=1e-5)
    training = [f"preset={path}", "num_seeds=1", "run.wandb=disabled"]
    where = tmp_path / "trained"
    train_it = train.as_search(tiny_loop.make)
    arguments = presets.expanded([*training, f"run.directory={where}"], train_it)
    program.run(train_it, arguments, lambda: False)
    changes = json.loads((where / "manifest.json").read_text())["changes"]
    assert {target, lr} <= set(changes)


def test_python_tunes_as_the_command_does(command, tuned, tmp_path, capsys):
    """To the bit; commands take the run, which goes on as any search."""
    directory = tmp_path / "run"
    found = metaevo.tune(
        tiny_loop.make,
        metaevo.RunConfig(directory=str(directory), held_out_seeds=0, wandb="disabled"),
        frames=2 * FRAMES + 1,
        population_size=4,
        inner={"num_segments": 4},
        meta={"target": 1.5},
    )
    assert found is not None
    before = files.records(directory)
    assert before == files.records(command[0])
    preset = directory / "export" / "preset.txt"
    assert f"preset={preset}" in capsys.readouterr().out
    # Nothing is timed: the run keeps its number.
    again = tuned("minutes=100", "meta.target=1.5", "run.held_out_seeds=0")
    assert "already finished, at generation 2" in again
    with pytest.raises(SystemExit) as ended:
        commands.execute("resume", [str(directory), "num_generations=3"])
    assert ended.value.code == 0
    assert files.records(directory)[:2] == before
    assert len(files.records(directory)) == 3
    # It is told from a training run by its settings.
    made = runs.remade(runs.opened(directory))
    assert made.strategy.settings["strategy"].endswith("snes")


CHOSEN = "meta.lr=0.2 meta.target=1.2 inner.num_segments=4"


def test_static_settings_are_chosen_first(tuned, tmp_path, monkeypatch):
    """The numbers are tuned under them, and compared with the algorithm as it is."""
    plain = tiny_loop.make(envs.make("gymnax/CartPole-v1"))
    key, devices = job.keys(0).held_out, jax.devices()[:1]
    score = fitness.area_under_curve
    hand_made = holdout.train_hand_made(plain, score, key, 3, devices)
    frames = 5 * 16 * 4 + FRAMES  # of five settings, and of a generation
    with pytest.raises(ConfigError, match=f"takes {FRAMES} frames, after {5 * 64} of"):
        tuned("choose=true", f"frames={frames - 1}")
    said = tuned("choose=true", f"frames={frames}")
    assert "choosing among 3 static settings by 16 agents each, 64 frames" in said
    assert f"chosen: {CHOSEN}" in said.splitlines()
    assert "meta.lr=0.01: -1.4" in said
    directory = tmp_path / "run"
    held_out, _ = holdout.load(directory / "held_out")
    expected = hand_made.fitness
    np.testing.assert_allclose(held_out["hand-made"].fitness, expected, rtol=1e-5)
    assert (held_out["start"].fitness > expected).all()
    words = (directory / "export" / "preset.txt").read_text().splitlines()
    assert {"meta.target=1.2", "inner.num_segments=4"} < set(words)
    assert len([x for x in words if x.startswith("meta.lr=")]) == 1

    def trained(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr(holdout, "_trained", trained)
    assert "already finished" in tuned("choose=true", f"frames={frames}")


def test_a_directory_of_others_is_refused_before_a_choice(tuned, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").touch()
    with pytest.raises(ConfigError, match="holds mine, and no run"):
        tuned("choose=true", "frames=9999")
    assert not (tmp_path / "run-choices").exists()


def test_a_choice_waits_for_no_other_process(tuned, tmp_path):
    (tmp_path / "run-choices").mkdir()
    with (
        run_directory.lock(tmp_path / "run-choices"),
        pytest.raises(LockedError, match="run-choices is in use by another"),
    ):
        tuned("choose=true", "frames=9999")


def test_a_choice_takes_functions_that_are_imported_and_no_files():
    search = train.as_tuning(ppo.make)
    for text, function in (("a/folder", None), ("metaevo.losses:square", square)):
        given = config.parse(search, [f"choices=meta.value_loss={text}"])
        del given["run"]
        if function is None:
            with pytest.raises(ConfigError, match=r"expected package\.module:function"):
                config.call(search, given)
        else:
            (loop,) = config.call(search, given).tasks
            assert loop.meta.value_loss is function
            assert loop.hand_made.meta.value_loss is clipped_square
            assert f"meta.value_loss={text}" not in loop.choices


def test_settings_are_added_while_they_help_beyond_doubt():
    rng, asked, said = np.random.default_rng(0), [], []
    noise = rng.normal(size=(8, 16))
    worth = {"a": 5.0, "b": 3.0, "c": -4.0, "d": 0.1, "e": np.nan}

    def score(changes):
        asked.append(changes)
        mean = sum(worth[x] for x in changes) - 2 * ({"a", "b"} <= set(changes))
        return (mean + noise[len(changes)])[None]

    assert choices.choose([*worth], score, said.append, ["one"]) == ("a", "b")
    first, *rounds = asked
    assert first == ()
    assert rounds[: len(worth)] == [(x,) for x in worth]
    # Those that are ahead alone, best first, each once beside what was taken.
    assert rounds[len(worth) :] == [("a", "b"), ("a", "b", "d")]
    assert said[-1] == "chosen: a b"
    assert choices.choose(["c"], score, said.append, ["one"]) == ()
    assert said[-1] == "chosen: none"


def test_settings_are_chosen_over_tasks_by_the_ranks_of_runs():
    """One task does not carry a setting; a task that tells nothing tells nothing."""
    noise = np.random.default_rng(1).normal(size=(4, 16))
    scale = np.array([[1.0], [1e-3], [1e3], [0.0]])
    worth = {"a": (2, 0.002, 0, 0), "b": (0, 0, 2000, 0), "one": (9e5, -2e-3, -2e3, 0)}
    said = []

    def score(changes):
        means = sum((np.array(worth[x]) for x in changes), np.zeros(4))
        rounding = 1e-5 * (changes == ("b",))
        floor = np.array([0, 0, 0, -200 + rounding])
        return (floor + means)[:, None] + 0.4 * scale * noise

    tasks = ["one", "two", "three", "four"]
    assert choices.choose([*worth], score, said.append, tasks) == ("a", "b")
    pool = np.concatenate([score(x) for x in ((), ("a",), ("b",), ("one",))], 1)
    ranks = scipy.stats.rankdata(pool[:3], axis=1).reshape(3, 4, 16)
    expected = (ranks[:, 1] - ranks[:, 0]).sum(0).mean() / 64 / 4
    gain = float(said[0].removeprefix("a: ").partition(" [")[0])
    assert gain == pytest.approx(expected, abs=0.01)
    assert said[0].endswith("(in shares of runs, mean of 4 tasks)")
    assert said[2].startswith("one: -")
    assert said[2].endswith(", mean of 4 tasks; worse on two, three)")


def test_a_run_that_failed_has_the_least_score_of_its_task():
    """A task on which all failed tells nothing."""
    noise = np.random.default_rng(2).normal(size=(3, 16))
    worth = {"a": (10, 0, np.nan), "c": (0, np.nan, np.nan)}
    said = []

    def score(changes):
        means = sum((np.array(worth[x]) for x in changes), np.array([0, 0, np.nan]))
        return means[:, None] + noise

    assert choices.choose([*worth], score, said.append, ["1", "2", "3"]) == ("a",)
    assert said[0].startswith("a: +")
    assert said[1].startswith("c: -")


def test_numbers_are_tuned_on_several_environments(tuned, tmp_path):
    """Members are ranked on each; verdicts and a figure are of each."""
    said = tuned(f"frames={2 * FRAMES}", "more_envs=[gymnax/Acrobot-v1]")
    directory = tmp_path / "run"
    (record,) = files.records(directory)
    assert sum(record["population"]) == 2 * (1 + 2 + 3 + 4)
    assert "the mean return over the lifetime, rank sum over 2 tasks" in said
    assert "verdict: on gymnax/Acrobot-v1, the solution is " in said
    assert "lifetimes of 4 frames on each of 2 tasks" in said
    preset = directory / "export" / "preset.txt"
    assert "env=gymnax/CartPole-v1" in preset.read_text().splitlines()
    page = report.write(directory).read_text()
    assert "for the mean return over the lifetime, rank sum over 2 tasks" in page
    rows = (directory / "report" / "by_task.csv").read_text().splitlines()
    assert rows[0] == "generation,gymnax/CartPole-v1,gymnax/Acrobot-v1"
    means = [record[f"task{i}/fitness"] for i in range(2)]
    assert means[0] != means[1]
    assert [float(x) for x in rows[1].split(",")] == pytest.approx([0, *means])


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("ppo", {"sigmas": 1}, r"'sigmas'\. Did you mean 'sigma'"),
        (ppo, {}, r"expected an inner loop's `make`, or its name; got <module"),
        ("ppo", {"frames": 9, "num_generations": 5}, "=5: give one of them"),
        ("ppo", {"more_envs": ("gymnax/CartPole-v1",)}, "CartPole-v1 is given twice"),
        ("dqn", {"meta": {"td_loss": lambda d, q, g: d}}, "td_loss has no name to"),
        ("ppo", {"config": metaevo.RunConfig(seeds=2)}, "run one seed at a time"),
    ],
)
def test_what_python_cannot_tune_is_refused(given, options, message, tmp_path):
    usual = metaevo.RunConfig(directory=str(tmp_path / "run"), wandb="disabled")
    with pytest.raises(ConfigError, match=message):
        metaevo.tune(given, **({"config": usual} | options))
    assert not any(tmp_path.iterdir())


def test_a_fitness_of_several_tasks_is_described():
    for aggregate, told in (
        (fitness.normalized([0.0, 0.0], [1.0, 2.0]), "normalized over 2 tasks"),
        (functools.partial(fitness.rank_sum), "rank sum over 2 tasks"),
    ):
        made = {"task0": {}, "task1": {}, "aggregate": identity.plain(aggregate)}
        manifest = {"identity": {"settings": {"search": made}}}
        assert first_screen.joined(manifest) == told


def test_minutes_become_generations_before_the_first(tuned, monkeypatch):
    """(600 - 10 - 30) / 5 of them, less what was spent; searches share the minutes."""
    times = Times(compiling=10.0, generation=4.0, saving=1.0, following=30.0)
    monkeypatch.setattr(dry_run, "measure", lambda *_: times)
    given = []
    monkeypatch.setattr(program, "run", lambda _, argv, stop: given.append(argv) or [])
    tuned("minutes=10")
    tuned("minutes=20", "run.seeds=2")
    for argv in given:
        key, _, asked = argv[-1].partition("=")
        assert key == "num_generations"
        assert 90 < int(asked) <= 112


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["frames=31"], r"frames=31: one generation takes 32 frames"),
        (["minutes=0"], r"minutes=0.0 must be positive"),
        (["frames=64", "minutes=1"], r"minutes=1 and frames=64: give one of them"),
        (
            ["frames=64", "inner.tuned=false"],
            r"tune tiny_loop: this algorithm names no",
        ),
        (["minutes=1", "run.evaluator=ray"], r"minutes=1: for one machine alone"),
        (
            ["choose=true", "choices=meta.lr=1"],
            r"choose=true and choices=meta.lr=1: give one of them",
        ),
        (["choose=true", "run.evaluator=ray"], r"choose=true: for one machine alone"),
        (["choices=meta.speed=1"], r"choices: unknown key 'meta.speed'"),
        (["choices=inner.num_segments=3"], r"segments and their frames have to agree"),
        (["preset=nowhere.txt"], r"preset=nowhere.txt: .*No such file"),
    ],
)
def test_wrong_budgets_are_refused(tuned, given, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        tuned(*given)
    assert not (tmp_path / "run").exists()


def test_a_time_that_is_too_short_says_what_is_needed(tuned, monkeypatch):
    times = Times(compiling=10.0, generation=4.0, saving=1.0, following=30.0)
    monkeypatch.setattr(dry_run, "measure", lambda *_: times)
    with pytest.raises(ConfigError, match=r"what follows it take (0\.[789]|1\.\d) min"):
        tuned("minutes=0.5")


@pytest.mark.parametrize("more", [[], ["choose=true"]])
def test_minutes_end_while_a_generation_is_timed_or_settings_are_chosen(tuned, more):
    with pytest.raises(ConfigError, match=r"minutes=1e-06: they ended before the"):
        tuned("minutes=1e-6", *more)


def test_a_dry_run_says_that_it_chooses_nothing(tuned):
    said = tuned("choose=true", "--cfg")
    assert said.startswith("choose=true: shown without static settings")
    assert "choices=null" in said.splitlines()


def test_help_has_the_budget_and_the_keys_of_the_algorithm(capsys):
    tune._tune(ppo.make, ["--help"], lambda: False)
    said = capsys.readouterr().out
    assert "minutes=null" in said
    assert "inner.num_steps=128" in said
    assert "population_size=16" in said


# --- presets --------------------------------------------------------------------------


def test_a_preset_stands_in_its_place(tmp_path):
    tuning = train.as_tuning(tiny_loop.make)
    path = tmp_path / "preset.txt"
    path.write_text(presets.text(["env=a", "meta.lr=1"], "about") + "\n")
    given = ["meta.lr=0", f"preset={path}", "meta.lr=2"]
    found = presets.expanded(given, tuning)
    assert found == ["meta.lr=0", "env=a", "meta.lr=1", "meta.lr=2"]
    for line in ("lr", "preset=other.txt", "--cfg=1"):
        path.write_text(f"{line}\n")
        with pytest.raises(ConfigError, match="is no key=value"):
            presets.expanded([f"preset={path}"], tuning)


FOLDERS = sorted(x.name for x in presets.FOLDER.iterdir() if x.is_dir())


@pytest.mark.parametrize("name", FOLDERS)
def test_named_presets_hold_keys_of_their_loop(name):
    """Each says what it is for, and each of its lines changes a default."""
    search = train.as_search(importlib.import_module(f"inner_loops.{name}").make)
    shown = " ".join(help.help_text(search).split())
    paths = [*(presets.FOLDER / name).glob("*.txt")]
    assert paths
    for path in paths:
        assert presets.named(search)[path.stem] == path
        assert presets.about(path) in shown
        lines = presets.expanded([f"preset={path.stem}"], search)
        found = config.parse(search, lines)
        assert len(config.changes(search, found)) == len(lines), path


def test_presets_have_names_in_searches_of_their_loop(tmp_path):
    found = presets.expanded(["preset=minatar"], ppo_value_loss.search)
    assert "inner.torso=cnn" in found
    with pytest.raises(ConfigError, match="named here: brax, control, minatar"):
        presets.expanded([f"preset={tmp_path / 'none'}"], ppo_value_loss.search)


def test_the_call_of_stable_baselines3_takes_what_it_has():
    """Names of arguments that its classes have, and a comment on the others."""
    evolved = {"critic_lr": 1e-3, "actor_lr": 1e-4, "tau": 0.01}
    assert tune._stable_baselines3("sac", evolved) == [
        'SAC("MlpPolicy", env, learning_rate=0.001, tau=0.01)',
        "# without a counterpart there: actor_lr",
    ]
    assert tune._stable_baselines3("impala", evolved) is None
    chosen = ("inner.double=true", "meta.td_loss=metaevo.losses:td_reluctant")
    assert tune._stable_baselines3("dqn", {"gamma": 0.9}, chosen) == [
        'DQN("MlpPolicy", env, gamma=0.9)',
        "# tuned with inner.double=true; set the same there",
        "# tuned with meta.td_loss=metaevo.losses:td_reluctant: a subclass, as in",
        "# examples/sb3_dqn.py",
    ]


def test_slots_of_the_call_are_slots_that_are_tuned():
    for name, (_, slots, *_) in tune.STABLE_BASELINES3.items():
        module = importlib.import_module(f"inner_loops.{name}")
        assert set(slots) <= set(module.TUNABLE.init(jax.random.key(0))), name
