"""The replay buffer, against a list."""

import functools
import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from rings import compiled

from metaevo import envs
from metaevo.rl import off_policy, replay
from metaevo.rl.rollouts import Transition

ENVS, STEPS = 2, 2
STEP = off_policy.template(probes.value())


@functools.cache
def ring(rows, warmup, window=1):
    return compiled(replay.make(STEP, rows, ENVS, warmup, STEPS, window=window))


def steps(first, num):
    """Transitions whose reward says which they are: step + environment / 10."""
    label = np.float32(np.arange(first, first + num)[:, None] + np.arange(ENVS) / 10)
    flag = np.zeros(label.shape, bool)
    obs = label[..., None]
    return Transition(obs, np.int32(label), label, obs + 1, flag, ~flag)


def written(buffer, warmup, inserted, first, born=0):
    """The ring after steps `born` to `inserted`, numbered from `first` on; the warm-up
    is numbered from 50."""
    rows = buffer.start(steps(50, warmup))
    for i in range(born, inserted, STEPS):
        rows = buffer.add(rows, i, steps(first + i, STEPS))
    return rows


def drawn(buffer, rows, inserted, own, size=4000):
    batch, _ = buffer.sample(jax.random.key(0), rows, inserted, own, (size,))
    batch = jax.tree.map(np.asarray, batch)
    return batch, Counter(round(float(x), 1) for x in batch.reward[0])


def assert_uniform(counts, size):
    """Each is within six standard deviations of its share."""
    share = size / len(counts)
    assert all(abs(n - share) < 6 * share**0.5 for n in counts.values())


def reference(inserted):
    """Return the steps in a ring of 10: a warm-up of 4 from 50 on, others from 100."""
    history = [*range(50, 54), *range(100, 100 + inserted)]
    return {round(t + e / 10, 1) for t in history[-10:] for e in range(ENVS)}


def test_samples_what_a_list_of_the_last_steps_holds():
    buffer = ring(10, 4)
    for inserted in (0, 2, 6, 8, 14, 30):
        rows = written(buffer, 4, inserted, 100)
        batch, counts = drawn(buffer, rows, inserted, inserted)
        assert set(counts) == reference(inserted)
        assert_uniform(counts, 4000)
        np.testing.assert_array_equal(batch.next_obs[0], batch.obs[0] + 1)
        np.testing.assert_array_equal(batch.done[0], ~batch.terminated[0])


@pytest.mark.parametrize("window", [1, 3])
def test_windows_of_one_that_is_born_late_are_its_own(window):
    """All windows of steps that followed each other, of rows that it has, as often.

    The common cursor may stand anywhere: in the warm-up of 8, too, of which then a part
    before and a part behind the own steps is left.
    """
    buffer = ring(12, 8, window)
    for born, own in itertools.product((0, 2, 4, 6, 8, 10, 26), (0, 2, 4, 8, 12, 20)):
        rows = written(buffer, 8, born + own, 1000, born)
        # Contents by row.
        has = {row: float(50 + row) for row in range(8)}
        has |= {(8 + i) % 12: float(1000 + i) for i in range(born, born + own)}
        has = set(has.values())
        expected = {x for x in has if all(x + n in has for n in range(window))}
        expected = {round(x + e / 10, 1) for x in expected for e in range(ENVS)}
        batch, counts = drawn(buffer, rows, born + own, own, 2000)
        np.testing.assert_array_equal(np.diff(batch.reward, axis=0).round(), 1)
        assert set(counts) == expected
        assert_uniform(counts, 2000)


def test_whatever_a_transition_holds_comes_back():
    env = envs.make("gymnax/Pendulum-v1")
    buffer = compiled(replay.make(off_policy.template(env), 4, 3, 2))
    key = jax.random.key(0)
    obs = jax.random.normal(key, (2, 3, 3))
    action = jax.random.normal(key, (2, 3, 1))
    flag = jax.random.bernoulli(key, shape=(2, 3))
    warmup = Transition(obs, action, obs[..., 0], -obs, flag, ~flag)
    batch, _ = buffer.sample(key, buffer.start(warmup), 0, 0, (64,))
    assert batch.action.shape == (1, 64, 1)
    assert batch.terminated.dtype == bool
    np.testing.assert_array_equal(batch.obs, -batch.next_obs)
    known = {tuple(x) for x in np.asarray(obs).reshape(-1, 3)}
    assert {tuple(x) for x in np.asarray(batch.obs).reshape(-1, 3)} == known
    # 4 (2 observations + action + 2) bytes a transition, as the docs say.
    assert size_of(buffer.start(warmup)) == 4 * 3 * 4 * (2 * 3 + 1 + 2)


