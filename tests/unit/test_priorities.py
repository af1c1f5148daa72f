"""Prioritized sampling, against definitions, lists and counts.

The first part is of the tree of sums, the second of masses and weights, the third of
windows in a ring.
"""

import functools
import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rings import compiled

from inner_loops import apex_ddpg, r2d2
from metaevo import envs
from metaevo.rl import priorities, replay, sum_tree

# --- the tree -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 9, 500])
def test_the_sums_of_a_changed_tree_are_those_of_a_new_one(size):
    """To the bit, so they do not drift, and with repeated leaves."""
    rng = np.random.default_rng(0)
    expected = np.float32(rng.lognormal(size=size))
    build, assign = jax.jit(sum_tree.build), jax.jit(sum_tree.assign)
    levels = build(expected)
    for _ in range(20):
        indices = rng.integers(0, size, 12)
        masses = np.float32(rng.lognormal(size=12) * rng.integers(0, 2, 12))
        levels = assign(levels, indices, masses)
        for index, mass in zip(indices, masses, strict=True):
            expected[index] = mass
    for x, y in zip(levels, build(expected), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
    np.testing.assert_allclose(levels[-1].sum(), expected.sum(), rtol=1e-5)


@pytest.mark.parametrize("size", [9, 500])
def test_leaves_that_follow_each_other_are_written_as_others(size):
    """From anywhere, around the end too, where a node may be half empty."""
    rng = np.random.default_rng(size)
    levels = jax.jit(sum_tree.build)(np.float32(rng.lognormal(size=size)))
    one = jax.jit(sum_tree.assign)
    other = jax.jit(functools.partial(sum_tree.assign_run, size=size))
    starts = range(size) if size < 100 else (0, 3, 400, 461, 480, 499)
    for start in starts:
        indices = (start + np.arange(min(size, 40))) % size
        masses = np.float32(rng.lognormal(size=len(indices)))
        expected = one(levels, indices, masses)
        found = other(levels, indices, masses)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def chi_square(indices, masses):
    """Pearson's statistic in standard deviations from its mean; each mass > 0."""
    expected = len(indices) * masses / masses.sum()
    counts = np.bincount(indices, minlength=len(masses))
    freedom = len(masses) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    return (statistic - freedom) / np.sqrt(2 * freedom)


MASSES = np.float32(np.random.default_rng(0).lognormal(0.0, 1.5, 700))


SOME = 50_000
draw_some = jax.jit(lambda key, levels: sum_tree.draw(key, levels, (SOME,))[0])


def draws(levels, number=SOME):
    keys = jax.random.split(jax.random.key(0), number // SOME)
    return np.concatenate([draw_some(key, levels) for key in keys])


def test_draws_have_the_frequencies_of_the_masses():
    drawn = draws(sum_tree.build(MASSES), 300_000)
    assert abs(chi_square(drawn, MASSES)) < 5


def test_leaves_without_mass_are_never_drawn():
    masses = np.zeros(700, np.float32)
    masses[[0, 7, 8, 511, 699]] = [1e-6, 1e6, 1e-6, 1.0, 3e5]
    drawn = draws(sum_tree.build(masses))
    assert set(drawn) <= {0, 7, 8, 511, 699}
    assert {7, 699} <= set(drawn)


def test_a_mass_that_is_not_a_number_is_kept_and_drawing_stays_in_range():
    """A member whose errors are not finite must be found."""

    @jax.jit
    def found(key, nan):
        levels = sum_tree.assign(sum_tree.build(jnp.ones(70)), jnp.array([3]), nan)
        drawn, _ = sum_tree.draw(key, levels, (100,))
        return levels[0][3], levels[-1][0], priorities.mass(nan, 0.6), drawn

    *not_numbers, drawn = found(jax.random.key(0), np.float32(np.nan))
    assert np.isnan(not_numbers).all()
    assert ((drawn >= 0) & (drawn < 72)).all()


# --- masses and weights ---------------------------------------------------------------


def test_probabilities_and_weights_are_those_of_the_paper():
    """α = 0.6, β = 0.4 of priorities 1, 2, 0.5, 4: equation 1 and section 3.4."""
    mass = priorities.mass(jnp.array([1.0, 2.0, 0.5, 4.0]), 0.6)
    expected = [0.1827, 0.2770, 0.1205, 0.4198]
    np.testing.assert_allclose(mass / mass.sum(), expected, atol=5e-5)
    weights = priorities.weights(mass, 0.4)
    np.testing.assert_allclose(weights, [0.8467, 0.7170, 1, 0.6071], atol=5e-5)
    np.testing.assert_allclose(priorities.mass(jnp.arange(3.0), 0.0), 1)


def test_the_smallest_priority_is_that_of_p():
    """Not of p^α: of α = 0.6 that would be a priority of 1e-10."""
    mass = priorities.mass(jnp.array([0.0, 1e-9, 1e-6, 1e-3]), 0.6)
    expected = np.float32([1e-6, 1e-6, 1e-6, 1e-3]) ** 0.6
    np.testing.assert_allclose(mass, expected, rtol=1e-5)


def test_weights_are_those_of_their_own_minibatch():
    """A minibatch's largest is 1."""
    mass = jnp.array([[2.0, 8.0], [0.5, 32.0]])
    weights = priorities.weights(mass, 1.0)
    np.testing.assert_allclose(weights, [[1, 0.25], [1, 1 / 64]])


# --- windows in a ring ----------------------------------------------------------------

ROWS, WARMUP, ENVS, STEPS = 12, 8, 2, 2


@functools.cache
def ring(rows, warmup, steps, window, stride=1, num_envs=ENVS):
    return compiled(priorities.make(rows, num_envs, warmup, steps, window, stride))


@functools.cache
def uniform(rows, warmup, window):
    """The ring whose windows uniform sampling draws."""
    made = replay.make({"x": jnp.zeros(())}, rows, ENVS, warmup, STEPS, window)
    return compiled(made)


def grown(born, own, window):
    """Priorities of a member born after `born` common steps that then made `own`.

    Masses are 1 + the number of the window's last step, of the warm-up from 50, of own
    steps from 1000 on.

    Returns:
        also what the ring holds: row -> number of its step.
    """
    made = ring(ROWS, WARMUP, STEPS, window)
    first = np.tile(np.arange(50.0 + window, 59, dtype="f4")[:, None], ENVS)
    kept, held = made.start(first), {row: 50 + row for row in range(WARMUP)}
    for done in range(0, own, STEPS):
        inserted = born + done
        number = 1000 + inserted + np.arange(STEPS)
        mass = np.tile(np.float32(1 + number)[:, None], ENVS)
        kept = made.add(kept, inserted, done + STEPS, mass)
        held |= dict(zip((number - 1000 + WARMUP) % ROWS, number, strict=True))
    return made, kept, held


def whole_windows(held, window):
    """Last rows of windows of steps that followed each other."""
    number = {x: row for row, x in held.items()}
    return {
        row: x for row, x in held.items() if all(x - n in number for n in range(window))
    }


BIRTHS = (0, 2, 4, 6, 8, 10, 26)


def masses_of(kept):
    """Masses by row and environment."""
    return np.asarray(kept.levels[0][: ROWS * ENVS]).reshape(ROWS, ENVS)


@pytest.mark.parametrize("window", [1, 3])
def test_masses_of_one_that_is_born_late_are_of_its_own_windows(window):
    """The very windows that uniform sampling draws, whatever the common cursor."""
    for born, own in itertools.product(BIRTHS, (0, 2, 4, 8, 12, 20)):
        _, kept, held = grown(born, own, window)
        expected = np.zeros((ROWS, ENVS))
        for row, number in whole_windows(held, window).items():
            expected[row] = number + 1
        np.testing.assert_array_equal(masses_of(kept), expected)
        draw = uniform(ROWS, WARMUP, window).draw
        drawn = draw(jax.random.key(0), born + own, own, (3000,))
        assert set(np.asarray(drawn[-1])) == set(np.flatnonzero(expected))


@pytest.mark.parametrize(("rows", "steps"), [(4, 4), (8, 4), (12, 1)])
def test_steps_longer_than_a_window_or_as_long_as_the_ring(rows, steps):
    made = ring(rows, 4, steps, 2, num_envs=1)
    kept = made.start(np.ones((3, 1), np.float32))
    history = list(range(-4, 0))
    for inserted in range(0, 3 * rows, steps):
        mass = np.ones((steps, 1), np.float32)
        kept = made.add(kept, inserted, inserted + steps, mass)
        history = (history + list(range(inserted, inserted + steps)))[-rows:]
        # Of the warm-up's last step and the first own one uniform sampling knows none.
        expected = {x for x in history if x - 1 in history and x != 0}
        found = np.flatnonzero(np.asarray(kept.levels[0])[:rows])
        assert set(found) == {(4 + x) % rows for x in expected}


def test_age_and_visits_are_counted_from_insertion():
    for born in BIRTHS:
        made, kept, held = grown(born, 6, 3)
        drawn = made.draw(jax.random.key(0), kept, born + 6, 6, (400,))
        again = made.update(kept, drawn.indices, drawn.mass)
        more = made.draw(jax.random.key(1), again, born + 6, 6, (400,))
        times = Counter(np.asarray(drawn.indices[-1]).tolist())
        for now, seen in ((drawn, {}), (more, times)):
            rows, last = np.asarray(now.indices) // ENVS, np.asarray(now.indices[-1])
            number = np.array([held[row] for row in rows[-1]])
            # The newest own step is 1000 + born + 5, the warm-up's newest 57 before.
            own = number >= 1000
            age = np.where(own, 1005 + born - number, 6 + 57 - number)
            np.testing.assert_allclose(now.age, age / ROWS, rtol=1e-6)
            np.testing.assert_array_equal(now.visits, [seen.get(i, 0) for i in last])
            np.testing.assert_array_equal(now.mass, number + 1)
            np.testing.assert_array_equal(np.diff(rows, axis=0) % ROWS, 1)
        fresh = made.add(again, born + 6, 8, np.ones((STEPS, ENVS), np.float32))
        # Of the two rows and of those whose windows they cut.
        rows = np.arange(8 + born + 6, 8 + born + 10) % ROWS
        expected = np.array(again.visits).reshape(ROWS, ENVS)
        expected[rows] = 0
        found = np.reshape(fresh.visits, (ROWS, ENVS))
        np.testing.assert_array_equal(found, expected)


def test_newest_windows_end_where_steps_were_added():
    """The same that `read` finds: for them an actor computes priorities."""
    made, buffer = ring(10, 8, STEPS, 3), uniform(10, 8, 3)
    label = np.float32(np.arange(99)[:, None] + np.arange(ENVS) / 10)
    rows = buffer.start({"x": label[:8]})
    first = buffer.read(rows, made.first())["x"]
    np.testing.assert_array_equal(first[-1], label[2:8])
    for i in range(0, 20, STEPS):
        rows = buffer.add(rows, i, {"x": label[8 + i : 10 + i]})
        found = np.asarray(buffer.read(rows, made.newest(i))["x"])
        for back in range(3):
            expected = label[8 + i - back : 10 + i - back]
            np.testing.assert_array_equal(found[-1 - back], expected)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="warm-up"):
        priorities.make(10, ENVS, 4, 2, 3)


@pytest.mark.parametrize(("window", "stride"), [(4, 4), (3, 4), (9, 4)])
def test_windows_with_a_stride_start_at_its_multiples(window, stride):
    """Those with mass are the whole ones of the member's own steps, and no others."""
    rows, warmup, steps = 48, 28, 4
    made = ring(rows, warmup, steps, window, stride)
    ones = np.ones(made.first().shape[1:], np.float32)
    for born, own in itertools.product((0, 4, 20), range(0, 60, steps)):
        if own == 0:
            kept, held = made.start(ones), {row: 50 + row for row in range(warmup)}
        else:
            inserted = born + own - steps
            rows_now = (warmup + inserted + np.arange(steps)) % rows
            held |= dict(zip(rows_now, 1000 + inserted + np.arange(steps), strict=True))
            newest = np.asarray(made.newest(inserted))
            assert set(newest[-1, :, 0] // ENVS) <= set(rows_now)
            kept = made.add(kept, inserted, own, np.ones(newest.shape[1:], np.float32))
        expected = {
            (last - window + 1) % rows
            for last in whole_windows(held, window)
            if (last - window + 1) % rows % stride == 0
        }
        found = made.draw(jax.random.key(own), kept, born + own, own, (600,))
        np.testing.assert_array_equal(found.mass, 1.0)
        indices = np.asarray(found.indices)
        row = indices // ENVS
        np.testing.assert_array_equal(np.diff(row, axis=0) % rows, 1)
        assert (indices % ENVS == indices[0] % ENVS).all()
        assert set(row[0]) == expected
        visits = np.asarray(made.update(kept, found.indices, found.mass).visits)
        assert visits.sum() == 600
        assert len(visits) == rows // stride * ENVS


def test_only_chosen_windows_get_another_mass():
    made = ring(24, 16, 2, 3, 2)
    kept = made.start(np.ones(made.first().shape[1:], np.float32))
    indices = made.first().reshape(3, -1)[:, :6]
    chosen = jnp.array([True, False, True, False, False, True])
    after = made.update(kept, indices, jnp.full(6, 5.0), chosen)
    leaves = np.flatnonzero(np.asarray(after.levels[0]) == 5.0)
    np.testing.assert_array_equal(leaves, np.flatnonzero(after.visits))
    assert len(leaves) == 3
    # The sums equal those of a newly built tree.
    fresh = sum_tree.build(after.levels[0][: len(after.visits)])
    jax.tree.map(np.testing.assert_array_equal, after.levels, fresh)


@pytest.mark.parametrize("size", [7, 100])
def test_windows_in_parts_are_those_at_once(size):
    """Leaves of one axis and of several, the last part smaller than the others."""
    indices = np.arange(3 * 5 * 2).reshape(3, 5, 2)

    def function(indices):
        return indices.sum(0), jnp.stack([indices[0], -indices[2]])

    found = jax.jit(lambda x: priorities.map_windows(function, x, size))(indices)
    expected = function(indices.reshape(3, -1))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "env"),
    [(apex_ddpg, "gymnax/Pendulum-v1"), (r2d2, "gymnax/CartPole-v1")],
)
def test_a_birth_takes_no_more_memory_than_its_buffer_does(module, env):
    """First priorities of a long warm-up come from the network in parts."""
    config = module.Config(20_000, 6_400, 8_000, num_segments=1)
    loop = module.make(envs.make(env), config, module.Meta())
    born = jax.jit(jax.vmap(lambda key: loop.init(key, loop.meta)))
    used = born.lower(jax.random.split(jax.random.key(0), 4)).compile()
    used = used.memory_analysis()
    assert used.temp_size_in_bytes < 3 * used.output_size_in_bytes
