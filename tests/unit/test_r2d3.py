"""R2D3: recorded episodes, their sequences, and the share of them that is learned."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from inner_loops import r2d2, r2d3
from metaevo import envs
from metaevo.envs import gymnax, last_step
from metaevo.errors import ConfigError
from metaevo.rl import demonstrations

SIZES = {"total_timesteps": 192, "learning_starts": 128, "buffer_size": 512}
SIZES |= {"num_envs": 4, "num_steps": 8, "num_gradient_steps": 2, "batch_size": 8}
SIZES |= {"features": (8,), "hidden": 6, "num_segments": 1, "period": 4}
SIZES |= {"burn_in": 3, "sequence_length": 4, "num_step_return": 2}
DEEP = gymnax.deep_sea(5)


@functools.cache
def recorded():
    return demonstrations.record(DEEP, demonstrations.script(DEEP), 6)


@functools.cache
def programs(module):
    loop = module.make(DEEP, module.Config(**SIZES))
    return loop, jax.jit(loop.init), jax.jit(loop.train)


@functools.cache
def lived(module, **slots):
    """Birth and two updates."""
    _, init, train = programs(module)
    meta = module.Meta(lr=1e-2, **slots)
    born = init(jax.random.key(0), meta)
    return born, *train(jax.random.key(1), meta, born)


# --- demonstrations -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "low", "high"),
    [
        (DEEP, 0.98, 1.0),
        (envs.make("gymnax/MountainCar-v0"), -125, -110),
        (envs.make("versus/pgx/tic_tac_toe"), 0.6, 1.01),
    ],
)
def test_scripts_play_well_and_whole_episodes_are_recorded(env, low, high):
    steps = demonstrations.record(env, demonstrations.script(env), 20)
    assert steps.done.sum() == 20
    assert steps.done[-1]
    assert low < steps.reward.sum() / 20 < high
    follows = ~steps.done[:-1]
    np.testing.assert_array_equal(steps.obs[1:][follows], steps.next_obs[:-1][follows])


def test_sequences_are_of_a_circle_and_start_without_a_memory():
    steps = recorded()  # of 30 steps, episodes of 5
    made = demonstrations.sequences(steps, 8, 4, 6)
    assert made.number == 8
    found = made.read(jnp.arange(8))
    rows = (4 * np.arange(8) + np.arange(8)[:, None]) % 30
    np.testing.assert_array_equal(found.steps.obs, steps.obs[rows])
    np.testing.assert_array_equal(found.steps.action, steps.action[rows])
    assert found.steps.obs.dtype == jnp.float32
    np.testing.assert_array_equal(found.start.hidden, np.zeros((8, 6)))
    begins = rows[0] % 5 == 0
    assert begins.any()
    expected = np.where(begins, last_step.NO_ACTION, steps.action[rows[0] - 1])
    np.testing.assert_array_equal(found.start.action, expected)
    expected = np.where(begins, 0, steps.reward[rows[0] - 1])
    np.testing.assert_array_equal(found.start.reward, expected)


def test_what_is_no_demonstration_is_refused():
    with pytest.raises(ConfigError, match="no script demonstrates it"):
        r2d3.make(envs.make("gymnax/CartPole-v1"))
    cut = jax.tree.map(lambda x: x[:-1], recorded())
    with pytest.raises(ConfigError, match="whole episodes"):
        demonstrations.sequences(cut, 8, 4, 6)
    env = envs.make("gymnax/CartPole-v1?length=0.25..1")
    with pytest.raises(ConfigError, match="one task of one player"):
        demonstrations.record(env, lambda obs, state: 0, 2)


# --- their share ----------------------------------------------------------------------


def visits(state):
    kept = state.experience
    return int(kept.priorities.visits.sum()), int(kept.demonstrations.visits.sum())


def test_without_demonstrations_it_is_r2d2():
    mine, plain = lived(r2d3, demo_ratio=0.0)[1], lived(r2d2)[1]
    assert visits(mine)[1] == 0
    for x, y in zip(
        jax.tree.leaves(mine.agent), jax.tree.leaves(plain.agent), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_of_demonstrations_alone_nothing_else_is_learned():
    born, state, metrics = lived(r2d3, demo_ratio=1.0)
    assert metrics["demonstrations"] == 1
    own, theirs = visits(state)
    assert own == 0
    # Two updates of two minibatches of 8.
    assert theirs == 32
    changed = born.experience.demonstrations, state.experience.demonstrations
    before, after = (np.asarray(x.levels[0]) for x in changed)
    visited = np.zeros(len(before), bool)
    visited[: len(changed[1].visits)] = changed[1].visits > 0
    np.testing.assert_array_equal(before[~visited], after[~visited])
    # Those that the first minibatch alone had are as the first parameters see them.
    assert (before[visited] != after[visited]).mean() > 0.2


def test_a_share_of_both_is_learned():
    """Chance has 64 draws; both buffers' priorities follow theirs alone."""
    _, state, metrics = lived(r2d3, demo_ratio=0.5)
    assert 0.2 < metrics["demonstrations"] < 0.8
    own, theirs = visits(state)
    assert theirs == pytest.approx(32 * float(metrics["demonstrations"]))
    assert 0 < own <= 32 - theirs  # what was written over is counted no more


def test_demonstrations_are_not_copied_for_seeds_and_members():
    """Only the gathered sequences have an axis of members. 1,000 episodes are given."""
    steps = jax.tree.map(lambda x: np.tile(x, (200, *[1] * (x.ndim - 1))), recorded())
    loop = r2d3.make(DEEP, r2d3.Config(**SIZES), given=steps)
    keys = jax.random.split(jax.random.key(0), 3)
    states = jax.eval_shape(lambda: jax.vmap(lambda k: loop.init(k, loop.meta))(keys))
    whole = steps.obs.size
    leaves = jax.tree.leaves(states.experience)
    assert max(x.size for x in leaves) < whole
    assert loop.parts is not None
