"""Small parts: fitness, statistics, normalization, optimizers, spaces, logs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
import toys
from scipy import stats as scipy_stats

from inner_loops import ppo
from metaevo import envs, fitness, losses, optimizers, slots, spaces
from metaevo.analysis import stats
from metaevo.errors import ConfigError
from metaevo.rl import minibatches, networks, normalization, rollouts
from metaevo.text import duration

# --- fitness --------------------------------------------------------------------------


def train_metrics(returns, episodes):
    return {"return": jnp.array(returns), "episodes": jnp.array(episodes)}


def test_area_under_curve_holds_its_value_where_no_episode_ended():
    metrics = train_metrics([0.0, 10.0, 0.0, 30.0], [0.0, 2.0, 0.0, 1.0])
    assert fitness.area_under_curve.score(metrics, None) == (10 + 10 + 10 + 30) / 4


def test_last_segments_weighs_by_episodes():
    metrics = train_metrics([5.0, 10.0, 0.0, 40.0], [9.0, 2.0, 0.0, 1.0])
    score = fitness.last_segments(3).score(metrics, None)
    assert score == pytest.approx((2 * 10 + 40) / 3)


@pytest.mark.parametrize(
    "function", [fitness.area_under_curve, fitness.last_segments(2)]
)
def test_no_episode_is_not_a_return_of_zero(function):
    metrics = train_metrics([np.nan, np.nan], [0.0, 0.0])
    assert np.isnan(function.score(metrics, None))
    # Nor is it one for a member that lives on: it keeps its last.
    metrics = train_metrics([7.0, 7.0], [0.0, 0.0])
    assert function.score(metrics, None) == 7.0


def test_failed_members_rank_strictly_last_whatever_the_size_of_the_numbers():
    for scale in (1e-6, 1.0, 2e7, 1e30):
        clean, _ = fitness.sanitize(np.array([scale, scale, np.nan]), False)
        assert clean[2] < clean[0] == clean[1]


def test_rank_sum():
    """Ties share ranks, scales do not matter, a failure anywhere is a failure."""
    raw = jnp.array([[[1.0, 2.0, 2.0, 0.0]], [[100.0, 900.0, 500.0, jnp.nan]]])
    np.testing.assert_array_equal(
        fitness.rank_sum(raw), [2 + 1, 3.5 + 3, 3.5 + 2, np.nan]
    )


def test_normalized():
    aggregate = fitness.normalized(low=[0.0, -100.0], high=[10.0, 0.0])
    raw = jnp.array([[[5.0, 10.0]], [[-50.0, 0.0]]])
    np.testing.assert_allclose(aggregate(raw), [0.5, 1.0])


# --- statistics -----------------------------------------------------------------------


def test_estimates_against_their_definitions():
    scores = np.random.default_rng(0).normal(size=(12, 5))
    flat = np.sort(scores.ravel())
    assert stats.iqm(scores) == pytest.approx(flat[15:45].mean(), abs=1e-12)
    assert stats.iqm(scores) == pytest.approx(
        scipy_stats.trim_mean(scores.ravel(), 0.25), abs=1e-12
    )
    assert stats.median(scores) == pytest.approx(np.median(scores.mean(0)))
    assert stats.median(scores[:, 0]) == pytest.approx(np.median(scores[:, 0]))
    gap = np.mean([max(1.0 - x, 0.0) for x in flat])
    assert stats.optimality_gap(scores) == pytest.approx(gap)
    a, b = np.array([3.0, 1.0]), np.array([2.0, 1.0, 0.0])
    # 3 beats all three; 1 beats one and ties with one.
    assert stats.probability_of_improvement(a, b) == pytest.approx((3 + 1.5) / 6)
    np.testing.assert_allclose(
        stats.performance_profile([1.0, 2.0, 3.0], [0.0, 1.0, 2.5]), [1, 2 / 3, 1 / 3]
    )


# --- normalization --------------------------------------------------------------------


def test_running_statistics_equal_those_of_everything_seen():
    x = jax.random.normal(jax.random.key(0), (6, 5, 3)) * 4 + 2
    stats, update = normalization.init((3,)), jax.jit(normalization.update)
    for part in np.asarray(x):
        stats = update(stats, part)
    everything = np.asarray(x).reshape(-1, 3)
    np.testing.assert_allclose(stats.mean, everything.mean(0), rtol=1e-5)
    np.testing.assert_allclose(stats.var, everything.var(0), rtol=1e-5)
    assert stats.count == 30
    z = np.asarray(jax.jit(normalization.normalize)(stats, x))
    np.testing.assert_allclose(z.reshape(-1, 3).std(0), 1.0, rtol=1e-4)
    assert normalization.scale(stats, jnp.full(3, 1e9)).tolist() == [10.0] * 3


# --- optimizers -----------------------------------------------------------------------


def test_adam_times_lr_is_optax_adam_and_clipping_is_optaxs():
    params = {"w": np.float32([1.0, -2.0]), "b": np.float32(0.5)}
    reference = optax.adam(3e-3, eps=1e-5)

    @jax.jit
    def both(params):
        theirs, state = params, reference.init(params)
        ours, ours_state = params, optimizers.adam.init(params)
        for i in range(5):
            gradient = jax.tree.map(lambda x: x * (i + 1), theirs)
            updates, state = reference.update(gradient, state)
            theirs = optax.apply_updates(theirs, updates)
            gradient = jax.tree.map(lambda x: x * (i + 1), ours)
            direction, ours_state = optimizers.adam.update(
                gradient, ours_state, ours, slots.Context()
            )
            ours = jax.tree.map(lambda p, d: p - 3e-3 * d, ours, direction)
        return ours, theirs

    @jax.jit
    def clipped(gradient, limit):
        expected, _ = optax.clip_by_global_norm(limit).update(
            gradient, optax.EmptyState()
        )
        return optimizers.clip_by_global_norm(gradient, limit), expected

    gradient = {"w": np.float32([3.0, 4.0]), "b": np.float32(12.0)}
    for ours, theirs in (both(params), clipped(gradient, 0.5), clipped(gradient, 1e2)):
        for a, b in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    zero = jax.tree.map(np.zeros_like, gradient)
    assert np.isfinite(clipped(zero, 0.5)[0]["w"]).all()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rmsprop_is_tensorflows(momentum):
    """Golden values by TensorFlow 1's equations: s starts at 1, ε is in the root."""
    optimizer = optimizers.rmsprop(0.9, 1e-2, momentum)
    assert optimizer is optimizers.rmsprop(0.9, 1e-2, momentum)
    gradients = np.array([[0.1, -3.0, 0.0], [0.2, 5.0, 1e-4], [-0.3, 1.0, 0.0]])
    mean_square, moving, expected = np.ones(3), np.zeros(3), np.zeros(3)
    params = jnp.zeros(3)
    state = optimizer.init(params)
    for gradient in gradients:
        mean_square = 0.9 * mean_square + 0.1 * gradient**2
        moving = momentum * moving + 0.5 * gradient / np.sqrt(mean_square + 1e-2)
        expected = expected - moving
        params, state = optimizers.step(
            optimizer, jnp.float32(gradient), params, state, 0.5, slots.Context()
        )
    np.testing.assert_allclose(params, expected, rtol=1e-5)


