"""Wrong inputs, as people type them: one line that names the remedy, and soon.

Everything is done that a search does before it compiles, in this process.
"""

import importlib

import optax
import pytest

import metaevo
from inner_loops import ppo
from metaevo import envs, fitness, losses, spaces
from metaevo.cli import config, listing, program
from metaevo.engine import checks
from metaevo.errors import ConfigError
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
        ("sigma=nan", "sigma=nan: expected a number"),
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


@pytest.mark.parametrize("rate", [0.0, optax.linear_schedule(0.0, 0.1, 10)])
def test_a_learning_rate_may_be_0_at_first(rate):
    space = spaces.replace(value_loss=losses.residual_network())
    strategy = open_es(space, 4, 0.1, optax.adamw(rate))
    loop = ppo.make(envs.make("gymnax/CartPole-v1"))
    checks.check(metaevo.Search(loop, space, strategy, 1, fitness.area_under_curve))
