"""Ape-X: what it equals, whose priorities transitions get, and how its actors explore.

Pitfalls have the bug made on purpose beside the test that catches it.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from inner_loops import apex, dqn
from metaevo import envs
from metaevo.errors import ConfigError
from metaevo.rl import networks, off_policy, priorities, q_learning, replay

CARTPOLE = envs.make("gymnax/CartPole-v1")
SIZES = {"learning_starts": 64, "buffer_size": 256, "batch_size": 16, "num_envs": 4}
SIZES |= {"num_steps": 2, "features": (16,), "num_segments": 1, "target_period": 3}
SIZES |= {"num_step_return": 3, "double": True, "dueling": True}
FRAMES, GAMMA = 8, 0.9
RAINBOW = {"head": "categorical", "num_atoms": 11, "v_min": 0.0, "v_max": 20.0}
RAINBOW |= {"noisy": True}


def config(module, num_updates, **sizes):
    lifetime = {"total_timesteps": 64 + FRAMES * num_updates}
    return module.Config(**SIZES | lifetime | sizes)


@functools.cache
def programs(module=apex, num_updates=1, fed=False, rainbow=False):
    """`init` and `train`, which makes `num_updates`; by default one.

    Args:
        fed: windows are those that uniform sampling would draw.
        rainbow: with noisy networks and a distribution of the return.
    """
    sizes = RAINBOW if rainbow else {}
    with pytest.MonkeyPatch.context() as patch:
        if fed:
            patch.setattr(priorities, "make", indices_of_replay)
        loop = module.make(CARTPOLE, config(module, num_updates, **sizes))
    return jax.jit(loop.init), jax.jit(loop.train)


def indices_of_replay(*sizes, made=priorities.make):
    """Priorities whose windows are those that uniform sampling would draw."""
    windows = made(*sizes)
    uniform = replay.make({"x": jnp.zeros(())}, *sizes[:5])

    def draw(key, kept, inserted, own, shape):
        indices = uniform.draw(key, inserted, own, shape)
        drawn = windows.draw(key, kept, inserted, own, shape)
        return drawn._replace(indices=indices, mass=kept.levels[0][indices[-1]])

    return windows._replace(draw=draw)


def trained(meta, num_updates):
    """State and last metrics after some updates of a lifetime of one."""
    (init, train), metrics = programs(), {}
    state = init(jax.random.key(0), meta)
    for _ in range(num_updates):
        state, metrics = train(jax.random.key(1), meta, state)
    return state, metrics


def close(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


# --- what it equals -------------------------------------------------------------------

UNIFORM = {"priority_exponent": 0.0, "epsilon_exponent": 0.0, "epsilon": 0.3}


def lived(module, **changes):
    """DQN or Ape-X, with Rainbow's other parts, after 100 updates."""
    if module is dqn:
        meta = dqn.Meta(lr=1e-2, epsilon=0.3, max_grad_norm=40.0)
    else:
        meta = apex.Meta(lr=1e-2)._replace(**UNIFORM | changes)
    init, train = programs(module, 100, fed=module is apex, rainbow=True)
    return train(jax.random.key(1), meta, init(jax.random.key(0), meta))[0]


def test_with_equal_priorities_and_epsilons_alone_it_is_dqn():
    """Of the same minibatches, with the other parts of Rainbow. Otherwise there are
    weights by priorities that did not guide the draw, or another exploration."""
    plain, mine = lived(dqn), lived(apex)
    for name in ("params", "target_params", "opt_state"):
        a, b = getattr(plain.agent, name), getattr(mine.agent, name)
        close(a, b, rtol=1e-5, atol=1e-6)
    close(plain.experience.episodes, mine.experience.episodes, rtol=1e-5, atol=1e-6)
    for change in ({"priority_exponent": 0.6}, {"epsilon": 0.4}):
        other = lived(apex, **change)
        leaves = (jax.tree.leaves(x.agent.params) for x in (plain, other))
        pairs = zip(*leaves, strict=True)
        assert not all(np.allclose(x, y, rtol=1e-4) for x, y in pairs)


# --- priorities -----------------------------------------------------------------------


def errors(params, target_params, steps):
    """|δ| of windows [3, ...] by definition, in a loop; double Q-learning."""
    net = networks.mlp((16,), 2, activation="relu", dueling=True)
    q, ahead = (np.asarray(net.apply(params, x)) for x in (steps.obs, steps.next_obs))
    later = np.asarray(net.apply(target_params, steps.next_obs))
    found = np.zeros(steps.reward.shape[1:])
    for at in np.ndindex(found.shape):
        target, factor = 0.0, 1.0
        for i in range(3):
            here = (i, *at)
            target += factor * float(steps.reward[here])
            factor *= GAMMA
            if steps.done[here] or i == 2:
                if not steps.terminated[here]:
                    target += factor * later[here][ahead[here].argmax()]
                break
        action = int(steps.action[(0, *at)])
        found[at] = abs(target - q[(0, *at)][action])
    return found


@functools.cache
def lives():
    """Six states, one update apart, and the ring's functions."""
    init, train = programs()
    meta = apex.Meta(lr=1e-2, gamma=GAMMA, priority_exponent=0.7)
    states = [init(jax.random.key(0), meta)]
    for _ in range(5):
        states.append(train(jax.random.key(1), meta, states[-1])[0])
    # A lifetime of one update has a ring hardly longer than the warm-up: rows are
    # written over.
    sizes = off_policy.sizes(config(apex, 1), 3)
    return states, sizes.buffer(CARTPOLE, 4), sizes.priorities(4)


