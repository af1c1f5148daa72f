"""Policy heads: samples, actions, densities and entropies fit each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from metaevo import envs
from metaevo.errors import ConfigError
from metaevo.rl import heads

BOX = envs.Box((2,), jnp.array([-2.0, 0.0]), jnp.array([2.0, 1.0]))


def tanh_policy():
    """Its distribution for one observation, and Brax's σ from outputs."""
    head = heads.of(BOX, policy="tanh_normal")
    outputs = jnp.array([0.3, -0.5, 0.2, -1.0])
    sigma = np.log1p(np.exp([0.2, -1.0])) + 1e-3
    return head, head.distribution({}, outputs, None), np.array([0.3, -0.5]), sigma


def test_a_tanh_normal_policy_has_the_density_of_its_samples():
    head, pi, mean, sigma = tanh_policy()
    assert head.num_outputs == 4
    assert head.init() == {}
    sample = head.sample(pi, head.noise(jax.random.key(0), (500,)))
    np.testing.assert_allclose(sample.u, mean + sigma * sample.noise, rtol=1e-4)
    u = np.asarray(sample.u, np.float64)
    expected = stats.norm(mean, sigma).logpdf(u) - np.log(1 - np.tanh(u) ** 2)
    np.testing.assert_allclose(head.log_prob(pi, sample), expected.sum(-1), atol=1e-5)
    action = head.action(sample)
    np.testing.assert_allclose(
        action, np.tanh(u) * [2.0, 0.5] + [0.0, 0.5], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        head.greedy(pi), np.tanh(mean) * [2.0, 0.5] + [0.0, 0.5], rtol=1e-5
    )


def test_the_entropy_of_a_tanh_normal_is_that_of_its_samples_on_average():
    """−E[log π], by an estimate that has the same mean and a smaller spread."""
    head, pi, _, _ = tanh_policy()
    sample = head.sample(pi, head.noise(jax.random.key(1), (50_000,)))
    estimate = np.asarray(head.entropy(pi, sample))
    surprise = -np.asarray(head.log_prob(pi, sample))
    # Four standard errors of the difference.
    error = 4 * (estimate - surprise).std() / np.sqrt(len(estimate))
    assert abs(estimate.mean() - surprise.mean()) < error < 0.05
    assert estimate.std() < surprise.std()


def test_a_tanh_normal_is_finite_where_actions_are_at_their_bounds():
    head = heads.of(BOX, policy="tanh_normal")

    def loss(outputs):
        pi = head.distribution({}, outputs, None)
        sample = heads.BeforeTanh(jnp.array([50.0, -50.0]), jnp.array([3.0, -3.0]))
        return head.log_prob(pi, sample) + head.entropy(pi, sample)

    outputs = jnp.array([40.0, -40.0, -30.0, 5.0])
    value, gradient = jax.value_and_grad(loss)(outputs)
    assert jnp.isfinite(value)
    assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("action", "policy", "message"),
    [
        (BOX, "beta", r"inner.policy='beta': expected one of normal, tanh_normal"),
        (envs.Discrete(2), "tanh_normal", r"needs continuous actions"),
        (envs.Box((2,)), "tanh_normal", r"finite bounds"),
    ],
)
def test_a_policy_that_does_not_fit_the_actions_is_refused(action, policy, message):
    with pytest.raises(ConfigError, match=message):
        heads.of(action, policy=policy)
