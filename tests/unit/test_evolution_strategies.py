"""Each evolution strategy against its equations, by hand."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from climbing import climb, compiled, flat, members, one, space, sphere

from metaevo.errors import ConfigError
from metaevo.types import Space
from strategies import (
    _evosax,
    _shaping,
    ars,
    cma_es,
    de,
    learned_es,
    open_es,
    pgpe,
    sep_cma_es,
    simple_ga,
    snes,
)

# --- OpenAI-ES ------------------------------------------------------------------------


def test_open_es_by_hand():
    """One step of plain gradient ascent against the paper's equation."""
    strategy = compiled(open_es.open_es(space(), 8, 0.3, optax.sgd(0.5)))
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


@pytest.mark.parametrize("shaping", ["centered_rank", "standardize", "pair_rank"])
def test_open_es_stays_where_all_pairs_tie(shaping):
    """The gradient is 0; Adam would make whole steps of what rounding leaves of it."""
    strategy = compiled(
        open_es.open_es(space(), 16, 0.3, optax.adam(0.1), shaping=shaping)
    )
    key = jax.random.key(0)
    proposal, state = strategy.ask(key, strategy.init(key))
    told = strategy.tell(key, state, proposal, jnp.tile(jnp.arange(8.0) ** 2, 2))
    assert strategy.metrics(told)["update_norm"] == 0.0
    before, after = strategy.solution(state), strategy.solution(told)
    np.testing.assert_array_equal(flat(one(before)), flat(one(after)))


def test_open_es_gradient_points_uphill():
    """On f(x) = cᵀx, cosine with c at least 0.95 for P = 4096, D = 16."""
    c = jax.random.normal(jax.random.key(3), (16,))
    flat_space = Space(lambda key: jnp.zeros(16), lambda params, meta: meta)
    strategy = compiled(open_es.open_es(flat_space, 4096, 0.1, optax.sgd(1.0)))
    key = jax.random.key(0)
    proposal, state = strategy.ask(key, strategy.init(key))
    told = strategy.tell(key, state, proposal, members(proposal.params) @ c)
    step = strategy.solution(told)
    assert step @ c / jnp.linalg.norm(step) / jnp.linalg.norm(c) >= 0.95


def test_sigma_decays_from_its_first_generation():
    """evosax alone uses its schedule's first value twice."""
    strategy = compiled(
        open_es.open_es(space(), 8, 0.4, optax.sgd(0.1), sigma_decay=0.5)
    )
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
    strategy = compiled(
        open_es.open_es(space(), 64, 0.3, optax.adamw(0.1, weight_decay=0.5))
    )
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
    strategy = compiled(snes.snes(space(), 8, 0.3))
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
    fixed = compiled(snes.snes(space(), 8, 0.3, sigma_learning_rate=0.0))
    fixed = asked(fixed)[2]
    np.testing.assert_allclose(fixed.es.std, 0.3, rtol=1e-6)


def test_steps_of_snes_shrink():
    """Generation g moves the mean by 1/(1 + g/h) of what steps of equal length do."""
    moves = {}
    for half in (None, 2.0):
        strategy = snes.snes(space(), 8, 0.3, half_step=half, sigma_learning_rate=0.0)
        strategy, moves[half] = compiled(strategy), []
        state = strategy.init(jax.random.key(0))
        for generation in range(5):
            key, before = (
                jax.random.key(generation),
                flat(one(strategy.solution(state))),
            )
            proposal, state = strategy.ask(key, state)
            order = jnp.arange(8.0)  # whatever the members are
            state = strategy.tell(key, state, proposal, order)
            moves[half].append(flat(one(strategy.solution(state))) - before)
    shares = 1 / (1 + np.arange(5) / 2)
    for share, shrunk, usual in zip(shares, moves[2.0], moves[None], strict=True):
        np.testing.assert_allclose(shrunk, share * usual, atol=1e-5)
    with pytest.raises(ConfigError, match="half_step=0"):
        snes.snes(space(), 8, 0.3, half_step=0.9)


def test_pgpe_by_hand():
    strategy = compiled(
        pgpe.pgpe(space(), 8, 0.3, optax.sgd(0.5), max_sigma_change=0.003)
    )
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
    strategy = compiled(ars.ars(space(), 8, 0.3, optax.sgd(0.5), elite_ratio=0.5))
    raw = np.array([1.0, 4.0, 2.0, 0.0, 5.0, 3.0, 2.0, 1.0]) * scale
    noise, _, told = asked(strategy, jnp.asarray(raw, jnp.float32))
    deviation = np.std([1.0, 5.0, 4.0, 3.0])
    gradient = ((1 - 5) * noise[0] + (4 - 3) * noise[1]) / 0.3 / (2 * deviation)
    np.testing.assert_allclose(
        flat(one(strategy.solution(told)))[0], 2 + 0.5 * gradient, rtol=1e-5
    )


def test_cma_es_recombines_the_better_half():
    for module in (cma_es.cma_es, sep_cma_es.sep_cma_es):
        strategy = compiled(module(space(), 8, 0.3))
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

    strategy = compiled(cma_es.cma_es(space(), 32, 0.3))
    state, _ = climb(strategy, valley, 120)
    values = np.linalg.eigvals(np.float64(state.es.C) @ hessian).real
    # Condition 100 to begin with; 10 is the root.
    assert values.max() / values.min() < 10


def test_sep_cma_es_learns_at_the_rate_of_its_paper():
    """Ros & Hansen: (D + 2)/3 times that of the full covariance, which evosax has."""
    slow = Space(lambda key: jnp.full(64, 2.0), lambda params, meta: meta)
    scales = jnp.logspace(0, 2, 64)
    strategy = compiled(sep_cma_es.sep_cma_es(slow, 16, 0.3))
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
    strategy = compiled(learned_es.learned_es(space(), 8, 0.3))
    asked(strategy)


def test_genetic_algorithm_breeds_from_its_elites():
    """Two elites: every child is one of them (no crossover), plus mutation."""
    strategy = compiled(simple_ga.simple_ga(space(), 16, 0.3, elite_ratio=2 / 16))
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
    strategy = compiled(
        simple_ga.simple_ga(space(), 16, 0.3, elite_ratio=2 / 16, crossover_rate=0.5)
    )
    noise, fitness, told = asked(strategy)
    best = 2 + noise[np.argsort(-fitness)[:2]]
    quiet = told._replace(es=told.es.replace(std=jnp.float32(0.0)))
    children = np.asarray(flat(strategy.ask(jax.random.key(3), quiet)[0].params))
    genes = np.abs(children[None] - best[:, None]) < 1e-5
    assert genes.any(0).all()
    assert (genes[0].any(1) & genes[1].any(1)).any()


def test_de_keeps_the_better_of_each_pair():
    strategy = compiled(de.de(space(), 16, 0.3, base="random"))
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
        strategy = compiled(de.de(space(), 32, 0.3))
        keys = jax.random.split(jax.random.key(0), 150)
        state = strategy.init(keys[0])
        for key in keys:
            proposal, state = strategy.ask(key, state)
            world = shift * jax.random.normal(jax.random.fold_in(key, 1))
            fitness = sphere(proposal.params) + world
            state = strategy.tell(key, state, proposal, fitness)
        return sphere(one(strategy.solution(state)))[0]

    start = sphere(one(space().init(None)))[0]
    assert run(100.0) > 0.001 * start
