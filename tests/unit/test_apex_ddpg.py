"""Ape-X DDPG: what it equals, whose priorities transitions get, and how actors explore.

The ring's priorities themselves are tested in test_priorities.py and test_apex.py.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_apex import close, indices_of_replay

from inner_loops import apex_ddpg, td3
from metaevo import envs
from metaevo.rl import networks, off_policy, priorities, q_learning

PENDULUM = envs.make("gymnax/Pendulum-v1")
SIZES = {"learning_starts": 64, "buffer_size": 128, "batch_size": 8, "num_envs": 4}
SIZES |= {"num_steps": 2, "num_gradient_steps": 2, "features": (8,)}
UPDATES = 50
SIZES |= {"total_timesteps": 64 + 8 * UPDATES, "num_segments": UPDATES}
SIZES |= {"num_step_return": 3}
GAMMA, ALPHA = 0.9, 0.7
RATES = {"actor_lr": 1e-2, "critic_lr": 1e-2, "gamma": GAMMA, "tau": 0.05}


@functools.cache
def programs(module):
    """`init` and `train`, which makes one of `UPDATES`.

    Windows are those that uniform sampling draws, so that few programs serve all tests.
    """
    sizes = SIZES if module is apex_ddpg else SIZES | {"num_critics": 1}
    sizes = sizes if module is apex_ddpg else sizes | {"policy_delay": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(priorities, "make", indices_of_replay)
        loop = module.make(PENDULUM, module.Config(**sizes))
    return jax.jit(loop.init), jax.jit(loop.train)


def lives(module, meta, num_updates=UPDATES):
    """States at birth and after each update."""
    init, train = programs(module)
    states = [init(jax.random.key(0), meta)]
    for _ in range(num_updates):
        states.append(train(jax.random.key(1), meta, states[-1])[0])
    return states


def ring():
    """Functions of the replay buffer and of its priorities."""
    sizes = off_policy.sizes(apex_ddpg.Config(**SIZES), 3)
    return sizes.buffer(PENDULUM, 4), sizes.priorities(4)


# --- what it equals -------------------------------------------------------------------


def fed_as_ddpg(**changes):
    """Ape-X DDPG after 50 updates, with all that is DDPG's but for some changes."""
    equal = {"exploration_noise": 0.3, "noise_exponent": 0.0, "priority_exponent": 0.0}
    meta = apex_ddpg.Meta(**RATES)._replace(**equal | changes)
    agent = lives(apex_ddpg, meta)[-1].agent
    return agent.actor, agent.critic


def test_with_equal_priorities_and_noise_alone_it_is_ddpg():
    """Of three steps, and of the same minibatches.

    DDPG is the setting of TD3 that test_td3.py holds to the paper.
    """
    meta = td3.Meta(**RATES, exploration_noise=0.3, smoothing_noise=0.0)
    agent = lives(td3, meta)[-1].agent
    plain = agent.actor, agent.critic
    close(plain, fed_as_ddpg(), rtol=1e-4, atol=1e-5)
    for change in ({"priority_exponent": 0.6}, {"noise_exponent": 1.0}):
        with pytest.raises(AssertionError):
            close(plain, fed_as_ddpg(**change), rtol=1e-3, atol=1e-4)


# --- priorities -----------------------------------------------------------------------

ACTOR = networks.mlp((8,), 1, 0.01, "relu")
CRITIC = networks.mlp((8,), 1, activation="relu")


def values(params, obs, action):
    params = jax.tree.map(lambda x: x[0], params)
    return np.asarray(CRITIC.apply(params, np.concatenate([obs, action], -1)))[..., 0]


def mass_by_hand(actor, critic, online, steps):
    """|δ|^α of windows [3, ...] by definition; no episode ends in them but by time."""
    obs, last = np.asarray(steps.obs[0]), np.asarray(steps.next_obs[-1])
    bootstrap = values(critic, last, np.tanh(ACTOR.apply(actor, last)))
    reward = np.asarray(steps.reward)
    target = reward[0] + GAMMA * reward[1] + GAMMA**2 * reward[2]
    target += GAMMA**3 * bootstrap
    return np.abs(target - values(online, obs, steps.action[0] / 2)) ** ALPHA


@functools.cache
def third_update():
    """States before and after it."""
    meta = apex_ddpg.Meta(**RATES, priority_exponent=ALPHA)
    return lives(apex_ddpg, meta, 3)[-2:]


def test_actors_give_new_transitions_their_priorities():
    """By the parameters that acted, of both networks: not by those of the targets."""
    (before, after), (buffer, windows) = third_update(), ring()
    indices = windows.newest(jnp.int32(4))
    fresh = np.asarray(after.experience.priorities.visits[indices[-1]]) == 0
    agent, steps = before.agent, off_policy.read(buffer, after.experience.rows, indices)
    found = np.asarray(after.experience.priorities.levels[0][indices[-1]])[fresh]
    nets = agent.actor.params, agent.critic.params
    expected = mass_by_hand(*nets, agent.critic.params, steps)[fresh]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    slow = agent.actor.target_params, agent.critic.target_params
    late = mass_by_hand(*slow, agent.critic.params, steps)[fresh]
    assert not np.allclose(found, late, rtol=1e-3)


def test_the_learner_gives_visited_transitions_theirs():
    """Of the first of two minibatches: by the target networks, before any step."""
    (before, after), (buffer, _) = third_update(), ring()
    kept = [x.experience.priorities for x in (before, after)]
    agent = before.agent
    num_rows = len(kept[0].visits) // 4
    drawn = np.flatnonzero(np.asarray(kept[1].visits) > np.asarray(kept[0].visits))
    back = np.arange(-2, 1)[:, None]
    indices = jnp.array((drawn // 4 + back) % num_rows * 4 + drawn % 4)
    steps = off_policy.read(buffer, after.experience.rows, indices)
    slow = agent.actor.target_params, agent.critic.target_params
    expected = mass_by_hand(*slow, agent.critic.params, steps)
    found = np.asarray(kept[1].levels[0])[drawn]
    online = mass_by_hand(
        agent.actor.params, agent.critic.params, agent.critic.params, steps
    )
    checked = np.isclose(found, expected, rtol=1e-4).sum()
    # Half of a minibatch at least was in the first alone.
    assert checked >= SIZES["batch_size"] // 2
    assert np.isclose(found, online, rtol=1e-4).sum() < checked


# --- exploration ----------------------------------------------------------------------


def test_each_environment_has_its_own_scale_of_noise():
    """The steps taken are those of the actor and noise on the ladder of Ape-X."""
    meta = apex_ddpg.Meta(
        actor_lr=0.0, exploration_noise=0.3, noise_exponent=2.0, priority_exponent=0.0
    )
    state, (buffer, _) = lives(apex_ddpg, meta)[-1], ring()
    # The ring was written over since the warm-up.
    steps = off_policy.read(buffer, state.experience.rows, jnp.arange(128))
    noise = steps.action / 2 - np.tanh(ACTOR.apply(state.agent.actor.params, steps.obs))
    spread = np.asarray(noise).reshape(-1, 4).std(0)
    np.testing.assert_allclose(spread, q_learning.ladder(0.3, 2.0, 4), rtol=0.4)
    assert (np.diff(spread) < 0).all()
