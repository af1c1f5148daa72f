"""Persistent evolution strategies: by hand, and with debts that come late."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import toys
from climbing import after, assert_equal, compiled, flat, one, space, sphere

from metaevo import fitness as fitness_of
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import InnerLoop, InnerState, Proposal, Search, Space
from strategies import open_es, pes


def test_pes_by_hand():
    """Three generations of g = 1/P Σ u ξ, with ξ summed since birth."""
    make = functools.partial(
        pes.pes, space(), 4, 0.3, optax.sgd(0.5), 2, sigma_decay=0.5, staggered=False
    )
    for accumulate in (True, False):
        strategy = compiled(make(accumulate=accumulate))
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
    ours, theirs = (after(compiled(s), sphere, 5) for s in (ours, theirs))
    np.testing.assert_allclose(ours.mean, theirs.es.mean, rtol=1e-4)


def test_mirror_images_live_in_the_same_worlds():
    """Else what a pair differs by would be its worlds and not its members."""
    spread = {}
    for strategy in (
        pes.pes(toys.space(), 4, 0.3, optax.sgd(0.5), 4, staggered=False),
        toys.pbt(),
    ):
        search = toys.search(strategy, segments_per_generation=1)
        proposal = Proposal({"lr": jnp.zeros(4)}, jnp.full(4, -1))
        evaluated, _ = LocalEvaluator(search)(jax.random.key(0), proposal, ())
        spread[strategy.mirrored] = len(np.unique(evaluated.fitness))
    assert spread == {True: 1, False: 4}


def births(strategy, generations):
    """Newborn members as a mask, [generations, P]."""
    strategy = compiled(strategy)
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

    def act(key, meta, agent, carry, obs, state=None, mask=None):
        return obs, carry

    return InnerLoop(Greed(), init, train, evaluate, horizon, act)


def test_pes_credits_what_pays_later():
    """Truncated ES would go the wrong way; in the evaluator, with agents living on."""
    greed = Space(
        lambda key: {"rate": jnp.zeros(())},
        lambda params, meta: meta._replace(rate=params["rate"]),
    )
    strategy = compiled(pes.pes(greed, 64, 0.1, optax.sgd(0.01), 8))
    auc = fitness_of.area_under_curve
    search = Search(indebted(8), greed, strategy, 40, auc, segments_per_generation=1)
    evaluate, carried = LocalEvaluator(search), ()
    state = strategy.init(jax.random.key(0))
    for i in range(40):
        key = jax.random.fold_in(jax.random.key(1), i)
        proposal, state = strategy.ask(key, state)
        evaluated, carried = evaluate(key, proposal, carried)
        scores = fitness_of.mean(evaluated.fitness)
        scores, _ = fitness_of.sanitize(scores, strategy.mirrored)
        state = strategy.tell(key, state, proposal, jnp.asarray(scores))
    assert float(strategy.solution(state)["rate"]) < -0.05


def test_a_generation_in_which_all_failed_leaves_pes_as_it_was():
    """The engine does not tell it, and asks again: nothing was lived."""
    strategy = compiled(pes.pes(space(), 32, 0.3, optax.adam(0.1), 4))
    state = after(strategy, sphere, 3)
    proposal, asked = strategy.ask(jax.random.key(0), state)
    assert_equal(state, asked)
    assert (strategy.ask(jax.random.key(1), asked)[0].parents == proposal.parents).all()
