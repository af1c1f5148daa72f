"""The contract of a strategy, over every strategy in the folder."""

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys

import metaevo
import strategies
from metaevo import fitness as fitness_of
from metaevo import population, spaces
from metaevo.config import RunConfig
from metaevo.errors import ConfigError
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import InnerLoop, InnerState, Proposal, Search, Space
from strategies import (
    _evosax,
    _shaping,
    ars,
    cem_rl,
    cma_es,
    de,
    dvd,
    grid,
    learned_es,
    open_es,
    pb2,
    pbt,
    pes,
    pgpe,
    random_search,
    sep_cma_es,
    shared_seed_es,
    simple_ga,
    snes,
)

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


def members(params):
    """All of a population, [P, ...], computed if it is a rule."""
    return population.take(params, np.arange(population.size(params)))


def flat(params):
    leaves = jax.tree.leaves(members(params))
    return jnp.concatenate([x.reshape(x.shape[0], -1) for x in leaves], 1)


def sphere(population):
    return -(flat(population) ** 2).sum(1)


def ellipsoid(population):
    x = flat(population)
    rotation = jnp.linalg.qr(jax.random.normal(jax.random.key(5), (8, 8)))[0]
    return -((x @ rotation) ** 2 * jnp.logspace(0, 1, 8)[None]).sum(1)


TWOS = space().init(None)


class Case(NamedTuple):
    """How the contract tests make a strategy, and what they may ask of it.

    Attributes:
        make: `(space, population_size) -> Strategy`.
        space: of the params.
        start: params from which climbing counts.
        functions: to climb, [P, ...] -> [P]; the best value is 0.
        left: share of the start's value that may be left after `num_generations`.
        rank_based: only the order of the fitness counts; None: so it happens to be
            where scores repeat, as they do in these tests.
        starts: the first solution is `space.init`.
        stays: the solution does not move if all members are equal.
    """

    make: Callable
    space: Space = space()
    start: Any = TWOS
    functions: tuple[Callable, ...] = (sphere, ellipsoid)
    left: float = 0.02
    num_generations: int = 150
    rank_based: bool | None = True
    starts: bool = True
    stays: bool = True


# A box: strategies that draw in it come nearer, but do not converge.
IN_A_BOX = Case(
    make=None,
    space=spaces.prior(**{name: spaces.uniform(0.0, 1.0) for name in "abcde"}),
    start={name: jnp.float32(0.0) for name in "abcde"},
    functions=(lambda x: -((flat(x) - 0.9) ** 2).sum(1),),
    left=0.25,
    starts=False,
    stays=False,
)
MAKE = {
    "ars": Case(lambda s, n: ars.ars(s, n, 0.3, optax.adam(0.1)), rank_based=False),
    "cma_es": Case(lambda s, n: cma_es.cma_es(s, n, 0.3)),
    "de": Case(lambda s, n: de.de(s, n, 0.3)),
    "grid": IN_A_BOX._replace(make=lambda s, n: grid.grid(s, 2), rank_based=None),
    "learned_es": Case(lambda s, n: learned_es.learned_es(s, n, 0.3), rank_based=False),
    "open_es": Case(lambda s, n: open_es.open_es(s, n, 0.3, optax.adam(0.1))),
    # Its Gaussian process is dear; a small one does.
    "pb2": IN_A_BOX._replace(
        make=lambda s, n: pb2.pb2(s, n, window=2, num_candidates=64),
        num_generations=20,
        rank_based=False,
    ),
    "pbt": IN_A_BOX._replace(make=lambda s, n: pbt.pbt(s, n)),
    "pes": Case(lambda s, n: pes.pes(s, n, 0.3, optax.adam(0.1), 4), rank_based=False),
    "pgpe": Case(lambda s, n: pgpe.pgpe(s, n, 0.3, optax.adam(0.1))),
    "random_search": IN_A_BOX._replace(
        make=lambda s, n: random_search.random_search(s, n), rank_based=None
    ),
    "sep_cma_es": Case(lambda s, n: sep_cma_es.sep_cma_es(s, n, 0.3)),
    "shared_seed_es": Case(
        lambda s, n: shared_seed_es.shared_seed_es(s, n, 0.3, optax.adam(0.1))
    ),
    "simple_ga": Case(lambda s, n: simple_ga.simple_ga(s, n, 0.3, sigma_decay=0.98)),
    "snes": Case(lambda s, n: snes.snes(s, n, 0.3)),
}
# Actors, and `learn`, which the strategy writes.
MAKE["cem_rl"] = Case(
    lambda s, n: cem_rl.cem_rl(s, n, sigma=0.3, noise=0.3, noise_decay=0.97),
    space=Space(
        lambda key: {**TWOS, "learn": jnp.zeros(())}, lambda params, meta: meta
    ),
    start={**TWOS, "learn": jnp.zeros(())},
    functions=tuple(
        lambda x, f=f: f({k: v for k, v in x.items() if k != "learn"})
        for f in (sphere, ellipsoid)
    ),
)
# It chooses one number for all, and evolves nothing.
MAKE["dvd"] = Case(
    lambda s, n: dvd.dvd(s, n),
    space=spaces.tune(diversity_coef=spaces.linear()),
    start={"diversity_coef": jnp.zeros(())},
    functions=(),
    rank_based=None,
    stays=False,
)
NAMES = [m.name for m in pkgutil.iter_modules(strategies.__path__) if m.name[0] != "_"]


