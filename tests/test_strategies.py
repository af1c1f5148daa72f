"""The contract of a strategy, over every strategy in the folder."""

import importlib
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import strategies
from metaevo.types import ConfigError, Space
from strategies import open_es

# How the contract tests make each: (space, population size) -> Strategy.
MAKE = {
    "open_es": lambda space, size: open_es.open_es(space, size, 0.3, optax.adam(0.1))
}
NAMES = [m.name for m in pkgutil.iter_modules(strategies.__path__) if m.name[0] != "_"]
SIZE = 32


def space(dim=4) -> Space:
    """Params that are a nested pytree, starting at 2."""
    return Space(
        init=lambda key: {
            "a": jnp.full((dim,), 2.0),
            "b": {"c": jnp.full((2, 2), 2.0)},
        },
        bind=lambda params, meta: meta,
    )


def flat(population):
    leaves = jax.tree.leaves(population)
    return jnp.concatenate([x.reshape(x.shape[0], -1) for x in leaves], 1)


def sphere(population):
    return -(flat(population) ** 2).sum(1)


def ellipsoid(population):
    x = flat(population)
    rotation = jnp.linalg.qr(jax.random.normal(jax.random.key(5), (8, 8)))[0]
    return -((x @ rotation) ** 2 * jnp.logspace(0, 1, 8)).sum(1)


def climb(strategy, function, num_generations, key=0):
    @jax.jit
    def generation(state, key):
        ask_key, tell_key = jax.random.split(key)
        proposal, state = strategy.ask(ask_key, state)
        fitness = function(proposal.params)
        return strategy.tell(tell_key, state, proposal, fitness), fitness.mean()

    key = jax.random.key(key)
    state = strategy.init(key)
    keys = jax.random.split(key, num_generations)
    return jax.lax.scan(generation, state, keys)


def test_every_strategy_in_the_folder_is_tested():
    assert sorted(MAKE) == sorted(NAMES)
    for name in NAMES:
        assert callable(getattr(importlib.import_module(f"strategies.{name}"), name))


@pytest.fixture(params=NAMES)
def strategy(request):
    return MAKE[request.param](space(), SIZE)


@pytest.mark.parametrize("function", [sphere, ellipsoid])
def test_climbs(strategy, function):
    state, means = climb(strategy, function, 150)
    one = jax.tree.map(lambda x: x[None], strategy.solution(state))
    start = jax.tree.map(lambda x: x[None], space().init(None))
    assert function(one)[0] > 0.02 * function(start)[0]
    assert means[-1] > means[0]


def test_ask_and_tell_are_pure(strategy):
    key = jax.random.key(0)
    state = strategy.init(key)
    results = []
    for _ in range(2):
        proposal, asked = strategy.ask(key, state)
        fitness = sphere(proposal.params)
        results.append((proposal, strategy.tell(key, asked, proposal, fitness)))
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(a, b)


def test_states_keep_their_types(strategy):
    """Rule 5: shapes, dtypes and weak types are the same after a generation."""
    key = jax.random.key(0)
    state = strategy.init(key)
    proposal, asked = strategy.ask(key, state)
    told = strategy.tell(key, asked, proposal, sphere(proposal.params))
    for x in jax.tree.leaves((state, asked, told, proposal)):
        assert not x.aval.weak_type
    types = [
        jax.tree.map(lambda x: (x.shape, x.dtype), s) for s in (state, asked, told)
    ]
    assert types[0] == types[1] == types[2]


def test_population_and_solution_have_the_shape_of_params(strategy):
    state = strategy.init(jax.random.key(0))
    proposal, _ = strategy.ask(jax.random.key(1), state)
    params = space().init(None)
    expected = jax.tree.map(lambda x: (SIZE, *x.shape), params)
    assert jax.tree.map(lambda x: x.shape, proposal.params) == expected
    solution = strategy.solution(state)
    assert jax.tree.map(jnp.shape, solution) == jax.tree.map(jnp.shape, params)
    np.testing.assert_allclose(solution["a"], 2.0)


def test_mirrored_strategies_say_so(strategy):
    state = strategy.init(jax.random.key(0))
    population = flat(strategy.ask(jax.random.key(1), state)[0].params)
    mean = flat(jax.tree.map(lambda x: x[None], strategy.solution(state)))
    half = SIZE // 2
    mirrored = np.allclose(
        population[:half] - mean, mean - population[half:], atol=1e-5
    )
    assert mirrored == strategy.mirrored


