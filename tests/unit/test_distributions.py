"""Golden values and agreement with scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from metaevo.rl.distributions import Categorical, Normal, TanhNormal


def test_tanh_normal_golden():
    pi = TanhNormal(jnp.array([0.3]), jnp.array([-0.5]))
    u = jnp.array([0.9])
    assert Normal(*pi).log_prob(u) == pytest.approx(-0.90823, abs=1e-5)
    assert pi.log_prob_before_tanh(u) == pytest.approx(-0.18857, abs=1e-5)


def test_tanh_normal_is_finite_far_out():
    pi = TanhNormal(jnp.zeros(1), jnp.zeros(1))
    gradient = jax.grad(lambda u: pi.log_prob_before_tanh(u))(jnp.array([40.0]))
    assert np.isfinite(gradient).all()


def test_normal_agrees_with_scipy():
    mean, log_std = jnp.array([0.5, -1.0]), jnp.array([0.2, -0.3])
    x = jnp.array([0.1, 0.4])
    pi = Normal(mean, log_std)
    reference = stats.norm(mean, np.exp(log_std))
    assert pi.log_prob(x) == pytest.approx(reference.logpdf(x).sum(), rel=1e-5)
    assert pi.entropy() == pytest.approx(reference.entropy().sum(), rel=1e-5)


def test_normal_entropy_counts_every_dimension_of_a_batch():
    pi = Normal(jnp.zeros((7, 3)), jnp.zeros(3))
    assert pi.entropy().shape == (7,)
    assert pi.entropy()[0] == pytest.approx(3 * stats.norm.entropy(), rel=1e-5)


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