@functools.cache
def made(name):
    """The strategy of this name, its programs compiled once for all tests."""
    strategy = MAKE[name].make(MAKE[name].space, SIZE)
    programs = {x: jax.jit(getattr(strategy, x)) for x in ("init", "ask", "tell")}
    return strategy._replace(**programs)


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def case(name):
    return MAKE[name]


@pytest.fixture
def strategy(name):
    return made(name)


def one(params):
    """A population of one."""
    return jax.tree.map(lambda x: x[None], params)


def after(strategy, function, num_generations):
    """The state after some generations, without a program of its own."""
    state = strategy.init(jax.random.key(1))
    for i in range(num_generations):
        key = jax.random.fold_in(jax.random.key(1), i)
        proposal, state = strategy.ask(key, state)
        state = strategy.tell(key, state, proposal, function(proposal.params))
    return state


def climb(strategy, function, num_generations, key=0):
    def generation(state, key):
        ask_key, tell_key = jax.random.split(key)
        proposal, state = strategy.ask(ask_key, state)
        fitness = function(proposal.params)
        return strategy.tell(tell_key, state, proposal, fitness), fitness.mean()

    key = jax.random.key(key)
    state = strategy.init(key)
    keys = jax.random.split(key, num_generations)
    return jax.lax.scan(generation, state, keys)


def assert_equal(a, b):
    def plain(x):
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(x) if is_key else x

    for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True):
        np.testing.assert_array_equal(plain(x), plain(y))


def assert_finite(tree):
    for x in jax.tree.leaves(tree):
        if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            assert np.isfinite(x).all()


# --- the contract ---------------------------------------------------------------------


def test_every_strategy_in_the_folder_is_tested():
    assert sorted(MAKE) == sorted(NAMES)
    for name in NAMES:
        assert callable(getattr(importlib.import_module(f"strategies.{name}"), name))


def test_climbs(case, strategy):
    """In the solution, and not only in the best member."""
    start = one(case.start)
    for function in case.functions:
        state, means = climb(strategy, function, case.num_generations)
        solution = one(strategy.solution(state))
        assert function(solution)[0] > case.left * function(start)[0]
        assert means[-1] >= means[0]


def test_higher_is_better(strategy):
    """A slope is followed up, and its mirror image the other way."""
    ends = []
    for sign in (1.0, -1.0):
        state = after(strategy, lambda x: sign * flat(x).sum(1), 8)
        ends.append(flat(one(strategy.solution(state))).sum())
    assert ends[0] > ends[1]


def test_ask_and_tell_are_pure(case):
    strategy = case.make(case.space, SIZE)
    key = jax.random.key(0)
    state = strategy.init(key)
    before = jax.tree.map(jnp.copy, state)
    results = []
    for _ in range(2):
        proposal, asked = strategy.ask(key, state)
        fitness = flat(proposal.params).sum(1)
        results.append((proposal, strategy.tell(key, asked, proposal, fitness)))
    assert_equal(*results)
    assert_equal(before, state)


def kinds_of(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.aval.weak_type), tree)


def test_programs_compile_once(case):
    """Rule 5: shapes, dtypes and weak types are the same after a generation."""
    strategy = case.make(case.space, SIZE)
    strategy = strategy._replace(ask=jax.jit(strategy.ask), tell=jax.jit(strategy.tell))
    state = jax.jit(strategy.init)(jax.random.key(0))
    kinds = [kinds_of(state)]
    for i in range(3):
        key = jax.random.fold_in(jax.random.key(0), i)
        proposal, state = strategy.ask(key, state)
        state = strategy.tell(key, state, proposal, flat(proposal.params).sum(1))
        kinds.append(
            jax.tree.map(lambda x: (x.shape, x.dtype, x.aval.weak_type), state)
        )
    assert kinds[0] == kinds[1] == kinds[2] == kinds[3]
    for x in jax.tree.leaves((state, proposal)):
        assert not x.aval.weak_type
    assert strategy.ask._cache_size() == strategy.tell._cache_size() == 1


