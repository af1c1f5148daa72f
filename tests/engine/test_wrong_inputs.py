"""Wrong inputs, as people type them: one line that names the remedy, and soon.

Everything is done that a search does before it compiles, in this process.
"""

import importlib.util
import shlex
import shutil
import sys

import jax.numpy as jnp
import optax
import pytest

import metaevo
from inner_loops import ppo
from metaevo import envs, fitness, losses, spaces
from metaevo.cli import config, listing, main, program
from metaevo.config import RunConfig
from metaevo.engine import checks, elements, identity
from metaevo.errors import ConfigError
from metaevo.evaluators import chunking
from metaevo.storage import run_directory, verified
from metaevo.storage.manifests import Settings
from strategies.open_es import open_es


def start(*argv, name="ppo_value_loss"):
    """Do what precedes the first generation; returns the arguments."""
    search = importlib.import_module(f"searches.{name}").search
    given = config.parse(search, argv)
    arguments = {key: x for key, x in given.items() if key != "run"}
    checks.check(config.call(search, arguments))
    return given


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ("seed=1", "unknown key 'seed'. Did you mean 'run.seed'?"),
        ("seeds=3", "Did you mean 'run.seeds'?"),
        ("lr=1e-3", "Did you mean 'meta.lr' or 'learning_rate'?"),
        ("gamma=0.9", "Did you mean 'meta.gamma'?"),
        ("inner.lr=1e-3", "Did you mean 'meta.lr' or 'learning_rate'?"),
        ("total_timesteps=1e6", "Did you mean 'inner.total_timesteps'?"),
        ("num_envs=8", "Did you mean 'inner.num_envs'?"),
        ("inner.num_env=8", "Did you mean 'inner.num_envs'?"),
        ("inner.num_envs.x=8", "Did you mean 'inner.num_envs'?"),
        ("directory=runs/x", "Did you mean 'run.directory'?"),
        ("wandb=online", "Did you mean 'run.wandb'?"),
        ("value_loss=x:y", "Did you mean 'meta.value_loss'?"),
        ("generations=10", "Did you mean 'num_generations'?"),
        ("popsize=10", "Did you mean 'population_size'?"),
        ("learningrate=0.1", "Did you mean 'learning_rate'?"),
        ("environment=gymnax/CartPole-v1", "Did you mean 'env'?"),
        ("Num_Generations=3", "Did you mean 'num_generations'?"),
        ("num-generations=3", "Did you mean 'num_generations'?"),
        ("meta.Lr=1e-3", "Did you mean 'meta.lr'?"),
        ("--num_generations=3", "without spaces, here num_generations=3"),
        ("--num-generations", "without spaces, here num_generations=VALUE"),
        ("num_generations", "without spaces, here num_generations=VALUE"),
        ("num_generations:3", "without spaces, here num_generations=3"),
        ("-s", "'-s': expected key=value without spaces"),
        ("num_generations=three", "num_generations=three: expected an integer"),
        ("num_generations=", "num_generations=: expected an integer"),
        ("num_generations=1e-3", "expected an integer"),
        ("num_generations=1e400", "expected an integer"),
        ("inner.num_envs=None", "inner.num_envs=None: expected an integer"),
        ("run.seed=1.5", "run.seed=1.5: expected an integer"),
        ("run.max_seconds=1h", "run.max_seconds=1h: expected a number or null"),
        ("sigma=nan", "sigma=nan: expected a finite number"),
        ("run.max_seconds=.NaN", "=.NaN: expected a finite number or null"),
        ("inner.num_steps=10k", "Did you mean 'inner.num_steps=10000'?"),
        ("inner.total_timesteps=2**20", "Did you mean 'inner.total_timesteps=1048576'"),
        ("num_generations=1.000.000", "Did you mean 'num_generations=1000000'?"),
        ("sigma=50%", "Did you mean 'sigma=0.5'?"),
        ("sigma=1/0", "sigma=1/0: expected a number"),
        ("run.seed=1.5M", "Did you mean 'run.seed=1500000'?"),
        ("sigma=0.5,hidden=8", "give each key=value as an argument of its own"),
        ("inner.total_timesteps=1e12", "give at most 549755813632"),
        ("inner.anneal_lr=flase", "expected true or false"),
        ("start=residul", "one of scratch, residual, weighted, convex"),
        ("inner.features=", "expected a list of integers, such as [64,64]"),
        ("inner.features=[64;64]", "expected a list of integers, such as [64,64]"),
        ("inner.features=[64", "expected a list of integers, such as [64,64]"),
        ("inner.features={64", "expected a list of integers, such as [64,64]"),
        ("inner.features=64,1.5", "expected a list of integers, such as [64,64]"),
        ("meta=3", "meta has keys of its own, such as meta.lr=..."),
        ("inner={num_envs:3}", "keys of its own, such as inner.total_timesteps=..."),
        ("inner.features=[64,-1]", "inner.features=[64,-1] must be >= 1"),
        ("inner.num_envs=-4", "inner.num_envs=-4 must be >= 1"),
        ("hidden=0", "expected 1 to 8 layers of 1 to 4096; changed: hidden=0"),
        ("population_size=-2", "must be even; use 2"),
        ("sigma=-1", "sigma=-1.0 must be positive and finite"),
        ("sigma=inf", "sigma=inf must be positive and finite"),
        ("learning_rate=-1", "a learning_rate that is finite and at least 0"),
        ("learning_rate=inf", "a learning_rate that is finite and at least 0"),
        ("meta.lr=-1", "meta.lr=-1.0 must be finite and at least 0"),
        ("meta.gamma=1.5", "meta.gamma=1.5 must be in [0, 1]"),
        ("run.devices=0", "run.devices=0 must be >= 1; leave it out for all"),
        ("run.max_seconds=-5", "must be >= 0 seconds; leave it out for no limit"),
        ("meta.value_loss=null", "meta.value_loss=null: this slot cannot be empty"),
        ("meta.reward=None", "meta.reward=None: this slot cannot be empty"),
        ("meta.value_loss=square", "Did you mean 'metaevo.losses:square'?"),
        ("meta.activation=relu", "Did you mean 'metaevo.activations:relu' or 'jax.nn"),
        ("meta.optimizer=radam", "Did you mean 'metaevo.optimizers:radam'?"),
        (
            "meta.drift=metaevo.losses:minus_q",
            "other inputs than (log_ratio, advantage",
        ),
        ("meta.value_loss=metaevo.drifts:ppo_clip", "it is for drift; expected a func"),
        ("meta.drift=metaevo.losses:square", "it is for value_loss; expected a func"),
        ("meta.value_loss=metaevo.losses:td_square", "it is for td_loss; expected a f"),
        ("meta.optimizer=optax:adam", "meta.optimizer=adam: expected an optax trans"),
        ("env=CartPole-v1", "Did you mean gymnax/CartPole-v1?"),
        ("env=cartpole", "Did you mean gymnax/CartPole-v1?"),
        ("env=Breakout", "Did you mean gymnax/Breakout-MinAtar?"),
        ("env=maze", "Did you mean grid/maze?"),
        ("env=gymnasium/CartPole-v1", "Did you mean gymnax/CartPole-v1?"),
        ("env=Gymnax/CartPole-v1", "Did you mean gymnax/CartPole-v1?"),
        ("env=/CartPole-v1", "Did you mean gymnax/CartPole-v1?"),
        ("env=gymnax/HalfCheetah-v4", "Did you mean brax/halfcheetah?"),
        ("env=gymnax/", "expected one of Acrobot-v1, Asterix-MinAtar, "),
        ("env=brax/", "expected one of ant, fast, halfcheetah, "),
        ("env=", "Try: metaevo list environments"),
        ("env=sparse/gymnax/CartPol-v1", "env='sparse/gymnax/CartPol-v1': expected"),
        ("env=no_module:f", "No module named 'no_module'; expected package.module:f"),
        ("env=:", "env=':'"),
        ("env=metaevo.envs:make", "expected a function without arguments"),
        ("run.held_out_tasks=", "expected a list of texts, [A,B]"),
    ],
)
def test_a_wrong_input_is_one_line_with_the_remedy(argument, remedy):
    with pytest.raises(ConfigError) as error:
        start(argument)
    message = str(error.value)
    assert remedy in message
    assert "\n" not in message


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs and artifacts as they are found, made without training."""
    folder = tmp_path_factory.mktemp("wrong")
    zoo = verified.ZOO / "value_loss"
    shutil.copytree(zoo, folder / "artifact")
    for name in ("unfinished", "finished", "truncated"):
        (folder / name).mkdir()
        run_directory.create_manifest(
            folder / name,
            "ppo_value_loss",
            RunConfig(),
            Settings({}),
            4,
            "cpu",
            [],
        )
    shutil.copytree(zoo, folder / "finished" / "solution")
    manifest = folder / "truncated" / "manifest.json"
    manifest.write_text(manifest.read_text()[:200])
    (folder / "half").mkdir()
    shutil.copy(zoo / "manifest.json", folder / "half")
    (folder / "files").mkdir()
    (folder / "files" / "notes.txt").touch()
    (folder / "evolve.py").write_text("def serch(): pass\n")
    return folder


@pytest.fixture
def command(folder, monkeypatch, capsys):
    """Run a command line in the folder; return exit code and stderr."""

    def accepted(evaluator, proposal):
        raise AssertionError("accepted: it would compile now")

    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr(chunking, "needed", accepted)
    monkeypatch.setattr(chunking, "available", lambda device: 8 << 30)

    def run(line):
        monkeypatch.setattr(sys, "argv", ["metaevo", *shlex.split(line)])
        with pytest.raises(SystemExit) as exit:
            main.command()
        return exit.value.code, capsys.readouterr().err

    return run


RUN = "run ppo_value_loss"
WRONG, REFUSED = 2, 4  # exit codes
LINES = [
    # numbers and lists
    (f"{RUN} population_size=1e9", WRONG, "population_size=1000000000: not enough mem"),
    (
        f"{RUN} inner.total_timesteps=1,000,000",
        WRONG,
        "inner.total_timesteps=1,000,000: expected an integer. Did you mean "
        "'inner.total_timesteps=1000000'?",
    ),
    (f"{RUN} inner.total_timesteps=1M", WRONG, "1M: expected an integer. Did you mean"),
    (f"{RUN} sigma=0,5", WRONG, "sigma=0,5: expected a number. Did you mean 'sigma=0."),
    (f"{RUN} run.max_seconds=1h", WRONG, "Did you mean 'run.max_seconds=3600'?"),
    (f"{RUN} inner.features=[64 64]", WRONG, "list of integers, such as [64,64]"),
    (f"{RUN} inner.features=64x64", WRONG, "list of integers, such as [64,64]"),
    (f"{RUN} inner.anneal_lr=T", WRONG, "inner.anneal_lr=T: expected true or false"),
    (f"{RUN} run.seed=abc", WRONG, "run.seed=abc: expected an integer"),
    (f"{RUN} run.seeds=0", WRONG, "run.seeds=0 must be >= 1"),
    (f"{RUN} num_seeds=0", WRONG, "num_seeds=0 must be at least 1"),
    (f"{RUN} num_generations=-5", WRONG, "num_generations=-5 must be at least 1"),
    (f"{RUN} inner.total_timesteps=100", WRONG, "give at least 4096 or lower"),
    (f"{RUN} run.wandb=on", WRONG, "one of auto, offline, online, disabled"),
    (f"{RUN} run.devices=99", WRONG, "run.devices=99: there are "),
    # notation of arguments
    (f"{RUN} population_size = 8", WRONG, "here population_size=8"),
    (f"{RUN} population_size= 8", WRONG, "expected an integer; key=value has no space"),
    (f"{RUN} population_size =8", WRONG, "here population_size=8"),
    (f"{RUN} --population_size 8", WRONG, "here population_size=8"),
    (f"{RUN} --seed 3", WRONG, "here run.seed=3"),
    (f"{RUN} population_size==8", WRONG, "Did you mean 'population_size=8'?"),
    (f"{RUN} sigma=1,hidden=2", WRONG, "each key=value as an argument of its own"),
    (f"{RUN} --dryrun", WRONG, "unknown flag '--dryrun'. Did you mean '--dry-run'?"),
    # names
    ("run ppo_value_loss.py", WRONG, "no such file. Did you mean 'ppo_value_loss'?"),
    ("run ppo", WRONG, "no search 'ppo'. Did you mean 'metaevo train ppo'?"),
    ("run unfinished", WRONG, "Did you mean 'metaevo resume unfinished'?"),
    ("run evolve", WRONG, "no search 'evolve'. Did you mean 'evolve.py'?"),
    ("run evolve.py", WRONG, "no function 'search'. Did you mean 'serch'?"),
    ("run nowhere.py", WRONG, "nowhere.py: no such file"),
    ("train PPO", WRONG, "no algorithm 'PPO'. Did you mean 'ppo'?"),
    ("train ppo_value_loss", WRONG, "Did you mean 'metaevo run ppo_value_loss'?"),
    ("train ppo env=gymnax/Cartpole-v1", WRONG, "Did you mean gymnax/CartPole-v1?"),
    ("train dqn env=gymnax/Pendulum-v1", WRONG, "needs discrete actions; see td3, sac"),
    ("version", WRONG, "unknown command 'version'. Did you mean '--version'?"),
    ("list zooo", WRONG, "Did you mean 'zoo'?"),
    # runs and artifacts
    (f"{RUN} run.directory=files", WRONG, "holds notes.txt, and no run"),
    (f"{RUN} run.directory=files/notes.txt", WRONG, "give another directory"),
    (f"{RUN} run.directory=artifact", WRONG, "and no run (no manifest.json of one)"),
    (f"{RUN} run.start_from=nowhere", WRONG, "run.start_from=nowhere: no artifact he"),
    (f"{RUN} run.start_from=unfinished", WRONG, "metaevo resume unfinished"),
    (f"{RUN} run.start_from=zoo:potental", WRONG, "Did you mean zoo:potential?"),
    (f"{RUN} meta.value_loss=zoo:potential", WRONG, "no slot 'value_loss', but reward"),
    ("resume nowhere", WRONG, "nowhere: no run here (no manifest.json); give the dir"),
    ("resume artifact", WRONG, "artifact: an artifact, and no run; give the directory"),
    ("resume finished/solution", WRONG, "an artifact, and no run; give finished"),
    ("play zoo:potential", WRONG, "zoo:potential: an artifact, and no run"),
    ("play finished", WRONG, "run.held_out_seeds of 2 or more"),
    ("report finished/report/index.html", WRONG, "no run here (no manifest.json); giv"),
    ("distill unfinished", WRONG, "finish it with: metaevo resume unfinished"),
    ("compare unfinished", WRONG, "finish it with: metaevo resume unfinished"),
    ("compare finished seeds=2", WRONG, "seeds=2 must be at least 3"),
    ("export zoo:potential to=pytorch", WRONG, "one of torch, jax, numpy, stablehlo,"),
    ("export zoo:potential --to torch", WRONG, "here to=torch"),
    ("export zoo:potential slot=value_loss", WRONG, "slot=value_loss: expected one of"),
    ("export zoo:potential out=files", WRONG, "out=files: cannot be written: Is a di"),
    ("verify nowhere", WRONG, "nowhere: neither a run nor an artifact here"),
    # files that are refused
    ("export nowhere", REFUSED, "nowhere: no artifact here (no manifest.json)"),
    ("export potential", REFUSED, "Did you mean zoo:potential?"),
    ("export zoo:potental", REFUSED, "Did you mean zoo:potential?"),
    ("export unfinished", REFUSED, "no artifact yet (no solution/); finish it with:"),
    ("export artifact/manifest.json", REFUSED, "the folder of one, here artifact"),
    ("export half", REFUSED, "half: arrays.safetensors is missing; copy the whole"),
    ("export truncated", REFUSED, "manifest.json is damaged: Expecting value"),
    (f"{RUN} run.directory=truncated", REFUSED, "is damaged: Expecting value"),
    ("resume truncated", REFUSED, "restore it from a copy, or give another directory"),
]


@pytest.mark.parametrize(("line", "code", "remedy"), LINES)
def test_a_wrong_command_line_ends_with_its_code_and_one_line(
    line, code, remedy, command
):
    ended, shown = command(line)
    (message,) = shown.splitlines()
    assert ended == code, message
    assert message.startswith("error: ")
    assert remedy in message
    assert message.count("is damaged") <= 1


@pytest.mark.parametrize(
    ("line", "code"),
    [
        *[(f"{name} runs", WRONG) for name in ("report", "resume", "play", "compare")],
        *[(f"{name} runs", WRONG) for name in ("wandb-push", "distill", "verify")],
        ("rerun runs generation=0 member=0", WRONG),
        ("export runs", REFUSED),
        (f"{RUN} run.start_from=runs", WRONG),
    ],
)
def test_the_folder_of_several_runs_lists_them(line, code, command, folder):
    for name in ("first", "demo/seed0-1", "demo/seed1-1", "demo/seed2-1", "z"):
        run = folder / "runs" / name
        if not run.exists():
            run.mkdir(parents=True)
            run_directory.create_manifest(
                run, "x", RunConfig(), Settings({}), 4, "cpu", []
            )
            (run / "wandb").mkdir()
            (run / "wandb" / "latest-run").symlink_to(".")
    ended, shown = command(line)
    assert ended == code
    (message,) = shown.splitlines()
    assert message.startswith("error: ")
    assert (
        "; runs holds 5 runs: runs/demo/seed0-1, runs/demo/seed1-1, runs/demo/seed2-1, "
        "runs/first and 1 more; give one of them" in message
    )
    assert "remove it" not in message


UNFIT = [
    ("run ppo_pbt run.evaluator=ray", "its agents live on from generation to"),
    (f"{RUN} run.stop=rturn>=1", "no metric 'rturn'. Did you mean 'return'?"),
    (f"{RUN} run.start_from=nowhere", "run.start_from=nowhere: no artifact here"),
    (f"{RUN} run.devices=99", "run.devices=99: there are "),
    (f"{RUN} run.held_out_tasks=gymnax/CartPole-v1", "run.held_out_tasks"),
    (f"{RUN} meta.gamma=1.5", "meta.gamma=1.5 must be in [0, 1]"),
    (f"{RUN} sigma=-1", "sigma=-1.0 must be positive and finite"),
    (f"{RUN} inner.total_timesteps=100", "give at least 4096 or lower"),
    ("train ppo run.seeds=2", "other seeds are num_seeds=2"),
    ("train ppo meta.gamma=1.5", "meta.gamma=1.5 must be in [0, 1]"),
]


@pytest.mark.parametrize("flag", ["", "--dry-run", "--cfg", "--cfg-diff"])
@pytest.mark.parametrize(("line", "remedy"), UNFIT)
def test_dry_run_and_cfg_refuse_what_the_run_refuses(line, remedy, flag, command):
    code, shown = command(f"{line} {flag}")
    assert code == WRONG
    (message,) = shown.splitlines()
    assert remedy in message


def test_a_dry_run_refuses_a_directory_that_holds_another_run(command, folder):
    for key in ("run.directory=unfinished", "run.directory=files"):
        code, shown = command(f"{RUN} {key} --dry-run")
        assert code == WRONG
        assert "holds" in shown
    code, shown = command(f"{RUN} run.seeds=2 run.directory=unfinished --dry-run")
    assert code == WRONG
    assert "unfinished holds " in shown


def test_a_package_file_that_hides_the_installed_searches_is_named(
    command, tmp_path, monkeypatch
):
    file = tmp_path / "searches" / "__init__.py"
    file.parent.mkdir()
    file.touch()
    spec = importlib.util.spec_from_file_location("searches", file)
    monkeypatch.setitem(sys.modules, "searches", importlib.util.module_from_spec(spec))
    code, shown = command("run ppo_value_loss")
    assert code == WRONG
    assert f"{file} hides those that are installed: remove it" in shown


def test_other_settings_in_a_directory_are_the_keys_that_were_given(command, folder):
    search = importlib.import_module("searches.ppo_value_loss").search
    given = config.parse(search, ["population_size=8"])
    del given["run"]
    made = config.call(search, given)
    values, defaults = config.settings(search, given)
    values = {**values, "search": identity.identity(made)}
    settings = Settings(values, defaults)
    (folder / "other").mkdir()
    run_directory.create_manifest(
        folder / "other", "ppo_value_loss", RunConfig(), settings, 4, "cpu", []
    )
    code, shown = command(f"{RUN} run.directory=other env=gymnax/Acrobot-v1")
    assert code == WRONG
    assert shown == (
        "error: other holds a run with other settings: env: gymnax/CartPole-v1 -> "
        "gymnax/Acrobot-v1; population_size: 8 -> 64. Give another run.directory\n"
    )
    code, shown = command("run ppo_drift run.directory=other")
    assert shown == (
        "error: other holds a run with other settings: search: ppo_value_loss -> "
        "ppo_drift. Give another run.directory\n"
    )


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ("features=[0]", "Did you mean 'shaper.features' or 'inner.features'?"),
        ("shaper.num_segments=0", "shaper.num_segments=0 must be >= 1"),
        ("shaper.features=[0]", "shaper.features=(0,): 1 to 8 layers"),
        ("shaper.activation=tahn", "shaper.activation='tahn'"),
        ("inner.num_segments=7", "does not divide the learner's, inner.num_segments=7"),
    ],
)
def test_the_key_of_a_second_config_is_named(argument, remedy):
    with pytest.raises(ConfigError) as error:
        start(argument, name="mfos_coin")
    assert remedy in str(error.value)


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ("coefficients=lambda t: 0.3", "expected a list of numbers, such as [0.5,1]"),
        ("coefficients=[[1]]", "expected a list of numbers"),
        ("coefficients=[0.3,nan]", "expected a list of numbers"),
        ("coefficients=[0.3,x]", "expected a list of numbers"),
        ("inner.features=[{a: 1}]", "expected a list of integers"),
    ],
)
def test_a_list_holds_numbers_alone(argument, remedy):
    with pytest.raises(ConfigError) as error:
        start(argument, name="td3_dvd")
    assert str(error.value).startswith(f"{argument}: {remedy}")
    assert start("coefficients=0.3", name="td3_dvd")["coefficients"] == (0.3,)


@pytest.mark.parametrize(
    ("argument", "key", "value"),
    [
        ("inner.total_timesteps=1e6", "inner.total_timesteps", 1_000_000),
        ("inner.total_timesteps=65536.0", "inner.total_timesteps", 65_536),
        ("population_size=1E2", "population_size", 100),
        ("run.seed=4294967295", "run.seed", (1 << 32) - 1),
        ("inner.features=64,32", "inner.features", (64, 32)),
        ("inner.features=(64, 32)", "inner.features", (64, 32)),
        ("inner.features={64,32}", "inner.features", (64, 32)),
        ("inner.features=64", "inner.features", (64,)),
        ("inner.features=[]", "inner.features", ()),
        ("run.directory=None", "run.directory", None),
        ("run.devices=None", "run.devices", None),
        ("run.held_out_tasks=a/b,c/d", "run.held_out_tasks", ("a/b", "c/d")),
        ("meta.advantage=null", "meta.advantage", None),
    ],
)
def test_values_may_be_typed_as_people_type_them(argument, key, value):
    search = importlib.import_module("searches.ppo_value_loss").search
    given = config.parse(search, [argument])
    for part in key.split("."):
        given = given[part] if isinstance(given, dict) else getattr(given, part)
    assert given == value
    assert type(given) is type(value)


def test_a_setting_that_wandb_adds_to_a_requeued_run_is_ignored(capsys):
    from searches import ppo_value_loss

    argv = ["num_generations=3", "_wandb={'sweep': {}}", "--cfg-diff"]
    program._run(ppo_value_loss.search, argv, lambda: False)
    assert capsys.readouterr().out == "num_generations=3\n"


def test_a_function_that_returns_no_search_is_refused():
    with pytest.raises(ConfigError, match=r"expected a metaevo\.Search.*got 3"):
        checks.check(config.call(lambda num_generations=3: num_generations, {}))


def test_a_list_of_another_kind_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'searches'"):
        listing.text("searchs")


def test_a_function_of_another_kind_is_refused_in_a_space_and_for_a_number():
    loop = ppo.make(envs.make("gymnax/CartPole-v1"))
    space = spaces.replace(value_loss=losses.td_network())
    strategy = open_es(space, 4, 0.1, optax.adam(0.1))
    search = metaevo.Search(loop, space, strategy, 1, fitness.area_under_curve)
    with pytest.raises(ConfigError, match=r"meta\.value_loss: it is for td_loss"):
        checks.check(search)
    with pytest.raises(ConfigError, match=r"lr=square.*a function of \(context\)"):
        ppo.make(loop.env, meta=ppo.Meta(lr=losses.square))


LOSSES = {
    "mean": (
        lambda v, t, old, context: ((v - t) ** 2).mean(),
        "gives one number for a who",
    ),
    "outer": (lambda v, t, old, context: (v[:, None] - t) ** 2, r"gives \[3, 3\] for"),
}


@pytest.mark.parametrize(("loss", "message"), LOSSES.values(), ids=LOSSES)
def test_a_loss_of_other_values_than_one_for_each_element_is_refused(loss, message):
    made = ppo.make(envs.make("gymnax/CartPole-v1"), meta=ppo.Meta(value_loss=loss))
    with pytest.raises(ConfigError, match=f"meta.value_loss=<lambda>: it {message}"):
        metaevo.train(made, 1)


@pytest.mark.parametrize(
    "loss",
    [
        lambda v, t, old, context: 0.0,
        lambda v, t, old, context: jnp.zeros(()),
        lambda v, t, old, context: jnp.float32(0.1) * context.stats["any"],
        lambda v, t, old, context: context.stats["any"] * (v - t) ** 2,
        lambda v, t, old, context: (v - t) ** 2 / context.return_std,
        lambda v, t, old, context: 1 / 0,  # is said where it is used
    ],
)
def test_losses_of_one_value_for_each_element_are_taken(loss):
    made = ppo.make(envs.make("gymnax/CartPole-v1"), meta=ppo.Meta(value_loss=loss))
    elements.check(made.meta)


@pytest.mark.parametrize("rate", [0.0, optax.linear_schedule(0.0, 0.1, 10)])
def test_a_learning_rate_may_be_0_at_first(rate):
    space = spaces.replace(value_loss=losses.residual_network())
    strategy = open_es(space, 4, 0.1, optax.adamw(rate))
    loop = ppo.make(envs.make("gymnax/CartPole-v1"))
    checks.check(metaevo.Search(loop, space, strategy, 1, fitness.area_under_curve))
