"""Each evolution strategy against its equations, by hand."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from climbing import compiled, flat, one, space, sphere

from metaevo.errors import ConfigError
from strategies import (
    _evosax,
    _shaping,
    ars,
    de,
    learned_es,
    open_es,
    pgpe,
    simple_ga,
    snes,
)


def asked(strategy, fitness=None):
    """Noise [P, 8] of a first generation, its fitness, and the state told of it."""
    key = jax.random.key(0)
    proposal, state = strategy.ask(key, strategy.init(key))
    x = np.float64(flat(proposal.params))
    fitness = sphere(proposal.params) if fitness is None else fitness
    told = strategy.tell(key, state, proposal, fitness)
    return x - 2.0, np.float64(fitness), told


def solution(strategy, state):
    """All numbers of the solution, [8]."""
    return np.asarray(flat(one(strategy.solution(state)))[0])


# --- OpenAI-ES ------------------------------------------------------------------------


def test_open_es_by_hand():
    """One step of gradient ascent against the paper's equation, and a weight decay,
    which is the optimizer's and sees the mean."""
    decayed = optax.chain(optax.add_decayed_weights(0.25), optax.sgd(0.5))
    strategy = compiled(open_es.open_es(space(), 8, 0.3, decayed))
    noise, fitness, told = asked(strategy)
    ranks = np.argsort(np.argsort(fitness)) / 7 - 0.5
    step = 0.5 * ((ranks @ noise) / (8 * 0.3**2) - 0.25 * 2.0)
    np.testing.assert_allclose(solution(strategy, told), 2.0 + step, rtol=1e-4)
    norm = strategy.metrics(told)["update_norm"]
    assert norm == pytest.approx(np.linalg.norm(step), rel=1e-4)


def test_open_es_stays_where_all_pairs_tie():
    """The gradient is 0; Adam would make whole steps of what rounding leaves of it."""
    strategy = compiled(
        open_es.open_es(space(), 16, 0.3, optax.adam(0.1), shaping="standardize")
    )
    _, _, told = asked(strategy, np.tile(np.arange(8, dtype=np.float32) ** 2, 2))
    assert strategy.metrics(told)["update_norm"] == 0.0
    np.testing.assert_array_equal(solution(strategy, told), np.full(8, 2.0))


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


# --- fitness shaping ------------------------------------------------------------------


def test_shapings_by_hand():
    """Also of equal members, and of fitness whose square is infinite."""
    fitness = np.float32([[3, -1, 3, 7], [0.1] * 4, [1e37, -1e37, 0, 0]])
    standard = np.array([[0, -2, 0, 2], [0] * 4, [2, -2, 0, 0]]) / np.sqrt(2)
    ranks = [[0, -0.5, 0, 0.5], [0] * 4, [0.5, -0.5, 0, 0]]
    better = [[0, -0.5, 0, 0.5], [0] * 4, [0.5, -0.5, -0.5, 0.5]]
    for shaping, expected in (
        (_shaping.centered_rank, ranks),
        (_shaping.standardize, standard),
        (_shaping.pair_rank, better),
    ):
        found = jax.jit(jax.vmap(shaping))(fitness)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(found[1], np.zeros(4))


def test_tied_members_share_their_weights():
    """evosax rounds their mean rank down: the weights would no longer sum to 1."""

    class Params(NamedTuple):
        weights: jax.Array

    params = Params(jnp.array([0.5, 0.3, 0.15, 0.05]))
    costs = jnp.array([1.0, 0.0, 1.0, 9.0])
    weights = _evosax.tied_weights(None, costs, None, params)
    np.testing.assert_allclose(weights, [0.225, 0.5, 0.225, 0.05], rtol=1e-6)


# --- the others on evosax -------------------------------------------------------------


def test_snes_by_hand():
    """The paper's equations, with its utilities and learning rates."""
    strategy = compiled(snes.snes(space(), 8, 0.3))
    noise, fitness, told = asked(strategy)
    ranks = np.argsort(np.argsort(-fitness)) + 1
    utilities = np.maximum(0, np.log(8 / 2 + 1) - np.log(ranks))
    utilities = utilities / utilities.sum() - 1 / 8
    expected = 2 + utilities @ noise
    np.testing.assert_allclose(solution(strategy, told), expected, rtol=1e-5)
    rate = (3 + np.log(8)) / (5 * np.sqrt(8))
    sigma = 0.3 * np.exp(rate / 2 * utilities @ ((noise / 0.3) ** 2 - 1))
    np.testing.assert_allclose(told.es.std, sigma, rtol=1e-5)