def test_population_and_solution_have_the_shape_of_params(case, strategy):
    state = strategy.init(jax.random.key(0))
    proposal, _ = strategy.ask(jax.random.key(1), state)
    params = case.start
    expected = jax.tree.map(lambda x: ((SIZE, *x.shape), x.dtype), params)
    assert (
        jax.tree.map(lambda x: (x.shape, x.dtype), members(proposal.params)) == expected
    )
    solution = strategy.solution(state)
    assert jax.tree.map(jnp.shape, solution) == jax.tree.map(jnp.shape, params)
    if case.starts:
        assert_equal(solution, params)
    if proposal.parents is not None:
        assert proposal.parents.shape == (SIZE,)
        assert proposal.parents.dtype == jnp.int32
        assert (proposal.parents == -1).all(), "nobody has an agent yet"


def test_mirrored_strategies_say_so(strategy):
    state = after(strategy, lambda x: flat(x).sum(1), 2)
    x = flat(strategy.ask(jax.random.key(1), state)[0].params)
    mean = flat(one(strategy.solution(state)))
    half = SIZE // 2
    mirrored = np.allclose(x[:half] - mean, mean - x[half:], atol=1e-5)
    assert mirrored == strategy.mirrored


def test_rank_methods_are_invariant_under_monotone_maps(case, strategy):
    """The solution and the next population are the same, to the bit."""

    def results(transform):
        state = after(strategy, lambda x: transform(flat(x).sum(1)), 3)
        proposal, _ = strategy.ask(jax.random.key(2), state)
        return strategy.solution(state), proposal

    maps = (lambda f: 3 * f + 7, lambda f: f**3, lambda f: jnp.exp(f / 50))
    expected = results(lambda f: f)
    if case.rank_based is not False:
        for transform in maps:
            assert_equal(expected, results(transform))
    else:
        one, other = flat(expected[1].params), flat(results(maps[1])[1].params)
        assert (one != other).any(), "it is rank-based: say so"


def test_equal_members_are_no_news(case, strategy):
    if not case.stays:
        pytest.skip("it moves")
    state = after(strategy, lambda x: flat(x).sum(1), 2)
    if strategy.mirrored:
        # An optimizer with momentum goes on.
        state = strategy.init(jax.random.key(0))
    before = strategy.solution(state)
    for value in (0.0, -3.7e4):
        proposal, asked = strategy.ask(jax.random.key(7), state)
        told = strategy.tell(
            jax.random.key(8), asked, proposal, jnp.full(SIZE, value, jnp.float32)
        )
        a, b = flat(one(before)), flat(one(strategy.solution(told)))
        np.testing.assert_allclose(a, b, atol=1e-5)


BAD = (np.nan, np.inf, -np.inf)


