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
from metaevo.types import Genome, Space
from strategies import (
    ars,
    asha,
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
    regularized_evolution,
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
    functions: tuple[Callable, ...] = (ellipsoid,)
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
    "asha": IN_A_BOX._replace(make=lambda s, n: asha.asha(s, n, 4), rank_based=None),
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
    "regularized_evolution": Case(
        lambda s, n: regularized_evolution.regularized_evolution(
            s, n, ring=64, least_looks=2, memory=64
        ),
        # Numbers, which change as programs do.
        space=space()._replace(
            programs=Genome(
                mutate=lambda key, params: jax.tree.map(
                    lambda x: x + 0.3 * jax.random.normal(key, x.shape), params
                ),
                behaviour=lambda params: 1 + flat(one(params))[0],
                length=lambda params: jnp.int32(1),
                settled=lambda params: (space(), params),
                read=lambda text: TWOS,
            )
        ),
        functions=(sphere,),
        left=0.3,
        num_generations=40,
        rank_based=None,
        stays=False,  # equal scores are evidence, too
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
    functions=(lambda x: ellipsoid({k: v for k, v in x.items() if k != "learn"}),),
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
    functions=(lambda x: ellipsoid(x["own"]),),
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


STAYING = [name for name in NAMES if MAKE[name].stays]
every_strategy = pytest.mark.parametrize("name", NAMES)


@functools.cache
def plain(name):
    return MAKE[name].make(MAKE[name].space, SIZE)


@functools.cache
def made(name):
    """The strategy of this name, its programs compiled once for all tests."""
    return compiled(plain(name))


def total(params):
    """The sum of each member's numbers, [P]."""
    return flat(params).sum(1)


# --- the contract ---------------------------------------------------------------------


def test_every_strategy_in_the_folder_is_tested():
    assert sorted(MAKE) == sorted(NAMES)
    for name in NAMES:
        assert callable(getattr(importlib.import_module(f"strategies.{name}"), name))


@every_strategy
def test_climbs(name):
    """In the solution, and not only in the best member; a slope is followed up, and
    its mirror image the other way."""
    case, strategy = MAKE[name], made(name)
    start = one(case.start)
    for function in case.functions:
        state, means = climb(strategy, function, case.num_generations)
        solution = one(strategy.solution(state))
        assert function(solution)[0] > case.left * function(start)[0]
        assert means[-1] >= means[0]
    ends = []
    for sign in (1.0, -1.0):
        state = after(strategy, lambda x: sign * total(x), 8)
        ends.append(flat(one(strategy.solution(state))).sum())
    assert ends[0] > ends[1]


def kinds_of(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.aval.weak_type), tree)


@every_strategy
def test_programs_are_pure_and_compile_once(name):
    """Traced twice: what Python remembers of the first time would change the second.
    Shapes, dtypes and weak types are the same after a generation."""
    key = jax.random.key(0)
    results = []
    for strategy in made(name), compiled(plain(name)):
        state = strategy.init(key)
        before = jax.tree.map(jnp.copy, state)
        proposal, asked = strategy.ask(key, state)
        told = strategy.tell(key, asked, proposal, total(proposal.params))
        results.append((proposal, told))
        assert_equal(before, state)
    assert_equal(*results)
    kinds = kinds_of(state)
    for i in range(3):
        key = jax.random.fold_in(jax.random.key(0), i)
        proposal, state = strategy.ask(key, state)
        state = strategy.tell(key, state, proposal, total(proposal.params))
        assert kinds_of(state) == kinds
    for x in jax.tree.leaves((state, proposal)):
        assert not x.aval.weak_type
    assert strategy.ask._cache_size() == strategy.tell._cache_size() == 1


@every_strategy
def test_population_and_solution_have_the_shape_of_params(name):
    case, strategy = MAKE[name], made(name)
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


@every_strategy
def test_mirrored_populations_are_declared(name):
    strategy = made(name)
    state = after(strategy, total, 2)
    x = flat(strategy.ask(jax.random.key(1), state)[0].params)
    mean = flat(one(strategy.solution(state)))
    half = SIZE // 2
    mirrored = np.allclose(x[:half] - mean, mean - x[half:], atol=1e-5)
    assert mirrored == strategy.mirrored


@every_strategy
def test_rank_methods_are_invariant_under_monotone_maps(name):
    """The solution and the next population are the same, to the bit."""
    strategy = made(name)

    def results(transform):
        state = after(strategy, lambda x: transform(total(x)), 3)
        proposal, _ = strategy.ask(jax.random.key(2), state)
        return strategy.solution(state), proposal

    maps = (lambda f: 3 * f + 7, lambda f: f**3, lambda f: jnp.exp(f / 50))
    expected = results(lambda f: f)
    if MAKE[name].rank_based is not False:
        for transform in maps:
            assert_equal(expected, results(transform))
    else:
        one, other = flat(expected[1].params), flat(results(maps[1])[1].params)
        assert (one != other).any(), "it is rank-based: set rank_based in its Case"


@pytest.mark.parametrize("name", STAYING)
def test_equal_members_leave_the_solution(name):
    strategy = made(name)
    # An optimizer with momentum goes on.
    state = after(strategy, total, 0 if strategy.mirrored else 2)
    before = strategy.solution(state)
    for value in (0.0, -3.7e4):
        proposal, asked = strategy.ask(jax.random.key(7), state)
        told = strategy.tell(
            jax.random.key(8), asked, proposal, jnp.full(SIZE, value, jnp.float32)
        )
        a, b = flat(one(before)), flat(one(strategy.solution(told)))
        np.testing.assert_allclose(a, b, atol=1e-5)


BAD = (np.nan, np.inf, -np.inf)
FAILED = {"one": 1, "half": SIZE // 2, "all but one": SIZE - 1, "all": SIZE}


@every_strategy
def test_states_and_metrics_stay_finite(name):
    """Failures of any kind, after `fitness.sanitize`, as the engine passes them on."""
    strategy = made(name)
    metrics = strategy.metrics(strategy.init(jax.random.key(0)))
    assert metrics
    assert_finite(metrics)
    for bad in (*FAILED, "huge", "tied"):
        state = strategy.init(jax.random.key(0))
        for i in range(4):
            key = jax.random.fold_in(jax.random.key(4), i)
            proposal, state = strategy.ask(key, state)
            raw = np.array(total(proposal.params))
            members = np.random.default_rng(i).permutation(SIZE)
            raw[members[: FAILED.get(bad, 0)]] = BAD[i % 3]
            if bad == "huge":
                raw[members[0]], raw[members[1]] = 1e30, -1e30
            if bad == "tied":
                raw = np.sign(raw - np.median(raw))
            told, failed = fitness_of.sanitize(raw, strategy.mirrored)
            assert failed.sum() == FAILED.get(bad, 0)
            # A generation in which all failed is told too, if all are healthy and have
            # no score yet.
            state = strategy.tell(key, state, proposal, jnp.asarray(told))
            metrics = strategy.metrics(state)
            assert {np.shape(x) for x in metrics.values()} == {()}
            assert_finite((state, strategy.solution(state), metrics))
        assert_finite(strategy.ask(key, state)[0])


# --- wrong options --------------------------------------------------------------------

GRADIENT = ("open_es", "pgpe", "ars", "pes", "shared_seed_es")
SHAPED_BY_PAIRS = ("open_es", "pes", "shared_seed_es")
OF_SIGMA = (*GRADIENT, "snes", "cma_es", "sep_cma_es", "learned_es", "simple_ga", "de")
WITH_DECAY = ("open_es", "ars", "pes", "simple_ga")
LAMARCKIAN = space()._replace(inherit=lambda params, state: params)

# Message, strategies, and the options that they refuse.
WRONG = [
    ("population_size=7.* even; use 8", (*GRADIENT, "de"), {"population_size": 7}),
    ("population_size=0.* use 2", ("open_es",), {"population_size": 0}),
    *(
        ("population_size=. must be at least", names, {"population_size": size})
        for names, size in (
            (("snes", "learned_es", "simple_ga"), 1),
            (("cma_es", "sep_cma_es"), 3),
            (("de",), 6),
        )
    ),
    (r"sigma=0\.0 must be positive", OF_SIGMA, {"sigma": 0.0}),
    (r"sigma_decay=-1\.0 must be positive", WITH_DECAY, {"sigma_decay": -1.0}),
    (
        "shaping='ranks' must be one of centered_rank, standardize, pair_rank",
        SHAPED_BY_PAIRS,
        {"shaping": "ranks"},
    ),
    ("shaping='pair_rank' must be one of", ("ars", "pgpe"), {"shaping": "pair_rank"}),
    (
        r"elite_ratio=1\.5 must be in \[0, 1\]",
        ("ars", "simple_ga"),
        {"elite_ratio": 1.5},
    ),
    (
        r"crossover_rate=-0\.5 must be in \[0, 1\]",
        ("simple_ga", "de"),
        {"crossover_rate": -0.5},
    ),
    (r"weight=3\.0 must be in \[0, 2\]", ("de",), {"weight": 3.0}),
    ("base='worst' must be one of best, random", ("de",), {"base": "worst"}),
    (
        "sigma_learning_rate=-1 must be at least 0",
        ("snes", "pgpe"),
        {"sigma_learning_rate": -1},
    ),
    ("max_sigma_change=2 must be in", ("pgpe",), {"max_sigma_change": 2}),
    ("Lamarckian", ("shared_seed_es",), {"space": LAMARCKIAN}),
    ("horizon=0 must be at least 1", ("pes",), {"horizon": 0}),
]


def test_wrong_options_are_refused():
    for message, names, wrong in WRONG:
        for name in names:
            options = {"space": space(), "population_size": 8, "sigma": 0.1}
            if name in GRADIENT:
                options["optimizer"] = optax.sgd(0.1)
            if name == "pes":
                options["horizon"] = 4
            make = getattr(importlib.import_module(f"strategies.{name}"), name)
            with pytest.raises(ConfigError, match=message):
                make(**options | wrong)
