"""R2D2: rescaling, what its targets are, whose memory and priorities sequences get."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rings import compiled

from inner_loops import _r2d2, r2d2
from metaevo import envs
from metaevo.envs import last_step
from metaevo.errors import ConfigError
from metaevo.learned import rescalings
from metaevo.rl import recurrent_q
from metaevo.rl.recurrent_q import Memory, SequenceLength, Sequences
from metaevo.rl.rollouts import Transition
from metaevo.slots import Context

CARTPOLE = envs.make("gymnax/CartPole-v1")
GAMMA, PERIOD = 0.9, 4
SIZES = {"learning_starts": 128, "buffer_size": 512, "batch_size": 8, "num_envs": 4}
SIZES |= {"num_steps": 8, "num_gradient_steps": 1, "features": (8,), "hidden": 6}
SIZES |= {"num_segments": 1, "target_period": 2, "period": PERIOD}
SIZES |= {"burn_in": 3, "sequence_length": 4, "num_step_return": 2}
TOTAL = 3 + 4 + 2 - 1
# Numbers that are all in use.
META = r2d2.Meta(lr=1e-2, gamma=GAMMA, priority_max=0.7, priority_exponent=0.6)


@functools.cache
def made(num_updates=1):
    """The loop, its parts, and compiled `init` and `train` of some updates."""
    config = r2d2.Config(total_timesteps=128 + 32 * num_updates, **SIZES)
    loop = r2d2.make(CARTPOLE, config)
    parts = _r2d2.parts(CARTPOLE, config, "R2D2")
    return parts, jax.jit(loop.init), jax.jit(loop.train)


@functools.cache
def lives(lr=1e-2):
    """Six states, one update apart; a ring of 40 rows, of which 32 are warm-up."""
    parts, init, train = made()
    windows = compiled(parts.windows)
    parts = parts._replace(read=jax.jit(parts.read), windows=windows)
    meta = META._replace(lr=lr)
    states = [init(jax.random.key(0), meta)]
    for _ in range(5):
        states.append(train(jax.random.key(1), meta, states[-1])[0])
    return parts, states


# --- rescaling ------------------------------------------------------------------------


def rescaled(x):
    """h(x), Kapturowski et al., 2019, with ε = 1e-3."""
    return np.sign(x) * (np.sqrt(np.abs(np.float64(x)) + 1) - 1) + 1e-3 * x


def unscaled(y):
    """h⁻¹(y), Pohlen et al., 2018, proposition A.2."""
    root = np.sqrt(1 + 4e-3 * (np.abs(np.float64(y)) + 1 + 1e-3))
    return np.sign(y) * (((root - 1) / 2e-3) ** 2 - 1)


def test_the_rescaling_is_that_of_the_paper():
    h = rescalings.signed_root
    np.testing.assert_allclose(h(jnp.float32(10.0)), 2.32662, atol=5e-6)
    np.testing.assert_allclose(h(jnp.float32(-10.0)), -2.32662, atol=5e-6)
    x = np.sinh(np.linspace(-12, 12, 401)).astype(np.float32)
    np.testing.assert_allclose(h(x), rescaled(x), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(unscaled(rescaled(x)), x, rtol=1e-6, atol=1e-9)
    back = rescalings.inverse(h, h(jnp.array(x)))
    np.testing.assert_allclose(back, x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("h", [rescalings.signed_root, rescalings.identity])
def test_bisection_finds_what_the_closed_forms_give(h):
    @jax.jit
    def both(x):
        y = h(x)
        return rescalings.inverse(lambda x, context: h(x), y), rescalings.inverse(h, y)

    found, expected = both(np.sinh(np.linspace(-12, 12, 401)).astype(np.float32))
    np.testing.assert_allclose(found, expected, 1e-5, 1e-6)


def test_a_value_that_is_not_a_number_has_no_inverse():
    """A member whose values are not finite must be found."""
    for h in (rescalings.signed_root, lambda x, context: 2 * x):
        inverse = jax.jit(functools.partial(rescalings.inverse, h))
        assert np.isnan(inverse(jnp.float32(jnp.nan)))


# --- targets --------------------------------------------------------------------------


@functools.cache
def sequences(total=TOTAL, batch=40):
    """Random steps in which episodes end often, by limits and otherwise."""
    rng, shape = np.random.default_rng(7), (total, batch)
    obs = rng.normal(size=(total + 1, batch, 4)).astype(np.float32)
    done = rng.random(shape) < 0.3
    steps = Transition(
        obs[:-1],
        rng.integers(0, 2, shape),
        rng.normal(size=shape).astype(np.float32),
        obs[1:] + np.float32(done[..., None]),
        done & (rng.random(shape) < 0.5),
        done,
    )
    hidden = rng.normal(size=(batch, 6)).astype(np.float32)
    action = rng.integers(-1, 2, batch)
    return Sequences(steps, Memory(hidden, action, 0.5 * hidden[:, 0]))


@functools.cache
def nets():
    """The network and parameters of the online and of the target network."""
    config = r2d2.Config(**SIZES)
    net = recurrent_q.network(CARTPOLE, config, "R2D2")
    init = jax.jit(net.init)
    return net, init(jax.random.key(1)), init(jax.random.key(2))


def by_hand(params, target_params, given, size, double=True, kept=1.0):
    """Targets and q [L, B] by definition: a step and a sequence at a time."""
    net, _, _ = nets()
    steps, start = jax.tree.map(np.asarray, given)
    batch = steps.reward.shape[1]
    inputs, remember = jax.jit(net.inputs), jax.jit(net.remember)
    every, ahead, values = {}, {}, jax.jit(net.values)
    for who, weights in (("online", params), ("target", target_params)):
        hidden = kept * start.hidden
        action, reward = start.action, start.reward
        for t in range(size.total):
            x = inputs(weights, steps.obs[t], action, reward)
            after = remember(weights, hidden, x)
            every[who, t] = np.asarray(values(weights, after))
            action, reward = steps.action[t], steps.reward[t]
            x = inputs(weights, steps.next_obs[t], action, reward)
            ahead[who, t] = np.asarray(values(weights, remember(weights, after, x)))
            hidden = np.where(steps.done[t][:, None], 0.0, np.asarray(after))
            action = np.where(steps.done[t], last_step.NO_ACTION, action)
            reward = np.where(steps.done[t], 0.0, reward)
    target, q = np.zeros((2, size.learned, batch))
    for i, b in np.ndindex(target.shape):
        t, total, factor = size.burn_in + i, 0.0, 1.0
        for j in range(t, t + size.ahead):
            total += factor * steps.reward[j, b]
            factor *= GAMMA
            if steps.done[j, b] or j == t + size.ahead - 1:
                who = "online" if double else "target"
                best = ahead[who, j][b].argmax()
                value = unscaled(ahead["target", j][b][best])
                total += 0.0 if steps.terminated[j, b] else factor * value
                break
        target[i, b] = rescaled(total)
        q[i, b] = every["online", t][b][steps.action[t, b]]
    return target, q


def cut(size):
    """The sequences' first steps, as many as are read."""
    steps, start = sequences()
    return Sequences(jax.tree.map(lambda x: x[: size.total], steps), start)