@pytest.mark.parametrize("bad", ["one", "half", "all but one", "all", "huge", "tied"])
def test_states_stay_finite(strategy, bad):
    """Whatever fails, as the engine hands it on, through `fitness.sanitize`."""
    state = strategy.init(jax.random.key(0))
    for i in range(4):
        key = jax.random.fold_in(jax.random.key(4), i)
        proposal, state = strategy.ask(key, state)
        raw = np.array(flat(proposal.params).sum(1))
        members = np.random.default_rng(i).permutation(SIZE)
        count = {"one": 1, "half": SIZE // 2, "all but one": SIZE - 1, "all": SIZE}
        raw[members[: count.get(bad, 0)]] = BAD[i % 3]
        if bad == "huge":
            raw[members[0]], raw[members[1]] = 1e30, -1e30
        if bad == "tied":
            raw = np.sign(raw - np.median(raw))
        told, failed = fitness_of.sanitize(raw, strategy.mirrored)
        assert failed.sum() == count.get(bad, 0)
        # A generation in which all failed is told too, if all are healthy and have no
        # score yet.
        state = strategy.tell(key, state, proposal, jnp.asarray(told))
        assert_finite((state, strategy.solution(state), strategy.metrics(state)))
    assert_finite(strategy.ask(key, state)[0])


def test_metrics_are_finite_scalars(strategy):
    for generations in (0, 2):
        state = after(strategy, lambda x: flat(x).sum(1), generations)
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
    told = strategy.tell(key, state, proposal, members(proposal.params) @ c)
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


# --- fitness shaping ------------------------------------------------------------------


def test_shapings_by_hand():
    fitness = jnp.array([3.0, -1.0, 3.0, 7.0])
    np.testing.assert_allclose(
        _shaping.centered_rank(fitness), [0.0, -0.5, 0.0, 0.5], atol=1e-6
    )
    np.testing.assert_allclose(
        _shaping.standardize(fitness), np.array([0, -4, 0, 4]) / np.sqrt(8), atol=1e-6
    )
    np.testing.assert_array_equal(_shaping.pair_rank(fitness), [0.0, -0.5, 0.0, 0.5])
    huge = _shaping.standardize(jnp.array([1e37, -1e37, 0.0, 0.0]))
    np.testing.assert_allclose(huge, np.array([1, -1, 0, 0]) * np.sqrt(2), rtol=1e-6)
    for shape in (_shaping.centered_rank, _shaping.standardize, _shaping.pair_rank):
        np.testing.assert_array_equal(shape(jnp.full(6, 0.1)), np.zeros(6))


def test_shapings_equal_those_of_evosax():
    from evosax.core import fitness_shaping as theirs

    fitness = jax.random.normal(jax.random.key(0), (33,)).at[3:6].set(0.5)
    for name, tolerance in (("centered_rank", 0), ("standardize", 1e-5)):
        ours = _evosax.minimized(getattr(_shaping, name))(None, fitness, None, None)
        expected = getattr(theirs, f"{name}_fitness_shaping_fn")
        np.testing.assert_allclose(
            ours, expected(None, fitness, None, None), tolerance, tolerance
        )


def test_tied_members_share_their_weights():
    """evosax rounds their mean rank down: the weights would no longer sum to 1."""

    class Params(NamedTuple):
        weights: jax.Array

    params = Params(jnp.array([0.5, 0.3, 0.15, 0.05]))
    costs = jnp.array([1.0, 0.0, 1.0, 9.0])
    weights = _evosax.tied_weights(None, costs, None, params)
    np.testing.assert_allclose(weights, [0.225, 0.5, 0.225, 0.05], rtol=1e-6)


# --- the others on evosax -------------------------------------------------------------


def asked(strategy, fitness=None):
    """Noise [P, 8] of a first generation, its fitness, and the state told of it."""
    key = jax.random.key(0)
    proposal, state = strategy.ask(key, strategy.init(key))
    x = np.float64(flat(proposal.params))
    fitness = sphere(proposal.params) if fitness is None else fitness
    told = strategy.tell(key, state, proposal, fitness)
    return x - 2.0, np.float64(fitness), told


def test_snes_by_hand():
    """The paper's equations, with its utilities and learning rates."""
    strategy = snes.snes(space(), 8, 0.3)
    noise, fitness, told = asked(strategy)
    ranks = np.argsort(np.argsort(-fitness)) + 1
    utilities = np.maximum(0, np.log(8 / 2 + 1) - np.log(ranks))
    utilities = utilities / utilities.sum() - 1 / 8
    np.testing.assert_allclose(
        flat(one(strategy.solution(told)))[0], 2 + utilities @ noise, rtol=1e-5
    )
    rate = (3 + np.log(8)) / (5 * np.sqrt(8))
    sigma = 0.3 * np.exp(rate / 2 * utilities @ ((noise / 0.3) ** 2 - 1))
    np.testing.assert_allclose(told.es.std, sigma, rtol=1e-5)
    fixed = asked(snes.snes(space(), 8, 0.3, sigma_learning_rate=0.0))[2]
    np.testing.assert_allclose(fixed.es.std, 0.3, rtol=1e-6)


def test_pgpe_by_hand():
    strategy = pgpe.pgpe(space(), 8, 0.3, optax.sgd(0.5), max_sigma_change=0.003)
    noise, fitness, told = asked(strategy)
    ranks = np.argsort(np.argsort(fitness)) / 7 - 0.5
    first, second, noise = ranks[:4], ranks[4:], noise[:4]
    np.testing.assert_allclose(
        flat(one(strategy.solution(told)))[0],
        2 + 0.5 * (first - second) @ noise / 8,
        rtol=1e-5,
    )
    change = 0.1 * (first + second) @ ((noise**2 - 0.3**2) / 0.3) / 8
    assert (np.abs(change) > 9e-4).any(), "nothing to clip"
    assert (np.abs(change) < 9e-4).any()
    np.testing.assert_allclose(
        told.es.std, 0.3 + np.clip(change, -9e-4, 9e-4), rtol=1e-5
    )


@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_ars_by_hand(scale):
    """Two of four pairs count, those with the best member."""
    strategy = ars.ars(space(), 8, 0.3, optax.sgd(0.5), elite_ratio=0.5)
    raw = np.array([1.0, 4.0, 2.0, 0.0, 5.0, 3.0, 2.0, 1.0]) * scale
    noise, _, told = asked(strategy, jnp.asarray(raw, jnp.float32))
    deviation = np.std([1.0, 5.0, 4.0, 3.0])
    gradient = ((1 - 5) * noise[0] + (4 - 3) * noise[1]) / 0.3 / (2 * deviation)
    np.testing.assert_allclose(
        flat(one(strategy.solution(told)))[0], 2 + 0.5 * gradient, rtol=1e-5
    )


def test_cma_es_recombines_the_better_half():
    for module in (cma_es.cma_es, sep_cma_es.sep_cma_es):
        strategy = module(space(), 8, 0.3)
        noise, fitness, told = asked(strategy)
        best = np.argsort(-fitness)[:4]
        weights = np.log(4.5) - np.log(np.arange(1, 5))
        np.testing.assert_allclose(
            flat(one(strategy.solution(told)))[0],
            2 + weights / weights.sum() @ noise[best],
            rtol=1e-5,
        )


def test_cma_es_learns_the_shape_of_a_valley():
    """From sigma² I to a multiple of the inverse Hessian of a rotated ellipsoid."""
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))[0]
    hessian = rotation @ np.diag(np.logspace(0, 2, 8)) @ rotation.T
    weights = jnp.asarray(hessian, jnp.float32)

    def valley(population):
        x = flat(population)
        return -((x @ weights) * x).sum(1)

    strategy = made("cma_es")
    state, _ = climb(strategy, valley, 120)
    values = np.linalg.eigvals(np.float64(state.es.C) @ hessian).real
    # Condition 100 to begin with; 10 is the root.
    assert values.max() / values.min() < 10