def size_of(rows):
    return sum(x.nbytes for x in jax.tree.leaves(rows))


def test_binary_observations_take_a_bit_a_component():
    """MinAtar's Breakout: 400 components, twice, and two flags in 26 words."""
    step = off_policy.template(envs.make("gymnax/Breakout-MinAtar"))
    rows = jax.eval_shape(
        replay.make(step, 1000, 4, 1).start,
        jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, 4, *x.shape), x.dtype), step),
    )
    sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(rows)]
    assert sum(sizes) == 1000 * 4 * 4 * (26 + 1 + 1)


def test_any_pytree_is_kept_to_the_bit():
    """Among them what a recurrent agent would store: its memory at each step."""
    keys = iter(jax.random.split(jax.random.key(0), 9))
    shape = (6, 3)
    kept = {
        "image": jax.random.randint(next(keys), (*shape, 5, 3), 0, 256).astype("uint8"),
        "seen": jax.random.bernoulli(next(keys), shape=(*shape, 7, 5)),
        "carry": (
            jax.random.normal(next(keys), (*shape, 4)),
            jax.random.normal(next(keys), shape).astype(jnp.bfloat16),
        ),
        "action": jax.random.randint(next(keys), shape, -(2**31), 2**31 - 1),
        "level": jax.random.randint(next(keys), (*shape, 2), -99, 99).astype("int16"),
        "nothing": None,
        "flag": jax.random.bernoulli(next(keys), shape=shape),
        "odd": jnp.full(shape, jnp.nan).at[0].set(-jnp.inf).at[1].set(1e-42),
    }
    step = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), kept)
    buffer = compiled(replay.make(step, 8, 3, 4, 2))
    rows = buffer.start(jax.tree.map(lambda x: x[:4], kept))
    rows = buffer.add(rows, 0, jax.tree.map(lambda x: x[4:], kept))
    assert {x.dtype for x in jax.tree.leaves(rows)} == {np.dtype("f4"), np.dtype("u4")}
    back = buffer.read(rows, jnp.arange(18).reshape(6, 3))
    for name, x in jax.tree.leaves_with_path(kept):
        found = dict(jax.tree.leaves_with_path(back))[name]
        assert found.dtype == x.dtype
        assert np.asarray(found).tobytes() == np.asarray(x).tobytes(), name


def test_indices_say_where_a_window_lies():
    """Row and environment of each of its steps: a priority can be kept for them."""
    buffer = ring(10, 8, 3)
    rows = buffer.start(steps(0, 8))
    batch, indices = buffer.sample(jax.random.key(0), rows, 0, 0, (5, 7))
    assert indices.shape == (3, 5, 7) == batch.reward.shape
    where = np.asarray(indices)
    np.testing.assert_allclose(where // ENVS + where % ENVS / 10, batch.reward)
    again = buffer.read(rows, indices[0, :, :2])
    np.testing.assert_array_equal(again.obs, batch.obs[0, :, :2])


@pytest.mark.parametrize("window", [1, 120])
def test_a_window_of_any_length_is_one_gather(window):
    """Of each kind of storage, floats and words: a long one compiles as fast."""
    buffer = replay.make(STEP, 1000, ENVS, 400, window=window)
    shapes = [jax.eval_shape(lambda: steps(0, 400))]
    rows = jax.eval_shape(buffer.start, *shapes)
    sample = jax.jit(lambda key, rows: buffer.sample(key, rows, 0, 0, (8,)))
    program = sample.lower(jax.random.key(0), rows).as_text()
    assert program.count('"stablehlo.gather"') == 2


def test_what_cannot_be_kept_exactly_is_refused():
    for dtype in ("complex64", "float64", "int64"):
        step = {"x": jax.ShapeDtypeStruct((), np.dtype(dtype))}
        with pytest.raises(TypeError, match=dtype):
            replay.make(step, 10, ENVS, 4)


def test_sizes_that_do_not_fit_are_refused():
    rows_warmup_steps_window = [(10, 4, 3, 1), (9, 4, 2, 1), (4, 6, 2, 1)]
    rows_warmup_steps_window += [(10, 6, 2, 3), (10, 0, 2, 1)]
    for rows, *others in rows_warmup_steps_window:
        with pytest.raises(ValueError, match=r"warm-up|rows"):
            replay.make(STEP, rows, ENVS, *others)
