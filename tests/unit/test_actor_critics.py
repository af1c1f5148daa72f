"""A2C, A3C and IMPALA: what they equal, and what delays do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from inner_loops import a2c, gorila, impala
from metaevo import advantages, envs, optimizers
from metaevo.errors import ConfigError
from metaevo.rl import returns
from metaevo.slots import Context

CARTPOLE = envs.make("gymnax/CartPole-v1")
SGD = optimizers.from_optax(optax.identity())
SIZES = {"num_envs": 4, "num_steps": 8, "features": (16,), "hidden": 8}
SIZES |= {"total_timesteps": 320, "num_segments": 10, "anneal_lr": False}
A2C = a2c.Meta(lr=1e-2, optimizer=SGD)
IMPALA = impala.Meta(lr=1e-2, optimizer=SGD, max_grad_norm=0.5, delay=2.0)


@functools.cache
def programs(module, **config):
    """`init` and `train`; a segment is one update."""
    loop = module.make(CARTPOLE, module.Config(**SIZES | config))
    return jax.jit(loop.init), jax.jit(loop.train)


def trained(module, meta, num_updates=1, state=None, **config):
    init, train = programs(module, **config)
    if state is None:  # it depends on the optimizer alone
        state = init(jax.random.key(0), module.Meta(optimizer=meta.optimizer))
    metrics = {}
    for _ in range(num_updates):
        state, metrics = train(jax.random.key(1), meta, state)
    return state, metrics


def close(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


def differ(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    assert any(not np.allclose(x, y, rtol=1e-6) for x, y in pairs)


def test_one_worker_without_delay_is_a2c_to_the_bit():
    plain, _ = trained(a2c, A2C, 10)
    ring, _ = trained(a2c, A2C._replace(delay=0.0), 10, max_delay=4)
    a, b = plain.agent._replace(past=()), ring.agent._replace(past=())
    jax.tree.map(np.testing.assert_array_equal, a, b)
    late, _ = trained(a2c, A2C._replace(delay=4.0), 10, max_delay=4)
    differ(late.agent.params, plain.agent.params)


@pytest.mark.parametrize("sizes", [{}, {"memory": "gru"}], ids=["none", "gru"])
def test_impala_on_policy_is_a2c(sizes):
    """One gradient: where actors are not behind V-trace is an advantage of λ = 1."""
    a, _ = trained(a2c, A2C, **sizes)
    b, _ = trained(impala, IMPALA._replace(delay=0.0), max_delay=2, **sizes)
    close(a.agent.params, b.agent.params, rtol=1e-5, atol=1e-7)
    born, _ = trained(a2c, A2C, 0, **sizes)
    moved = jax.tree.map(jnp.subtract, a.agent.params, born.agent.params)
    assert max(np.abs(x).max() for x in jax.tree.leaves(moved)) > 1e-4


def test_a_delayed_worker_moves_by_the_gradient_of_the_old_parameters():
    """θ₂ = θ₁ − lr g(θ₀), whose actions are those of θ₀, too."""
    first, _ = trained(a2c, A2C)
    born, _ = trained(a2c, A2C, 0)
    old = first._replace(agent=first.agent._replace(params=born.agent.params))
    stepped, _ = trained(a2c, A2C, state=old)
    expected = jax.tree.map(
        lambda now, then, after: now + (after - then),
        first.agent.params,
        born.agent.params,
        stepped.agent.params,
    )
    late, _ = trained(a2c, A2C._replace(delay=1.0), 2, max_delay=4)
    close(late.agent.params, expected, rtol=1e-4, atol=1e-6)
    prompt, _ = trained(a2c, A2C, 2)
    differ(late.agent.params, prompt.agent.params)


def test_workers_gradients_are_applied_in_turn():
    """Of half of the environments each: two steps of SGD are one with their sum."""
    meta = A2C._replace(max_grad_norm=1e9, gae_lambda=0.9)
    both, _ = trained(a2c, meta, num_workers=2)
    once, _ = trained(a2c, meta._replace(lr=2e-2))
    close(both.agent.params, once.agent.params, rtol=1e-4, atol=1e-6)
    # No number moves by more than the step size in one step of Adam.
    adam = meta._replace(optimizer=optimizers.adam)
    born, _ = trained(a2c, adam, 0, num_workers=2)
    both, _ = trained(a2c, adam, num_workers=2)
    moved = jax.tree.map(jnp.subtract, both.agent.params, born.agent.params)
    assert max(np.abs(x).max() for x in jax.tree.leaves(moved)) > 1.5e-2


def test_the_step_size_may_see_the_delay():
    """lr / (1 + c δ) of a worker, as a number and as a function of the context."""
    late = A2C._replace(delay=2.0)
    slower, _ = trained(a2c, late._replace(delay_decay=0.5), 3, max_delay=4)
    by_hand = jax.tree_util.Partial(
        lambda context: 1e-2 / (1 + 0.5 * context.stats["delay"])
    )
    same, _ = trained(a2c, late._replace(lr=by_hand), 3, max_delay=4)
    close(slower.agent.params, same.agent.params, rtol=1e-5, atol=1e-7)
    half, _ = trained(a2c, late._replace(lr=0.5e-2), 3, max_delay=4)
    close(slower.agent.params, half.agent.params, rtol=1e-5, atol=1e-7)


def test_actors_behind_are_another_policy_than_the_learner():
    late = IMPALA._replace(lr=0.1)
    _, metrics = trained(impala, late, 4, max_delay=2)
    assert metrics["kl"] > 1e-5
    _, metrics = trained(impala, late._replace(delay=0.0), 4, max_delay=2)
    assert abs(metrics["kl"]) < 1e-6


def test_no_weight_of_the_trace_is_above_that_of_the_errors():
    numbers = {"rho_clip": 0.7, "c_clip": 3.0, "pg_clip": 2.0, "leak": 0.0}
    log_ratio = jnp.linspace(-3.0, 100.0, 50)
    rho, c, pg = impala.weights(IMPALA, numbers, log_ratio, None)
    np.testing.assert_array_equal(rho, c)
    ratio = np.exp(np.minimum(log_ratio, 20))
    np.testing.assert_allclose(rho, np.minimum(ratio, 0.7), rtol=1e-5)
    np.testing.assert_allclose(pg, np.minimum(ratio, 2.0), rtol=1e-5)


def test_without_a_correction_actors_behind_count_as_the_learner():
    numbers = {"rho_clip": 1.0, "c_clip": 1.0, "pg_clip": 1.0, "leak": 0.0}
    meta = IMPALA._replace(correction=advantages.unweighted)
    for weight in impala.weights(meta, numbers, jnp.linspace(-3.0, 3.0, 5), None):
        np.testing.assert_array_equal(weight, 1.0)


def test_the_plain_policy_gradient_has_no_baseline():
    """A critic that values all states more changes the return's weights only where a
    rollout is cut."""
    one, done = jnp.ones(4), jnp.array([False, True, False, True])
    context = a2c.slots.Context(stats={"gamma": 0.5, "gae_lambda": 1.0})
    found = advantages.discounted_return(
        one, 7 * one, 9 * one, 0 * one, done, done, context
    )
    np.testing.assert_allclose(found, [1.5, 1.0, 1.5, 1.0])


def test_vtrace_as_the_slot_is_impalas_own_advantage():
    own, _ = trained(impala, IMPALA._replace(lr=0.1), 4, max_delay=2)
    slot = IMPALA._replace(lr=0.1, advantage=advantages.vtrace)
    same, _ = trained(impala, slot, 4, max_delay=2)
    close(own.agent.params, same.agent.params, rtol=1e-4, atol=1e-6)


def test_the_trace_is_cut_at_the_smaller_clip_in_both():
    stats = {"gamma": 0.9, "gae_lambda": 1.0, "leak": 0.0}
    stats |= {"rho_clip": 0.5, "c_clip": 1.0, "pg_clip": 1.0}
    zeros, flags = jnp.zeros(3), jnp.zeros(3, bool)
    rollout = jnp.ones(3), zeros, zeros
    found = advantages.vtrace(*rollout, zeros, flags, flags, Context(stats=stats))
    weights = impala.weights(IMPALA, stats, zeros, None)
    own = returns.vtrace(*rollout, flags, flags, 0.9, 1.0, *weights)
    np.testing.assert_allclose(found, own.advantage, rtol=1e-6)


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match=r"num_workers=3 does not divide .*=8"):
        a2c.make(CARTPOLE, a2c.Config(num_workers=3))
    with pytest.raises(ConfigError, match=r"memory='lstm': expected one of none, gru"):
        a2c.make(CARTPOLE, a2c.Config(memory="lstm"))
    with pytest.raises(ConfigError, match=r"max_delay=-1 must be >= 0"):
        impala.make(CARTPOLE, impala.Config(max_delay=-1))


@pytest.mark.parametrize("module", [a2c, gorila, impala])
def test_a_delay_that_no_worker_can_have_is_refused(module):
    for delay in (-1, 3, 2.5, float("nan")):
        with pytest.raises(ConfigError, match=r"delay holds .* inner.max_delay=2"):
            module.make(CARTPOLE, module.Config(max_delay=2), module.Meta(delay=delay))