def test_sep_cma_es_learns_at_the_rate_of_its_paper():
    """Ros & Hansen: (D + 2)/3 times that of the full covariance, which evosax has."""
    slow = Space(lambda key: jnp.full(64, 2.0), lambda params, meta: meta)
    scales = jnp.logspace(0, 2, 64)
    strategy = sep_cma_es.sep_cma_es(slow, 16, 0.3)
    state, _ = climb(strategy, lambda x: -(x**2 * scales[None]).sum(1), 300)
    spread = np.sqrt(np.asarray(state.es.C))
    # Spread should fall as 1/sqrt(scale), by a factor of 10.
    assert spread[:8].mean() / spread[-8:].mean() > 3


def test_learned_es_fetches_nothing(monkeypatch):
    import socket

    def refuse(*args, **kwargs):
        raise AssertionError("it uses the network")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    strategy = learned_es.learned_es(space(), 8, 0.3)
    asked(strategy)


def test_genetic_algorithm_breeds_from_its_elites():
    """Two elites: every child is one of them (no crossover), plus mutation."""
    strategy = simple_ga.simple_ga(space(), 16, 0.3, elite_ratio=2 / 16)
    strategy = strategy._replace(ask=jax.jit(strategy.ask))
    noise, fitness, told = asked(strategy)
    np.testing.assert_allclose(noise.std(), 0.3, rtol=0.2)
    best = 2 + noise[np.argsort(-fitness)[:2]]
    np.testing.assert_allclose(
        flat(one(strategy.solution(told)))[0], best.mean(0), rtol=1e-5
    )
    quiet = told._replace(es=told.es.replace(std=jnp.float32(0.0)))
    children = np.asarray(flat(strategy.ask(jax.random.key(3), quiet)[0].params))
    from_first, from_second = (np.abs(children - x).max(1) < 1e-5 for x in best)
    assert (from_first | from_second).all()
    assert from_first.any()
    assert from_second.any()


def test_crossover_mixes_two_parents():
    strategy = simple_ga.simple_ga(
        space(), 16, 0.3, elite_ratio=2 / 16, crossover_rate=0.5
    )
    noise, fitness, told = asked(strategy)
    best = 2 + noise[np.argsort(-fitness)[:2]]
    quiet = told._replace(es=told.es.replace(std=jnp.float32(0.0)))
    children = np.asarray(flat(strategy.ask(jax.random.key(3), quiet)[0].params))
    genes = np.abs(children[None] - best[:, None]) < 1e-5
    assert genes.any(0).all()
    assert (genes[0].any(1) & genes[1].any(1)).any()


def test_de_keeps_the_better_of_each_pair():
    make = de.de
    strategy = make(space(), 16, 0.3, base="random")
    key = jax.random.key(0)
    proposal, state = strategy.ask(key, strategy.init(key))
    x, fitness = flat(proposal.params), sphere(proposal.params)
    told = strategy.tell(key, state, proposal, fitness)
    expected = jnp.where((fitness[:8] >= fitness[8:])[:, None], x[:8], x[8:])
    np.testing.assert_array_equal(told.es.population, expected)
    np.testing.assert_allclose(
        flat(one(strategy.solution(told)))[0], expected.mean(0), rtol=1e-6
    )


def test_de_does_not_keep_old_luck():
    """Each generation has a world of its own that adds to everybody's return."""

    def run(shift):
        strategy = made("de")

        def generation(state, key):
            proposal, state = strategy.ask(key, state)
            world = shift * jax.random.normal(jax.random.fold_in(key, 1))
            fitness = sphere(proposal.params) + world
            return strategy.tell(key, state, proposal, fitness), None

        keys = jax.random.split(jax.random.key(0), 150)
        state, _ = jax.lax.scan(generation, strategy.init(keys[0]), keys)
        return sphere(one(strategy.solution(state)))[0]

    start = sphere(one(space().init(None)))[0]
    assert run(100.0) > 0.001 * start


# --- persistent evolution strategies --------------------------------------------------


