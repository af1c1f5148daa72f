"""Cheap talk: messages reach an agent's networks, and nothing else."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from inner_loops import ppo, ppo_rnn
from metaevo import envs, messages, rewards, slots, spaces
from metaevo.errors import ConfigError
from metaevo.rl import network_inputs

CARTPOLE = envs.make("gymnax/CartPole-v1")
TINY = {"total_timesteps": 128, "num_envs": 2, "num_steps": 32, "num_segments": 1}
TINY |= {"num_epochs": 1, "num_minibatches": 1, "features": (4,), "num_eval_envs": 2}
NET = messages.network(rewards.units(CARTPOLE), 2, (4,))
PARAMS = NET.init(jax.random.key(7))


@slots.function
def scaled(obs, context=None):
    del context
    return 3.0 * obs[..., :2]


def loudness(c, meta=ppo.Meta()):
    """PPO's slots with c times the network as message; c may be traced."""

    def apply(c, params, obs, context):
        return c * NET.apply(params, obs, context)

    return meta._replace(message=Partial(apply, jnp.float32(c), PARAMS))


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def padded(env):
    """`env` with two zeros behind each observation."""

    def pad(obs):
        return jnp.concatenate([obs, jnp.zeros((*obs.shape[:-1], 2))], -1)

    def reset(key):
        state, obs = env.reset(key)
        return state, pad(obs)

    def step_raw(key, state, action):
        state, out = env.step_raw(key, state, action)
        return state, out._replace(obs=pad(out.obs), final_obs=pad(out.final_obs))

    return env._replace(
        reset=reset,
        step_raw=step_raw,
        step=envs.with_auto_reset(reset, step_raw),
        observation=envs.Box((env.observation.shape[0] + 2,)),
    )


# --- invariants -----------------------------------------------------------------------


def test_a_silenced_message_is_an_observation_padded_with_zeros():
    """To the bit, in everything that is trained, and in evaluation."""
    config = {**TINY, "normalize_observation": True}
    talks = ppo.make(CARTPOLE, ppo.Config(**config, message_size=2))
    plain = ppo.make(padded(CARTPOLE), ppo.Config(**config))

    def life(loop):
        @jax.jit
        def run(meta):
            state = loop.init(jax.random.key(0), meta)
            state, metrics = loop.train(jax.random.key(1), meta, state)
            score = loop.evaluate(jax.random.key(2), meta, state)
            return state.agent, metrics, score

        return run

    with_message = life(talks)
    control = life(plain)(ppo.Meta())
    equal(with_message(loudness(0.0)), control)
    loud = with_message(loudness(1.0))
    changed = jax.tree.map(np.array_equal, loud[0].params, control[0].params)
    assert not any(jax.tree.leaves(changed["critic"]["params"]["Dense_0"]))


def test_transitions_and_rewards_do_not_depend_on_messages():
    """For one sequence of actions: the policy's weights are zero, and stay so."""
    meta = ppo.Meta(lr=0.0)
    config = ppo.Config(**TINY, message_size=2, normalize_observation=True)
    loop = ppo.make(CARTPOLE, config, meta)

    @jax.jit
    def run(meta):
        state = loop.init(jax.random.key(0), meta)
        params = state.agent.params
        params = params | {"actor": jax.tree.map(jnp.zeros_like, params["actor"])}
        state = state._replace(agent=state.agent._replace(params=params))
        state, metrics = loop.train(jax.random.key(1), meta, state)
        return state.experience, metrics, state.agent

    names = ("return", "length", "episodes")
    quiet, loud = (run(loudness(c, meta)) for c in (0.5, 2.0))
    equal(quiet[0], loud[0])
    equal([quiet[1][name] for name in names], [loud[1][name] for name in names])
    assert quiet[1]["episodes"] > 0
    # The normalizer sees what was said, and no message moved what was observed.
    stats = [np.asarray(x[2].obs_stats.mean) for x in (quiet, loud)]
    np.testing.assert_array_equal(stats[0][:4], stats[1][:4])
    np.testing.assert_allclose(4 * stats[0][4:], stats[1][4:], rtol=1e-4)
    assert np.abs(stats[0][4:]).min() > 1e-3