def test_rank_methods_are_invariant_under_monotone_maps(strategy):
    key = jax.random.key(0)
    proposal, state = strategy.ask(key, strategy.init(key))
    fitness = sphere(proposal.params)
    told = [
        strategy.solution(strategy.tell(key, state, proposal, f))
        for f in (fitness, 3 * fitness + 7, jnp.exp(fitness / 50))
    ]
    for other in told[1:]:
        for a, b in zip(*map(jax.tree.leaves, (told[0], other)), strict=True):
            np.testing.assert_array_equal(a, b)


def test_ties_and_equal_members_are_no_news(strategy):
    key = jax.random.key(0)
    proposal, state = strategy.ask(key, strategy.init(key))
    told = strategy.tell(key, state, proposal, jnp.zeros(SIZE))
    np.testing.assert_allclose(strategy.solution(told)["a"], 2.0, atol=1e-5)


def test_metrics_are_finite_scalars(strategy):
    state, _ = climb(strategy, sphere, 2)
    metrics = strategy.metrics(state)
    assert metrics
    for x in metrics.values():
        assert np.shape(x) == ()
        assert np.isfinite(x)


# --- OpenAI-ES ------------------------------------------------------------------------


def test_open_es_by_hand():
    """One step of plain gradient ascent against the paper's equation."""
    strategy = open_es.open_es(space(), 8, 0.3, optax.sgd(0.5))
    key = jax.random.key(0)
    proposal, state = strategy.ask(key, strategy.init(key))
    x, fitness = flat(proposal.params), sphere(proposal.params)
    noise = (x - 2.0) / 0.3
    ranks = np.argsort(np.argsort(fitness)) / 7 - 0.5
    step = 0.5 * (ranks @ noise) / (8 * 0.3)
    told = strategy.tell(key, state, proposal, fitness)
    solution = flat(jax.tree.map(lambda x: x[None], strategy.solution(told)))[0]
    np.testing.assert_allclose(solution, 2.0 + step, rtol=1e-4)
    assert strategy.metrics(told)["update_norm"] == pytest.approx(
        np.linalg.norm(step), rel=1e-4
    )


def test_open_es_gradient_points_uphill():
    """On f(x) = cᵀx, cosine with c at least 0.95 for P = 4096, D = 16."""
    c = jax.random.normal(jax.random.key(3), (16,))
    flat_space = Space(lambda key: jnp.zeros(16), lambda params, meta: meta)
    strategy = open_es.open_es(flat_space, 4096, 0.1, optax.sgd(1.0))
    key = jax.random.key(0)
    proposal, state = strategy.ask(key, strategy.init(key))
    told = strategy.tell(key, state, proposal, proposal.params @ c)
    step = strategy.solution(told)
    assert step @ c / jnp.linalg.norm(step) / jnp.linalg.norm(c) >= 0.95


def test_sigma_decays_from_its_first_generation():
    """evosax alone uses its schedule's first value twice."""
    strategy = open_es.open_es(space(), 8, 0.4, optax.sgd(0.1), sigma_decay=0.5)
    key, sigmas = jax.random.key(0), []
    state = strategy.init(key)
    for _ in range(3):
        proposal, state = strategy.ask(key, state)
        spread = flat(proposal.params)[0] - flat(proposal.params)[4]
        sigmas.append(float(jnp.linalg.norm(spread)))
        state = strategy.tell(key, state, proposal, sphere(proposal.params))
    np.testing.assert_allclose(
        np.array(sigmas) / sigmas[0], [1.0, 0.5, 0.25], rtol=1e-4
    )


def test_weight_decay_pulls_to_zero():
    """It is the optimizer's, and sees the mean."""
    strategy = open_es.open_es(space(), 64, 0.3, optax.adamw(0.1, weight_decay=0.5))
    state, _ = climb(strategy, lambda population: jnp.zeros(64), 5)
    assert (strategy.solution(state)["a"] < 1.9).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"population_size": 7}, "population_size=7.* use 8"),
        ({"population_size": 0}, "population_size=0.* use 2"),
        ({"sigma": 0.0}, r"sigma=0\.0 must be positive"),
        ({"shaping": "ranks"}, "centered_rank"),
    ],
)
def test_wrong_options_are_refused(change, message):
    options = {"population_size": 8, "sigma": 0.1, "optimizer": optax.sgd(1.0)} | change
    with pytest.raises(ConfigError, match=message):
        open_es.open_es(space(), **options)