def counted(params, batch, meta, context):
    """A loss with gradient 1 whose info is the number of the minibatch."""
    return params.sum(), {"number": batch}


def test_gradient_steps_end_where_they_are_told_to():
    """On minibatch 2 of 0 to 4: two steps are taken, and info is of 0, 1 and 2."""
    sgd = optimizers.from_optax(optax.identity())
    meta = ppo.Meta(optimizer=sgd, max_grad_norm=10.0)

    def run(stop):
        params = jnp.zeros(2)
        return minibatches.descend(
            counted,
            jnp.arange(5.0),
            lambda at: at,
            params,
            sgd.init(params),
            1.0,
            meta,
            slots.Context(),
            stop,
        )

    def stopped(limit):
        return run(lambda info: info["number"] >= limit)

    ends = jax.jit(jax.vmap(stopped))(np.float32([2.0, 0.0, 9.0]))
    np.testing.assert_allclose(ends[0][:, 0], [-2.0, 0.0, -5.0], rtol=1e-6)
    np.testing.assert_allclose(ends[2]["number"], [1.0, 0.0, 2.0])
    np.testing.assert_allclose(jax.jit(lambda: run(None)[0])(), -5.0, rtol=1e-6)


# --- slots and spaces -----------------------------------------------------------------


def test_slots_are_data():
    """A meta crosses jit, and equal slots do not compile again."""

    @jax.jit
    def program(meta):
        return meta.value_loss(1.0, 3.0, 0.0)

    space = spaces.replace(value_loss=losses.residual_network("square"))
    meta = ppo.Meta(value_loss=losses.square)
    for i in range(3):
        program(space.bind(space.init(jax.random.key(i)), meta))
    assert program._cache_size() == 1
    assert program(meta) == 2.0


