"""What every learned function keeps to, over all of them."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loops import SMALL

import metaevo
from metaevo import artifacts, drifts, losses, schedules, spaces
from metaevo.slots import Context
from metaevo.types import ConfigError

# A batch of each slot's inputs; the second is of numbers that no agent should see.
_LINE = jnp.linspace(-1.0, 1.0, 41)
INPUTS = {
    "value_loss": (8 * _LINE, 3 * _LINE[::-1], 5 * jnp.cos(9 * _LINE)),
    "td_loss": (8 * _LINE, 3 * _LINE[::-1], 8 * _LINE + 3 * _LINE[::-1]),
    "drift": (_LINE, 3 * jnp.cos(9 * _LINE), 0.2),
    "policy_loss": (
        -1 + _LINE,
        0.3 * _LINE[::-1],
        3 * jnp.cos(9 * _LINE),
        1.5 + 0.5 * _LINE,
    ),
}
HUGE = {
    "value_loss": (1e6 * _LINE, -1e6 * _LINE, 1e6 + 0 * _LINE),
    "td_loss": (1e6 * _LINE, -1e6 * _LINE, 1e6 * _LINE),
    "drift": (40 * _LINE, 1e6 * jnp.cos(9 * _LINE), 0.2),
    "policy_loss": (1e6 * _LINE, 80 * _LINE, 1e6 * jnp.cos(9 * _LINE), 1e6 * _LINE),
}


class Case(NamedTuple):
    """A learned function where it belongs.

    Attributes:
        builder: gives a `Learned`.
        settings: other than its defaults.
        slot: where it goes.
        hand_made: the slot's value that its start is; None if it has no such start.
        loops: the inner loops in which that is tried.
        refused: settings that raise.
    """

    builder: Callable
    settings: dict[str, Any]
    slot: str
    hand_made: Any
    loops: tuple[str, ...]
    refused: tuple[dict[str, Any], ...]

    def make(self, **settings):
        return self.builder(**{**self.settings, **settings})


SIZES = ({"features": ()}, {"features": (0,)}, {"features": (2.5,)}, {"temporal": 1})
SCALES = ({"scale": 0.0}, {"scale": float("nan")}, {"scale": "x"}, *SIZES)
BASE = ({"base": "os.system"}, {"base": losses.minus_q})
LIMITS = ({"limit": -1.0}, *SCALES, *BASE)
CASES = {
    "residual_network": Case(
        losses.residual_network,
        {},
        "value_loss",
        losses.clipped_square,
        ("ppo", "ppo_rnn"),
        ({"clip_eps": 0.0}, *LIMITS),
    ),
    "residual_network square": Case(
        losses.residual_network,
        {"base": "square", "features": (8, 4)},
        "value_loss",
        losses.square,
        ("ppo",),
        (),
    ),
    "residual_network zero": Case(
        losses.residual_network,
        {"base": losses.zero},
        "value_loss",
        losses.zero,
        ("ppo",),
        (),
    ),
    "td_network": Case(
        losses.td_network, {}, "td_loss", losses.td_square, ("dqn", "td3"), LIMITS
    ),
    "td_network td_huber": Case(
        losses.td_network,
        {"base": "td_huber"},
        "td_loss",
        losses.td_huber,
        ("dqn",),
        (),
    ),
    "policy_network": Case(
        losses.policy_network,
        {},
        "policy_loss",
        None,
        ("ppo", "ppo_rnn"),
        ({"limit": 0.0}, *SIZES),
    ),
    "dpo_constants": Case(
        drifts.dpo_constants,
        {},
        "drift",
        drifts.dpo,
        ("ppo",),
        ({"alpha": 0.0}, {"beta": -1.0}, {"beta": "x"}),
    ),
    "drift_network": Case(
        drifts.drift_network,
        {},
        "drift",
        drifts.ppo_clip,
        ("ppo", "ppo_rnn"),
        (*SCALES, *BASE),
    ),
    "drift_network dpo": Case(
        drifts.drift_network, {"base": "dpo"}, "drift", drifts.dpo, ("ppo",), ()
    ),
    "lpo_network": Case(drifts.lpo_network, {}, "drift", None, (), (*SIZES, *BASE)),
    "lpo_network zero": Case(
        drifts.lpo_network, {"base": "zero"}, "drift", drifts.zero, ("ppo",), ()
    ),
}
TEMPORAL = [
    name
    for name, case in CASES.items()
    if "temporal" in inspect.signature(case.builder).parameters
]


def evaluated(function, slot, inputs, context=None):
    """A function and its gradient in its first input, on a batch."""

    def total(x):
        return function(x, *inputs[1:], *(() if context is None else (context,))).sum()

    values = function(*inputs, *(() if context is None else (context,)))
    return values, jax.grad(total)(inputs[0])


def moved(learned, by=0.3, seed=1):
    """Its start, and by how much a strategy's sample moves it."""
    start = learned.init(jax.random.key(0))
    leaves, tree = jax.tree.flatten(start)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    noise = [
        by * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)
    ]
    return start, jax.tree.unflatten(tree, noise)


