"""The replay buffer, against a list."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest

from metaevo import envs
from metaevo.rl import replay
from metaevo.rl.rollouts import Transition

ENVS, STEPS = 2, 2


def steps(first, num, num_envs=ENVS):
    """Transitions whose reward says which they are: step + environment / 10."""
    time = jnp.arange(first, first + num, dtype=jnp.float32)[:, None]
    label = time + jnp.arange(num_envs) / 10
    flag = jnp.zeros(label.shape, bool)
    obs = label[..., None]
    return Transition(obs, jnp.int32(label), label, obs + 1, flag, ~flag)


def drawn(buffer, rows, inserted, own, size=4000):
    batch = buffer.sample(jax.random.key(0), rows, inserted, own, (size,))
    return batch, Counter(round(float(x), 1) for x in batch.reward[0])


def reference(capacity, inserted, own):
    """What a ring would hold: four steps of warm-up from 50 on, own ones from 100."""
    history = [*range(50, 54), *range(100 + inserted - own, 100 + inserted)]
    return {round(t + e / 10, 1) for t in history[-capacity:] for e in range(ENVS)}


@pytest.mark.parametrize("inserted", [0, 2, 6, 8, 14, 30])
def test_samples_what_a_list_of_the_last_steps_holds(inserted):
    buffer = replay.make(probes.value(), 10, ENVS, 4, STEPS)
    rows = buffer.start(steps(50, 4))
    for i in range(0, inserted, STEPS):
        rows = jax.jit(buffer.add)(rows, i, steps(100 + i, STEPS))
    batch, counts = drawn(buffer, rows, inserted, inserted)
    assert set(counts) == reference(10, inserted, inserted)
    # Uniform: each within six standard deviations of its share.
    share = 4000 / len(counts)
    assert all(abs(n - share) < 6 * share**0.5 for n in counts.values())
    np.testing.assert_array_equal(batch.next_obs[0], batch.obs[0] + 1)
    np.testing.assert_array_equal(batch.done[0], ~batch.terminated[0])


@pytest.mark.parametrize("own", [0, 2, 4, 6, 8, 10, 20])
def test_one_that_is_born_late_samples_its_warm_up_and_its_own_steps(own):
    """The others' cursor is wherever it is; rows that nobody wrote are zeros."""
    inserted = 26 + own
    buffer = replay.make(probes.value(), 10, ENVS, 4, STEPS)
    rows = buffer.start(steps(50, 4))
    for i in range(26, inserted, STEPS):
        rows = buffer.add(rows, i, steps(100 + i, STEPS))
    _, counts = drawn(buffer, rows, inserted, own)
    assert set(counts) <= reference(14, inserted, own)
    assert {t for t in reference(10, inserted, own) if t > 100} <= set(counts)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("own", [0, 2, 4, 8, 12, 20])
@pytest.mark.parametrize("born", [0, 2, 4, 6, 8, 10, 26])
def test_windows_of_one_that_is_born_late_are_its_own(born, own, window):
    """All windows of steps that followed each other, of rows that it has, as often.

    The common cursor may stand anywhere: in the warm-up, too, of which then a part
    before and a part behind the own steps is left.
    """
    buffer = replay.make(probes.value(), 12, ENVS, 8, STEPS, window=window)
    rows = buffer.start(steps(50, 8))
    ring = {row: float(50 + row) for row in range(8)}  # what it has, by row
    for i in range(born, born + own, STEPS):
        rows = buffer.add(rows, i, steps(1000 + i, STEPS))
        ring |= {(8 + i + t) % 12: float(1000 + i + t) for t in range(STEPS)}
    has = set(ring.values())
    expected = {x for x in has if all(x + n in has for n in range(window))}
    batch, counts = drawn(buffer, rows, born + own, own, 2000)
    np.testing.assert_array_equal(jnp.diff(batch.reward, axis=0).round(), 1)
    assert set(counts) == {round(x + e / 10, 1) for x in expected for e in range(ENVS)}
    share = 2000 / len(counts)
    assert all(abs(n - share) < 6 * share**0.5 for n in counts.values())


@pytest.mark.parametrize("inserted", [0, 4, 12, 30])
def test_windows_are_consecutive_and_end_at_the_newest(inserted):
    buffer = replay.make(probes.value(), 10, ENVS, 8, STEPS, window=3)
    rows = buffer.start(steps(92, 8))
    for i in range(0, inserted, STEPS):
        rows = buffer.add(rows, i, steps(100 + i, STEPS))
    batch, _ = drawn(buffer, rows, inserted, inserted)
    np.testing.assert_allclose(jnp.diff(batch.reward, axis=0), 1, atol=1e-4)
    last = batch.reward[-1]
    assert int(last.max()) == 99 + inserted
    # Of the oldest complete windows all are there, but for those across the seam.
    assert int(batch.reward[0].min()) == max(92, 100 + inserted - 10)


def test_whatever_a_transition_holds_comes_back():
    env = envs.make("gymnax/Pendulum-v1")
    buffer = replay.make(env, 4, 3, 2)
    key = jax.random.key(0)
    obs = jax.random.normal(key, (2, 3, 3))
    action = jax.random.normal(key, (2, 3, 1))
    flag = jax.random.bernoulli(key, shape=(2, 3))
    warmup = Transition(obs, action, obs[..., 0], -obs, flag, ~flag)
    batch = buffer.sample(key, buffer.start(warmup), 0, 0, (64,))
    assert batch.action.shape == (1, 64, 1)
    assert batch.terminated.dtype == bool
    np.testing.assert_array_equal(batch.obs, -batch.next_obs)
    known = {tuple(x) for x in np.asarray(obs).reshape(-1, 3)}
    assert {tuple(x) for x in np.asarray(batch.obs).reshape(-1, 3)} == known
    # 4 (2 observations + action + 3) bytes a transition, as the docs say.
    assert buffer.start(warmup).nbytes == 4 * 3 * 4 * (2 * 3 + 1 + 3)


def test_integers_up_to_two_to_the_24_are_exact():
    env = probes.value(envs.Discrete(2**24))
    buffer = replay.make(env, 1, 1, 1)
    one = steps(0, 1, 1)._replace(action=jnp.array([[2**24 - 1]]))
    batch = buffer.sample(jax.random.key(0), buffer.start(one), 0, 0, (1,))
    assert batch.action.item() == 2**24 - 1


@pytest.mark.parametrize(
    "sizes", [(10, 4, 3, 1), (9, 4, 2, 1), (4, 6, 2, 1), (10, 6, 2, 3), (10, 0, 2, 1)]
)
def test_sizes_that_do_not_fit_are_refused(sizes):
    num_rows, num_warmup, num_steps, window = sizes
    with pytest.raises(ValueError, match=r"warm-up|rows"):
        replay.make(probes.value(), num_rows, ENVS, num_warmup, num_steps, window)
