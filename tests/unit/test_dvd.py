"""DvD's strategy: what its bandit learns, and that members live on."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from climbing import compiled

from inner_loops import td3_shared
from metaevo import spaces
from metaevo.errors import ConfigError
from metaevo.types import Space
from searches import td3_dvd
from strategies.dvd import SLOT, dvd

SPACE = spaces.tune(diversity_coef=spaces.linear())


def lived(strategy, function, num_generations, key=0):
    """Coefficients of all generations; `function(coefficient, generation) -> mean`."""
    strategy = compiled(strategy)
    state, chosen = strategy.init(jax.random.key(key)), []
    for i in range(num_generations):
        role = jax.random.fold_in(jax.random.key(key), i)
        proposal, state = strategy.ask(role, state)
        coefficients = np.asarray(proposal.params[SLOT])
        assert len(set(coefficients.tolist())) == 1  # the same for all members
        chosen.append(float(coefficients[0]))
        fitness = np.float32(function(chosen[-1], i) + np.array([-1.0, 0.0, 1.0]))
        state = strategy.tell(role, state, proposal, fitness)
    return state, np.array(chosen)


def asked(strategy):
    """The first proposal."""
    key = jax.random.key(0)
    return jax.jit(strategy.ask)(key, strategy.init(key))[0]


def test_members_are_born_once_and_live_on():
    strategy = compiled(dvd(SPACE, 3))
    state = strategy.init(jax.random.key(0))
    for i in range(3):
        proposal, state = strategy.ask(jax.random.key(i), state)
        assert proposal.parents.tolist() == ([-1] * 3 if i == 0 else [0, 1, 2])
        state = strategy.tell(jax.random.key(i), state, proposal, np.zeros(3))
    assert strategy.persistent_agents


def test_two_members_are_a_population():
    assert asked(dvd(SPACE, 2)).params[SLOT].shape == (2,)


@pytest.mark.parametrize("good", [0.0, 0.5])
def test_the_bandit_finds_the_arm_that_pays(good):
    """The mean rises in generations with one arm and falls in those with the other."""
    level = [0.0]

    def function(coefficient, generation):
        level[0] += 1.0 if coefficient == good else -1e-3
        return level[0]

    state, chosen = lived(dvd(SPACE, 3, (0.0, 0.5)), function, 100)
    assert (chosen[50:] == good).mean() > 0.9
    assert set(chosen[:50]) == {0.0, 0.5}
    strategy = dvd(SPACE, 3, (0.0, 0.5))
    assert strategy.solution(state)[SLOT] == good


def test_a_success_exceeds_each_of_the_last_few():
    strategy = compiled(dvd(SPACE, 3, (0.5,), memory=2))
    state = strategy.init(jax.random.key(0))
    counts = []
    for i, mean in enumerate([5.0, 6.0, 5.5, 5.7, 5.8, 5.8]):
        proposal, state = strategy.ask(jax.random.key(i), state)
        state = strategy.tell(jax.random.key(i), state, proposal, np.full(3, mean))
        counts.append((int(state.successes[0]), int(state.failures[0])))
    # The first has nothing to exceed; 5.7 not the 6 before last, 5.8 not itself.
    assert counts == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 2), (2, 3)]


def test_equal_means_are_no_success():
    state, _ = lived(dvd(SPACE, 3), lambda coefficient, generation: 0.0, 20)
    assert state.successes.sum() == 0
    assert state.failures.sum() == 19


def test_thompson_sampling_draws_from_the_posterior():
    """Arms with 3 of 4 and 1 of 4: the first is pulled as often as Beta(4, 2) exceeds
    Beta(2, 4)."""
    strategy = dvd(SPACE, 3, (0.0, 0.5))
    state = strategy.init(jax.random.key(0))._replace(
        successes=jnp.array([3.0, 1.0]), failures=jnp.array([1.0, 3.0])
    )
    keys = jax.random.split(jax.random.key(1), 20_000)
    arms = jax.jit(jax.vmap(lambda key: strategy.ask(key, state)[1].arm))(keys)
    exact = np.random.default_rng(0)
    first, second = exact.beta(4, 2, 10**6), exact.beta(2, 4, 10**6)
    assert (arms == 0).mean() == pytest.approx((first > second).mean(), abs=0.01)


def test_a_schedule_in_place_of_the_bandit():
    schedule = optax.linear_schedule(1.0, 0.0, 4)
    state, chosen = lived(dvd(SPACE, 3, schedule), lambda *_: 0.0, 6)
    np.testing.assert_allclose(chosen, [1.0, 0.75, 0.5, 0.25, 0.0, 0.0])
    assert dvd(SPACE, 3, schedule).solution(state)[SLOT] == 0.0


def test_coefficients_one_after_the_other():
    strategy = dvd(SPACE, 3, (0.0, 0.3, 0.5), boundaries=(1.5, 4))
    state, chosen = lived(strategy, lambda *_: 0.0, 6)
    np.testing.assert_allclose(chosen, [0.0, 0.0, 0.3, 0.3, 0.5, 0.5])
    assert strategy.solution(state)[SLOT] == np.float32(0.5)


def test_fastpbrls_schedule_is_a_value_of_the_search():
    """In frames of all members, with those of the warm-up."""
    inner = td3_shared.Config(
        200_000, learning_starts=5_000, num_segments=39, policy_delay=1
    )
    search = td3_dvd.search(
        coefficients=(0.0, 0.3, 0.5, 0.2),
        boundaries=(50_000, 300_000, 700_000),
        inner=inner,
    )
    state = search.strategy.init(jax.random.key(0))
    ask = jax.jit(search.strategy.ask)
    for generation, expected in ((0, 0.0), (1, 0.3), (10, 0.3), (11, 0.5), (27, 0.2)):
        told = state._replace(generation=np.int32(generation))
        proposal, _ = ask(jax.random.key(0), told)
        assert proposal.params[SLOT][0] == np.float32(expected)


def test_what_else_evolves_stays():
    both = spaces.combine(SPACE, spaces.tune(actor_lr=spaces.log()))
    params = asked(dvd(both, 3, (0.5,))).params
    assert params["actor_lr"].tolist() == [0.0] * 3
    assert params[SLOT].tolist() == [0.5] * 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"population_size": 1}, "population_size=1: expected 2 or more"),
        ({"coefficients": ()}, r"coefficients=\(\): expected at least one"),
        ({"coefficients": (0.5, -0.1)}, "numbers of 0 or more"),
        ({"memory": 0}, "memory=0: expected 1 or more"),
        ({"boundaries": (3,), "coefficients": (1.0,)}, "expected 0 for 1"),
        ({"boundaries": (3, 2), "coefficients": (0, 1, 0)}, "increasing"),
        ({"space": Space(lambda key: jnp.zeros(3), None)}, "the slot diversity_coef"),
    ],
)
def test_wrong_options_are_refused(change, message):
    options = {"space": SPACE, "population_size": 3} | change
    with pytest.raises(ConfigError, match=message):
        dvd(**options)
