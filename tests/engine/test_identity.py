"""The identity of a search: by what a run directory knows the search that made it."""

import dataclasses
import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny_search
import toys
from runs import sign, write_short_reports

import metaevo
from inner_loops import opponents, partner, ppo
from metaevo import envs, fitness, losses, spaces
from metaevo.engine import identity, preparation
from metaevo.engine.loop import run
from metaevo.envs import goals, matrix
from metaevo.errors import ConfigError
from metaevo.rl import steering
from metaevo.storage import history, manifests, provenance, run_directory
from searches import ppo_pbt
from strategies.open_es import open_es
from strategies.pbt import pbt
from strategies.random_search import random_search


@dataclasses.dataclass(frozen=True)
class Config:
    num_steps: int = 4


def loop(env="CartPole-v1", config=Config(), **meta):
    """The toy, which says that it trains on an environment with a configuration."""
    made = toys.quadratic()
    env = envs.make(f"gymnax/{env}")
    return made._replace(env=env, config=config, meta=toys.Meta(**meta))


def strategy(population_size=4, sigma=0.5, lr=0.1, **options):
    return open_es(toys.space(), population_size, sigma, optax.adam(lr), **options)


def search(made=None, inner_loop=None, **options):
    options = {"num_generations": 1, "chunk_size": 2} | options
    return toys.search(made or strategy(), inner_loop or loop(), **options)


def started(directory, made, **options):
    config = metaevo.RunConfig(
        directory=str(directory), held_out_seeds=0, devices=1, wandb="disabled"
    )
    with pytest.MonkeyPatch.context() as patch:
        write_short_reports(patch)
        return run(made, config, "toy", **options)


COINS, CARTPOLE = envs.make("coin_game/3x3"), envs.make("gymnax/CartPole-v1")
SIZES = {"total_timesteps": 128, "num_envs": 4, "num_steps": 16, "num_segments": 1}
SLOW, FAST = ppo.Meta(lr=1e-5), ppo.Meta(lr=1e-2)
GOAL = goals.of(CARTPOLE)


def facing(meta=SLOW, **config):
    return partner.make(ppo.make(COINS, ppo.Config(**SIZES | config), meta))


def steered(meta=SLOW, goal=None):
    config = ppo.Config(**SIZES, message_size=2)
    return steering.steered(ppo.make(CARTPOLE, config, meta), goal)


def playing(game):
    return opponents.make(matrix.make(game))


def test_a_loop_is_told_by_the_learner_and_the_game_inside():
    for a, b in (
        (facing, lambda: facing(FAST)),
        (facing, lambda: facing(num_epochs=5)),
        (steered, lambda: steered(FAST)),
        (steered, lambda: steered(goal=GOAL._replace(units=(3.0,)))),
        (lambda: playing("prisoners_dilemma"), lambda: playing("matching_pennies")),
    ):
        first, again, other = (identity.plain(make()) for make in (a, a, b))
        assert json.loads(json.dumps(first)) == again  # plain data
        assert first != other


