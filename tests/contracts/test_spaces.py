"""What every learned function keeps to, over all of them."""

import functools
import inspect
import itertools
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from loops import SMALL

import metaevo
from metaevo import (
    activations,
    closed_forms,
    drifts,
    losses,
    optimizers,
    schedules,
    spaces,
)
from metaevo.errors import ConfigError
from metaevo.learned import optimizers as learned_optimizers
from metaevo.slots import Context
from metaevo.storage import artifacts

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


def network(key, *sizes):
    """Params as flax has them, with numbers of a policy beside."""
    layers = {}
    for i, shape in enumerate(itertools.pairwise(sizes)):
        layers[f"Dense_{i}"] = {
            "kernel": jax.random.normal(jax.random.fold_in(key, i), shape),
            "bias": jnp.zeros(shape[1]),
        }
    return {"actor": {"params": layers}, "log_std": jnp.ones(sizes[-1])}


AGENT = network(jax.random.key(9), 3, 5, 4, 2)


def gradients(*scales):
    """One for each scale; the signs change, so that averages do as well."""
    return [
        jax.tree.map(lambda x: scale * jnp.cos(5 * i + 7 * x), AGENT)
        for i, scale in enumerate(scales)
    ]


INPUTS["activation"], HUGE["activation"] = (4 * _LINE,), (1e6 * _LINE,)
INPUTS["optimizer"] = (gradients(0.1, 0.01, 1.0, 0.0, 0.3),)
HUGE["optimizer"] = (gradients(0.0, 0.0, 1e20, 1e-30, 1e30),)


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
    "adam_numbers": Case(
        learned_optimizers.adam_numbers,
        {},
        "optimizer",
        optimizers.adam,
        ("ppo", "td3", "dqn"),
        ({"eps": 0.0}, {"eps": float("inf")}, {"temporal": 1}),
    ),
    "recurrent": Case(
        learned_optimizers.recurrent,
        {},
        "optimizer",
        optimizers.adam,
        ("ppo", "td3", "ppo_rnn"),
        ({"hidden": 0}, {"step": -1.0}, {"eps": "x"}, {"noise": 1}, *SIZES),
    ),
    "recurrent without noise": Case(
        learned_optimizers.recurrent,
        {"noise": False, "hidden": 4, "features": (8,)},
        "optimizer",
        optimizers.adam,
        (),
        (),
    ),
    "piecewise": Case(
        activations.piecewise,
        {},
        "activation",
        activations.tanh,
        ("ppo",),
        ({"limit": 0.0}, {"num_knots": 1}, {"num_knots": 2.5}, *BASE),
    ),
    "piecewise relu": Case(
        activations.piecewise,
        {"base": "relu", "num_knots": 3},
        "activation",
        activations.relu,
        ("ppo",),
        (),
    ),
    "error_loss": Case(
        closed_forms.error_loss,
        {},
        "value_loss",
        losses.clipped_square,
        ("ppo",),
        ({"clip_eps": 0.0}, *BASE),
    ),
    "td_error_loss": Case(
        closed_forms.td_error_loss, {}, "td_loss", losses.td_square, ("dqn",), BASE
    ),
    "clip_constant": Case(
        closed_forms.clip_constant,
        {},
        "drift",
        drifts.ppo_clip,
        ("ppo",),
        ({"eps": 0.0}, {"eps": "x"}),
    ),
    "rational": Case(closed_forms.rational, {}, "activation", None, (), ()),
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


@jax.jit
def updated(optimizer, *args):
    return optimizer.update(*args)


def called(function, slot, inputs, context=None):
    """What a slot's value says to a batch of inputs; of an optimizer, all directions
    that it goes."""
    context = () if context is None or slot == "activation" else (context,)
    if slot != "optimizer":
        return function(*inputs, *context)
    agent, directions = AGENT, []
    state = function.init(agent)
    for gradient in inputs[0]:
        direction, state = updated(function, gradient, state, agent, *context)
        agent = jax.tree.map(lambda p, d: p - 0.01 * d, agent, direction)
        directions += [x.ravel() for x in jax.tree.leaves(direction)]
    return jnp.concatenate(directions)


def evaluated(function, slot, inputs, context=None):
    """That, and its gradient in the first input if it has one."""
    values = called(function, slot, inputs, context)
    if slot == "optimizer":
        return (values,)

    def total(x):
        return called(function, slot, (x, *inputs[1:]), context).sum()

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


def bound(learned, by=0.5):
    start, noise = moved(learned, by)
    return learned.bind(jax.tree.map(jnp.add, start, noise))


