"""Goals in environments, and agents that are steered to them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from inner_loops import dqn, ppo
from metaevo import envs, messages, slots
from metaevo.envs import goals, rendering
from metaevo.errors import ConfigError
from metaevo.rl import steering

CARTPOLE, PENDULUM = (envs.make(name) for name in goals.GOALS)
TINY = {"total_timesteps": 128, "num_envs": 2, "num_steps": 32, "num_segments": 1}
TINY |= {"num_epochs": 1, "num_minibatches": 1, "features": (1,), "num_eval_envs": 4}
CONFIG = ppo.Config(**TINY, message_size=1)


@slots.function
def towards(obs, context=None):
    """Right where the goal, the last component, is right of the cart."""
    del context
    return jnp.sign(obs[..., -1:] - obs[..., :1])


@slots.function
def left(obs, context=None):
    del context
    return jnp.full((*obs.shape[:-1], 1), -1.0)


def obedient(loop):
    """An agent that goes where number 0 of its message says, and sees nothing else."""
    agent = jax.eval_shape(loop.init, jax.random.key(0), loop.meta).agent
    agent = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), agent)
    layers = agent.params["actor"]["params"]
    layers["Dense_0"]["kernel"][-1, 0] = 1.0
    layers["Dense_1"]["kernel"][:] = [[-1.0, 1.0]]
    return agent


# --- goals ----------------------------------------------------------------------------


@pytest.mark.parametrize("env", [CARTPOLE, PENDULUM], ids=lambda env: env.name)
def test_a_goal_changes_the_reward_alone(env):
    goal = goals.of(env)
    here = goals.with_goal(env, goal)
    key, action = jax.random.key(3), jax.random.key(4)

    @jax.jit
    def both(key):
        given, _ = here.reset(key)
        plain, start, found = given.state, given.goal, []
        for i in range(3):
            act = jnp.int32(i % 2) if env is CARTPOLE else jnp.ones(1)
            step_key = jax.random.fold_in(action, i)
            given, out = here.step_raw(step_key, given, act)
            plain, expected = env.step_raw(step_key, plain, act)
            reward = goal.reward(out.final_obs, start)
            expected = expected._replace(reward=reward)
            found.append(
                ((given, out), (given._replace(state=plain, goal=start), expected))
            )
        return found

    for (given, out), expected in both(key):
        jax.tree.map(np.testing.assert_array_equal, (given, out), expected)
        assert 0 <= out.reward <= 1


def test_goals_of_cartpole_are_positions_on_the_track():
    goal = goals.of(CARTPOLE)
    drawn = jax.jit(jax.vmap(goal.draw))(jax.random.split(jax.random.key(0), 500))
    assert drawn.shape == (500, 1)
    assert -2.4 <= drawn.min() < -2.2
    assert 2.2 < drawn.max() <= 2.4
    obs = jnp.array([0.5, 9.0, 9.0, 9.0])
    assert goal.reward(obs, jnp.array([0.5])) == 1
    assert goal.reward(obs, jnp.array([1.5])) == pytest.approx(math.exp(-1), rel=1e-6)


def test_goals_of_pendulum_are_angles_by_cosine_and_sine():
    """Two angles of one cosine are told apart."""
    goal = goals.of(PENDULUM)
    drawn = jax.jit(jax.vmap(goal.draw))(jax.random.split(jax.random.key(0), 500))
    np.testing.assert_allclose((drawn**2).sum(1), 1.0, rtol=1e-5)
    assert np.abs(drawn.mean(0)).max() < 0.15

    def reward(angle, aim):
        obs = jnp.array([math.cos(angle), math.sin(angle), 5.0])
        return float(goal.reward(obs, jnp.array([math.cos(aim), math.sin(aim)])))

    assert reward(1.0, 1.0) == pytest.approx(1.0)
    assert reward(-1.0, 1.0) == pytest.approx(math.exp(2 * math.cos(2) - 2), rel=1e-5)
    assert reward(1.0 + math.pi, 1.0) == pytest.approx(math.exp(-4), rel=1e-5)


def test_pictures_show_the_goal():
    env = goals.with_goal(CARTPOLE, goals.of(CARTPOLE))
    state, _ = env.reset(jax.random.key(0))
    right, left_ = (
        state._replace(goal=jnp.array([x], jnp.float32)) for x in (1.0, -1.0)
    )
    frames = env.render([right, left_])
    (plain,) = CARTPOLE.render([state.state])
    for frame, side in zip(frames, (1, -1), strict=True):
        assert frame.shape == plain.shape
        _, columns = np.nonzero((frame != plain).any(-1))
        middle = rendering.WIDTH / 2
        expected = middle + side * 1.4 / 2.4 / 3 * rendering.WIDTH
        assert abs(columns.mean() - expected) < 2


def test_an_environment_without_goals_is_refused():
    with pytest.raises(ConfigError, match=r"Acrobot-v1.*expected one of gymnax/Cart"):
        goals.of(envs.make("gymnax/Acrobot-v1"))


# --- steering -------------------------------------------------------------------------


def test_the_exploiter_steers_a_victim_that_sees_no_goal():
    victim = ppo.make(CARTPOLE, CONFIG)
    loop = steering.steered(victim)
    agent = obedient(loop)
    state, _ = jax.jit(loop.env.reset)(jax.random.key(0))
    obs, act = jnp.zeros(4), jax.jit(loop.act)

    def action(exploiter, goal):
        meta = loop.meta._replace(exploiter=exploiter)
        here = state._replace(goal=jnp.array([goal]))
        return int(act(jax.random.key(0), meta, agent, (), obs, here)[0])

    assert [action(towards, goal) for goal in (-1.0, 1.0)] == [0, 1]
    assert [action(left, goal) for goal in (-1.0, 1.0)] == [0, 0]
    with pytest.raises(ValueError, match="acts in a state"):
        loop.act(jax.random.key(0), loop.meta, agent, (), obs)


def test_evaluation_is_the_goals_reward_of_a_steered_episode():
    """Beside an episode that is stepped here, without the code under test."""
    config = ppo.Config(**TINY | {"num_eval_envs": 1}, message_size=1)
    loop = steering.steered(ppo.make(CARTPOLE, config))
    agent = obedient(loop)
    meta = loop.meta._replace(exploiter=left)
    state = jax.jit(loop.init)(jax.random.key(0), meta)._replace(agent=agent)
    key = jax.random.key(5)
    found = jax.jit(loop.evaluate)(key, meta, state)
    reset_key, _ = jax.random.split(key)
    here, _ = jax.jit(loop.env.reset)(jax.random.split(reset_key, 1)[0])
    inner, goal, total, steps = here.state, float(here.goal[0]), 0.0, 0
    step = jax.jit(CARTPOLE.step_raw)
    while True:
        inner, out = step(key, inner, 0)
        total, steps = total + math.exp(-((float(out.obs[0]) - goal) ** 2)), steps + 1
        if out.done:
            break
    assert found["length"] == steps
    assert float(found["return"]) == pytest.approx(total, rel=1e-5)
    score = steering.goal_reward(loop).score({}, found)
    assert float(score) == pytest.approx(total / 500, rel=1e-5)


def test_training_is_the_victims_own():
    """The exploiter is no part of it: the programs are the same."""
    victim = ppo.make(CARTPOLE, CONFIG)
    loop = steering.steered(victim)
    state = jax.eval_shape(loop.init, jax.random.key(0), loop.meta)

    def program(train, meta):
        return str(jax.make_jaxpr(lambda s: train(jax.random.key(0), meta, s))(state))

    talked = program(loop.train, steering.Meta(left, towards))
    assert talked == program(victim.train, victim.meta._replace(message=left))
    assert talked != program(loop.train, steering.Meta(messages.silent, towards))


def test_a_steered_loop_is_put_on_other_tasks():
    """As a search with tasks does; the victim learns without a goal on each."""
    task = envs.make("gymnax/CartPole-v1?length=0.25..1")
    loop = steering.steered(ppo.make(task, CONFIG))
    given = loop.env.at(loop.env.task(jax.random.key(0)))
    for other, plain in ((loop.on(given), task), (loop.on(PENDULUM), PENDULUM)):
        inside = jax.eval_shape(plain.reset, jax.random.key(0))[0]
        here = jax.eval_shape(other.env.reset, jax.random.key(0))[0]
        assert jax.tree.structure(here.state) == jax.tree.structure(inside)
        learns = jax.eval_shape(other.init, jax.random.key(0), other.meta)
        state = learns.experience.episodes.env_state
        assert jax.tree.structure(state) == jax.tree.structure(inside)
    assert here.goal.shape == (2,)


def test_a_victim_that_hears_nothing_is_refused():
    with pytest.raises(ConfigError, match="no slot 'message'"):
        steering.steered(dqn.make(CARTPOLE))
    deaf = ppo.make(CARTPOLE, ppo.Config(**TINY))
    loop = steering.steered(deaf)
    meta = steering.Meta(left, towards)
    with pytest.raises(ConfigError, match="message_size=0"):
        jax.eval_shape(
            lambda key: loop.train(key, meta, loop.init(key, meta)), jax.random.key(0)
        )