def test_the_goals_of_an_environment_are_the_default():
    assert identity.plain(steered()) == identity.plain(steered(goal=GOAL))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run made from Python, without settings."""
    directory = tmp_path_factory.mktemp("run")
    started(directory, search())
    return directory


CHANGED = {
    "env": (lambda: search(inner_loop=loop("Acrobot-v1")), r"task0\.env\.name"),
    "config": (lambda: search(inner_loop=loop(config=Config(8))), "config.num_steps"),
    "meta": (lambda: search(inner_loop=loop(lr=0.2)), r"meta\.lr: 0\.1 -> 0\.2"),
    "sigma": (lambda: search(strategy(sigma=0.4)), r"strategy\.sigma: 0\.5 -> 0\.4"),
    "optimizer": (lambda: search(strategy(lr=5.0)), r"strategy\.optimizer"),
    "default": (lambda: search(strategy(sigma_decay=0.9)), r"strategy\.sigma_decay"),
    "strategy": (lambda: search(random_search(toys.space(), 4)), r"strategy\.strategy"),
    "population": (lambda: search(strategy(8)), "population_size: 4 -> 8"),
    "fitness": (lambda: search(fitness=fitness.last_segments(2)), r"fitness\.name"),
    "aggregate": (lambda: search(aggregate=fitness.rank_sum), "aggregate"),
    "num_seeds": (lambda: search(num_seeds=2), "num_seeds: 1 -> 2"),
    "worlds": (lambda: search(common_random_numbers=False), "common_random_numbers"),
    "space": (
        lambda: search()._replace(space=spaces.tune(lr=spaces.log(2.0))),
        r"space\.slots\.lr\.scale: 1\.0 -> 2\.0",
    ),
}


def test_search_that_differs_in_one_thing_is_refused_from_python(finished):
    config = metaevo.RunConfig(directory=str(finished), held_out_seeds=0, devices=1)
    manifest = run_directory.read_manifest(finished)
    for make, key in CHANGED.values():
        prepared = preparation.prepare(make(), config)
        given = preparation.settings(prepared, config, manifests.Settings({}))
        with pytest.raises(ConfigError, match=f"other settings.*search.*{key}"):
            run_directory.check_same_run(finished, manifest, "toy", config, given)
    before = (finished / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"other settings.*search.*num_seeds"):
        started(finished, search(num_seeds=2))
    assert (finished / "metrics.jsonl").read_bytes() == before


def test_identity_of_the_same_search_made_again_is_equal(finished):
    made = identity.identity(search())
    assert made == identity.identity(search(num_generations=9))
    assert made == json.loads(json.dumps(made))
    kept = run_directory.read_manifest(finished)["identity"]["settings"]["search"]
    assert kept == made


def test_what_stands_at_its_default_is_no_part_of_what_a_search_is_known_by():
    values, known = (f(search()) for f in (identity.identity, identity.defaults))
    found = manifests.not_default(manifests.Settings(values, known))
    assert "num_seeds" not in found
    assert found["task0"].keys() >= {"env", "loop"}
    assert not found["task0"].keys() & {"config", "meta"}
    assert "sigma_decay" not in found["strategy"]
    assert found["strategy"]["sigma"] == 0.5
    made = search(strategy(sigma_decay=0.9), loop(config=Config(8), lr=0.2))
    values, known = (f(made) for f in (identity.identity, identity.defaults))
    found = manifests.not_default(manifests.Settings(values, known))
    assert found["task0"]["config"] == {"num_steps": 8}
    assert found["task0"]["meta"] == {"lr": 0.2}
    assert found["strategy"]["sigma_decay"] == 0.9


def test_defaults_of_a_learned_function_are_those_of_its_builder():
    learned = losses.residual_network("zero", (4,))
    made = search()._replace(space=spaces.replace(value_loss=learned))
    known = identity.defaults(made)["space"]["slots"]["value_loss"]
    assert known["features"] != [4]
    assert known.keys() <= learned.spec.keys() | {"temporal"}
    assert identity.defaults(search())["space"] == {"slots": {}}


def test_loops_of_two_algorithms_are_told_apart_where_all_they_share_is_equal():
    @dataclasses.dataclass(frozen=True)
    class Other(Config):
        num_more: int = 1

    Other.__module__ = "inner_loops.other"
    a, b = (
        manifests.Settings(f(made), identity.defaults(made))
        for made in (search(), search(inner_loop=loop(config=Other())))
        for f in (identity.identity,)
    )
    (found,) = manifests.differences(a, b)
    assert found.startswith("task0.loop: ['test_identity', 'toys'] -> ['other',")


def test_loop_without_a_config_is_known_by_what_it_closes_over():
    made = [
        identity.identity(search(inner_loop=toys.quadratic(dim=dim)))["task0"]
        for dim in (3, 3, 5)
    ]
    assert made[0] == made[1] != made[2]


def test_settings_of_a_strategy_name_every_argument():
    space = spaces.prior(lr=spaces.log_uniform(1e-3, 1.0))
    made = pbt(space, 4, factors=(0.5, 2.0))
    assert made.settings["strategy"] == "strategies.pbt:pbt"
    assert made.settings["factors"] == (0.5, 2.0)
    assert made.settings["resample"] == 0.25  # a default
    assert "space" not in made.settings
    assert made.with_space(space).settings == made.settings


def test_plain_describes_values_without_addresses():
    def outer(x):
        return lambda y: x * y

    assert identity.plain(outer(2.0))["values"] == [2.0]
    assert identity.plain(outer(2.0)) != identity.plain(outer(3.0))
    assert identity.plain(np.float32([1, 2])) == [1.0, 2.0]
    assert identity.plain(jax.random.key(3)) == [0, 3]
    assert identity.plain(np.nan) == "nan"
    large = identity.plain(jnp.arange(100.0))
    assert large.startswith("float32[100] ")
    assert large != identity.plain(jnp.arange(100.0) + 1)
    assert identity.plain(functools.partial(max, 3)) == {
        "function": "max",
        "values": [3],
    }
    assert identity.plain(object()) == "object"
    assert identity.plain(Config(7)) == {"num_steps": 7}
    learned = losses.residual_network("zero", (4,))
    assert "0x" not in json.dumps(identity.plain(learned))

    def recursive(x):
        return recursive(x)

    json.dumps(identity.plain(recursive))


# --- source files ---------------------------------------------------------------------


def test_sources_are_those_of_search_loop_and_strategy():
    files = identity.source_files(tiny_search.search(), tiny_search.__file__)
    made = provenance.digests(files)
    assert {
        "helpers/tiny_search.py",
        "helpers/toys.py",
        "strategies/open_es.py",
        "strategies/_evosax.py",
    } <= set(made)
    assert not any(name.startswith("metaevo/") for name in made)


def test_sources_have_the_frame_of_a_search():
    files = identity.source_files(ppo_pbt.search(), ppo_pbt.__file__)
    names = {file.name for file in files if file.parent.name == "searches"}
    assert {"ppo_pbt.py", "_pbt.py", "_frame.py"} <= names


def test_source_of_a_loop_is_found_behind_functions_of_others():
    inner = toys.quadratic()

    def wrapped(function):
        def call(*args):
            return function(*args)

        call.__module__ = "metaevo.rl.training"
        return call

    inner = inner._replace(init=wrapped(inner.init), train=wrapped(inner.train))
    assert "helpers/toys.py" in identity.sources(search(inner_loop=inner))


def test_changed_source_warns_and_goes_into_the_history(finished, tmp_path, capsys):
    directory = tmp_path / "run"
    shutil.copytree(finished, directory)
    manifest = run_directory.read_manifest(directory)
    manifest["sources"]["strategies/open_es.py"] = "another"
    run_directory.write_json_atomic(directory / "manifest.json", manifest)
    sign(directory)
    started(directory, search(num_generations=2))
    printed = capsys.readouterr().out
    warning = "strategies/open_es.py has changed since this run was started"
    assert printed.count("warning: ") == printed.count(f"warning: {warning}") == 1
    events = [line["event"] for line in history.read(directory)]
    ended = ["finished", "reported"]
    assert events == ["started", *ended, "started", warning, *ended]