def test_pes_by_hand():
    """Three generations of g = 1/P Σ u ξ, with ξ summed since birth."""
    make = functools.partial(
        pes.pes, space(), 4, 0.3, optax.sgd(0.5), 2, sigma_decay=0.5, staggered=False
    )
    for accumulate in (True, False):
        strategy = make(accumulate=accumulate)
        state = strategy.init(jax.random.key(0))
        mean, since_birth = np.full(8, 2.0), np.zeros((2, 8))
        for i, parents in enumerate(([-1] * 4, [0, 1, 2, 3], [-1] * 4)):
            key = jax.random.key(i)
            proposal, state = strategy.ask(key, state)
            np.testing.assert_array_equal(proposal.parents, parents)
            x = np.float64(flat(proposal.params))
            np.testing.assert_allclose(
                (x[:2] + x[2:]) / 2, mean[None] + 0 * x[:2], 1e-5
            )
            fitness = np.array([3.0, 1.0, -2.0, 6.0]) * (i + 1)
            state = strategy.tell(
                key, state, proposal, jnp.asarray(fitness, jnp.float32)
            )
            noise = (x[:2] - mean) / (0.3 * 0.5**i) ** 2
            if i == 2 or not accumulate:
                since_birth = np.zeros((2, 8))
            since_birth = since_birth + noise
            u = (fitness - fitness.mean()) / fitness.std()
            mean = mean + 0.5 * (u[:2] - u[2:]) @ since_birth / 4
            solution = flat(one(strategy.solution(state)))[0]
            np.testing.assert_allclose(solution, mean, rtol=2e-4)


def test_pes_of_one_generation_is_open_es():
    ours = pes.pes(space(), 8, 0.3, optax.adam(0.1), 1, shaping="centered_rank")
    theirs = open_es.open_es(space(), 8, 0.3, optax.adam(0.1))
    ours, theirs = (after(s, sphere, 5) for s in (ours, theirs))
    np.testing.assert_allclose(ours.mean, theirs.es.mean, rtol=1e-4)


def births(strategy, generations):
    """Which members are newborn, [generations, P]."""
    state, rows = strategy.init(jax.random.key(0)), []
    for i in range(generations):
        key = jax.random.key(i)
        proposal, state = strategy.ask(key, state)
        state = strategy.tell(key, state, proposal, sphere(proposal.params))
        alive = proposal.parents >= 0
        np.testing.assert_array_equal(proposal.parents[alive], np.flatnonzero(alive))
        rows.append(~alive)
    return np.stack(rows)


def test_births_are_spread_over_the_horizon():
    newborn = births(pes.pes(space(), 16, 0.3, optax.sgd(0.1), 4), 12)
    assert newborn[0].all()
    # Two of eight pairs in each generation, and each pair every fourth.
    np.testing.assert_array_equal(newborn[1:].sum(1), np.full(11, 4))
    np.testing.assert_array_equal(newborn[:, :8], newborn[:, 8:])
    np.testing.assert_array_equal(newborn[4:8], newborn[8:12])
    together = births(pes.pes(space(), 16, 0.3, optax.sgd(0.1), 4, staggered=False), 8)
    np.testing.assert_array_equal(together.all(1), [i % 4 == 0 for i in range(8)])
    np.testing.assert_array_equal(together.any(1), together.all(1))


class Greed(NamedTuple):
    rate: jax.Array | float = 0.0


def indebted(horizon) -> InnerLoop:
    """Earning now costs half of it in every later segment.

    Over a life of 8 the sum is 8 x − x/2 · (0 + ... + 7) = −6 x, yet in each segment
    more is better.
    """

    def init(key, meta):
        return InnerState(jnp.zeros(()), (), (), ())

    def train(key, meta, state):
        rate = jnp.float32(meta.rate)
        earned = rate - 0.5 * state.agent
        return state._replace(agent=state.agent + rate), {
            "return": earned,
            "episodes": jnp.ones(()),
        }

    def evaluate(key, meta, state):
        return {"return": jnp.zeros(()), "length": jnp.ones(())}

    def act(key, meta, agent, carry, obs):
        return obs, carry

    return InnerLoop(Greed(), init, train, evaluate, horizon, act)


def test_pes_credits_what_pays_later():
    """Truncated ES goes the wrong way; through the evaluator, agents living on."""
    greed = Space(
        lambda key: {"rate": jnp.zeros(())},
        lambda params, meta: meta._replace(rate=params["rate"]),
    )
    rates = {}
    for accumulate in (True, False):
        strategy = pes.pes(greed, 64, 0.1, optax.sgd(0.01), 8, accumulate=accumulate)
        strategy = strategy._replace(
            ask=jax.jit(strategy.ask), tell=jax.jit(strategy.tell)
        )
        auc = fitness_of.area_under_curve
        search = Search(
            indebted(8), greed, strategy, 40, auc, segments_per_generation=1
        )
        evaluate, carried = LocalEvaluator(search), ()
        state = strategy.init(jax.random.key(0))
        for i in range(40):
            key = jax.random.fold_in(jax.random.key(1), i)
            proposal, state = strategy.ask(key, state)
            evaluated, carried = evaluate(key, proposal, carried)
            scores, _ = fitness_of.sanitize(
                fitness_of.mean(evaluated.fitness), strategy.mirrored
            )
            state = strategy.tell(key, state, proposal, jnp.asarray(scores))
        rates[accumulate] = float(strategy.solution(state)["rate"])
    assert rates[False] > 0.05, "truncated ES is blind to debts"
    assert rates[True] < -0.05, "PES sees them"


