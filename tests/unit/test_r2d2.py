"""R2D2: rescaling, what its targets are, whose memory and priorities sequences get.

Pitfalls have the bug made on purpose beside the test that catches it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
    y = h(jnp.sinh(jnp.linspace(-12, 12, 401)))
    found = rescalings.inverse(lambda x, context: h(x), y)
    np.testing.assert_allclose(found, rescalings.inverse(h, y), 1e-5, 1e-6)


def test_a_value_that_is_not_a_number_has_no_inverse():
    """A member whose values are not finite must be found."""
    nan = jnp.float32(jnp.nan)
    assert np.isnan(rescalings.inverse(rescalings.signed_root, nan))
    assert np.isnan(rescalings.inverse(lambda x, context: 2 * x, nan))


# --- targets --------------------------------------------------------------------------


@functools.cache
def sequences(total=TOTAL, batch=40):
    """Random steps in which episodes end often, by limits and otherwise."""
    keys = jax.random.split(jax.random.key(7), 8)
    shape = total, batch
    obs = jax.random.normal(keys[0], (*shape, 4))
    done = jax.random.bernoulli(keys[1], 0.3, shape)
    steps = Transition(
        obs,
        jax.random.randint(keys[2], shape, 0, 2),
        jax.random.normal(keys[3], shape),
        jnp.concatenate([obs[1:], jax.random.normal(keys[4], (1, batch, 4))])
        + done[..., None],
        done & jax.random.bernoulli(keys[5], 0.5, shape),
        done,
    )
    hidden = jax.random.normal(keys[6], (batch, 6))
    action = jax.random.randint(keys[7], (batch,), -1, 2)
    return Sequences(steps, Memory(hidden, action, 0.5 * hidden[:, 0]))


@functools.cache
def nets():
    """The network and parameters of the online and of the target network."""
    config = r2d2.Config(**SIZES)
    net = recurrent_q.network(CARTPOLE, config, "R2D2")
    init = jax.jit(net.init)
    return net, init(jax.random.key(1)), init(jax.random.key(2))


def by_hand(params, target_params, given, size, double=True, kept=1.0, bug=""):
    """Targets and q [L, B] by definition: a step and a sequence at a time.

    Args:
        bug: `shifted` resets the memory a step late, `unburnt` starts the target
            network without memory behind the burn-in, `forgets` knows no last action.
    """
    net, _, _ = nets()
    steps, start = jax.tree.map(np.asarray, given)
    batch = steps.reward.shape[1]
    inputs, remember = jax.jit(net.inputs), jax.jit(net.remember)
    every, ahead, values = {}, {}, jax.jit(net.values)
    for who, weights in (("online", params), ("target", target_params)):
        hidden = kept * start.hidden
        action, reward = start.action, start.reward
        for t in range(size.total):
            if bug == "unburnt" and who == "target" and t == size.burn_in:
                hidden = np.zeros_like(hidden)
            if bug == "forgets":
                action = np.full_like(action, last_step.NO_ACTION)
            x = inputs(weights, steps.obs[t], action, reward)
            after = remember(weights, hidden, x)
            every[who, t] = np.asarray(values(weights, after))
            action, reward = steps.action[t], steps.reward[t]
            x = inputs(weights, steps.next_obs[t], action, reward)
            ahead[who, t] = np.asarray(values(weights, remember(weights, after, x)))
            after = np.asarray(after)
            ends = steps.done[t]
            if bug == "shifted":
                ends = steps.done[t - 1] if t else np.zeros_like(ends)
            hidden = np.where(ends[:, None], 0.0, after)
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


@functools.cache
def program(size, double):
    net = nets()[0]

    @jax.jit
    def run(params, target_params, given, kept):
        meta = META._replace(stored_memory=kept)
        context = Context()
        found = recurrent_q.targets(
            net, size, double, params, target_params, given, meta, context
        )
        steps, last = size.of_learned((given.steps, found.last))
        x = net.inputs(params, steps.obs, *last)
        again = recurrent_q.unroll(net, params, found.hidden, x, steps.done)
        return found.target, net.values(params, again)

    return run


def learned(size, double=True, kept=1.0):
    """Targets and q [L, B] of the code under test."""
    given = cut(size)
    target, q = program(size, double)(*nets()[1:], given, kept)
    action = np.asarray(size.of_learned(given.steps.action))[..., None]
    return target, np.take_along_axis(np.asarray(q), action, -1)[..., 0]


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


def test_a_memory_with_a_bug_would_be_seen():
    """A reset of the memory one step late, a target network that was not burnt in, an
    agent that does not see its last action."""
    _, params, target_params = nets()
    size = SequenceLength(3, 4, 2)
    found = np.asarray(learned(size)[0])
    for bug in ("shifted", "unburnt", "forgets"):
        wrong, _ = by_hand(params, target_params, sequences(), size, bug=bug)
        assert np.mean(np.abs(found - wrong) > 1e-3) > 0.3, bug


def test_one_step_without_memory_is_dqn_on_rescaled_values():
    """R2D2 with no burn-in, one step and no stored memory: the value of an observation
    alone, and of the next one after it."""
    net, params, _ = nets()
    size = SequenceLength(0, 1, 1)
    found, q = map(np.asarray, learned(size, kept=0.0))
    given = cut(size)
    steps, start = jax.tree.map(lambda x: x[0], given.steps), given.start
    x = net.inputs(params, steps.obs, start.action, start.reward)
    mine = np.asarray(net.values(params, net.remember(params, jnp.zeros((40, 6)), x)))
    taken = mine[np.arange(40), np.asarray(steps.action)]
    np.testing.assert_allclose(q[0], taken, rtol=1e-5, atol=1e-6)
    ended = np.asarray(steps.terminated)
    expected = rescaled(np.asarray(steps.reward))
    np.testing.assert_allclose(found[0, ended], expected[ended], rtol=1e-5)
    assert np.abs(found[0] - expected)[~ended].min() > 0


# --- stored memory --------------------------------------------------------------------


def drawn(state, parts, number=200):
    """Indices [W, n] of sequences that may be drawn now."""
    experience = state.experience
    inserted = state.clock.update * 8
    found = parts.windows.draw(
        jax.random.key(5),
        experience.priorities,
        inserted,
        experience.steps_since_birth,
        (number,),
    )
    return found.indices


@jax.jit
def seen_again(params, given, hidden, done):
    """Memories after each step of a period that starts with `hidden`."""
    net = made()[0].network
    x = net.inputs(params, given.steps.obs, *recurrent_q.led_by(given))
    memories = recurrent_q.unroll(net, params, hidden, x, done)
    first = net.remember(params, hidden, x[0])
    return recurrent_q.forget(memories[-1], given.steps.done[-1]), first


def test_a_sequence_starts_with_the_memory_that_the_agent_had():
    """Seen again from a start, with parameters that did not change, it arrives at the
    memory that was stored at the next start. Bugs on purpose: the memory after the
    first step, the memory of another start, and one that no end resets."""
    parts, states = lives(lr=0.0)
    for state in (states[0], states[3], states[5]):
        indices = drawn(state, parts)
        given = parts.read(state.experience, indices)
        steps = jax.tree.map(lambda x: x[:PERIOD], given.steps)
        given = given._replace(steps=steps)
        assert set(np.unique(np.asarray(indices[PERIOD]) // 4 % PERIOD)) == {0}
        later = parts.read(state.experience, indices[PERIOD:]).start

        def again(hidden, done, state=state, given=given):
            return seen_again(state.agent.params, given, hidden, done)

        start, done = given.start.hidden, steps.done
        found, after = again(start, done)
        np.testing.assert_allclose(found, later.hidden, rtol=1e-4, atol=1e-5)
        ended = np.asarray(done[-1])
        expected = np.where(ended, last_step.NO_ACTION, steps.action[-1])
        np.testing.assert_array_equal(later.action, expected)
        expected = np.where(ended, 0.0, steps.reward[-1])
        np.testing.assert_array_equal(later.reward, expected)

        def wrong(hidden, done, again=again, later=later):
            distance = np.abs(np.asarray(again(hidden, done)[0]) - later.hidden)
            return distance.max(-1) > 1e-3

        assert wrong(after, done).mean() > 0.5
        assert wrong(jnp.roll(start, 1, 0), done).mean() > 0.5
        ended = np.asarray(done.any(0))
        assert ended.any()
        assert wrong(start, done & False)[ended].mean() > 0.5


def test_an_episode_begins_without_a_last_action():
    env = last_step.with_last_step(CARTPOLE)
    state, _ = env.reset(jax.random.key(0))
    assert (state.action, state.reward) == (last_step.NO_ACTION, 0)
    for t in range(30):
        state, out = env.step(jax.random.key(t), state, jnp.int32(1))
        if out.done:
            break
        assert (state.action, state.reward) == (1, 1)
    assert out.done
    assert (state.action, state.reward) == (last_step.NO_ACTION, 0)
    raw, plain = CARTPOLE.step_raw(jax.random.key(0), state.state, jnp.int32(0))
    inner, same = env.step_raw(jax.random.key(0), state, jnp.int32(0))
    jax.tree.map(np.testing.assert_array_equal, (inner.state, same), (raw, plain))


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


def leaves(state, parts, indices):
    """Kept masses of sequences [W, n]."""
    drawn = state.experience.priorities.levels[0]
    first = np.asarray(indices[0])
    # A leaf is that of the last row: 7 steps on, of 40 rows.
    last = (first // 4 + TOTAL - 1) % 40
    return np.asarray(drawn)[(last - 3) // PERIOD * 4 + first % 4]


@pytest.mark.parametrize("update", [0, 1, 4])
def test_new_sequences_have_the_priorities_that_their_actors_give(update):
    """Those of the warm-up by the first parameters, others by those that acted."""
    parts, states = lives()
    state = states[update]
    acted = states[max(update - 1, 0)].agent.params
    indices = parts.windows.first() if update == 0 else None
    if indices is None:
        indices = parts.windows.newest(jnp.int32(8 * (update - 1)))
    indices = np.asarray(indices).reshape(TOTAL, -1)
    place = ((indices[0] // 4 + TOTAL - 1) % 40 - 3) // PERIOD * 4 + indices[0] % 4
    visits = np.asarray(state.experience.priorities.visits)[place]
    found = leaves(state, parts, indices)
    fresh = (visits == 0) & (found > 0)
    # The first update's other window reaches back into the warm-up, and has no mass.
    assert fresh.sum() >= (4 if update else 20)
    expected = masses(acted, acted, parts.read(state.experience, jnp.array(indices)))
    np.testing.assert_allclose(found[fresh], expected[fresh], rtol=1e-3, atol=1e-5)
    if update == 4:
        agent = states[4].agent
        stale = masses(
            agent.params, agent.params, parts.read(state.experience, jnp.array(indices))
        )
        assert not np.allclose(found[fresh], stale[fresh], rtol=1e-3)


def test_visited_sequences_have_the_priorities_of_the_learner():
    """Of the parameters before its step and of the target network."""
    parts, states = lives()
    before, after = states[3:5]
    kept = [np.asarray(x.experience.priorities.visits) for x in (before, after)]
    there = np.asarray(after.experience.priorities.levels[0])[: len(kept[0])]
    place = np.flatnonzero((kept[1] > kept[0]) & (there > 0))
    assert len(place) > 3
    rows = place // 4 * PERIOD + 3 + np.arange(1 - TOTAL, 1)[:, None]
    indices = jnp.array(rows % 40 * 4 + place % 4)
    agent = before.agent
    given = parts.read(after.experience, indices)
    expected = masses(agent.params, agent.target_params, given)
    np.testing.assert_allclose(there[place], expected, rtol=1e-3, atol=1e-5)
    online = masses(agent.params, agent.params, given)
    assert not np.allclose(there[place], online, rtol=1e-2)


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
