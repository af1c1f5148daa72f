"""GORILA: what it equals, whose replay a learner sees, and what it drops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest

from inner_loops import dqn, gorila
from metaevo import envs, optimizers
from metaevo.errors import ConfigError

CARTPOLE = envs.make("gymnax/CartPole-v1")
ENVS = {
    "cartpole": CARTPOLE,
    "never_ends": envs.make("gymnax/Acrobot-v1"),  # in so few steps
    "always_ends": probes.value(),
}
SGD = optimizers.from_optax(optax.identity())
SIZES = {"learning_starts": 64, "buffer_size": 128, "batch_size": 16, "num_envs": 4}
SIZES |= {"num_steps": 4, "features": (16,), "num_segments": 1, "target_period": 2}
SIZES |= {"num_gradient_steps": 2}
ALONE = {"num_learners": 1, "max_delay": 0}


@functools.cache
def programs(module, num_updates, env="cartpole", **config):
    """`init` and `train`; a segment is `num_updates` updates."""
    config = SIZES | {"total_timesteps": 64 + 16 * num_updates} | config
    loop = module.make(ENVS[env], module.Config(**config))
    return jax.jit(loop.init), jax.jit(loop.train)


def trained(module, meta, num_updates, state=None, **config):
    init, train = programs(module, num_updates, **config)
    state = init(jax.random.key(0), meta) if state is None else state
    return train(jax.random.key(1), meta, state)


def close(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


def differ(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    assert any(not np.allclose(x, y, rtol=1e-6) for x, y in pairs)


def test_one_learner_that_is_not_behind_is_dqn():
    """Of 20 updates, in which the target network changed ten times."""
    plain, _ = trained(dqn, dqn.Meta(lr=1e-2), 20)
    meta = gorila.Meta(lr=1e-2, drop_deviation=float("inf"))
    alone, metrics = trained(gorila, meta, 20, **ALONE)
    for name in ("params", "target_params", "opt_state"):
        a, b = getattr(plain.agent, name), getattr(alone.agent, name)
        close(a, b, rtol=1e-5, atol=1e-6)
    close(plain.experience.episodes, alone.experience.episodes, rtol=1e-5, atol=1e-6)
    assert metrics["dropped"] == 0


def test_a_delayed_learner_moves_by_the_gradient_of_the_old_parameters():
    """By one update in all: θ₂ − θ₁ is −lr g(θ₀)."""
    meta = gorila.Meta(lr=1e-2, optimizer=SGD, delay=1.0, delay_decay=0.0)
    sizes = {"num_learners": 1, "max_delay": 1, "num_gradient_steps": 1}
    first, _ = trained(gorila, meta, 1, **sizes)
    late, _ = trained(gorila, meta, 1, state=first, **sizes)
    prompt = meta._replace(delay=0.0)
    born = programs(gorila, 1, **sizes)[0](jax.random.key(0), meta)
    old = first._replace(agent=first.agent._replace(params=born.agent.params))
    stepped, _ = trained(gorila, prompt, 1, state=old, **sizes)
    expected = jax.tree.map(
        lambda now, then, after: now + (after - then),
        first.agent.params,
        born.agent.params,
        stepped.agent.params,
    )
    close(late.agent.params, expected, rtol=1e-4, atol=1e-6)


def test_a_learner_sees_its_own_environments_alone(monkeypatch):
    """What is in the others' environments does not reach its gradients: the first of
    two learners has environments 0 and 1."""
    meta = gorila.Meta(lr=1e-2, drop_deviation=float("inf"), drop_delay=0.0)
    sizes = {"num_learners": 2, "max_delay": 1}
    init, _ = programs(gorila, 1, **sizes)
    born = init(jax.random.key(0), meta)

    def changed(others):
        rows = jax.tree.map(
            lambda x: x.at[:, others].set(7.0)
            if jnp.issubdtype(x.dtype, jnp.floating) else x,
            born.experience.rows)  # fmt: skip
        state = born._replace(experience=born.experience._replace(rows=rows))
        # The second learner is behind, and all that are behind are dropped.
        after, _ = trained(gorila, meta._replace(delay=1.0), 1, state=state, **sizes)
        return after.agent.params

    assert any(
        jnp.issubdtype(x.dtype, jnp.floating)
        for x in jax.tree.leaves(born.experience.rows)
    )
    close(changed(slice(2, 4)), changed(slice(0, 0)), rtol=0)
    differ(changed(slice(0, 2)), changed(slice(0, 0)))


ONE_IN_TEN = np.exp(0.1 * np.random.default_rng(0).normal(size=(200, 2)))


@functools.cache
def after_losses(counts=(True, True)):
    seen, add = gorila.no_losses(2), jax.jit(gorila.with_loss)
    for loss in np.float32(ONE_IN_TEN):
        seen = add(seen, loss, np.array(counts))
    return seen


def test_outlying_losses_are_dropped_after_enough_of_them():
    """By deviations of the logarithm, 0.1, from its mean, 0."""
    seen = after_losses()

    def dropped(loss, deviations=3.0, after=100):
        return gorila.is_outlier(seen, jnp.float32(loss), deviations, after).tolist()

    assert dropped([1.2, 1.6]) == [False, True]
    assert dropped([0.0, -9.0]) == [False, False]
    assert dropped([1.2, 1.6], 0.5) == [True, True]
    assert dropped([1e9, 1e9], float("inf")) == [False, False]
    assert dropped([1e9, 1e9], after=201) == [False, False]


def test_losses_that_are_not_finite_are_dropped_and_spoil_no_average():
    seen = after_losses()
    with_loss = jax.jit(gorila.with_loss)
    for loss in (np.inf, np.nan):
        strange = with_loss(seen, np.float32([loss, 1.6]), np.array([True, True]))
        for deviations in (3.0, float("inf")):
            losses = jnp.float32([loss, 1.0])
            found = gorila.is_outlier(strange, losses, deviations, 999)
            assert found.tolist() == [True, False]
    close(jax.tree.map(lambda x: x[0], strange), jax.tree.map(lambda x: x[0], seen))
    assert gorila.is_outlier(strange, jnp.float32([1.6, 1.0]), 3.0, 100)[0]


def test_losses_that_do_not_count_leave_the_averages():
    seen = after_losses((True, False))
    assert seen.count.tolist() == [200, 0]
    assert seen.square[1] == 0


def test_minibatches_with_a_terminal_step_are_kept():
    """By a bound that all exceed, and by which others are dropped below."""
    meta = gorila.Meta(lr=1e-2, drop_deviation=-99.0)
    sizes = {"num_learners": 2, "max_delay": 2, "drop_after": 1}
    _, metrics = trained(gorila, meta, 3, env="always_ends", **sizes)
    assert metrics["dropped"] == 0.0


def test_stale_and_outlying_gradients_do_not_count():
    meta = gorila.Meta(lr=1e-2)
    sizes = {"num_learners": 2, "max_delay": 2, "drop_after": 1, "env": "never_ends"}
    state, metrics = trained(gorila, meta._replace(drop_delay=-1.0), 3, **sizes)
    born = programs(gorila, 3, **sizes)[0](jax.random.key(0), meta)
    assert metrics["dropped"] == 1
    close(state.agent.params, born.agent.params, rtol=0)
    # Adam's count did not advance, either.
    close(state.agent.opt_state, born.agent.opt_state, rtol=0)
    _, some = trained(gorila, meta._replace(drop_delay=1.0), 3, **sizes)
    assert some["dropped"] >= 0.5
    _, few = trained(gorila, meta._replace(drop_deviation=-99.0), 3, **sizes)
    # All but the first of each learner.
    assert few["dropped"] == pytest.approx(5 / 6)


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match=r"num_learners=3 does not divide .*=8"):
        gorila.make(CARTPOLE, gorila.Config(num_learners=3))
