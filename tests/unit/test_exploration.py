"""Exploration, schedules and diversity, on numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from inner_loops import dqn
from metaevo import exploration, schedules
from metaevo.rl import diversity, q_learning
from metaevo.rl import noise as action_noise
from metaevo.slots import Context


def test_epsilon_greedy_is_a_distribution_with_the_first_of_equals():
    q = np.float32([[1.0, 3.0, 3.0, 0.0]])
    p = jax.jit(exploration.epsilon_greedy)(q, 0.2, Context())
    np.testing.assert_allclose(p, [[0.05, 0.85, 0.05, 0.05]], rtol=1e-6)


def test_linear_schedule():
    schedule = schedules.linear(1.0, 0.1, 0.5)
    found = [float(schedule(Context(progress=x))) for x in (0.0, 0.25, 0.5, 0.9)]
    assert found == pytest.approx([1.0, 0.55, 0.1, 0.1])


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_correlated_noise_is_standard_normal_with_that_correlation(rho):
    key = jax.random.key(0)
    white = jax.random.normal(key, (20_000,))
    noise = np.asarray(action_noise.correlated(white, white[0], rho))
    assert np.corrcoef(noise[1:], noise[:-1])[0, 1] == pytest.approx(rho, abs=0.02)
    assert noise.std() == pytest.approx(1.0, abs=0.06)
    if rho == 0:
        np.testing.assert_array_equal(noise, white)


def test_correlated_noise_goes_on_where_it_was():
    """Two halves are one whole: what carries over is the last value alone."""
    white = np.float32(np.random.default_rng(0).normal(size=(10, 3)))
    correlated, start = jax.jit(action_noise.correlated), np.zeros(3, np.float32)
    first = correlated(white[:5], start, 0.9)
    halves = first, correlated(white[5:], first[-1], 0.9)
    whole = correlated(white, start, 0.9)
    np.testing.assert_array_equal(whole, np.concatenate(halves))


def test_uniform_noise_is_uniform():
    x = action_noise.uniform(jax.random.normal(jax.random.key(0), (20_000,)))
    assert stats.kstest(np.asarray(x), stats.uniform(-1, 2).cdf).pvalue > 1e-3


# --- learned exploration --------------------------------------------------------------


def graded(share, preference):
    params = {"share": jnp.float32(share), "preference": jnp.float32(preference)}
    return exploration.graded(len(share)).bind(params)


Q = np.float32([[1, 3, 3, -1], [0, 0, 0, 0], [-5, 1e30, 2, 7]])


def test_graded_starts_as_epsilon_greedy_to_the_bit():
    function = exploration.graded()
    assert function.starts_hand_made
    start = function.bind(function.init(jax.random.key(0)))

    @jax.jit
    def both(epsilon, now):
        return start(Q, epsilon, now), exploration.epsilon_greedy(Q, epsilon, now)

    for epsilon in (0.0, 0.05, 0.3, 1.0):
        for progress in (0.0, 0.4, 1.0):
            np.testing.assert_array_equal(*both(epsilon, Context(progress=progress)))


def test_graded_by_hand():
    """z = (−1/2, 0, 0, −1); at half of life β = 2 and the odds of ε are doubled."""
    function = graded([0.0, np.log(2), 0.0], [0.0, 2.0, 0.0])
    found = jax.jit(function)(Q[:1], 0.2, Context(progress=0.5))
    epsilon = 2 * (0.2 / 0.8) / (1 + 2 * (0.2 / 0.8))
    weight = np.exp([-1.0, 0.0, 0.0, -2.0])
    expected = epsilon * weight / weight.sum() + [0, 1 - epsilon, 0, 0]
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)


def test_graded_is_a_distribution_whatever_it_learned():
    size = np.float32([-1e9, -30.0, 30.0, 1e9])
    none = np.zeros_like(size)
    share, preference = np.append([size, none], size), np.append([none, size], size)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, 0, None))
    @functools.partial(jax.vmap, in_axes=(None, None, 0))
    def probabilities(share, preference, epsilon):
        params = {"share": share, "preference": preference}
        params = jax.tree.map(lambda x: jnp.broadcast_to(x, 2), params)
        return exploration.graded(2).apply(params, 1e7 * Q, epsilon, Context())

    p = np.asarray(probabilities(share, preference, np.float32([0.0, 0.1, 1.0])))
    np.testing.assert_allclose(p.sum(-1), 1.0, rtol=1e-5)
    assert (p >= 0).all()


def test_graded_refuses_a_single_knot():
    with pytest.raises(ValueError, match="num_knots=1"):
        exploration.graded(1)


# --- diversity (DvD) ------------------------------------------------------------------


def test_log_volume_by_hand():
    """Of two, det [[1, k], [k, 1]] = 1 − k², k = exp(−d²/(2 D)): zero far apart."""
    volume = jax.jit(lambda members: diversity.log_volume(members, jitter=0.0))
    for distance in (0.5, 1.0, 100.0):
        expected = np.log(1 - np.exp(-(distance**2) / (2 * 2)) ** 2)
        found = volume(np.float32([[distance, 0.0], [0.0, 0.0]]))
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_gradient_pushes_members_apart_and_is_finite_for_equal_ones():
    """Where fastpbrl's runs end in NaN."""
    slope = jax.jit(jax.value_and_grad(diversity.log_volume))
    _, gradient = slope(np.float32([[0.1, 0.0], [-0.1, 0.0]]))
    assert gradient[0, 0] > 0 > gradient[1, 0]
    value, gradient = slope(np.ones((2, 2), np.float32))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


# --- legal actions --------------------------------------------------------------------


def test_an_explorer_takes_legal_actions_with_the_probabilities_given_that():
    """Action 1, the best, is illegal; the slot sees it with the worst legal value."""
    q = jnp.array([[1.0, 9.0, 2.0, 4.0]])
    mask = jnp.array([[True, False, True, True]])
    seen = {}

    def look(q, epsilon, context):
        seen["q"] = q
        return exploration.epsilon_greedy(q, epsilon, context)

    meta = dqn.Meta(epsilon=0.4, exploration=look)
    choose = q_learning.explorer(lambda obs: q, meta, Context())
    noise = jax.random.gumbel(jax.random.key(0), (20_000, 1, 4))
    _, taken, _ = jax.vmap(lambda noise: choose((), None, noise, (), mask))(noise)
    np.testing.assert_array_equal(seen["q"], [[1.0, 1.0, 2.0, 4.0]])
    share = np.bincount(taken[:, 0], minlength=4) / len(taken)
    # ε / 4 each and the rest for the last, of which 1 - ε / 4 is legal.
    np.testing.assert_allclose(share, np.array([0.1, 0, 0.1, 0.7]) / 0.9, atol=0.015)
    assert share[1] == 0


def test_an_exploration_of_illegal_actions_alone_becomes_a_uniform_one():
    mask = jnp.array([True, False, True])
    np.testing.assert_array_equal(
        q_learning.legal_probabilities(jnp.array([0.0, 1.0, 0.0]), mask), [0.5, 0, 0.5]
    )
    nothing = jnp.full(3, jnp.nan)
    assert q_learning.legal_probabilities(nothing, mask)[1] == 0
    same = jnp.array([0.2, 0.3, 0.5])
    assert q_learning.legal_probabilities(same, None) is same
