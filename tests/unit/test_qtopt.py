"""QT-Opt: the cross-entropy method, its targets, and what the second one is behind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lifetimes import trained
from loops import SMALL

from inner_loops import qtopt
from metaevo import envs, losses
from metaevo.errors import ConfigError
from metaevo.rl import cem, critics, off_policy
from metaevo.slots import Context

PENDULUM = envs.make("gymnax/Pendulum-v1")


def parabola(best):
    return lambda actions: -((actions - best) ** 2).sum(-1)


# --- the cross-entropy method ---------------------------------------------------------


def slow(values, noise, k, start_std, least_std):
    """One state's fit as published: the k best, sorted, their mean and deviation."""
    mean, std = np.zeros(noise.shape[-1]), start_std * np.ones(noise.shape[-1])
    for drawn in noise:
        actions = np.clip(mean + std * drawn, -1, 1)
        best = actions[np.argsort(-values(actions))[:k]]
        mean, std = best.mean(0), np.maximum(best.std(0), least_std)
    return mean, std


def test_it_equals_the_published_method_in_random_cases():
    rng = np.random.default_rng(0)

    @jax.jit
    def fitted(best, noise, *settings):
        return cem.maximize(parabola(best), noise, cem.Numbers(*settings))

    for _ in range(20):
        k, states = int(rng.integers(1, 9)), 7
        noise = rng.normal(size=(states, 3, 12, 2)).astype(np.float32)
        best = rng.uniform(-1.2, 1.2, size=(states, 1, 2))
        scales = 0.3 + rng.random(), 0.1 * rng.random()
        k_and_scales = float(k), 0.0, *scales
        fit = jax.device_get(fitted(np.float32(best), noise, *k_and_scales))
        for s in range(states):
            mean, std = slow(parabola(best[s]), noise[s], k, *scales)
            np.testing.assert_allclose(fit.mean[s], mean, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(fit.std[s], std, rtol=1e-3, atol=1e-4)


def test_weights_of_elites():
    q = np.float32([5.0, 3.0, 4.0, 1.0])
    weighted = jax.jit(cem.weights)

    def weights(k, sharpness, q=q):
        return weighted(np.float32(q), cem.Numbers(k, sharpness, 1.0, 0.0)).tolist()

    assert weights(2.0, 0.0) == [0.5, 0.0, 0.5, 0.0]
    assert weights(1.0, 0.0) == weights(0.2, 0.0) == [1.0, 0.0, 0.0, 0.0]
    assert weights(2.5, 0.0) == pytest.approx([0.4, 0.2, 0.4, 0.0])
    # z is 0, −2/4, −1/4, −1 where all are elites: softmax of the values.
    soft = jax.nn.softmax(3.0 * q / 4.0)
    assert weights(4.0, 3.0) == pytest.approx(soft.tolist(), rel=1e-5)
    # The scale and origin of values do not matter.
    moved = weights(3.0, 2.0, 1000.0 * q - 7.0)
    assert moved == pytest.approx(weights(3.0, 2.0), rel=1e-4)
    # Three for two places; the third is not one of the k best.
    tied = weights(3.0, 0.0, [4.0, 2.0, 4.0, 4.0])
    assert tied == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    tied = weights(2.0, 0.0, [4.0, 2.0, 2.0, 1.0])
    assert tied == pytest.approx([0.5, 0.25, 0.25, 0.0])
    # Equal candidates: none is preferred, and nothing is divided by zero.
    assert weights(2.0, 5.0, [1.0] * 4) == pytest.approx([0.25] * 4)
    assert np.isnan(weights(2.0, 0.0, [5.0, np.nan, 4.0, 1.0])).any()


# --- targets --------------------------------------------------------------------------


def batch_of(rng, size):
    obs, next_obs = jnp.float32(rng.normal(size=(2, size, 3)))
    return off_policy.NStepTransition(
        obs,
        jnp.float32(rng.uniform(-1, 1, size=(size, 1))),
        jnp.float32(rng.normal(size=size)),
        next_obs,
        jnp.arange(size) % 3 == 0,
        jnp.full(size, 0.9),
        None,
        None,
    )


def test_targets_are_the_smaller_of_both_at_the_action_of_the_first():
    nets = critics.of_actions(PENDULUM.observation, PENDULUM.action, (8,), "relu", 1)
    average, older = map(jax.jit(nets.init), map(jax.random.key, range(2)))
    values = jax.jit(nets.values)
    rng = np.random.default_rng(1)
    batch, noise = batch_of(rng, 6), jnp.float32(rng.normal(size=(6, 2, 10, 1)))

    @jax.jit
    def target_of(first, second):
        meta = qtopt.Meta(num_elites=3.0)
        return qtopt.target_of(first, second, batch, noise, nets, meta, Context())

    found = target_of(average, older)
    smaller = 0
    for i in range(6):
        obs = batch.next_obs[i]

        def q(params, actions, obs=obs):
            actions = np.float32(actions)
            each = np.broadcast_to(obs, (*actions.shape[:-1], 3))
            return np.asarray(values(params, each, actions)[0])

        best, _ = slow(lambda a, q=q: q(average, a), np.asarray(noise[i]), 3, 1.0, 0.05)
        both = q(average, best), q(older, best)
        smaller += both[1] < both[0]
        end = bool(batch.terminated[i])
        expected = float(batch.reward[i]) + (0.0 if end else 0.9 * min(both))
        assert float(found[i]) == pytest.approx(expected, abs=1e-4)
    assert 0 < smaller < 6
    # The action is that of the first target: of the second it would be another.
    assert not np.allclose(found, target_of(older, average), atol=1e-3)


def test_the_second_target_is_the_average_of_some_updates_ago():
    """With copies of every update exactly, else up to what a copy stands for less."""
    for num_copies in (6, 2):
        config = qtopt.Config(max_lag=6, num_copies=num_copies)

        @jax.jit
        def older(past, last, update, lag, config=config):
            meta = qtopt.Meta(lag=lag)
            return qtopt.older_average(past, last, update, config, meta, Context())

        @jax.jit
        def with_copy(past, last, update, config=config):
            return qtopt.with_copy(past, last, update, config)

        period = 6 // num_copies
        history = [np.float32(-1.0)]
        past = np.full(num_copies + 1, -1.0, np.float32)
        for update in range(20):
            for lag in (0.0, 2.0, 3.0, 6.0, None):
                found = float(older(past, history[-1], update, lag))
                steps = round((6 if lag is None else lag) / period)
                ages = [0] if not steps else range((steps - 1) * period + 1,
                                                   steps * period + 1)  # fmt: skip
                assert found in [
                    float(history[max(-1 - x, -len(history))]) for x in ages
                ]
            past = with_copy(past, history[-1], update)
            history.append(np.float32(update))


def test_no_lag_is_one_target_and_the_average_follows_at_tau():
    agent = trained("qtopt", tau=1.0)[0].agent
    for a, b in zip(
        *map(jax.tree.leaves, (agent.critic.target_params, agent.critic.params)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_bad_lags_and_elites_are_refused():
    small = SMALL["qtopt"]
    with pytest.raises(ConfigError, match=r"num_copies=4 does not divide .*max_lag=6"):
        small.make(max_lag=6, num_copies=4)
    for slot, wrong in (
        ("lag", 3.0),
        ("lag", -1.0),
        ("num_elites", 5),
        ("num_elites", 0),
    ):
        meta = small.meta._replace(**{slot: wrong})
        with pytest.raises(ConfigError, match=rf"the slot {slot} holds {wrong}, exp"):
            small.make(meta)


# --- acting ---------------------------------------------------------------------------


def test_evaluation_does_not_explore():
    """The actions of two agents whose noise in training differs are the same."""
    agent, obs = trained("qtopt")[0].agent, jnp.array([0.1, 0.9, -3.0])
    meta = SMALL["qtopt"].meta
    noisy = meta._replace(epsilon=1.0, exploration_noise=5.0, fit_noise=5.0)
    key = jax.random.key(3)
    acts = [
        jax.jit(SMALL["qtopt"].make(m).act)(key, m, agent, (), obs)[0]
        for m in (meta, noisy)
    ]
    np.testing.assert_array_equal(*acts)
    assert (jnp.abs(acts[0]) <= 2.0).all()


# --- bounded values -------------------------------------------------------------------


def test_cross_entropy_of_bounded_values_has_the_gradient_of_a_classifier():
    """dL/dx = σ(x) − y of the logit x, and the least where Q is the target."""
    x, y = jnp.linspace(-6, 6, 13), jnp.linspace(0.1, 0.9, 13)

    def loss(x, y):
        q = jax.nn.sigmoid(x)
        return losses.td_cross_entropy(y - q, q, y)

    np.testing.assert_allclose(
        jax.vmap(jax.grad(loss))(x, y), jax.nn.sigmoid(x) - y, atol=1e-5
    )
    edge = losses.td_cross_entropy(0.0, jnp.array([0.0, 1.0]), jnp.array([1.0, 0.0]))
    assert np.isfinite(edge).all()


def test_bounded_values_lie_between_0_and_1():
    small = SMALL["qtopt"]
    meta = small.meta._replace(td_loss=losses.td_cross_entropy, reward_scale=-1e-3)
    loop = small.make(meta, bounded=True)
    state = jax.jit(loop.init)(jax.random.key(0), meta)
    _, metrics = jax.jit(loop.train)(jax.random.key(1), meta, state)
    assert 0 < float(metrics["q"]) < 1
