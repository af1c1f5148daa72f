"""Soft actor-critic on discrete actions, ensembles of critics, n-step transitions."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from inner_loops import sac
from metaevo import envs, slots
from metaevo.errors import ConfigError
from metaevo.rl import critics, off_policy, returns, soft
from metaevo.rl.rollouts import Transition

# Values of two critics in two states, outputs of the policy there, legal actions.
Q = np.array(
    [[[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]], [[0.0, 2.5, 1.0], [1.5, -1.0, 2.0]]],
    np.float32,
)
OUTPUTS = np.array([[0.0, 1.0, -1.0], [2.0, 0.5, 0.5]], np.float32)
MASK = np.array([[True, True, False], [True, True, True]])
ALPHA = 0.3


def actions():
    return soft.categorical(3, critics.Critics(None, lambda q, obs: q))


def reference(mask):
    """Soft values, the policy's loss in each state, and entropies, by numpy."""
    mask = np.ones_like(MASK) if mask is None else mask
    weight = np.exp(OUTPUTS) * mask
    pi = weight / weight.sum(-1, keepdims=True)
    log_pi = np.log(np.where(mask, pi, 1.0))
    least = Q.min(0)
    value = (pi * (least - ALPHA * log_pi)).sum(-1)
    loss = (pi * (ALPHA * log_pi - least)).sum(-1)
    return value, loss, -(pi * log_pi).sum(-1)


@pytest.mark.parametrize("mask", [None, MASK])
def test_discrete_losses_are_those_of_the_paper(mask):
    """Christodoulou, 2019, equations 10 to 12."""

    @jax.jit
    def found(outputs):
        q, log_prob, mean = actions().evaluate(Q, None, outputs, None, mask)
        difference = q.min(0) - ALPHA * log_prob
        return mean(difference), mean(-difference), -mean(log_prob)

    for x, y in zip(found(OUTPUTS), reference(mask), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)
    taken = actions().values(Q, None, jnp.array([1, 2]))
    np.testing.assert_array_equal(taken, Q[:, [0, 1], [1, 2]])


def test_illegal_outputs_get_no_gradient_and_break_nothing():
    def loss(outputs):
        q, log_prob, mean = actions().evaluate(Q, None, outputs, None, MASK)
        return mean(ALPHA * log_prob - q.min(0)).sum()

    gradient = jax.jit(jax.grad(loss))(OUTPUTS)
    assert np.isfinite(gradient).all()
    assert gradient[0, 2] == 0.0
    assert (np.asarray(gradient)[MASK] != 0).all()


def test_discrete_samples_are_legal_and_follow_the_policy():
    noise = jax.random.normal(jax.random.key(0), (20_000, 2, 3))
    taken = jax.jit(actions().sample)(OUTPUTS, noise, MASK)
    randomly = jax.jit(actions().random)(noise, MASK)
    weight = np.exp(OUTPUTS) * MASK
    for state in range(2):
        share = np.bincount(taken[:, state], minlength=3) / len(noise)
        pi = weight[state] / weight[state].sum()
        np.testing.assert_allclose(share, pi, atol=6 * 0.5 / math.sqrt(len(noise)))
        uniform = np.bincount(randomly[:, state], minlength=3)
        expected = MASK[state] / MASK[state].sum()
        np.testing.assert_allclose(uniform / len(noise), expected, atol=0.02)
    best = jnp.array([[0.0, 1.0, 9.0], [2.0, 0.5, 0.5]])
    assert actions().mode(best, MASK).tolist() == [1, 0]


SMALL = {"total_timesteps": 4_000, "learning_starts": 400, "buffer_size": 4_000}
SMALL |= {"num_envs": 4, "num_steps": 2, "num_gradient_steps": 2, "batch_size": 32}
SMALL |= {"features": (16,), "num_segments": 1}


def trained(env, meta, **config):
    loop = sac.make(env, sac.Config(**SMALL | config), meta)

    @jax.jit
    def run(key):
        state = loop.init(key, meta)
        return loop.train(key, meta, state)

    state, metrics = run(jax.random.key(0))
    return loop, state, metrics