def test_a_generation_in_which_all_failed_leaves_pes_as_it_was():
    """The engine does not tell it, and asks again: nothing was lived."""
    strategy = made("pes")
    state = after(strategy, sphere, 3)
    proposal, asked = strategy.ask(jax.random.key(0), state)
    assert_equal(state, asked)
    assert (strategy.ask(jax.random.key(1), asked)[0].parents == proposal.parents).all()


# --- shared seeds ---------------------------------------------------------------------


def vector(dim):
    return Space(lambda key: jnp.full(dim, 2.0), lambda params, meta: meta)


def test_shared_seeds_equal_open_es_with_the_same_noise():
    """64 members of 1000 numbers, all held at once; and as evosax computes them."""
    options = (vector(1000), 64, 0.3, optax.adam(0.1))
    ours, theirs = shared_seed_es.shared_seed_es(*options), open_es.open_es(*options)
    key = jax.random.key(0)
    state, held = ours.init(key), theirs.init(key)
    for i in range(3):
        key = jax.random.fold_in(key, i)
        proposal, state = ours.ask(key, state)
        x = members(proposal.params)
        noise = (x[:32] - state.mean) / 0.3
        assert abs(float(noise.std()) - 1) < 0.02
        assert np.abs(np.corrcoef(noise) - np.eye(32)).max() < 0.2
        fitness = jnp.sin(x).sum(1)
        state = ours.tell(key, state, proposal, fitness)
        held = theirs.tell(key, held, Proposal(x), fitness)
        np.testing.assert_allclose(state.mean, held.es.mean, rtol=1e-5)


def test_shared_seeds_take_no_memory_for_members():
    """256 x 50,000 numbers are 51 MB, and a vector of them 0.2 MB."""
    dim, size = 50_000, 256
    vectors, population_bytes = 10 * dim * 4, size * dim * 4

    def taken(strategy):
        """Bytes of ask and tell, beside what they are given."""
        key = jax.random.key(0)
        state = jax.eval_shape(strategy.init, key)
        proposal, _ = jax.eval_shape(strategy.ask, key, state)
        fitness = jax.ShapeDtypeStruct((size,), jnp.float32)
        for program, args in (
            (strategy.ask, (key, state)),
            (strategy.tell, (key, state, proposal, fitness)),
        ):
            used = jax.jit(program).lower(*args).compile().memory_analysis()
            yield used.temp_size_in_bytes + used.output_size_in_bytes

    options = (vector(dim), size, 0.3, optax.adam(0.1))
    assert max(taken(shared_seed_es.shared_seed_es(*options))) < vectors
    assert max(taken(open_es.open_es(*options))) > population_bytes, "it can be seen"


def test_shared_seeds_are_the_same_on_any_devices():
    """To the bit: one device, four, and four in another order."""
    results = []
    for devices in (jax.devices()[:1], jax.devices(), jax.devices()[::-1]):
        strategy = shared_seed_es.shared_seed_es(toys.space(), 16, 0.3, optax.adam(0.1))
        search = Search(
            toys.quadratic(), toys.space(), strategy, 3, fitness_of.final_return
        )._replace(chunk_size=2)
        evaluate = LocalEvaluator(search, devices)
        state = strategy.init(jax.random.key(0))
        for i in range(3):
            key = jax.random.fold_in(jax.random.key(1), i)
            proposal, state = jax.jit(strategy.ask)(key, state)
            fitness = fitness_of.mean(evaluate(key, proposal, ())[0].fitness)
            state = jax.jit(strategy.tell)(
                key, state, proposal, jnp.asarray(fitness, jnp.float32)
            )
        results.append((state, fitness))
    assert_equal(results[0], results[1])
    assert_equal(results[0], results[2])


def test_a_search_of_shared_seeds_runs(tmp_path):
    """Through the engine: the rule is computed wherever members are needed."""
    strategy = shared_seed_es.shared_seed_es(toys.space(), 8, 0.3, optax.adam(0.1))
    search = Search(
        toys.quadratic(), toys.space(), strategy, 4, fitness_of.final_return
    )
    config = RunConfig(directory=str(tmp_path / "run"), held_out_seeds=0)
    result = metaevo.run(search, config)
    assert np.isfinite(result.solution["lr"])
    assert result.solution["lr"] != toys.space().init(None)["lr"]