def test_every_operation_is_here():
    """Or where what it does is tested: schedules, rewards and policies."""
    ops = {case.make().spec["op"] for case in CASES.values()}
    elsewhere = {"steps", "knots", "free_reward", "graded", "impact", "potential"}
    assert ops == artifacts.OPERATIONS.keys() - elsewhere - {"policy"}


# --- the start ------------------------------------------------------------------------

ONE_UPDATE = {
    "ppo": {"total_timesteps": 320, "num_epochs": 5, "num_minibatches": 2},
    "ppo_rnn": {"total_timesteps": 320, "num_epochs": 5, "num_minibatches": 2},
    "dqn": {"total_timesteps": 64 + 16, "num_gradient_steps": 10},
    "td3": {"total_timesteps": 64 + 8, "num_gradient_steps": 10},
}
"""Ten gradient steps on what the first policy collected."""


@functools.cache
def program(name):
    loop = SMALL[name].make(**ONE_UPDATE[name])
    return jax.jit(loop.init), jax.jit(loop.train)


def one_update(name, meta):
    init, train = program(name)
    state = init(jax.random.key(0), meta)
    agent = train(jax.random.key(1), meta, state)[0].agent
    return (
        [agent.params]
        if name in ("ppo", "ppo_rnn", "dqn")
        else [agent.actor.params, agent.critic.params]
    )


