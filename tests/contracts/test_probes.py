"""Probe environments for all loops but PPO, whose are in test_ppo.py.

Each is passed by a correct loop and failed by one kind of bug; `test_a_broken_loop`
makes the bugs.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from inner_loops import a2c, apex, dqn, gorila, impala, pqn, qtopt, sac, td3
from metaevo.envs import Env
from metaevo.rl import networks, returns

GAMMA = 0.9
OFF_POLICY = {"total_timesteps": 16_000, "learning_starts": 500, "buffer_size": 16_000}
OFF_POLICY |= {"num_envs": 4, "num_steps": 2, "num_gradient_steps": 4}
OFF_POLICY |= {"batch_size": 64, "features": (32,), "num_segments": 1}
ON_POLICY = {"total_timesteps": 131_072, "num_envs": 16, "num_steps": 32}
ON_POLICY |= {"features": (32,), "num_segments": 1, "anneal_lr": False}

ONE_STEP = {"total_timesteps": 65_536, "num_envs": 8, "num_steps": 8}
ONE_STEP |= {"features": (32,), "num_segments": 1, "anneal_lr": False}
ACTOR_CRITICS = ("a2c", "impala")

# name: (module, config, meta)
LOOPS = {
    "dqn": (dqn, OFF_POLICY, dqn.Meta(lr=2e-3, gamma=GAMMA, target_rate=0.5)),
    "double-dueling-3-step": (
        dqn,
        OFF_POLICY | {"double": True, "dueling": True, "num_step_return": 3},
        dqn.Meta(lr=2e-3, gamma=GAMMA, target_rate=0.5),
    ),
    "gorila": (
        gorila,
        OFF_POLICY | {"num_learners": 2, "max_delay": 2},
        gorila.Meta(lr=1e-3, gamma=GAMMA, target_rate=0.5),
    ),
    "apex": (
        apex,
        OFF_POLICY,
        apex.Meta(lr=2e-3, gamma=GAMMA, target_rate=0.5),
    ),
    "a2c": (
        a2c,
        ONE_STEP,
        a2c.Meta(lr=3e-3, gamma=GAMMA, gae_lambda=0.95, ent_coef=0.0),
    ),
    "impala": (
        impala,
        ONE_STEP | {"max_delay": 2},
        impala.Meta(lr=3e-3, gamma=GAMMA, gae_lambda=0.95, ent_coef=0.0),
    ),
    "pqn": (pqn, ON_POLICY, pqn.Meta(lr=2e-3, gamma=GAMMA)),
    "td3": (
        td3,
        OFF_POLICY,
        td3.Meta(actor_lr=2e-3, critic_lr=2e-3, gamma=GAMMA, tau=0.05),
    ),
    "qtopt": (
        qtopt,
        OFF_POLICY
        | {"total_timesteps": 10_000, "batch_size": 32}
        | {"num_samples": 16, "num_iterations": 3, "max_lag": 20},
        qtopt.Meta(3e-3, GAMMA, tau=0.05, num_elites=3.0),
    ),
    # All but without entropy, so that values are those of the rewards.
    "sac": (
        sac,
        OFF_POLICY | {"initial_temperature": 1e-4},
        sac.Meta(2e-3, 2e-3, 0.0, GAMMA, tau=0.05),
    ),
}
DISCRETE = ("dqn", "double-dueling-3-step", "gorila", "apex", "pqn", *ACTOR_CRITICS)
OFTEN = {"target_period": 10}
period = dict.fromkeys(("dqn", "double-dueling-3-step", "gorila", "apex"), OFTEN)


@functools.cache
def trained(name, probe, **change):
    """`act(obs)` and `value(obs)` of an agent trained on a probe."""
    module, config, meta = LOOPS[name]
    continuous = name not in DISCRETE
    env = probe if isinstance(probe, Env) else probe(continuous)
    config = module.Config(**config | period.get(name, {}))
    meta = meta._replace(**change)
    loop = module.make(env, config, meta)

    @jax.jit
    def run(key):
        state = loop.init(key, meta)
        return loop.train(jax.random.key(9), meta, state)[0].agent

    agent = run(jax.random.key(0))

    def act(*obs):
        return loop.act(jax.random.key(0), meta, agent, (), jnp.asarray(obs))[0]

    def value(*obs):
        """Of the best action, from the weights."""
        obs = jnp.asarray(obs, jnp.float32)
        if name in ACTOR_CRITICS:
            net = networks.mlp((32,), 1, activation="tanh")
            return net.apply(agent.params["critic"], obs)[..., 0]
        if continuous:
            net = networks.mlp((32,), 1, activation="relu")
            joined = jnp.concatenate([obs, act(*obs)], -1)
            return net.apply(jax.tree.map(lambda x: x[0], agent.critic.params), joined)[
                ..., 0
            ]
        net = networks.mlp(
            (32,),
            env.action.num,
            activation="relu",
            layer_norm=name == "pqn",
            dueling=getattr(config, "dueling", False),
        )
        return net.apply(agent.params, obs).max(-1)

    return act, value


def probe(make):
    """A probe for either kind of action."""
    return lambda continuous: make(action=probes.CONTINUOUS) if continuous else make()


VALUE, OBSERVATION = probe(probes.value), probe(probes.observation)
DISCOUNT, TRUNCATED = probe(probes.discount), probe(probes.truncated)
TERMINATED = probe(probes.terminated)


def policy(continuous):
    return probes.continuous_policy() if continuous else probes.policy()


def matching(continuous):
    return probes.continuous_matching() if continuous else probes.matching()


@pytest.mark.parametrize("name", LOOPS)
def test_value_and_observation(name):
    _, value = trained(name, VALUE)
    np.testing.assert_allclose(value([0.0]), [1.0], atol=0.1)
    _, value = trained(name, OBSERVATION)
    np.testing.assert_allclose(value([1.0], [-1.0]), [1.0, -1.0], atol=0.1)


@pytest.mark.parametrize("name", LOOPS)
def test_discount(name):
    _, value = trained(name, DISCOUNT)
    np.testing.assert_allclose(value([0.0], [1.0]), [GAMMA, 1.0], atol=0.1)


@pytest.mark.parametrize("name", LOOPS)
def test_policy_and_matching(name):
    best = {True: 1, False: 0} if name in DISCRETE else {True: 0.5, False: -0.5}
    act, value = trained(name, policy)
    np.testing.assert_allclose(np.ravel(act([0.0])), [best[True]], atol=0.15)
    np.testing.assert_allclose(value([0.0]), [1.0], atol=0.1)
    act, value = trained(name, matching)
    actions = np.ravel(act([1.0], [-1.0]))
    np.testing.assert_allclose(actions, [best[True], best[False]], atol=0.15)
    np.testing.assert_allclose(value([1.0], [-1.0]), [1.0, 1.0], atol=0.1)


LATER, START = 1 / (1 - GAMMA), -10 + GAMMA / (1 - GAMMA)


@pytest.mark.parametrize("name", LOOPS)
def test_truncation(name):
    """A loop that takes a time limit for an end, or bootstraps from a reset, fails."""
    _, value = trained(name, TRUNCATED)
    later, start = value(probes.LATER, probes.START)
    assert later == pytest.approx(LATER, rel=0.05)
    assert start == pytest.approx(START, abs=0.5)


@pytest.mark.parametrize("name", ["dqn", "td3", "sac"])
def test_termination_twin(name):
    """The same with a true end: V = 1 + γ (1 − p) V with p = 1 in 10 steps."""
    _, value = trained(name, TERMINATED)
    expected = 1 / (1 - GAMMA * 0.9)
    assert float(value([1.0])[0]) == pytest.approx(expected, rel=0.1)


# --- the same with a bug --------------------------------------------------------------


def _wrapped(change):
    """The truncation probe with each step changed by a bug."""

    def make(continuous):
        env = TRUNCATED(continuous)

        def step_raw(key, state, action):
            state, step = env.step_raw(key, state, action)
            return state, change(step)

        return env._replace(step_raw=step_raw)

    return make


def _limits_are_ends(step):
    nothing = jnp.zeros_like(step.truncated)
    return step._replace(terminated=step.done, truncated=nothing)


LIMITS_ARE_ENDS = _wrapped(_limits_are_ends)


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_takes_limits_for_ends_fails(name):
    _, value = trained(name, LIMITS_ARE_ENDS)
    (later,) = value(probes.LATER)
    assert abs(later - LATER) > 0.1 * LATER


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_bootstraps_from_a_reset_fails(name, monkeypatch):
    """`auto_reset` that overwrites the last observation, as many libraries do."""
    from metaevo import envs

    def overwrite(state, step, fresh_state, fresh_obs):
        state, step = correct(state, step, fresh_state, fresh_obs)
        return state, step._replace(final_obs=step.obs)

    correct = envs.auto_reset
    monkeypatch.setattr(envs, "auto_reset", overwrite)
    _, value = trained(name, lambda continuous: TRUNCATED(continuous))
    (later,) = value(probes.LATER)
    assert abs(later - LATER) > 0.1 * LATER


def test_a_trace_that_leaks_across_episodes_fails(monkeypatch):
    """λ-returns that go on through an episode's end."""

    def leaking(reward, next_value, terminated, done, gamma, trace):
        return correct(reward, next_value, terminated, done & False, gamma, trace)

    correct = returns.lambda_return
    monkeypatch.setattr(returns, "lambda_return", leaking)
    _, value = trained("pqn", lambda continuous: TRUNCATED(continuous))
    (later,) = value(probes.LATER)
    assert abs(later - LATER) > 0.05 * LATER


def test_a_window_that_leaks_across_episodes_fails(monkeypatch):
    """n-step returns that add the next episode's rewards."""

    def leaking(reward, terminated, done, gamma):
        return correct(reward, terminated, done & False, gamma)

    correct = returns.n_step_window
    monkeypatch.setattr(returns, "n_step_window", leaking)
    name = "double-dueling-3-step"
    _, value = trained(name, lambda continuous: TRUNCATED(continuous))
    (later,) = value(probes.LATER)
    assert abs(later - LATER) > 0.05 * LATER