def test_steps_of_snes_shrink():
    """Generation g moves the mean by 1/(1 + g/h) of what steps of equal length do."""
    moves = {}
    for half in (None, 2.0):
        strategy = snes.snes(space(), 8, 0.3, half_step=half, sigma_learning_rate=0.0)
        strategy, moves[half] = compiled(strategy), []
        state = strategy.init(jax.random.key(0))
        for generation in range(5):
            key, before = jax.random.key(generation), solution(strategy, state)
            proposal, state = strategy.ask(key, state)
            order = jnp.arange(8.0)  # whatever the members are
            state = strategy.tell(key, state, proposal, order)
            moves[half].append(solution(strategy, state) - before)
        np.testing.assert_allclose(state.es.std, 0.3, rtol=1e-6)
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
    expected = 2 + 0.5 * (first - second) @ noise / 8
    np.testing.assert_allclose(solution(strategy, told), expected, rtol=1e-5)
    change = 0.1 * (first + second) @ ((noise**2 - 0.3**2) / 0.3) / 8
    assert (np.abs(change) > 9e-4).any(), "nothing to clip"
    assert (np.abs(change) < 9e-4).any()
    np.testing.assert_allclose(
        told.es.std, 0.3 + np.clip(change, -9e-4, 9e-4), rtol=1e-5
    )


def test_ars_by_hand():
    """Two of four pairs count, those with the best member, of whatever fitness."""
    strategy = compiled(ars.ars(space(), 8, 0.3, optax.sgd(0.5), elite_ratio=0.5))
    raw = np.array([1.0, 4.0, 2.0, 0.0, 5.0, 3.0, 2.0, 1.0]) * 1e30
    noise, _, told = asked(strategy, jnp.asarray(raw, jnp.float32))
    deviation = np.std([1.0, 5.0, 4.0, 3.0])
    gradient = ((1 - 5) * noise[0] + (4 - 3) * noise[1]) / 0.3 / (2 * deviation)
    expected = 2 + 0.5 * gradient
    np.testing.assert_allclose(solution(strategy, told), expected, rtol=1e-5)


def test_learned_es_fetches_nothing(monkeypatch):
    import socket

    def refuse(*args, **kwargs):
        raise AssertionError("it uses the network")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    strategy = compiled(learned_es.learned_es(space(), 8, 0.3))
    asked(strategy)


@pytest.mark.parametrize("crossover", [0.0, 0.5])
def test_genetic_algorithm_breeds_from_its_elites(crossover):
    """Two elites: a child is one of them or a mixture of both, plus mutation."""
    strategy = compiled(
        simple_ga.simple_ga(
            space(), 16, 0.3, elite_ratio=2 / 16, crossover_rate=crossover
        )
    )
    noise, fitness, told = asked(strategy)
    np.testing.assert_allclose(noise.std(), 0.3, rtol=0.2)
    best = 2 + noise[np.argsort(-fitness)[:2]]
    np.testing.assert_allclose(solution(strategy, told), best.mean(0), rtol=1e-5)
    quiet = told._replace(es=told.es.replace(std=jnp.float32(0.0)))
    children = np.asarray(flat(strategy.ask(jax.random.key(3), quiet)[0].params))
    genes = np.abs(children[None] - best[:, None]) < 1e-5
    assert genes.any(0).all()
    assert genes.any((1, 2)).all()
    mixed = genes.any(2).all(0)
    assert mixed.any() == (crossover > 0)


def test_de_keeps_the_better_of_each_pair():
    strategy = compiled(de.de(space(), 16, 0.3, base="random"))
    noise, fitness, told = asked(strategy)
    first, second = (2 + noise).reshape(2, 8, 8)
    expected = np.where((fitness[:8] >= fitness[8:])[:, None], first, second)
    np.testing.assert_array_equal(told.es.population, expected)
    np.testing.assert_allclose(solution(strategy, told), expected.mean(0), rtol=1e-6)


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