def test_zero_is_the_default_and_the_number_moves():
    for transform, default in (
        (spaces.log(0.5), 2.5e-4),
        (spaces.logit(), 0.95),
        (spaces.one_minus_log(), 0.99),
        (spaces.linear(3.0), -2.0),
    ):
        space = spaces.tune(lr=transform)
        bind = jax.jit(lambda x, space=space, lr=default: space.bind(x, toys.Meta(lr)))
        down, start, up = (bind({"lr": x}).lr for x in (-1.0, 0.0, 1.0))
        assert start == pytest.approx(default, rel=1e-5)
        assert (up - start) * (down - start) < 0


def test_slots_that_are_not_there_or_cannot_be_tuned_are_refused():
    for space, message in (
        (spaces.tune(drift=spaces.log()), "holds no number"),
        (spaces.replace(value_los=losses.residual_network()), "mean 'value_loss'"),
    ):
        with pytest.raises(ConfigError, match=message):
            space.bind(space.init(jax.random.key(0)), ppo.Meta())


def test_combine_splits_and_joins():
    value_loss = spaces.replace(value_loss=losses.residual_network())
    both = spaces.combine(value_loss, spaces.tune(lr=spaces.log()))
    params = both.init(jax.random.key(0))
    assert set(params) == {"value_loss", "lr"} == set(both.spec)
    assert both.starts_hand_made
    meta = both.bind(params | {"lr": jnp.array(1.0)}, ppo.Meta())
    assert meta.lr == pytest.approx(2.5e-4 * np.e, rel=1e-5)
    assert meta.value_loss(1.0, 3.0, 1.0, _context()) == 2.0
    assert spaces.size(both) == 1 + 16 + 16 + 16 + 1
    with pytest.raises(ConfigError, match="'lr' is in two spaces"):
        spaces.combine(both, toys.space())


def test_numbers_with_a_larger_sigma_move_further_and_all_else_stays():
    space = spaces.combine(
        spaces.tune(lr=spaces.log(0.5)),
        spaces.schedule("linear", 2, ent_coef=spaces.linear()),
        spaces.replace(value_loss=losses.residual_network()),
    )
    wide = spaces.with_sigma(space, 2.0, 0.5)
    params = space.init(jax.random.key(0)) | {
        "lr": jnp.array(0.25),
        "ent_coef": jnp.array([0.25, 0.5]),
    }
    meta = wide.bind(params, ppo.Meta())
    assert meta.lr == pytest.approx(2.5e-4 * np.exp(0.5), rel=1e-5)
    halfway = slots.Context(progress=0.5)
    assert meta.ent_coef(halfway) == pytest.approx(0.01 + 1.5)
    loss = space.bind(params, ppo.Meta()).value_loss
    assert meta.value_loss(1.0, 3.0, 1.0, _context()) == loss(1.0, 3.0, 1.0, _context())
    assert wide.spec["lr"]["scale"] == 2.0
    assert wide.spec["ent_coef"]["scale"] == 4.0
    assert wide.spec["value_loss"] == space.spec["value_loss"]


