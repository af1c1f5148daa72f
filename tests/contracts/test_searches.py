"""The searches of the folder: each fits together."""

import functools
import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaevo import losses, population
from metaevo.cli import config, listing
from metaevo.cli import strategies as cli
from metaevo.engine import checks, costs
from metaevo.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "searches"
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


def load(name):
    return importlib.import_module(f"searches.{name}").search


@functools.cache
def made(name):
    return load(name)()


@pytest.mark.parametrize("name", NAMES)
def test_every_search_passes_the_checks_as_it_is(name):
    shapes = checks.check(made(name))
    assert population.size(shapes.params) >= 2


def test_a_start_that_is_the_hand_made_algorithm_is_no_candidate():
    """Numbers at their defaults, and a function as the loop has it: PPO has the clip
    and the clipped square, where some start as DPO and as the square."""
    newborn = [x for x in NAMES if not made(x).strategy.persistent_agents]
    assert {x for x in newborn if not costs.compares_start(made(x))} == {
        *("alphazero_search_parameters", "apex_priority", "dqn_td_loss"),
        *("dqn_td_loss_for_many", "impala_vtrace", "ppo_dpo_constants"),
        *("ppo_hyperparameters", "ppo_optimizer", "ppo_reward_potential"),
        *("qtopt_cem", "r2d2_rescale", "sac_hyperparameters", "td3_td_loss"),
    }
    ours = made("ppo_hyperparameters")
    loop = ours.tasks[0]._replace(hand_made=made("ppo_value_loss").tasks[0])
    assert costs.compares_start(ours._replace(inner_loop=loop))
    with pytest.raises(ConfigError, match="environment, segments and their frames"):
        checks.check(ours._replace(inner_loop=loop))


# --- every strategy in every search ---------------------------------------------------

STRATEGIES = list(listing.modules("strategies"))
ONE_FOR_ALL = ("td3_cem_rl", "td3_dvd", "mfos_self_play")
"""Searches whose strategy is a part of them."""
OF_RANGES = {"asha", "grid", "pb2", "pbt", "random_search"}
OF_PROGRAMS = {"regularized_evolution"}
OF_OWN_SLOTS = {"cem_rl", "dvd", "self_play"}
GIVEN = {"num_points": 2, "sigma": 0.3, "learning_rate": 0.1, "population_size": 8}


def with_strategy(name, strategy):
    """The search with another strategy, its keys as they are, and what it lacks.

    The search itself is made once for all strategies.
    """
    search = functools.wraps(load(name))(lambda **given: made(name))
    keyed = cli.in_search(search, {"strategy": strategy})
    given = config.defaults(keyed) | {"strategy": strategy}
    lives = {"horizon": made(name).tasks[0].num_segments, **GIVEN}
    for key in keyed.further_keys.values():
        argument = key.name.rpartition(".")[2]
        if key.required or argument == "num_points":
            given[key.name] = lives[argument]
    return keyed(**given)


def tried(name, strategy):
    """The search with another strategy, or what is said instead."""
    found = []
    try:
        # Traced, so that no operation of a strategy's start compiles.
        jax.eval_shape(lambda: found.append(with_strategy(name, strategy)))
    except ConfigError as error:
        return str(error)
    return found[0]


@pytest.mark.parametrize("name", NAMES)
def test_each_strategy_fits_or_is_refused_in_one_line(name):
    drawn = all("prior" in op for op in made(name).space.spec.values())
    found = {strategy: tried(name, strategy) for strategy in STRATEGIES}
    refused = OF_OWN_SLOTS if drawn else OF_OWN_SLOTS | OF_RANGES
    refused |= OF_PROGRAMS
    if made(name).space.programs is not None:
        refused = set(STRATEGIES) - OF_PROGRAMS
    refused = set(STRATEGIES) if name in ONE_FOR_ALL else refused
    assert {x for x, search in found.items() if isinstance(search, str)} == refused
    for strategy, search in found.items():
        if strategy in refused:
            assert search.startswith(f"strategy={strategy}: ")
            assert "\n" not in search
        else:
            used = search.strategy.settings["strategy"]
            assert used == f"strategies.{strategy}:{strategy}"
            lives_on = strategy in ("asha", "pbt", "pb2", "pes")
            assert search.segments_per_generation == (1 if lives_on else None)


def test_a_search_with_each_strategy_that_fits_passes_the_checks():
    for strategy in sorted(set(STRATEGIES) - OF_OWN_SLOTS - OF_PROGRAMS):
        of_ranges = strategy in OF_RANGES
        search = with_strategy("sac_pbt" if of_ranges else "dqn_td_loss", strategy)
        checks.check(search)


# --- the learned loss of a temporal difference ----------------------------------------

DELTA = jnp.linspace(-40, 40, 81)
Q = jnp.linspace(-5, 5, 81)


def test_dqnreg_is_a_member_of_the_family():
    """δ² + 0.1 Q, the positive control, up to its factor of 2."""
    learned = losses.td_network("td_square")
    params = learned.init(jax.random.key(0)) | {"tilt": jnp.float32(0.05)}
    found = 2 * learned.bind(params)(DELTA, Q, DELTA + Q)
    np.testing.assert_allclose(found, DELTA**2 + 0.1 * Q, rtol=1e-5, atol=1e-5)
