"""Numbers that change over a lifetime."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from loops import SMALL
from scipy.interpolate import BSpline

import metaevo
from inner_loops import dqn, ppo
from metaevo import schedules, slots, spaces
from metaevo.errors import ConfigError
from metaevo.learned import transforms
from metaevo.slots import Context
from metaevo.storage import artifacts

KEY = jax.random.key(0)
TIMES = np.float32([0.0, 0.1, 0.25, 1 / 3, 0.5, 0.77, 0.999, 1.0])


def over_time(slot, times=TIMES):
    return np.array([slots.value(slot, Context(progress=t)) for t in times])


# --- the basis ------------------------------------------------------------------------


def test_the_basis_is_scipys_and_outside_the_lifetime_that_of_its_end():
    sizes = (1, 2), (1, 5), (3, 4), (3, 9)
    times = np.float32([*TIMES, -3.0, 1.5, 1e30])

    @jax.jit
    @jax.vmap
    def bases(time):
        return [schedules.basis(time, num_knots, degree) for degree, num_knots in sizes]

    inside = np.clip(times, 0, 1).astype(float)
    for (degree, num_knots), found in zip(sizes, bases(times), strict=True):
        inner = np.linspace(0, 1, num_knots - degree + 1)
        knots = np.concatenate([np.zeros(degree), inner, np.ones(degree)])
        expected = BSpline.design_matrix(inside, knots, degree).toarray()
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_linear_anneal_is_a_member_of_the_family():
    """On the linear scale, exactly: from 3e-4 to 0."""
    space = spaces.schedule(lr=spaces.linear(), num_knots=2)
    bound = space.bind({"lr": jnp.array([0.0, -3e-4])}, ppo.Meta(lr=3e-4))
    np.testing.assert_allclose(over_time(bound.lr), 3e-4 * (1 - TIMES), atol=1e-10)


def test_linear_goes_through_its_knots_on_its_scale():
    space = spaces.schedule(lr=spaces.log(2.0), num_knots=3)
    bound = space.bind({"lr": jnp.array([0.0, 1.0, -1.0])}, ppo.Meta(lr=1e-3))
    found = over_time(bound.lr, (0.0, 0.25, 0.5, 1.0))
    np.testing.assert_allclose(found, 1e-3 * np.exp([0, 1, 2, -2]), rtol=1e-5)


# --- the start ------------------------------------------------------------------------


DEFAULTS = [
    ("log", 2.5e-4),
    ("log", 7.3),
    ("logit", 0.95),
    ("logit", 1e-3),
    ("one_minus_log", 0.99),
    ("one_minus_log", 0.0),
    ("linear", -1.0),
]


def test_zero_is_the_default_to_the_bit():
    """Of a number that changes over a lifetime, and of one that stays what it is."""
    made = []
    for transform, default in DEFAULTS:
        scale = transforms.named(transform, 1.0)
        both = [spaces.schedule(kind, lr=scale) for kind in schedules.DEGREES]
        made += [(space, default) for space in (*both, spaces.tune(lr=scale))]

    @jax.jit
    def starts(params):
        bound = [
            space.bind(x, toys.Meta(lr=default)).lr
            for (space, default), x in zip(made, params, strict=True)
        ]
        return [
            jax.vmap(lambda t, lr=lr: slots.value(lr, Context(progress=t)))(TIMES)
            for lr in bound
        ]

    found = starts([space.init(KEY) for space, _ in made])
    for (_, default), x in zip(made, found, strict=True):
        np.testing.assert_array_equal(x, np.full(len(TIMES), default, np.float32))


def test_a_default_that_is_a_schedule_is_what_bends():
    space = spaces.schedule(epsilon=spaces.logit())
    meta = dqn.Meta()
    start = space.bind(space.init(KEY), meta).epsilon
    np.testing.assert_array_equal(over_time(start), over_time(meta.epsilon))
    more = space.bind({"epsilon": jnp.full(5, 2.0)}, meta).epsilon
    less = space.bind({"epsilon": jnp.full(5, -50.0)}, meta).epsilon
    # One remains one: the first actions are random; nothing leaves [0, 1].
    assert over_time(more)[0] == over_time(less)[0] == 1.0
    assert (over_time(more)[1:] > over_time(meta.epsilon)[1:]).all()
    assert (over_time(less) >= 0).all()


def test_numbers_stay_where_they_make_sense():
    space = spaces.schedule(gamma=spaces.one_minus_log(), clip_eps=spaces.log())
    for size in (1e2, 1e9):
        for sign in (size, -size):
            bound = space.bind(
                {"gamma": jnp.full(5, sign), "clip_eps": jnp.full(5, sign)}, ppo.Meta()
            )
            gamma, eps = over_time(bound.gamma), over_time(bound.clip_eps)
            assert ((gamma >= 0) & (gamma < 1)).all()
            assert ((eps > 0) & np.isfinite(eps)).all()


# --- what cannot be -------------------------------------------------------------------


def test_bad_settings_are_refused():
    for options, message in (
        ({"kind": "quintic"}, "kind='quintic': one of linear, cubic"),
        ({"num_knots": 1}, r"num_knots=1 must be in \[2, 1000\]"),
        ({"kind": "cubic", "num_knots": 3}, r"num_knots=3 must be in \[4, 1000\]"),
        ({"num_knots": 2.5}, "schedule: "),
    ):
        with pytest.raises(ConfigError, match=message):
            spaces.schedule(**options, lr=spaces.log())


def test_what_has_no_schedule_is_refused():
    for slot, message in (
        ("drift", "slot 'drift' holds no number"),
        ("ent_coef", r"schedule\(ent_coef=log\(\)\): the default 0.0 is outside"),
    ):
        space = spaces.schedule(**{slot: spaces.log()})
        with pytest.raises(ConfigError, match=message):
            space.bind(space.init(KEY), ppo.Meta(ent_coef=0.0))


def test_a_default_that_no_artifact_can_hold_is_refused():
    @slots.function
    def own(context):
        return 0.1 * context.progress

    space = spaces.schedule(lr=spaces.log())
    meta = ppo.Meta(lr=own)
    with pytest.raises(ConfigError, match="an artifact cannot hold"):
        artifacts.complete(space.spec, meta, meta)


# --- what follows from how training goes ----------------------------------------------


def test_feedback_follows_the_statistics():
    space = spaces.feedback({"kl": 0.01}, (4,), lr=spaces.log())
    params = space.init(KEY)
    params["lr"]["b1"] = jnp.array([1.0])
    params["lr"]["w1"] = jnp.ones((4, 1))
    lr = space.bind(params, ppo.Meta(lr=1e-3)).lr
    found = [lr(Context(stats={"kl": kl, "other": 5.0})) for kl in (0.0, 0.02, 1e9)]
    assert found[0] == pytest.approx(1e-3 * np.e, rel=1e-5)
    w = np.asarray(params["lr"]["w0"][0])
    assert found[1] == pytest.approx(1e-3 * np.exp(1 + np.tanh(2 * w).sum()), rel=1e-4)
    assert np.isfinite(found[2])


def test_feedback_on_what_an_algorithm_does_not_say_is_refused():
    space = spaces.feedback({"kl": 0.01}, lr=spaces.log())
    lr = space.bind(space.init(KEY), dqn.Meta()).lr
    with pytest.raises(ValueError, match=r"context\.stats has no 'kl', but nothing"):
        lr(Context())
    for stats in ({}, {"kl": 0.0}, {"kl": "x"}, ["kl"]):
        with pytest.raises(ConfigError, match="feedback: "):
            spaces.feedback(stats, lr=spaces.log())


def test_ppo_says_how_its_last_update_went():
    """Which is what its metrics say of a segment of one update."""
    seen = []

    @slots.function
    def watching(context):
        jax.debug.callback(lambda kl: seen.append(float(kl)), context.stats["kl"])
        return 0.2

    loop = SMALL["ppo"].make(num_segments=4)
    meta = loop.meta._replace(clip_eps=watching)
    state = jax.jit(loop.init)(KEY, meta)
    assert all(x == 0 for x in state.agent.stats.values())
    train = jax.jit(loop.train)
    for _ in range(2):
        before = float(state.agent.stats["kl"])
        seen.clear()
        state, metrics = train(KEY, meta, state)
        jax.effects_barrier()
        assert set(seen) == {before}  # a number sees the update before, not its own
        for name in ppo.STATS:
            assert state.agent.stats[name] == metrics[name]
    assert 0 < state.agent.stats["clip_fraction"] < 1


# --- artifacts ------------------------------------------------------------------------


@pytest.mark.parametrize("default", [5e-4, schedules.linear(1e-3, 1e-5, 0.5)])
def test_an_artifact_holds_the_knots_and_the_default(tmp_path, default):
    space = spaces.schedule("cubic", 6, lr=spaces.log(0.5))
    meta, params = ppo.Meta(lr=default), {"lr": jnp.linspace(-1.0, 2.0, 6)}
    bound = space.bind(params, meta)
    spec = artifacts.complete(space.spec, bound, meta)
    artifacts.save(tmp_path / "solution", params, spec, {}, {})
    loaded = metaevo.load(tmp_path).lr
    np.testing.assert_allclose(over_time(loaded), over_time(bound.lr), rtol=1e-6)
    manifest = metaevo.load(tmp_path).manifest
    assert manifest["slots"]["lr"]["default"] == schedules.plain(default)


ALTERED = [
    {"default": None},
    {"default": float("nan")},
    {"default": {"start": 1.0, "end": 0.1, "fraction": "x"}},
    {"default": {"evil": 1.0}},
    {"kind": "exec"},
    {"transform": "__import__"},
    {"scale": -1.0},
    {"num_knots": 10**9},
    {"num_knots": 4},
]


def test_an_altered_schedule_is_refused(tmp_path):
    spec = {"op": "knots", "kind": "linear", "num_knots": 5, "transform": "log"}
    spec |= {"scale": 1.0, "default": 0.1}
    for i, change in enumerate([{}, *ALTERED]):
        path, op = tmp_path / str(i), {"lr": spec | change}
        artifacts.save(path, {"lr": np.zeros(5, "f4")}, op, {}, {})
        if not change:
            assert metaevo.load(path).lr(Context()) == np.float32(0.1)
            continue
        with pytest.raises(metaevo.ArtifactError):
            metaevo.load(path)
