"""Golden values of returns (computed with rlax 0.1.9) and properties of masks."""

import jax.numpy as jnp
import numpy as np
import pytest

from metaevo.rl.returns import (
    generalized_advantage,
    lambda_return,
    n_step_return,
    n_step_window,
)

REWARD = jnp.array([1.0, 0.0, 2.0, -1.0])
VALUE = jnp.array([0.5, 0.4, 0.3, 0.2])
NEXT_VALUE = jnp.array([0.4, 0.3, 0.2, 0.6])
THIRD_ENDS = jnp.array([False, False, True, False])
NEVER = jnp.zeros(4, bool)


def test_gae_golden():
    advantage = generalized_advantage(
        REWARD, VALUE, NEXT_VALUE, THIRD_ENDS, THIRD_ENDS, 0.9, 0.8
    )
    np.testing.assert_allclose(advantage, [1.64768, 1.094, 1.7, -0.66], rtol=1e-5)


def test_gae_lambda_one_golden():
    advantage = generalized_advantage(
        REWARD, VALUE, NEXT_VALUE, THIRD_ENDS, THIRD_ENDS, 0.9, 1.0
    )
    np.testing.assert_allclose(advantage, [2.12, 1.4, 1.7, -0.66], rtol=1e-5)


def test_three_step_return_golden():
    returns = n_step_return(REWARD, NEXT_VALUE, THIRD_ENDS, THIRD_ENDS, 0.9, 3)
    np.testing.assert_allclose(returns, [2.62, 1.8, 2.0, -0.46], rtol=1e-5)


def test_one_step_return_is_the_td_target():
    returns = n_step_return(REWARD, NEXT_VALUE, THIRD_ENDS, THIRD_ENDS, 0.9, 1)
    np.testing.assert_allclose(returns, [1.36, 0.27, 2.0, -0.46], rtol=1e-5)


def test_truncation_bootstraps_but_cuts_the_trace():
    """By hand: the third step's δ contains γ V(o₄), and A₂ does not reach step 4."""
    next_value = NEXT_VALUE.at[2].set(5.0)
    advantage = generalized_advantage(
        REWARD, VALUE, next_value, NEVER, THIRD_ENDS, 0.9, 0.8
    )
    third = 2.0 + 0.9 * 5.0 - 0.3
    second = 0.0 + 0.9 * 0.3 - 0.4 + 0.72 * third
    first = 1.0 + 0.9 * 0.4 - 0.5 + 0.72 * second
    np.testing.assert_allclose(advantage, [first, second, third, -0.66], rtol=1e-5)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_n_step_window_stops_at_truncation_with_bootstrap(n):
    next_value = NEXT_VALUE.at[2].set(5.0)
    returns = n_step_return(REWARD, next_value, NEVER, THIRD_ENDS, 0.9, n)
    assert returns[2] == pytest.approx(2.0 + 0.9 * 5.0)
    assert returns[1] == pytest.approx(0.9 * (2.0 + 0.9 * 5.0))
    assert returns[3] == pytest.approx(-1.0 + 0.9 * 0.6)


def test_long_n_equals_gae_with_lambda_one():
    """On one trajectory whose end bootstraps, both are the full return."""
    advantage = generalized_advantage(REWARD, VALUE, NEXT_VALUE, NEVER, NEVER, 0.9, 1.0)
    # With λ = 1 only the last value remains if V(oₜ₊₁) is the next step's value.
    returns = n_step_return(REWARD, NEXT_VALUE, NEVER, NEVER, 0.9, 4)
    np.testing.assert_allclose(returns, advantage + VALUE, rtol=1e-5)


@pytest.mark.parametrize("trace", [0.0, 0.8, 1.0])
def test_lambda_returns_are_gae_plus_values(trace):
    """Where the next value is that of the next step: Gₜ = Aₜ + V(oₜ)."""
    next_value = NEXT_VALUE.at[2].set(5.0)
    for terminated in (THIRD_ENDS, NEVER):
        advantage = generalized_advantage(
            REWARD, VALUE, next_value, terminated, THIRD_ENDS, 0.9, trace
        )
        returns = lambda_return(REWARD, next_value, terminated, THIRD_ENDS, 0.9, trace)
        np.testing.assert_allclose(returns, advantage + VALUE, rtol=1e-5)


@pytest.mark.parametrize("ends", [THIRD_ENDS, NEVER], ids=["end", "no end"])
@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_windows_give_the_n_step_returns(n, terminates, ends):
    """The window from each step on, against the returns of the whole trajectory."""
    next_value = NEXT_VALUE.at[2].set(5.0)
    terminated = ends & terminates
    expected = n_step_return(REWARD, next_value, terminated, ends, 0.9, n)
    for t in range(4 - n + 1):
        window = slice(t, t + n)
        total, factor, last = n_step_window(
            REWARD[window], terminated[window], ends[window], 0.9
        )
        found = total + factor * next_value[t + int(last)]
        assert found == pytest.approx(float(expected[t]), rel=1e-5)


def test_windows_are_elementwise():
    total, factor, last = n_step_window(
        jnp.stack([REWARD, REWARD]),
        jnp.stack([THIRD_ENDS, NEVER]),
        jnp.stack([THIRD_ENDS, NEVER]),
        0.5,
    )
    np.testing.assert_allclose(total, [1.5, 0.0, 2.0, -1.5])
    np.testing.assert_allclose(factor, [0.25, 0.25, 0.0, 0.25])
    np.testing.assert_array_equal(last, [1, 1, 0, 1])
