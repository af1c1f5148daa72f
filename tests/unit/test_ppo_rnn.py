"""Recurrent PPO: probes, memory, equality of rollout and replay."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from inner_loops import ppo_rnn
from metaevo import envs, losses, slots
from metaevo.errors import ConfigError

GAMMA = 0.9
META = ppo_rnn.Meta(lr=5e-3, gamma=GAMMA, ent_coef=0.0)


def loop_of(env, **config):
    """The loop of a training run that is as long as a probe needs."""
    sizes = {"total_timesteps": 20_480, "num_envs": 16, "num_steps": 16}
    sizes |= {"features": (16,), "num_segments": 1, "anneal_lr": False}
    # Values of probes are known in the units of their rewards.
    sizes |= {"num_minibatches": 2, "normalize_reward": False, "hidden": 16}
    return ppo_rnn.make(env, ppo_rnn.Config(**sizes | config), META)


def dense(layer, x):
    return x @ layer["kernel"] + layer.get("bias", 0.0)


def unrolled(agent, *obs):
    """Memory and value after each observation of an episode, from the weights: not
    through the code under test. Equations of Cho et al., 2014, as flax has them."""
    params = {k: v["params"] for k, v in agent.params.items() if k != "log_std"}
    params = jax.tree.map(np.asarray, params)
    cell, memory, out = params["cell"], np.float32(0.0), []
    for x in np.asarray(obs, np.float32):
        x = np.tanh(dense(params["embedding"]["Dense_0"], x))
        memory = np.broadcast_to(memory, x.shape)
        reset, keep = (
            1 / (1 + np.exp(-dense(cell["i" + g], x) - dense(cell["h" + g], memory)))
            for g in "rz"
        )
        new = np.tanh(dense(cell["in"], x) + reset * dense(cell["hn"], memory))
        memory = (1 - keep) * new + keep * memory
        h = np.tanh(dense(params["critic"]["Dense_0"], memory))
        out.append((memory, float(dense(params["critic"]["Dense_1"], h)[0])))
    return out


def values(agent, *obs):
    return [value for _, value in unrolled(agent, *obs)]


# --- probes ---------------------------------------------------------------------------


@functools.cache
def probed():
    """Agents by probe, which learn in one program."""
    environments = {
        "discount": probes.discount(probes.CONTINUOUS),
        "truncated": probes.truncated(action=probes.CONTINUOUS),
        "terminated": probes.terminated(3, probes.CONTINUOUS),
        "matching": probes.continuous_matching(),
    }

    # Its time is that of thousands of updates, not of compilation as elsewhere.
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})
    @jax.vmap
    def run(index):
        loop = loop_of(probes.chosen(index, [*environments.values()]))
        state = loop.init(jax.random.key(0), META)
        return loop.train(jax.random.key(9), META, state)[0].agent

    agents = run(jnp.arange(len(environments)))
    each = (jax.tree.map(lambda x: x[i], agents) for i in range(len(environments)))
    return dict(zip(environments, each, strict=True))


@pytest.mark.parametrize(
    ("probe", "shown", "expected", "within"),
    [
        ("discount", [(0, 0), (1, 0)], [GAMMA, 1.0], 0.1),
        # With a true end, whose coming a memory that counts can foresee.
        ("terminated", [(1, 0)] * 3, [1 + GAMMA + GAMMA**2, 1 + GAMMA, 1.0], 0.15),
    ],
)
def test_probe_values(probe, shown, expected, within):
    assert values(probed()[probe], *shown) == pytest.approx(expected, abs=within)


def test_probe_truncation():
    """A loop that takes a time limit for an end, or bootstraps from a reset, fails."""
    start, *later = values(probed()["truncated"], probes.START, *[probes.LATER] * 9)
    assert later == pytest.approx([1 / (1 - GAMMA)] * 9, rel=0.05)
    assert start == pytest.approx(-10 + GAMMA / (1 - GAMMA), abs=0.5)


def test_probe_matching():
    loop = loop_of(probes.chosen(0, [probes.continuous_matching(), probes.truncated()]))
    act, start = jax.jit(loop.act), loop.initial_carry()
    for sign in (-1, 1):
        obs = np.float32([sign, 0])
        action, _ = act(jax.random.key(0), META, probed()["matching"], start, obs)
        assert action == pytest.approx([sign / 2], abs=0.15)


def recall(delay=4):
    """The observation is ±1 in the first step and 0 later; after `delay` more steps
    the reward is 1 for the action that matches it, −1 for the other."""

    def transition(time, obs, action):
        sign, _ = obs
        match = jnp.where((sign > 0) == (action == 1), 1.0, -1.0)
        return jnp.array([sign, 0.0]), match * (time == delay), time == delay, False

    def reset(key):
        return jnp.repeat(probes._sign(key), 2)

    # The state is (sign, what is seen).
    env = probes._env(reset, transition, 2, envs.Discrete(2), delay + 1)
    return envs.select(env, (1,))


def test_probe_memory():
    """Nothing but memory solves it: without it the mean is 0, whatever the policy."""
    loop = loop_of(recall(), num_eval_envs=256)

    @jax.jit
    def run(key):
        state = loop.init(key, loop.meta)
        state, _ = loop.train(jax.random.key(9), loop.meta, state)
        return loop.evaluate(jax.random.key(2), loop.meta, state)["return"]

    assert run(jax.random.key(0)) > 0.9


# --- rollout and replay ---------------------------------------------------------------


def test_before_learning_the_replay_is_the_rollout():
    """|log π_replayed − log π_stored| in three updates without learning, in which
    episodes end and rollouts begin in the middle of others."""
    seen = []

    @slots.function
    def observe(log_prob, log_ratio, advantage, entropy, context):
        jax.debug.callback(lambda x: seen.append(float(x)), jnp.abs(log_ratio).max())
        return jnp.zeros_like(log_ratio)

    meta = META._replace(lr=0.0, policy_loss=observe)
    config = ppo_rnn.Config(
        3 * 4 * 50, 4, 50, num_epochs=2, num_segments=1, features=(16,), hidden=8
    )
    loop = ppo_rnn.make(envs.make("gymnax/CartPole-v1"), config, meta)

    @jax.jit
    def lived(key):
        state = loop.init(key, meta)
        # A policy that heeds its memory: born, it is all but uniform.
        params = jax.tree.map(lambda x: 3 * x, state.agent.params)
        state = state._replace(agent=state.agent._replace(params=params))
        return loop.train(key, meta, state)[1]

    metrics = lived(jax.random.key(0))
    jax.effects_barrier()
    assert metrics["episodes"] >= 8
    assert len(seen) == 3 * config.num_epochs * config.num_minibatches
    assert max(seen) < 1e-5


def test_memories_are_those_of_the_equations_and_end_with_the_episode():
    """Rollouts of 3 steps of episodes of 2: one ends within, one at the end."""
    meta, key = META._replace(lr=0.0), jax.random.key(3)
    config = ppo_rnn.Config(24, 4, 3, num_segments=2, hidden=8)
    loop = ppo_rnn.make(probes.discount(), config, meta)
    state = jax.jit(loop.init)(key, meta)
    # Born, biases are zero, and so is the memory of the first observation, zero.
    params = jax.tree.map(lambda x: np.asarray(x) + np.float32(0.1), state.agent.params)
    state = state._replace(agent=state.agent._replace(params=params))
    expected = unrolled(state.agent, [0.0])[0][0]
    assert np.abs(expected).min() > 1e-2
    train = jax.jit(loop.train)
    for memory in (expected, np.zeros(8)):
        state, _ = train(key, meta, state)
        for mine in state.experience.memory:
            np.testing.assert_allclose(mine, memory, rtol=1e-5, atol=1e-6)
    start = loop.initial_carry()
    _, carry = jax.jit(loop.act)(key, meta, state.agent, start, np.zeros(1, np.float32))
    np.testing.assert_allclose(carry, expected, rtol=1e-5, atol=1e-6)


def test_advantages_see_the_last_observation_with_its_own_memory():
    """Of truncated episodes, from the weights, through the value's target: it is
    bootstrapped at the end, and no trace goes on into the next episode."""
    seen = {}

    @slots.function
    def observe(value, target, old_value, context):
        jax.debug.callback(lambda x: seen.update(target=x), target)
        return losses.square(value, target, old_value, context)

    meta = META._replace(lr=0.0, gae_lambda=0.5, value_loss=observe)
    config = ppo_rnn.Config(
        12, 2, 6, num_epochs=1, num_minibatches=1, num_segments=1,
        normalize_reward=False,
    )  # fmt: skip
    loop = ppo_rnn.make(probes.truncated(horizon=3), config, meta)
    state = jax.jit(loop.init)(jax.random.key(0), meta)
    jax.jit(loop.train)(jax.random.key(1), meta, state)
    jax.effects_barrier()
    value = values(state.agent, probes.START, *[probes.LATER] * 3)
    assert abs(value[3] - value[0]) > 1e-2  # a reset's would be another
    target, expected = value[3], []
    for reward, following in ((1.0, value[3]), (1.0, value[2]), (-10.0, value[1])):
        target = reward + GAMMA * (0.5 * following + 0.5 * target)
        expected.insert(0, target)
    np.testing.assert_allclose(seen["target"][:, 0], expected * 2, rtol=1e-5)


def test_gradients_go_back_through_time_within_an_episode():
    """∂ memory_t / ∂ input_0 is not zero until the episode ends, and zero after."""

    def cell(memory, x):
        return 0.5 * memory + x

    done = jnp.array([False, False, True, False])[:, None]
    gradient = jax.jacobian(
        lambda x: ppo_rnn.replay(cell, jnp.ones((1, 1)), x, done)[:, 0, 0]
    )(jnp.zeros((4, 1, 1)))
    np.testing.assert_allclose(gradient[:, 0, 0, 0], [1.0, 0.5, 0.25, 0.0])


def test_minibatches_are_of_environments():
    with pytest.raises(ConfigError, match=r"num_minibatches=8 .*num_envs=4"):
        ppo_rnn.make(probes.value(), ppo_rnn.Config(num_envs=4, num_minibatches=8))