def by_hand(params, target_params, state, indices, buffer):
    steps = off_policy.read(buffer, state.experience.rows, indices)
    return errors(params, target_params, steps) ** 0.7


def leaves(state, indices):
    return np.asarray(state.experience.priorities.levels[0][indices[-1]])


def test_the_warm_up_has_the_priorities_of_the_first_parameters():
    (state, *_), buffer, windows = lives()
    params = state.agent.params
    found = leaves(state, windows.first())
    expected = by_hand(params, params, state, windows.first(), buffer)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(expected) > 0.1


def test_new_transitions_have_the_priorities_that_their_actors_give():
    """By the parameters that acted. The bugs on purpose: the largest priority so far,
    as without actors, or an exponent applied again."""
    states, buffer, windows = lives()
    checked = 0
    for update, (before, after) in enumerate(itertools.pairwise(states[1:]), 1):
        indices = windows.newest(jnp.int32(2 * update))
        params = before.agent.params
        expected = by_hand(params, params, after, indices, buffer)
        visits = np.asarray(after.experience.priorities.visits[indices[-1]])
        fresh = (visits == 0) & (leaves(after, indices) > 0)
        found, expected = leaves(after, indices)[fresh], expected[fresh]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        largest = max(leaves(before, windows.first()).max(), expected.max())
        assert not np.allclose(found, largest, rtol=0.1)
        assert not np.allclose(found, expected**0.7, rtol=0.01)
        checked += fresh.sum()
    assert checked > 8


def test_visited_transitions_have_the_priorities_of_the_learner():
    """Of the parameters before its step and of the target network."""
    states, buffer, windows = lives()
    before, after = states[2:4]
    visits = [np.asarray(x.experience.priorities.visits) for x in (before, after)]
    new = set(np.asarray(windows.newest(jnp.int32(4))[-1]).ravel())
    drawn = [i for i in np.flatnonzero(visits[1] > visits[0]) if i not in new]
    assert len(drawn) > 5
    last = np.array(drawn)
    num_rows = len(visits[0]) // 4
    back = np.arange(-2, 1)[:, None]
    indices = jnp.array((last // 4 + back) % num_rows * 4 + last % 4)
    agent = before.agent
    expected = by_hand(agent.params, agent.target_params, after, indices, buffer)
    np.testing.assert_allclose(leaves(after, indices), expected, rtol=1e-4, atol=1e-5)
    online = by_hand(agent.params, agent.params, after, indices, buffer)
    assert not np.allclose(expected, online, rtol=1e-2)


def test_weights_of_what_is_drawn_more_often_are_smaller():
    """With β = 0 all count alike; the metric tells."""
    half, none = (
        trained(apex.Meta(importance_exponent=beta), 5)[1]["importance"]
        for beta in (0.5, 0.0)
    )
    assert 0 < half < 1
    assert none == 1


# --- exploration ----------------------------------------------------------------------


def test_the_ladder_is_that_of_the_paper():
    expected = [0.4, 0.16, 0.064, 0.0256, 0.01024, 0.004096, 0.0016384, 0.00065536]
    np.testing.assert_allclose(q_learning.ladder(0.4, 7.0, 8), expected, rtol=1e-5)
    np.testing.assert_allclose(q_learning.ladder(0.4, 0.0, 3), 0.4, rtol=1e-6)
    np.testing.assert_allclose(q_learning.ladder(0.4, 7.0, 1), 0.4, rtol=1e-6)


def test_each_environment_explores_by_its_own_share(monkeypatch):
    seen = []
    explorer = q_learning.explorer

    def watched(q_values, meta, context):
        seen.append(meta.epsilon)
        return explorer(q_values, meta, context)

    monkeypatch.setattr(q_learning, "explorer", watched)
    loop, key = apex.make(CARTPOLE, config(apex, 1)), jax.random.key(0)
    state = jax.eval_shape(loop.init, key, loop.meta)
    jax.eval_shape(loop.train, key, loop.meta, state)
    assert seen
    assert all(x.shape == (4, 1) for x in seen)


def test_evaluation_is_greedy_whatever_the_ladder():
    meta = apex.Meta(epsilon=1.0, epsilon_exponent=0.0)
    loop = apex.make(CARTPOLE, config(apex, 1))
    agent = programs()[0](jax.random.key(0), meta).agent
    net = networks.mlp((16,), 2, activation="relu", dueling=True)
    obs = jax.random.normal(jax.random.key(2), (64, 4))
    best = np.asarray(net.apply(agent.params, obs)).argmax(-1)

    keys = jax.random.split(jax.random.key(3), 64)
    act = jax.jit(jax.vmap(lambda key, obs: loop.act(key, meta, agent, (), obs)[0]))
    np.testing.assert_array_equal(act(keys, obs), best)
    assert set(best.tolist()) == {0, 1}


# --- settings -------------------------------------------------------------------------


def test_a_warm_up_too_short_for_its_windows_is_refused():
    with pytest.raises(ConfigError, match=r"learning_starts=8 must be at least 28"):
        apex.make(CARTPOLE, config(apex, 1, learning_starts=8))