def test_every_operation_is_here():
    """Or where what it does is tested: schedules, rewards and policies."""
    ops = {case.make().spec["op"] for case in CASES.values()}
    elsewhere = {"steps", "knots", "feedback", "graded", "policy"}
    elsewhere |= {"free_reward", "impact", "potential"}
    assert ops == artifacts.OPERATIONS.keys() - elsewhere


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
    assert space.starts_hand_made == (case.hand_made not in (losses.zero, drifts.zero))
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
            called(
                learned.bind(jax.tree.map(lambda x, e: x + sign * e, start, noise)),
                case.slot,
                INPUTS[case.slot],
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
            assert case.slot == "optimizer" or found.shape == _LINE.shape


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


def test_all_load_with_jax_numpy_and_safetensors_alone(tmp_path):
    """And run: every other dependency is made impossible to import."""
    for name in CASES:
        learned = CASES[name].make()
        params = {CASES[name].slot: learned.init(jax.random.key(0))}
        spec = {CASES[name].slot: learned.spec}
        artifacts.save(tmp_path / name.replace(" ", "_"), params, spec, {}, {})
    program = textwrap.dedent(
        f"""
        import pathlib, sys
        for name in ("optax flax evosax gymnax gymnasium omegaconf matplotlib filelock "
                     "brax wandb pandas").split():
            sys.modules[name] = None
        import jax.numpy as jnp
        import metaevo
        takes = dict(activation=1, value_loss=3, td_loss=3, drift=3, policy_loss=4)
        for path in sorted(pathlib.Path({str(tmp_path)!r}).iterdir()):
            (slot, found), = metaevo.load(path).slots.items()
            one = jnp.ones(3)
            if slot == "optimizer":
                found.update(one, found.init(one), one)
            else:
                found(*[one] * takes[slot])
            print(path.name)
        """
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert out.returncode == 0, out.stderr
    assert len(out.stdout.split()) == len(CASES)


# --- over a lifetime ------------------------------------------------------------------


@pytest.mark.parametrize("name", TEMPORAL)
def test_a_temporal_function_changes_over_a_lifetime(name, tmp_path):
    case = CASES[name]
    learned = case.make(temporal=True)
    start, noise = moved(learned)
    params = jax.tree.map(jnp.add, start, noise)

    def at(function, progress):
        context = Context(progress, stats={"clip_eps": 0.2})
        return called(function, case.slot, INPUTS[case.slot], context)

    function = learned.bind(params)
    assert np.abs(at(function, 0.0) - at(function, 0.9)).max() > 1e-3
    plain = case.make().bind(case.make().init(jax.random.key(0)))
    close(at(learned.bind(start), 0.3), at(plain, 0.9), rtol=1e-5, atol=1e-6)
    # It says so in its artifact, and does not guess where it is.
    spec = {case.slot: dict(learned.spec)}
    assert spec[case.slot]["temporal"] is True
    assert "temporal" not in case.make().spec
    artifacts.save(tmp_path / "solution", {case.slot: params}, spec, {}, {})
    loaded = metaevo.load(tmp_path / "solution").slots[case.slot]
    np.testing.assert_array_equal(at(loaded, 0.9), at(function, 0.9))
    with pytest.raises(ValueError, match=r"temporal=True.*context=metaevo\.Context"):
        called(loaded, case.slot, INPUTS[case.slot])


def test_what_has_no_lifetime_refuses_one():
    assert {CASES[name].builder.__name__ for name in TEMPORAL} == {
        case.builder.__name__ for case in CASES.values()
    } - {"piecewise", *closed_forms.__all__}
    spec = {"lr": schedules.steps(2).spec | {"temporal": True}}
    with pytest.raises(ConfigError, match="temporal"):
        artifacts.check({"lr": jax.ShapeDtypeStruct((2,), jnp.float32)}, spec)


# --- the policy's loss ----------------------------------------------------------------


def test_a_policys_loss_is_felt_through_the_policy_alone():
    inputs = INPUTS["policy_loss"]
    gradients = jax.grad(lambda x: bound(losses.policy_network())(*x).sum())(inputs)
    felt = [bool((jnp.abs(g) > 1e-4).any()) for g in gradients]
    assert felt == [True, True, False, True]
    assert (gradients[2] == 0).all()


def test_a_policys_loss_is_bounded_and_takes_samples_in_any_order():
    loss = bound(losses.policy_network(), 20.0)
    assert jnp.abs(loss(*INPUTS["policy_loss"])).max() <= 10.0
    assert jnp.abs(loss(*HUGE["policy_loss"])).max() <= 10.0
    order = jax.random.permutation(jax.random.key(0), len(_LINE))
    shuffled = loss(*(x[order] for x in INPUTS["policy_loss"]))
    np.testing.assert_allclose(
        shuffled, loss(*INPUTS["policy_loss"])[order], rtol=1e-4, atol=1e-4
    )


# --- activations ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["piecewise", "piecewise relu"])
def test_an_activation_keeps_the_size_of_its_layer(name):
    """The mean of σ² over N(0, 1), whatever its numbers."""
    learned = CASES[name].make()
    x = jax.random.normal(jax.random.key(0), (100_000,))
    expected = float((CASES[name].hand_made(x) ** 2).mean())
    for by in (0.3, 3.0):
        found = bound(learned, by)(x)
        assert float((found**2).mean()) == pytest.approx(expected, rel=0.02)
    assert expected != pytest.approx(float((x**2).mean()), rel=0.1)


def test_an_activation_is_linear_between_its_knots():
    learned = activations.piecewise(num_knots=5, limit=2.0)
    params = learned.init(jax.random.key(0)).at[3].set(0.1).at[4].set(-0.2)
    σ = learned.bind(params)
    added = σ(jnp.array([1.0, 1.5, 2.0, 9.0])) / (σ(-1.0) / jnp.tanh(-1.0))
    added -= jnp.tanh(jnp.array([1.0, 1.5, 2.0, 9.0]))
    np.testing.assert_allclose(added, [0.1, -0.05, -0.2, -0.2], atol=1e-5)


# --- optimizers -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adam_numbers", "recurrent"])
def test_a_learned_optimizer_starts_as_adam(name):
    learned = CASES[name].make()
    start = learned.bind(learned.init(jax.random.key(0)))
    adam = called(optimizers.adam, "optimizer", INPUTS["optimizer"], Context())
    found = called(start, "optimizer", INPUTS["optimizer"])
    np.testing.assert_allclose(found, adam, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("number", "x", "transformation"),
    [
        (
            "gain",
            0.7,
            optax.chain(optax.scale_by_adam(eps=1e-5), optax.scale(np.e**0.7)),
        ),
        ("beta1", 1.0, optax.scale_by_adam(b1=1 - 0.1 * np.e, eps=1e-5)),
        ("beta2", 2.0, optax.scale_by_adam(b2=1 - 0.001 * np.e**2, eps=1e-5)),
        ("eps", 4.0, optax.scale_by_adam(eps=1e-5 * np.e**4)),
        (
            "decay",
            0.5,
            optax.chain(optax.scale_by_adam(eps=1e-5), optax.add_decayed_weights(0.05)),
        ),
        (
            "clip",
            -3.0,
            optax.chain(optax.scale_by_adam(eps=1e-5), optax.clip(10 * np.e**-3)),
        ),
    ],
)
def test_adams_numbers_are_those_of_optax(number, x, transformation):
    learned = learned_optimizers.adam_numbers()
    params = learned.init(jax.random.key(0)) | {number: jnp.float32(x)}
    theirs = optimizers.from_optax(transformation)
    inputs = INPUTS["optimizer"]
    expected = called(theirs, "optimizer", inputs, Context())
    found = called(learned.bind(params), "optimizer", inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    adam = called(optimizers.adam, "optimizer", inputs, Context())
    assert np.abs(found - adam).max() > 1e-3


def test_adams_own_direction_is_never_clipped():
    """Its bound, (1 − β₁)/√(1 − β₂) / √(1 − β₁²/β₂) = 7.27, against the clip at 10,
    by the gradients that are worst for it."""
    decays = 0.9 / 0.999
    worst = [jnp.float32(decays ** (400 - i)) for i in range(400)]
    adam = optax.scale_by_adam(eps=0.0)
    state = adam.init(jnp.float32(0))
    for gradient in [jnp.float32(0)] * 600 + worst:
        direction, state = adam.update(gradient, state)
    bound = 0.1 / 0.001**0.5 / (1 - 0.81 / 0.999) ** 0.5
    assert bound == pytest.approx(7.27, abs=0.01)
    corrected = bound * (1 - 0.999**1000) ** 0.5
    assert direction == pytest.approx(corrected, rel=1e-3)


def test_a_learned_optimizer_goes_in_straight_lines_over_a_lifetime():
    learned = learned_optimizers.adam_numbers(temporal=True)
    params = learned.init(jax.random.key(0)) | {"gain": jnp.float32([0.0, 2.0])}
    inputs = INPUTS["optimizer"]
    half = called(learned.bind(params), "optimizer", inputs, Context(0.5))
    plain = learned_optimizers.adam_numbers()
    same = plain.bind(plain.init(jax.random.key(0)) | {"gain": jnp.float32(1.0)})
    np.testing.assert_allclose(half, called(same, "optimizer", inputs), rtol=1e-5)


def test_a_loaded_optimizer_trains_a_network_of_another_shape(tmp_path):
    """As optax wants it, and away from where it evolved; far from Adam's start."""
    learned = learned_optimizers.recurrent(step=0.01)
    start, noise = moved(learned, 0.1)
    params = {"optimizer": jax.tree.map(jnp.add, start, noise)}
    spec = {"optimizer": learned.spec}
    artifacts.save(tmp_path / "solution", params, spec, {}, {})
    found = metaevo.load(tmp_path / "solution").optimizer
    rule = optax.chain(
        optax.GradientTransformation(found.init, found.update), optax.scale(-0.01)
    )
    agent = network(jax.random.key(3), 2, 32, 32, 32, 1)
    x = jax.random.normal(jax.random.key(4), (64, 2))

    def loss(agent):
        h = x
        for i in range(4):
            layer = agent["actor"]["params"][f"Dense_{i}"]
            h = jnp.tanh(h @ layer["kernel"] / 5 + layer["bias"])
        return ((h[:, 0] - jnp.tanh(x[:, 0] * x[:, 1])) ** 2).mean()

    @jax.jit
    def step(agent, state):
        updates, state = rule.update(jax.grad(loss)(agent), state, agent)
        return optax.apply_updates(agent, updates), state

    state, before = rule.init(agent), loss(agent)
    for _ in range(200):
        agent, state = step(agent, state)
    assert loss(agent) < 0.5 * before


def test_units_of_a_network_may_change_places():
    learned = learned_optimizers.recurrent(noise=False)
    optimizer = bound(learned)
    order = jnp.array([3, 0, 4, 1, 2])

    def shuffled(tree):
        layers = tree["actor"]["params"]
        first = {k: x[..., order] for k, x in layers["Dense_0"].items()}
        second = layers["Dense_1"] | {"kernel": layers["Dense_1"]["kernel"][order]}
        layers = layers | {"Dense_0": first, "Dense_1": second}
        return tree | {"actor": {"params": layers}}

    def run(change):
        state = optimizer.init(change(AGENT))
        for gradient in INPUTS["optimizer"][0]:
            direction, state = optimizer.update(change(gradient), state, change(AGENT))
        return direction

    close(run(shuffled), shuffled(run(lambda x: x)), rtol=1e-4, atol=1e-5)


def test_a_layer_knows_where_it_lies():
    depths = learned_optimizers._layers(AGENT)
    layers = depths["actor"]["params"]
    assert [x["bias"] for x in layers.values()] == [0.0, 0.5, 1.0]
    assert [x["kernel"] for x in layers.values()] == [0.0, 0.5, 1.0]
    assert depths["log_std"] == 0.0


def test_the_noise_of_an_optimizer():
    """δ alone: normal, new in each update and tensor, that of the agent's start."""
    learned = learned_optimizers.recurrent(step=1.0)
    params = learned.init(jax.random.key(0))
    last = params["head"] | {"b2": jnp.float32([0.0, 0.0, 0.5])}
    optimizer = learned.bind(params | {"head": last})
    agent = {"a": jnp.ones((60, 60)), "b": jnp.ones((60, 60))}
    still = jax.tree.map(jnp.zeros_like, agent)

    def run(agent):
        state = optimizer.init(agent)
        drawn = []
        for _ in range(2):
            direction, state = optimizer.update(still, state, agent)
            drawn += [np.asarray(x).ravel() for x in jax.tree.leaves(direction)]
        return np.stack(drawn)

    drawn = run(agent)
    expected = 3 * np.tanh(0.5 / 3)
    np.testing.assert_allclose(drawn.mean(1), 0.0, atol=0.1)
    np.testing.assert_allclose(drawn.std(1), expected, rtol=0.05)
    between = np.corrcoef(drawn)[~np.eye(4, dtype=bool)]
    assert np.abs(between).max() < 0.07
    np.testing.assert_array_equal(run(agent), drawn)
    other = run({"a": agent["a"].at[0, 0].set(1.5), "b": agent["b"]})
    assert np.abs(np.corrcoef(other[0], drawn[0])[0, 1]) < 0.07
