"""Asynchronous successive halving: its rule by hand, and what it saves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from climbing import compiled

from metaevo import spaces
from metaevo.errors import ConfigError
from strategies import asha

SPACE = spaces.prior(x=spaces.uniform(0.0, 1.0))


def told(strategy, state, fitness, seed=0):
    proposal, state = strategy.ask(jax.random.key(seed), state)
    fitness = jnp.asarray(fitness, jnp.float32)
    return proposal, strategy.tell(jax.random.key(seed + 1), state, proposal, fitness)


def test_the_rule_by_hand():
    """Six agents, whole lives of 4 generations, rungs at 1 and 2, halves go on."""
    strategy = compiled(asha.asha(SPACE, 6, 4, factor=2))
    state = strategy.init(jax.random.key(0))
    proposal, state = told(strategy, state, [1, 5, 3, 2, 6, 4])
    np.testing.assert_array_equal(proposal.parents, -1)
    old = proposal.params
    proposal, state = told(strategy, state, [3.5, 7, 0.5, 9, 5, 6])
    # The best three, 5, 6 and 4, went on; the others are newborn, with other numbers.
    np.testing.assert_array_equal(proposal.parents, [-1, 1, -1, -1, 4, 5])
    stays = np.array([False, True, False, False, True, True])
    same = np.asarray(proposal.params["x"] == old["x"])
    np.testing.assert_array_equal(same, stays)
    # At age 1 are now 3.5, 0.5 and 9, beside 6 5 4 3 2 1 of before: of nine, the best
    # five go on (9 6 5 4 3.5). At age 2 are 7, 5 and 6: of three, the best two.
    proposal, state = strategy.ask(jax.random.key(3), state)
    np.testing.assert_array_equal(proposal.parents, [0, 1, -1, 3, -1, 5])
    metrics = strategy.metrics(state)
    assert int(metrics["stopped_early"]) == 2
    assert int(metrics["trials"]) == 6 + 3 + 2
    assert int(metrics["whole_lives"]) == 0
    assert int(metrics["best_rung"]) == 1
    # Of those that came farthest, 7 is the best.
    np.testing.assert_array_equal(strategy.solution(state)["x"], old["x"][1])


def test_whole_lives_end_and_the_best_of_them_is_the_solution():
    strategy = compiled(asha.asha(SPACE, 4, 3, factor=1, keep=1.0))
    state = strategy.init(jax.random.key(0))
    first = strategy.ask(jax.random.key(0), state)[0].params["x"]
    for scores in ([9, 1, 2, 3], [1, 1, 1, 1], [1, 4, 2, 3]):
        _, state = told(strategy, state, scores)
    assert int(strategy.metrics(state)["whole_lives"]) == 4
    np.testing.assert_array_equal(strategy.solution(state)["x"], first[1])
    assert (np.asarray(strategy.ask(jax.random.key(0), state)[0].parents) == -1).all()
    # A younger agent is never preferred to a whole life, whatever it scores.
    _, state = told(strategy, state, [99, 99, 99, 99])
    np.testing.assert_array_equal(strategy.solution(state)["x"], first[1])


def test_the_rank_correlation_is_spearmans():
    rng = np.random.default_rng(0)
    strategy = compiled(asha.asha(SPACE, 8, 2, keep=1.0))
    state, pairs = strategy.init(jax.random.key(0)), []
    for _ in range(3):
        early = rng.integers(0, 5, 8)  # with ties
        late = early + rng.normal(size=8)
        pairs.append((early, late))
        for scores in (early, late):
            _, state = told(strategy, state, scores)
    found = float(strategy.metrics(state)["rank_correlation"])
    expected = scipy.stats.spearmanr(*np.concatenate(pairs, 1)).statistic
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def best_found(strategy, generations, num_seeds):
    """The solutions' qualities, where an agent scores its quality times its age."""

    def generation(carry, key):
        state, age = carry
        proposal, state = strategy.ask(key, state)
        age = jnp.where(proposal.parents < 0, 0, age) + 1
        noise = 0.05 * jax.random.normal(key, age.shape)
        fitness = proposal.params["x"] * age / 9 + noise
        return (strategy.tell(key, state, proposal, fitness), age), ()

    @jax.jit
    @jax.vmap
    def search(key):
        keys = jax.random.split(key, generations)
        start = strategy.init(keys[0]), jnp.zeros(9, jnp.int32)
        (state, _), _ = jax.lax.scan(generation, start, keys)
        return strategy.solution(state)["x"]

    return search(jax.vmap(jax.random.key)(jnp.arange(num_seeds)))


def test_it_finds_better_numbers_than_whole_lives_of_as_many_frames():
    """A mean over 20 seeds; without stopping, nine draws a life are random search."""
    halving, random = (
        best_found(asha.asha(SPACE, 9, 9, **options), 27, 20).mean()
        for options in ({}, {"keep": 1.0})
    )
    # 27 generations are 27 draws without stopping, whose best is 27/28 at the most.
    assert halving > random
    assert halving > 0.95


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 1}, "horizon=1: expected a whole number, at least 2"),
        ({"first": 4}, "first=4 must be below horizon=4"),
        ({"factor": 1}, "factor=1 needs keep"),
        ({"keep": 0.0}, r"keep=0.0 must be in \(0, 1\]"),
        ({"memory": 4}, "memory=4 must be at least 8"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        asha.asha(SPACE, 8, **{"horizon": 4, **options})
