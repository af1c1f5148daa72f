"""Golden values of returns (computed with rlax 0.1.9) and properties of masks."""

import functools
import importlib.util
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaevo.rl import returns
from metaevo.rl.returns import (
    generalized_advantage,
    lambda_return,
    n_step_return,
    n_step_window,
    vtrace,
    vtrace_weight,
)

REWARD = jnp.array([1.0, 0.0, 2.0, -1.0])
VALUE = jnp.array([0.5, 0.4, 0.3, 0.2])
NEXT_VALUE = jnp.array([0.4, 0.3, 0.2, 0.6])
THIRD_ENDS = jnp.array([False, False, True, False])
NEVER = jnp.zeros(4, bool)


def test_advantages_and_returns_golden():
    ended = THIRD_ENDS, THIRD_ENDS
    for trace, expected in (
        (0.8, [1.64768, 1.094, 1.7, -0.66]),
        (1.0, [2.12, 1.4, 1.7, -0.66]),
    ):
        found = generalized_advantage(REWARD, VALUE, NEXT_VALUE, *ended, 0.9, trace)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    for n, expected in (
        (3, [2.62, 1.8, 2.0, -0.46]),
        (1, [1.36, 0.27, 2.0, -0.46]),  # the target of a temporal difference
    ):
        found = n_step_return(REWARD, NEXT_VALUE, *ended, 0.9, n)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_discounted_rewards_begin_anew_with_each_episode():
    random = np.random.default_rng(0)
    reward, done = random.normal(size=(9, 2)), random.random((9, 2)) < 0.3
    running, expected = np.array([2.0, -3.0]), []
    last, found = returns.discounted_so_far(reward, done, 0.9, jnp.array(running))
    for now, end in zip(reward, done, strict=True):
        expected.append(now + 0.9 * running)
        running = np.where(end, 0.0, expected[-1])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, running, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [5, 40])
def test_several_steps_at_once_change_no_value(length, monkeypatch):
    """As on an accelerator, with trajectories shorter than the unrolled ones."""
    random = np.random.default_rng(length)
    arrays = random.normal(size=(3, length, 2)).astype(np.float32)
    masks = random.random((2, length, 2)) < 0.2
    rho = random.random((length, 2)).astype(np.float32)

    def all_of_them(arrays, masks, rho):
        reward, value, following = arrays
        rest = masks[0], masks.any(0), 0.9, 0.8
        return (
            generalized_advantage(reward, value, following, *rest),
            lambda_return(reward, following, *rest),
            *vtrace(reward, value, following, *rest, rho, rho, rho),
        )

    one = jax.jit(all_of_them)(arrays, masks, rho)
    monkeypatch.setattr(returns, "steps_at_once", lambda: 16)
    many = jax.jit(lambda *given: all_of_them(*given))(arrays, masks, rho)
    for x, y in zip(one, many, strict=True):
        np.testing.assert_allclose(x, y, 1e-5, 1e-6)


def test_n_step_window_stops_at_truncation_with_bootstrap():
    next_value = NEXT_VALUE.at[2].set(5.0)
    for n in (2, 3, 5):
        returns = n_step_return(REWARD, next_value, NEVER, THIRD_ENDS, 0.9, n)
        third = 2.0 + 0.9 * 5.0
        expected = [0.9 * third, third, -1.0 + 0.9 * 0.6]
        np.testing.assert_allclose(returns[1:], expected, rtol=1e-6)


def test_lambda_returns_are_gae_plus_values():
    """Where the next value is that of the next step: Gₜ = Aₜ + V(oₜ)."""
    next_value = NEXT_VALUE.at[2].set(5.0)
    for terminated in (THIRD_ENDS, NEVER):
        rest = next_value, terminated, THIRD_ENDS, 0.9, 0.8
        advantage = generalized_advantage(REWARD, VALUE, *rest)
        returns = lambda_return(REWARD, *rest)
        np.testing.assert_allclose(returns, advantage + VALUE, rtol=1e-5)


def test_windows_give_the_n_step_returns():
    """The window from each step on, against the returns of the whole trajectory."""
    next_value = NEXT_VALUE.at[2].set(5.0)
    ways_to_end = (THIRD_ENDS, THIRD_ENDS), (NEVER, THIRD_ENDS), (NEVER, NEVER)
    for n, (terminated, ends) in itertools.product((1, 2, 3), ways_to_end):
        expected = n_step_return(REWARD, next_value, terminated, ends, 0.9, n)
        # [n, windows]: step t of each window.
        steps = np.arange(4 - n + 1) + np.arange(n)[:, None]
        total, factor, last = jax.jit(n_step_window)(
            *(np.asarray(x)[steps] for x in (REWARD, terminated, ends)), 0.9
        )
        found = total + factor * np.asarray(next_value)[steps[0] + last]
        np.testing.assert_allclose(found, expected[: 4 - n + 1], rtol=1e-5)


# --- V-trace --------------------------------------------------------------------------

RATIO = jnp.array([0.5, 1.0, 2.0, 1.5])


