"""R2D2 and R2D3 on the probe environments, and with bugs made on purpose.

Values are those of observations that the agent meets when it plays, with the memory
that it has there. Other loops: tests/contracts/test_probes.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from inner_loops import r2d2, r2d3
from metaevo import envs
from metaevo.learned import rescalings
from metaevo.rl import demonstrations, recurrent_q
from metaevo.slots import Context

GAMMA = 0.9
SIZES = {"total_timesteps": 16_000, "learning_starts": 500, "buffer_size": 16_000}
SIZES |= {"num_envs": 4, "num_steps": 4, "num_gradient_steps": 4, "target_period": 10}
SIZES |= {"burn_in": 2, "sequence_length": 4, "period": 2, "num_step_return": 2}
SIZES |= {"hidden": 16, "features": (16,), "num_segments": 1, "num_eval_envs": 2}
SLOTS = {"lr": 2e-3, "gamma": GAMMA, "target_rate": 0.5, "epsilon_exponent": 2.0}


def made(name, env):
    if name == "r2d2":
        return r2d2.make(env, r2d2.Config(**SIZES), r2d2.Meta(**SLOTS))
    given = demonstrations.record(env, lambda obs, state: env.action.num - 1, 20)
    return r2d3.make(env, r2d3.Config(**SIZES), r2d3.Meta(**SLOTS), given)


@functools.cache
def played(name, probe):
    """Greedy actions and values of the observations that a trained agent meets."""
    env = probe()
    loop, config = made(name, env), r2d2.Config(**SIZES)
    net = recurrent_q.network(env, config, "R2D2")

    @jax.jit
    def run(keys):
        state = loop.init(keys[0], loop.meta)
        agent = loop.train(keys[1], loop.meta, state)[0].agent

        def step(carry, key):
            hidden, (state, obs) = carry
            action, hidden = loop.act(key, loop.meta, agent, hidden, obs, state)
            q = net.values(agent.params, hidden)
            value = rescalings.inverse(loop.meta.rescale, q.max(-1), Context())
            state, out = loop.env.step_raw(key, state, action)
            return (hidden, (state, out.final_obs)), (obs, action, value)

        def episode(key):
            start = loop.initial_carry(), loop.env.reset(key)
            return jax.lax.scan(step, start, jax.random.split(key, env.max_steps))[1]

        return jax.vmap(episode)(jax.random.split(keys[2], 8))

    obs, action, value = run(jax.random.split(jax.random.key(0), 3))
    obs = np.asarray(obs).reshape(-1, obs.shape[-1])

    def at(x, *seen):
        """Of the first step at which each observation was met."""
        return [x.reshape(-1)[(obs == one).all(-1).argmax()] for one in seen]

    return functools.partial(at, action), functools.partial(at, value)


@pytest.mark.parametrize("name", ["r2d2", "r2d3"])
def test_discount(name):
    _, value = played(name, probes.discount)
    np.testing.assert_allclose(value([0.0], [1.0]), [GAMMA, 1.0], atol=0.1)


def test_actions_match_what_is_seen():
    act, value = played("r2d2", probes.matching)
    assert act([1.0], [-1.0]) == [1, 0]
    np.testing.assert_allclose(value([1.0], [-1.0]), [1.0, 1.0], atol=0.1)


LATER, START = 1 / (1 - GAMMA), -10 + GAMMA / (1 - GAMMA)


def test_truncation():
    _, value = played("r2d2", probes.truncated)
    later, start = value(probes.LATER, probes.START)
    assert later == pytest.approx(LATER, rel=0.05)
    assert start == pytest.approx(START, abs=0.5)


# --- the same with a bug --------------------------------------------------------------


def limits_are_ends():
    """The truncation probe whose time limits are ends."""
    env = probes.truncated()

    def step_raw(key, state, action):
        state, step = env.step_raw(key, state, action)
        nothing = jnp.zeros_like(step.truncated)
        return state, step._replace(terminated=step.done, truncated=nothing)

    return env._replace(step_raw=step_raw)


def test_a_loop_that_takes_limits_for_ends_fails():
    _, value = played("r2d2", limits_are_ends)
    (later,) = value(probes.LATER)
    assert abs(later - LATER) > 0.1 * LATER


def test_a_loop_that_bootstraps_from_a_reset_fails(monkeypatch):
    """`auto_reset` that overwrites the last observation."""
    correct = envs.auto_reset

    def overwrite(state, step, fresh_state, fresh_obs):
        state, step = correct(state, step, fresh_state, fresh_obs)
        return state, step._replace(final_obs=step.obs)

    monkeypatch.setattr(envs, "auto_reset", overwrite)
    _, value = played("r2d2", lambda: probes.truncated())
    (later,) = value(probes.LATER)
    assert abs(later - LATER) > 0.1 * LATER
