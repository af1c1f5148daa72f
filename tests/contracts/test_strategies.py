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
from climbing import (
    after,
    assert_equal,
    assert_finite,
    climb,
    compiled,
    ellipsoid,
    flat,
    members,
    one,
    space,
    sphere,
)

import strategies
from metaevo import fitness as fitness_of
from metaevo import spaces
from metaevo.errors import ConfigError
from metaevo.types import Space
from strategies import (
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
    self_play,
    sep_cma_es,
    shared_seed_es,
    simple_ga,
    snes,
)

SIZE = 32
pytestmark = pytest.mark.usefixtures("strict_promotion")


TWOS = space().init(None)


class Case(NamedTuple):
    """A strategy of the contract tests, and the properties that it has.

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
    # Its Gaussian process is expensive; a small one is enough.
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
# It writes the rival, and the share of simple ones.
AGAINST_ITSELF = {"own": TWOS, "rival": TWOS, "share": jnp.ones(())}
MAKE["self_play"] = Case(
    lambda s, n: self_play.self_play(
        s,
        functools.partial(
            open_es.open_es, population_size=n, sigma=0.3, optimizer=optax.adam(0.1)
        ),
        *("own", "rival", "share"),
        num_annealed=10,
    ),
    space=Space(
        lambda key: AGAINST_ITSELF,
        lambda params, meta: meta,
        spec={x: {"op": "number"} for x in AGAINST_ITSELF},
    ),
    start=AGAINST_ITSELF,
    functions=tuple(lambda x, f=f: f(x["own"]) for f in (sphere, ellipsoid)),
    stays=False,  # the share falls, whatever members score
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
    return compiled(MAKE[name].make(MAKE[name].space, SIZE))


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def case(name):
    return MAKE[name]


@pytest.fixture
def strategy(name):
    return made(name)


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
    """Traced twice: what Python remembers of the first time would change the second."""
    made = case.make(case.space, SIZE)
    key = jax.random.key(0)
    state = compiled(made).init(key)
    before = jax.tree.map(jnp.copy, state)
    results = []
    for _ in range(2):
        strategy = compiled(made)
        proposal, asked = strategy.ask(key, state)
        fitness = flat(proposal.params).sum(1)
        results.append((proposal, strategy.tell(key, asked, proposal, fitness)))
    assert_equal(*results)
    assert_equal(before, state)


def kinds_of(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.aval.weak_type), tree)


def test_programs_compile_once(case):
    """Shapes, dtypes and weak types are the same after a generation."""
    strategy = compiled(case.make(case.space, SIZE))
    state = strategy.init(jax.random.key(0))
    kinds = [kinds_of(state)]
    for i in range(3):
        key = jax.random.fold_in(jax.random.key(0), i)
        proposal, state = strategy.ask(key, state)
        state = strategy.tell(key, state, proposal, flat(proposal.params).sum(1))
        kinds.append(kinds_of(state))
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


def test_mirrored_populations_are_declared(strategy):
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
        assert (one != other).any(), "it is rank-based: set rank_based in its Case"


def test_equal_members_leave_the_solution(case, strategy):
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
    """Failures of any kind, after `fitness.sanitize`, as the engine passes them on."""
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