def close(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


@pytest.mark.parametrize(
    ("name", "loop"), [(name, x) for name, case in CASES.items() for x in case.loops]
)
def test_the_start_is_the_hand_made_algorithm(name, loop):
    """Ten gradient steps on a frozen rollout; a step away from the start differs."""
    case = CASES[name]
    space = spaces.replace(**{case.slot: case.make()})
    assert space.identity == (case.hand_made not in (losses.zero, drifts.zero))
    params = space.init(jax.random.key(5))
    meta = SMALL[loop].meta._replace(**{case.slot: case.hand_made})
    expected = one_update(loop, meta)
    found = one_update(loop, space.bind(params, meta))
    close(found, expected, rtol=1e-5, atol=1e-6)
    away = jax.tree.map(lambda x: x + 0.5, params)
    with pytest.raises(AssertionError):
        close(one_update(loop, space.bind(away, meta)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_mirrored_members_differ_at_the_start(name):
    """From each other and from the start: otherwise ES have nothing to go by."""
    case = CASES[name]
    learned = case.make()
    start, noise = moved(learned)
    values = [
        np.asarray(
            learned.bind(jax.tree.map(lambda x, e: x + sign * e, start, noise))(
                *INPUTS[case.slot]
            )
        )
        for sign in (-1, 0, 1)
    ]
    minus, base, plus = values
    for a, b in ((minus, plus), (minus, base), (plus, base)):
        assert np.abs(a - b).max() > 1e-3


# --- what it is made of ---------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("by", [0.0, 0.3, 3.0])
def test_numbers_stay_finite_for_huge_inputs(name, by):
    case = CASES[name]
    start, noise = moved(case.make(), by)
    function = case.make().bind(jax.tree.map(jnp.add, start, noise))
    for inputs in (INPUTS[case.slot], HUGE[case.slot]):
        for found in evaluated(function, case.slot, inputs):
            assert np.isfinite(found).all()
            assert found.shape == _LINE.shape


@pytest.mark.parametrize(
    ("name", "settings"), [(n, s) for n, case in CASES.items() for s in case.refused]
)
def test_bad_settings_are_refused(name, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        CASES[name].make(**settings)


@pytest.mark.parametrize("name", CASES)
def test_saved_and_loaded_it_is_the_same_function(name, tmp_path):
    case = CASES[name]
    space = spaces.replace(**{case.slot: case.make()})
    start, noise = moved(case.make())
    params = {case.slot: jax.tree.map(jnp.add, start, noise)}
    artifacts.check(jax.eval_shape(lambda: params), space.spec)
    artifacts.save(tmp_path / "solution", params, space.spec, {}, {})
    loaded = metaevo.load(tmp_path / "solution").slots[case.slot]
    searched = case.make().bind(params[case.slot])
    for context in (None, Context(0.7, 2.0, {"clip_eps": 0.2})):
        same = [
            evaluated(f, case.slot, INPUTS[case.slot], context)
            for f in (loaded, searched)
        ]
        for a, b in zip(*same, strict=True):
            np.testing.assert_array_equal(a, b)


# --- over a lifetime ------------------------------------------------------------------


@pytest.mark.parametrize("name", TEMPORAL)
def test_a_temporal_function_changes_over_a_lifetime(name, tmp_path):
    case = CASES[name]
    learned, inputs = case.make(temporal=True), INPUTS[case.slot]
    start, noise = moved(learned)
    params = jax.tree.map(jnp.add, start, noise)
    early, late = (Context(x, stats={"clip_eps": 0.2}) for x in (0.0, 0.9))
    function = learned.bind(params)
    assert np.abs(function(*inputs, early) - function(*inputs, late)).max() > 1e-3
    np.testing.assert_array_equal(
        learned.bind(start)(*inputs, early),
        case.make().bind(case.make().init(jax.random.key(0)))(*inputs, late),
    )
    # It says so in its artefact, and does not guess where it is.
    spec = {case.slot: dict(learned.spec)}
    assert spec[case.slot]["temporal"] is True
    assert "temporal" not in case.make().spec
    artifacts.save(tmp_path / "solution", {case.slot: params}, spec, {}, {})
    loaded = metaevo.load(tmp_path / "solution").slots[case.slot]
    np.testing.assert_array_equal(loaded(*inputs, late), function(*inputs, late))
    with pytest.raises(ValueError, match=r"temporal=True.*context=metaevo\.Context"):
        loaded(*inputs)


def test_only_networks_are_temporal():
    assert {CASES[name].builder.__name__ for name in TEMPORAL} == {
        case.builder.__name__ for case in CASES.values()
    } - {"dpo_constants"}
    spec = {"lr": schedules.steps(2).spec | {"temporal": True}}
    with pytest.raises(ConfigError, match="temporal"):
        artifacts.check({"lr": jax.ShapeDtypeStruct((2,), jnp.float32)}, spec)


# --- the policy's loss ----------------------------------------------------------------


def policy_term(by=0.5):
    learned = losses.policy_network()
    start, noise = moved(learned, by)
    return learned.bind(jax.tree.map(jnp.add, start, noise))


def test_a_policys_loss_is_felt_through_the_policy_alone():
    inputs = INPUTS["policy_loss"]
    gradients = jax.grad(lambda x: policy_term()(*x).sum())(inputs)
    felt = [bool((jnp.abs(g) > 1e-4).any()) for g in gradients]
    assert felt == [True, True, False, True]
    assert (gradients[2] == 0).all()


def test_a_policys_loss_is_bounded_and_takes_samples_in_any_order():
    loss = policy_term(by=20.0)
    assert jnp.abs(loss(*INPUTS["policy_loss"])).max() <= 10.0
    assert jnp.abs(loss(*HUGE["policy_loss"])).max() <= 10.0
    order = jax.random.permutation(jax.random.key(0), len(_LINE))
    shuffled = loss(*(x[order] for x in INPUTS["policy_loss"]))
    np.testing.assert_allclose(
        shuffled, loss(*INPUTS["policy_loss"])[order], rtol=1e-4, atol=1e-4
    )