def test_vtrace_golden():
    weight = vtrace_weight(RATIO, 1.0)
    error, advantage = vtrace(
        *(REWARD, VALUE, NEXT_VALUE, THIRD_ENDS, THIRD_ENDS),
        *(0.9, 1.0, weight, weight, weight),
    )
    np.testing.assert_allclose(VALUE + error, [1.56, 1.8, 2.0, -0.46], rtol=1e-5)
    np.testing.assert_allclose(advantage, [1.06, 1.4, 1.7, -0.66], rtol=1e-5)


def drawn(seed, num_steps=20):
    """Trajectories with both kinds of ends; the next value is not that of the next."""
    rng = np.random.default_rng(seed)
    reward, value, next_value, log_ratio = rng.normal(size=(4, num_steps))
    terminated, truncated = rng.random((2, num_steps)) < 0.15
    done = terminated | truncated
    return reward, value, next_value, terminated, done, np.exp(log_ratio)


def test_vtrace_on_policy_is_the_generalized_advantage():
    """To the bit: both errors and advantages."""
    one = jax.jit(lambda *steps: generalized_advantage(*steps, 0.9, 0.7))
    other = jax.jit(lambda *steps: vtrace(*steps, 0.9, 0.7, 1.0, 1.0, 1.0))
    for seed in range(20):
        *steps, _ = drawn(seed)
        expected, found = one(*steps), other(*steps)
        np.testing.assert_array_equal(found.error, expected)
        np.testing.assert_array_equal(found.advantage, expected)


def by_loops(reward, value, next_value, terminated, done, ratio, *numbers):
    """V-trace as sums of products (Espeholt et al., 2018, equation 1)."""
    gamma, trace, rho_clip, c_clip, pg_clip, leak = numbers

    def weight(t, clip):
        return (1 - leak) * min(clip, ratio[t]) + leak * ratio[t]

    def bootstrapped(t):
        return reward[t] + gamma * (0 if terminated[t] else next_value[t]) - value[t]

    num_steps = len(reward)
    error = np.zeros(num_steps + 1)
    for start in range(num_steps):
        product = 1.0
        for t in range(start, num_steps):
            error[start] += product * weight(t, rho_clip) * bootstrapped(t)
            if done[t]:
                break
            product *= gamma * trace * weight(t, c_clip)
    advantage = [
        weight(t, pg_clip)
        * (bootstrapped(t) + (0 if done[t] else gamma * trace * error[t + 1]))
        for t in range(num_steps)
    ]
    return error[:-1], np.array(advantage)


@functools.cache
def weighed():
    """V-trace of a ratio by its clips, jitted."""

    @jax.jit
    def call(steps, ratio, gamma, trace, rho_clip, c_clip, pg_clip, leak):
        weights = [vtrace_weight(ratio, x, leak) for x in (rho_clip, c_clip, pg_clip)]
        return vtrace(*steps, gamma, trace, *weights)

    return call


def test_vtrace_equals_its_definition():
    """With all its numbers free."""
    for seed in range(50):
        *steps, ratio = drawn(seed)
        low, high = (0.5, 0, 0.2, 0.2, 0.2, 0), (1, 1, 3, 3, 3, 1)
        numbers = np.random.default_rng([seed, 1]).uniform(low, high)
        expected = by_loops(*steps, ratio, *numbers)
        found = weighed()(steps, ratio, *numbers)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def from_rlax():
    """rlax's module of V-trace alone: the package wants an older jax."""
    pytest.importorskip("chex")
    package = importlib.util.find_spec("rlax")
    if package is None:
        pytest.skip("rlax is not installed")
    path = Path(package.origin).with_name("_src") / "vtrace.py"
    spec = importlib.util.spec_from_file_location("rlax_vtrace", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_vtrace_equals_rlax_in_a_thousand_cases():
    """rlax knows one mask: a truncated step's bootstrap is added to its reward."""
    theirs = jax.jit(from_rlax().vtrace_td_error_and_advantage)
    for seed in range(1000):
        reward, value, next_value, terminated, done, ratio = drawn(seed)
        rng = np.random.default_rng([seed, 1])
        trace, rho_clip, pg_clip = rng.uniform((0, 0.2, 0.2), (1, 3, 3))
        # What follows a step that ends nothing is the next one.
        next_value[:-1] = np.where(done, next_value, np.roll(value, -1))[:-1]
        cut = done & ~terminated
        found = weighed()(
            (reward, value, next_value, terminated, done),
            *(ratio, 0.9, trace, rho_clip, 1.0, pg_clip, 0.0),
        )
        expected = theirs(
            *map(jnp.float32, (value, next_value)),
            jnp.float32(reward + 0.9 * np.where(cut, next_value, 0.0)),
            jnp.float32(np.where(done, 0.0, 0.9)),
            *(jnp.float32(ratio), trace, rho_clip, pg_clip),
        )
        close = {"rtol": 1e-5, "atol": 1e-5}
        np.testing.assert_allclose(found.error, expected.errors, **close)
        np.testing.assert_allclose(found.advantage, expected.pg_advantage, **close)