def test_an_agent_that_acts_hears_what_it_heard_while_it_trained():
    """A policy that does what number 0 says: the sign of component 2."""

    def sign(obs, context):
        return jnp.stack([jnp.sign(obs[..., 2]), 0 * obs[..., 2]], -1)

    meta = ppo.Meta(message=slots.function(sign))
    config = ppo.Config(**TINY | {"features": (1,)}, message_size=2)
    loop = ppo.make(CARTPOLE, config, meta)
    agent = jax.tree.map(jnp.zeros_like, loop.init(jax.random.key(0), meta).agent)
    layers = agent.params["actor"]["params"]
    layers["Dense_0"]["kernel"] = layers["Dense_0"]["kernel"].at[4, 0].set(1.0)
    layers["Dense_1"]["kernel"] = jnp.array([[-1.0, 1.0]])
    for angle in (-0.1, 0.1):
        obs = jnp.array([0.0, 0.0, angle, 0.0])
        action, _ = loop.act(jax.random.key(0), meta, agent, (), obs)
        assert int(action) == (angle > 0)


def test_a_message_reads_the_progress_of_its_agent():
    progress = []

    def late(obs, context):
        progress.append(float(context.progress))
        return jnp.zeros(())

    meta = ppo.Meta(message=slots.function(late))
    loop = ppo.make(CARTPOLE, ppo.Config(**TINY, message_size=2), meta)
    agent = loop.init(jax.random.key(0), meta).agent
    progress.clear()
    loop.act(jax.random.key(0), meta, agent._replace(age=1), (), jnp.zeros(4))
    assert progress == [0.5]


@pytest.mark.parametrize("module", [ppo, ppo_rnn])
def test_messages_may_read_statistics_of_an_update_and_reach_no_reward(module):
    seen = []

    def says(obs, context):
        return sum(context.stats[x] for x in ("entropy", "kl", "clip_fraction"))

    def reward(obs, action, reward, next_obs, terminated, context):
        seen.append((obs.shape, next_obs.shape))
        return reward

    config = module.Config(**TINY, message_size=2)
    meta = module.Meta(message=slots.function(says), reward=slots.function(reward))
    loop = module.make(CARTPOLE, config, meta)
    jax.eval_shape(
        lambda key: loop.train(key, meta, loop.init(key, meta)), jax.random.key(0)
    )
    assert set(seen) == {((4,), (4,))}


def test_messages_of_images_are_beside_their_flattened_bits():
    breakout = envs.make("gymnax/Breakout-MinAtar")
    says = ppo.Meta(message=slots.function(lambda obs, context: obs[..., :3] + 7.0))
    heard = network_inputs.of(breakout, 3, says)
    assert heard.space.shape == (403,)
    obs = jnp.arange(2 * 400).reshape(2, 10, 10, 4) % 3 == 0
    found = heard.with_message(says, slots.Context(), obs)
    flat = obs.reshape(2, 400).astype(jnp.float32)
    np.testing.assert_array_equal(found[:, :400], flat)
    np.testing.assert_array_equal(found[:, 400:], flat[:, :3] + 7)
    with pytest.raises(ConfigError, match=r"torso='cnn'.*\[403\]"):
        ppo.make(breakout, ppo.Config(**TINY, torso="cnn", message_size=3), says)


# --- the network ----------------------------------------------------------------------


def test_the_network_is_bounded_and_starts_random():
    observed = 100 * jax.random.normal(jax.random.key(0), (64, 4))
    said = NET.apply(PARAMS, observed)
    assert said.shape == (64, 2)
    assert np.abs(said).max() <= 2 * math.pi
    assert (said.std(0) > 1.0).all()
    # The same for the same observation, in any batch.
    np.testing.assert_allclose(NET.apply(PARAMS, observed[5]), said[5], rtol=1e-5)
    np.testing.assert_array_equal(messages.silent(observed), 0.0)


# --- refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "message", "expected"),
    [
        (0, scaled, r"message_size=0: no network would see it"),
        (3, scaled, r"message_size=3: .* shape \[1, 2\], expected \[1, 3\]"),
        (-1, messages.silent, r"inner\.message_size=-1 must be >= 0"),
    ],
)
def test_a_message_of_another_size_is_refused(size, message, expected):
    with pytest.raises(ConfigError, match=expected):
        ppo.make(
            CARTPOLE, ppo.Config(**TINY, message_size=size), ppo.Meta(message=message)
        )


def test_a_message_that_evolves_is_refused_while_tracing():
    loop = ppo.make(CARTPOLE, ppo.Config(**TINY, message_size=3))
    meta = spaces.replace(message=NET).bind({"message": PARAMS}, ppo.Meta())
    with pytest.raises(ConfigError, match="message_size=3"):
        jax.eval_shape(
            lambda key: loop.train(key, meta, loop.init(key, meta)), jax.random.key(0)
        )
