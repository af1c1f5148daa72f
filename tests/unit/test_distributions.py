"""Golden values and agreement with scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from metaevo.rl import distributions
from metaevo.rl.distributions import Categorical, Normal, TanhNormal


def test_tanh_normal_golden():
    pi = TanhNormal(jnp.array([0.3]), jnp.array([-0.5]))
    u = jnp.array([0.9])
    assert Normal(*pi).log_prob(u) == pytest.approx(-0.90823, abs=1e-5)
    assert pi.log_prob_before_tanh(u) == pytest.approx(-0.18857, abs=1e-5)


def test_tanh_normal_is_finite_far_out():
    pi = TanhNormal(jnp.zeros(1), jnp.zeros(1))
    gradient = jax.jit(jax.grad(pi.log_prob_before_tanh))(np.float32([40.0]))
    assert np.isfinite(gradient).all()


def test_normal_agrees_with_scipy():
    mean, log_std = jnp.array([0.5, -1.0]), jnp.array([0.2, -0.3])
    x = jnp.array([0.1, 0.4])
    pi = Normal(mean, log_std)
    reference = stats.norm(mean, np.exp(log_std))
    assert pi.log_prob(x) == pytest.approx(reference.logpdf(x).sum(), rel=1e-5)
    assert pi.entropy() == pytest.approx(reference.entropy().sum(), rel=1e-5)


def test_normal_entropy_counts_every_dimension_of_a_batch():
    entropy = Normal(jnp.zeros((7, 3)), jnp.zeros(3)).entropy()
    np.testing.assert_allclose(entropy, [3 * stats.norm.entropy()] * 7, rtol=1e-5)


def test_categorical():
    p = jnp.array([0.2, 0.5, 0.3])
    pi = Categorical(jnp.log(p) + 7.0)
    assert pi.log_prob(jnp.int32(1)) == pytest.approx(np.log(0.5), rel=1e-5)
    assert pi.entropy() == pytest.approx(stats.entropy(p), rel=1e-5)
    assert pi.mode() == 1


@pytest.mark.parametrize("cls", [Categorical, Normal])
def test_samples_follow_the_distribution(cls):
    key = jax.random.key(0)
    if cls is Categorical:
        p = jnp.array([0.2, 0.5, 0.3])
        x = Categorical(jnp.broadcast_to(jnp.log(p), (20_000, 3))).sample(key)
        counts = np.bincount(x, minlength=3)
        assert stats.chisquare(counts, 20_000 * np.asarray(p)).pvalue > 1e-3
    else:
        pi = Normal(jnp.full((20_000, 1), 2.0), jnp.log(jnp.full(1, 3.0)))
        x = np.asarray(pi.sample(key))[:, 0]
        assert stats.kstest(x, stats.norm(2.0, 3.0).cdf).pvalue > 1e-3


# --- legal actions --------------------------------------------------------------------

LEGAL = np.array([[True, False, True], [False, False, True]])


def test_probabilities_of_illegal_actions_are_zero_and_the_rest_is_as_without_them():
    logits = jnp.array([[1.0, 50.0, -2.0], [0.3, 4.0, -1e4]])
    pi = distributions.Categorical(distributions.among_legal(logits, LEGAL))
    two = distributions.Categorical(logits[:1, jnp.array([0, 2])])
    for action, other in ((0, 0), (2, 1)):
        np.testing.assert_allclose(
            pi.log_prob(jnp.full(2, action))[0], two.log_prob(jnp.array([other]))[0]
        )
    np.testing.assert_allclose(pi.entropy(), [two.entropy()[0], 0.0], atol=1e-7)
    np.testing.assert_array_equal(pi.mode(), [0, 2])
    noise = jax.random.gumbel(jax.random.key(0), (1000, 2, 3))
    taken = jax.vmap(pi.transform)(noise)
    assert set(np.unique(taken[:, 0])) == {0, 2}
    assert set(np.unique(taken[:, 1])) == {2}


def test_gradients_through_masked_logits_are_finite_and_spare_illegal_ones():
    def loss(logits):
        pi = distributions.Categorical(distributions.among_legal(logits, LEGAL))
        return (pi.log_prob(jnp.array([0, 2])) + pi.entropy()).sum()

    logits = np.float32([[1.0, 50.0, -2.0], [0.3, 4.0, -1e4]])
    gradient = np.asarray(jax.jit(jax.grad(loss))(logits))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[~LEGAL], 0.0)
    assert np.abs(gradient[0, 0]) > 0.01