# --- wrong options --------------------------------------------------------------------

SGD = optax.sgd(0.1)
WRONG = {
    "population_size=7.* even; use 8": [
        lambda: open_es.open_es(space(), 7, 0.1, SGD),
        lambda: pgpe.pgpe(space(), 7, 0.1, SGD),
        lambda: ars.ars(space(), 7, 0.1, SGD),
        lambda: pes.pes(space(), 7, 0.1, SGD, 4),
        lambda: shared_seed_es.shared_seed_es(space(), 7, 0.1, SGD),
        lambda: de.de(space(), 7, 0.1),
    ],
    "population_size=0.* use 2": [lambda: open_es.open_es(space(), 0, 0.1, SGD)],
    "population_size=. must be at least": [
        lambda: snes.snes(space(), 1, 0.1),
        lambda: cma_es.cma_es(space(), 3, 0.1),
        lambda: sep_cma_es.sep_cma_es(space(), 3, 0.1),
        lambda: learned_es.learned_es(space(), 1, 0.1),
        lambda: simple_ga.simple_ga(space(), 1, 0.1),
        lambda: de.de(space(), 6, 0.1),
    ],
    r"sigma=0\.0 must be positive": [
        lambda: open_es.open_es(space(), 8, 0.0, SGD),
        lambda: pgpe.pgpe(space(), 8, 0.0, SGD),
        lambda: ars.ars(space(), 8, 0.0, SGD),
        lambda: pes.pes(space(), 8, 0.0, SGD, 4),
        lambda: shared_seed_es.shared_seed_es(space(), 8, 0.0, SGD),
        lambda: snes.snes(space(), 8, 0.0),
        lambda: cma_es.cma_es(space(), 8, 0.0),
        lambda: sep_cma_es.sep_cma_es(space(), 8, 0.0),
        lambda: learned_es.learned_es(space(), 8, 0.0),
        lambda: simple_ga.simple_ga(space(), 8, 0.0),
        lambda: de.de(space(), 8, 0.0),
    ],
    r"sigma_decay=-1\.0 must be positive": [
        lambda: open_es.open_es(space(), 8, 0.1, SGD, sigma_decay=-1.0),
        lambda: ars.ars(space(), 8, 0.1, SGD, sigma_decay=-1.0),
        lambda: pes.pes(space(), 8, 0.1, SGD, 4, sigma_decay=-1.0),
        lambda: simple_ga.simple_ga(space(), 8, 0.1, sigma_decay=-1.0),
    ],
    "shaping='ranks' must be one of centered_rank, standardize, pair_rank": [
        lambda: open_es.open_es(space(), 8, 0.1, SGD, shaping="ranks"),
        lambda: pes.pes(space(), 8, 0.1, SGD, 4, shaping="ranks"),
        lambda: shared_seed_es.shared_seed_es(space(), 8, 0.1, SGD, shaping="ranks"),
    ],
    "shaping='pair_rank' must be one of": [
        lambda: ars.ars(space(), 8, 0.1, SGD, shaping="pair_rank"),
        lambda: pgpe.pgpe(space(), 8, 0.1, SGD, shaping="pair_rank"),
    ],
    r"elite_ratio=1\.5 must be in \[0, 1\]": [
        lambda: ars.ars(space(), 8, 0.1, SGD, elite_ratio=1.5),
        lambda: simple_ga.simple_ga(space(), 8, 0.1, elite_ratio=1.5),
    ],
    r"crossover_rate=-0\.5 must be in \[0, 1\]": [
        lambda: simple_ga.simple_ga(space(), 8, 0.1, crossover_rate=-0.5),
        lambda: de.de(space(), 8, 0.1, crossover_rate=-0.5),
    ],
    r"weight=3\.0 must be in \[0, 2\]": [
        lambda: de.de(space(), 8, 0.1, weight=3.0),
    ],
    "base='worst' must be one of best, random": [
        lambda: de.de(space(), 8, 0.1, base="worst"),
    ],
    "sigma_learning_rate=-1 must be at least 0": [
        lambda: snes.snes(space(), 8, 0.1, sigma_learning_rate=-1),
        lambda: pgpe.pgpe(space(), 8, 0.1, SGD, sigma_learning_rate=-1),
    ],
    "max_sigma_change=2 must be in": [
        lambda: pgpe.pgpe(space(), 8, 0.1, SGD, max_sigma_change=2)
    ],
    "Lamarckian": [
        lambda: shared_seed_es.shared_seed_es(
            space()._replace(inherit=lambda params, state: params), 8, 0.1, SGD
        )
    ],
    "horizon=0 must be at least 1": [lambda: pes.pes(space(), 8, 0.1, SGD, 0)],
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_options_are_refused(message):
    for make in WRONG[message]:
        with pytest.raises(ConfigError, match=message):
            make()
