"""Golden values of returns (computed with rlax 0.1.9) and properties of masks."""

import jax.numpy as jnp
import numpy as np
import pytest

from metaevo.returns import generalized_advantage, n_step_return

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