def learned(size, double, kept):
    """Targets and q [L, B] of the code under test."""
    net, given = nets()[0], cut(size)
    meta = META._replace(stored_memory=kept)

    @jax.jit
    def run(params, target_params):
        given_to = params, target_params, given, meta, Context()
        found = recurrent_q.targets(net, size, double, *given_to)
        steps, last = size.of_learned((given.steps, found.last))
        x = net.inputs(params, steps.obs, *last)
        again = recurrent_q.unroll(net, params, found.hidden, x, steps.done)
        q = jnp.take_along_axis(net.values(params, again), steps.action[..., None], -1)
        return found.target, q[..., 0]

    return run(*nets()[1:])


@pytest.mark.parametrize(
    ("size", "double", "kept"),
    [
        (SequenceLength(0, 1, 1), True, 1.0),
        (SequenceLength(3, 4, 2), True, 1.0),
        (SequenceLength(2, 4, 3), False, 0.5),
    ],
)
def test_targets_are_those_of_the_definition(size, double, kept):
    """Without a burn-in and of one step: n-step Q-learning of rescaled values."""
    _, params, target_params = nets()
    expected = by_hand(params, target_params, cut(size), size, double, kept)
    for x, y in zip(learned(size, double, kept), expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


# --- stored memory --------------------------------------------------------------------


def drawn(state, parts, number=200):
    """Indices [W, n] of sequences that may be drawn now."""
    experience = state.experience
    where = state.clock.update * 8, experience.steps_since_birth
    key, kept = jax.random.key(5), experience.priorities
    return parts.windows.draw(key, kept, *where, (number,)).indices


@jax.jit
def seen_again(params, given):
    """The memory after a period, from that at its start."""
    net, done = made()[0].network, given.steps.done
    x = net.inputs(params, given.steps.obs, *recurrent_q.led_by(given))
    memories = recurrent_q.unroll(net, params, given.start.hidden, x, done)
    return recurrent_q.forget(memories[-1], done[-1])


def test_a_sequence_starts_with_the_memory_that_the_agent_had():
    """Seen again from a start, with parameters that did not change, it arrives at the
    memory that was stored at the next start."""
    parts, states = lives(lr=0.0)
    for state in (states[0], states[3], states[5]):
        indices = drawn(state, parts)
        assert set(np.unique(np.asarray(indices[PERIOD]) // 4 % PERIOD)) == {0}
        given = parts.read(state.experience, indices)
        steps = jax.tree.map(lambda x: np.asarray(x)[:PERIOD], given.steps)
        later = parts.read(state.experience, np.asarray(indices)[PERIOD:]).start
        found = seen_again(state.agent.params, given._replace(steps=steps))
        np.testing.assert_allclose(found, later.hidden, rtol=1e-4, atol=1e-5)
        assert steps.done.any()
        ended = steps.done[-1]
        expected = np.where(ended, last_step.NO_ACTION, steps.action[-1])
        np.testing.assert_array_equal(later.action, expected)
        expected = np.where(ended, 0.0, steps.reward[-1])
        np.testing.assert_array_equal(later.reward, expected)


def test_an_episode_begins_without_a_last_action():
    env = last_step.with_last_step(CARTPOLE)
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    assert (state.action, state.reward) == (last_step.NO_ACTION, 0)
    step = jax.jit(env.step)
    for t in range(30):
        state, out = step(jax.random.key(t), state, 1)
        if out.done:
            break
        assert (state.action, state.reward) == (1, 1)
    assert out.done
    assert (state.action, state.reward) == (last_step.NO_ACTION, 0)
    plain = jax.jit(CARTPOLE.step_raw)(jax.random.key(0), state.state, 0)
    inner, same = jax.jit(env.step_raw)(jax.random.key(0), state, 0)
    jax.tree.map(np.testing.assert_array_equal, (inner.state, same), plain)


def test_what_the_last_step_cannot_be_kept_of_is_refused():
    for name in ("gymnax/Pendulum-v1", "coin_game/3x3"):
        with pytest.raises(ConfigError, match=r"discrete actions|one player"):
            last_step.with_last_step(envs.make(name))


# --- priorities -----------------------------------------------------------------------


def masses(params, target_params, given):
    """p^α [B] by definition."""
    target, q = by_hand(params, target_params, given, SequenceLength(3, 4, 2))
    size = np.abs(target - q)
    return (0.7 * size.max(0) + 0.3 * size.mean(0)) ** 0.6


@pytest.mark.parametrize("update", [0, 4])
def test_new_sequences_have_the_priorities_that_their_actors_give(update):
    """Those of the warm-up by the first parameters, others by those that acted."""
    parts, states = lives()
    state = states[update]
    acted = states[max(update - 1, 0)].agent.params
    indices = parts.windows.first() if update == 0 else None
    if indices is None:
        indices = parts.windows.newest(jnp.int32(8 * (update - 1)))
    indices = np.asarray(indices).reshape(TOTAL, -1)
    # A leaf is that of the last row: 7 steps on, of 40 rows.
    place = ((indices[0] // 4 + TOTAL - 1) % 40 - 3) // PERIOD * 4 + indices[0] % 4
    kept = state.experience.priorities
    visits, found = (np.asarray(x)[place] for x in (kept.visits, kept.levels[0]))
    fresh = (visits == 0) & (found > 0)
    assert fresh.sum() >= (4 if update else 20)
    expected = masses(acted, acted, parts.read(state.experience, indices))
    np.testing.assert_allclose(found[fresh], expected[fresh], rtol=1e-3, atol=1e-5)


def test_visited_sequences_have_the_priorities_of_the_learner():
    """Of the parameters before its step and of the target network."""
    parts, states = lives()
    before, after = states[3:5]
    kept = [np.asarray(x.experience.priorities.visits) for x in (before, after)]
    there = np.asarray(after.experience.priorities.levels[0])[: len(kept[0])]
    place = np.flatnonzero((kept[1] > kept[0]) & (there > 0))
    assert len(place) > 3
    rows = place // 4 * PERIOD + 3 + np.arange(1 - TOTAL, 1)[:, None]
    given = parts.read(after.experience, rows % 40 * 4 + place % 4)
    expected = masses(before.agent.params, before.agent.target_params, given)
    np.testing.assert_allclose(there[place], expected, rtol=1e-3, atol=1e-5)


# --- settings -------------------------------------------------------------------------


def test_acting_without_a_state_is_refused_by_name():
    config = r2d2.Config(total_timesteps=160, **SIZES)
    loop = r2d2.make(CARTPOLE, config)
    agent = lives()[1][0].agent
    with pytest.raises(ValueError, match="R2D2 sees its last action"):
        loop.act(jax.random.key(0), META, agent, jnp.zeros(6), jnp.zeros(4))


def test_a_period_that_does_not_divide_the_steps_is_refused():
    with pytest.raises(ConfigError, match=r"inner\.period=5 .*inner\.num_steps=8"):
        r2d2.make(CARTPOLE, r2d2.Config(**SIZES | {"period": 5}))


def test_a_warm_up_too_short_for_its_sequences_is_refused():
    with pytest.raises(ConfigError, match=r"learning_starts=64 must be at least 88"):
        r2d2.make(CARTPOLE, r2d2.Config(**SIZES | {"learning_starts": 64}))