def test_a_space_with_another_sigma_starts_where_it_did():
    start = spaces.tune(lr=spaces.log())._replace(
        init=lambda key: {"lr": jnp.array(2.0)}
    )
    assert spaces.with_sigma(start, 1.0, 0.25).init(jax.random.key(0))["lr"] == 0.5
    for bad in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=r"^sigma=.* must be positive"):
            spaces.with_sigma(start, 1.0, bad)
        with pytest.raises(ConfigError, match=r"^number_sigma=.* must be positive"):
            spaces.with_sigma(start, bad, 0.3)


def _context():
    return slots.Context(stats={"clip_eps": 0.2})


def test_clipped_square_by_hand():
    """v = 1 clipped to v_old + 0.2 = 0.2, target 0.1: the larger of both squares."""
    assert losses.clipped_square(1.0, 0.1, 0.0, _context()) == pytest.approx(0.405)
    assert losses.clipped_square(0.1, 1.0, 0.0) == pytest.approx(0.405)
    wide = slots.Context(stats={"clip_eps": 0.5})
    assert losses.clipped_square(0.2, 1.0, 0.9, wide) == pytest.approx(0.32)
    assert losses.clipped_square(0.2, 1.0, 0.9) == pytest.approx(0.32)


def test_networks_flatten_any_observation():
    net = networks.mlp((8,), 3, obs_ndim=2)
    params = jax.eval_shape(net.init, jax.random.key(0), jnp.zeros((4, 5)))
    out = jax.eval_shape(net.apply, params, jnp.zeros((2, 7, 4, 5)))
    assert out.shape == (2, 7, 3)


# --- text -----------------------------------------------------------------------------


def test_durations():
    assert [*map(duration, (4.4, 200, 7500))] == ["4s", "3m20s", "2h05m"]


# --- minibatches ----------------------------------------------------------------------