def test_discrete_sac_picks_what_is_rewarded_and_nothing_illegal():
    """The action must match the observation's sign; a third one pays most but is not
    legal. The target entropy is a share of log A: with 0.3 of log 3 the policy keeps
    about so much."""
    probe = probes.matching()

    def step_raw(key, state, action):
        after, out = probe.step_raw(key, state, action)
        return after, out._replace(reward=jnp.where(action == 2, 9.0, out.reward))

    env = probe._replace(
        action=envs.Discrete(3),
        step_raw=step_raw,
        action_mask=lambda state: jnp.array([True, True, False]),
    )
    meta = sac.Meta(3e-3, 3e-3, 1e-2, gamma=0.9, tau=0.05, target_entropy=0.3)
    loop, state, metrics = trained(env, meta)
    mask = jnp.array([True, True, False])
    act = jax.jit(lambda obs: loop.act(None, meta, state.agent, (), obs, None, mask)[0])
    assert [int(act(np.float32([sign]))) for sign in (-1, 1)] == [0, 1]
    assert 0.2 < metrics["return"] <= 1.0
    assert abs(metrics["entropy"] - 0.3 * math.log(3)) < 0.15


@slots.function
def nothing(obs, action, reward, next_obs, terminated, context=None):
    return 0.0 * reward


def test_without_rewards_values_are_those_of_entropies():
    """A step of the uniform policy of two actions is worth α log 2."""
    meta = sac.Meta(0.0, 1e-2, 0.0, gamma=0.5, tau=0.05, reward=nothing)
    config = {"initial_temperature": 2.0, "total_timesteps": 1_000}
    _, _, metrics = trained(envs.make("gymnax/CartPole-v1"), meta, **config)
    assert metrics["temperature"] == pytest.approx(2.0)
    assert metrics["entropy"] == pytest.approx(math.log(2), abs=1e-3)
    # An episode's last step is worth nothing, and lasts for 1 of about 20.
    assert 0.5 < metrics["q"] < 2 * math.log(2)


def test_ensembles_of_normalized_critics_with_a_random_subset_learn_n_steps():
    config = {"num_critics": 5, "num_target_critics": 2, "critic_layer_norm": True}
    config["num_step_return"] = 3
    meta = sac.Meta(3e-3, 3e-3, 1e-2, gamma=0.9, tau=0.05)
    loop, state, _ = trained(probes.continuous_policy(), meta, **config)
    params = state.agent.critic.params["params"]
    assert params["LayerNorm_0"]["scale"].shape == (5, 16)
    action, _ = jax.jit(loop.act)(None, meta, state.agent, (), np.zeros(1, "f4"))
    assert abs(action[0] - 0.5) < 0.15


def test_more_target_critics_than_critics_are_refused():
    with pytest.raises(ConfigError, match="num_target_critics=3"):
        sac.make(probes.policy(), sac.Config(**SMALL, num_target_critics=3))


def test_a_random_subset_is_of_the_critics_and_differs():
    q = jnp.arange(5.0)[:, None] * jnp.ones(2)
    subset = jax.jit(lambda key: critics.random_subset(key, q, 2)[:, 0])
    drawn = {tuple(sorted(subset(jax.random.key(i)).tolist())) for i in range(40)}
    assert len(drawn) == 10  # All pairs, none with one critic twice.
    assert all(a < b for a, b in drawn)
    assert critics.random_subset(None, q, 5) is q


def test_n_step_transitions_equal_n_step_returns():
    """Of a trajectory with both kinds of ends, at all its steps but the last two."""
    rng = np.random.default_rng(0)
    reward, next_value = rng.normal(size=(2, 12)).astype(np.float32)
    time = np.arange(12)
    terminated = np.isin(time, (2, 8))
    done = terminated | np.isin(time, (5, 6))
    steps = Transition(
        time[:, None], time, reward, next_value[:, None], terminated, done
    )
    rows = np.arange(10) + np.arange(3)[:, None]
    windows = jax.tree.map(lambda x: x[rows], steps)

    @jax.jit
    def both(windows):
        batch = off_policy.n_step(windows, windows.reward, 0.9, lambda obs: 1.0 * obs)
        whole = returns.n_step_return(reward, next_value, terminated, done, 0.9, 3)
        return batch, batch.target(batch.next_obs[:, 0]), whole

    batch, target, expected = both(windows)
    np.testing.assert_allclose(target, expected[:10], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(batch.obs[:, 0], time[:10])
    np.testing.assert_array_equal(batch.action, time[:10])


def test_a_terminal_states_value_is_not_looked_at():
    """One that is not finite included: 0 times infinity would be NaN."""
    flag = jnp.array([[True]])
    steps = Transition(*[jnp.zeros((1, 1))] * 4, flag, flag)
    batch = off_policy.n_step(steps, jnp.ones((1, 1)), 0.9)
    assert batch.target(jnp.array([jnp.inf])).tolist() == [1.0]