def test_every_epoch_takes_everything_once_in_an_order_of_its_own():
    size = 12
    order = jax.jit(lambda key: minibatches.orders(key, 3, 4, size))(jax.random.key(0))
    assert order.shape == (12, size // 4)
    assert order.dtype == jnp.int32
    epochs = np.asarray(order).reshape(3, size)
    np.testing.assert_array_equal(np.sort(epochs), np.tile(np.arange(size), (3, 1)))
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_all_orders_are_equally_likely():
    keys = jax.random.split(jax.random.key(1), 6000)
    orders = jax.jit(jax.vmap(lambda key: minibatches.orders(key, 1, 1, 3)[0]))(keys)
    _, counts = np.unique(np.asarray(orders), axis=0, return_counts=True)
    assert len(counts) == 6
    # Six standard deviations of a count.
    np.testing.assert_allclose(counts, 1000, atol=6 * np.sqrt(1000 * 5 / 6))


def test_an_episode_that_another_agent_began_does_not_count():
    """Half of its return would be the loser's, of an agent that is gone."""
    env = probes.terminated(horizon=4)

    @jax.jit
    def steps(episodes):
        """Three, and their metrics."""
        episodes, _, _, finished, _ = rollouts.collect(
            jax.random.key(1),
            env,
            episodes,
            jnp.zeros((3, 1)),
            lambda carry, obs, noise, state, mask: (carry, noise, ()),
        )
        return episodes, rollouts.metrics(episodes, rollouts.totals(finished))

    episodes, _ = steps(rollouts.start(jax.random.key(0), env, 1))
    episodes, known = steps(episodes)
    assert episodes.num_episodes == known["episodes"] == 1
    taken = rollouts.for_new_agent(episodes)
    after, known = steps(taken)  # the second of them ends what the old one began
    assert known["episodes"] == 0
    assert np.isnan(known["return"])  # the old agent's 4 are not this one's
    _, known = steps(after)
    assert (known["episodes"], known["return"]) == (1, 4)


# --- rollouts.collect -----------------------------------------------------------------


def alternating(length=2) -> envs.Env:
    """Of two actions, one is legal: 0 at even times, 1 at odd ones; one bit as obs."""
    env = probes._env(
        lambda key: jnp.zeros(1),
        lambda t, obs, a: (1 - obs, 1.0, t + 1 >= length, False),
        action=envs.Discrete(2),
        max_steps=length,
    )
    return env._replace(
        action_mask=lambda state: jnp.arange(2) == state[0] % 2,
        observation=envs.Box((1,), 0.0, 1.0, binary=True),
    )


def test_collect_resets_the_carry_where_an_episode_ended():
    """A carry that counts steps, from 5 on: episodes have three."""
    env = alternating(length=3)

    def choose(carry, obs, noise, state, mask):
        taken = jnp.argmax(mask, -1)
        return (carry[0] + 1, carry[1] + obs), taken, (carry[0], state[0], obs)

    @jax.jit
    def collected(carry, noise, initial_carry=None):
        start = rollouts.start(jax.random.key(0), env, 2)
        return rollouts.collect(
            *(jax.random.key(1), env, start, noise, choose, carry),
            initial_carry=initial_carry,
        )

    carry = (np.full(2, 5), np.zeros((2, 1), "f4"))
    initial = np.int32(5), np.zeros(1, "f4")
    found = collected(carry, np.zeros((7, 2)), initial)
    _, after, steps, _, (count, time, obs) = found
    times = np.tile([[0], [1], [2], [0], [1], [2], [0]], 2)
    np.testing.assert_array_equal(time, times)
    np.testing.assert_array_equal(count, 5 + times)
    np.testing.assert_array_equal(after[0], 6)
    np.testing.assert_array_equal(obs[..., 0], times % 2)
    assert obs.dtype == jnp.float32
    assert steps.obs.dtype == steps.next_obs.dtype == bool  # a byte, where exact
    _, zeroed, *_ = collected(carry, np.zeros((3, 2)))
    np.testing.assert_array_equal(zeroed[0], 0)


def test_collect_keeps_the_masks_of_both_ends_of_a_transition():
    """That of the true next state too, where the next episode has another one."""
    env = alternating(length=3)

    @jax.jit
    def collected(key):
        return rollouts.collect(
            key,
            env,
            rollouts.start(key, env, 1),
            jnp.zeros((5, 1)),
            lambda carry, obs, noise, state, mask: (carry, jnp.argmax(mask, -1), ()),
        )

    *_, steps, _, _ = collected(jax.random.key(0))
    legal = np.array([0, 1, 0, 0, 1])
    np.testing.assert_array_equal(steps.mask[:, 0].argmax(-1), legal)
    np.testing.assert_array_equal(steps.action[:, 0], legal)
    # After the third step the time is 3, though the next episode starts at 0.
    np.testing.assert_array_equal(steps.next_mask[:, 0].argmax(-1), [1, 0, 1, 1, 0])
    assert (steps.mask.sum(-1) == 1).all()


def test_without_a_mask_a_transition_has_no_leaves_for_it():
    env = probes.policy()
    *_, steps, _, _ = rollouts.collect(
        jax.random.key(1),
        env,
        rollouts.start(jax.random.key(0), env, 1),
        jnp.zeros((2, 1)),
        lambda carry, obs, noise, state, mask: (carry, jnp.zeros(1, int), mask),
    )
    assert steps.mask is steps.next_mask is None
    assert len(jax.tree.leaves(steps)) == 6


def test_where_no_action_is_legal_all_are():
    env = probes.policy()._replace(action_mask=lambda state: jnp.zeros(2, bool))
    state, _ = env.reset(jax.random.key(0))
    assert envs.legal_actions(env, state).all()
    assert envs.legal_actions(probes.policy(), state) is None
