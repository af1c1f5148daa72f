"""The numpy reference of evolved functions against JAX, values and gradients."""

import json
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_spaces

from metaevo import exploration, policies, rewards, schedules
from metaevo.slots import Context
from metaevo.storage import artifacts, numpy_export, numpy_reference

BOX = {"low": [-2.0, 0.0], "high": [2.0, 1.0]}


class Case(NamedTuple):
    """A learned function, and numbers for what it is given and sees, in order."""

    slot: str
    learned: Any
    inputs: tuple


RNG = np.random.default_rng(0)
MOVING = {"transform": "log", "scale": 0.5, "default": 0.01}
BENT = {"start": 0.9, "end": 0.1, "fraction": 0.7}
NOW = np.float64(0.55)
WHERE = (RNG.normal(size=(30, 2)), RNG.normal(size=(30, 2)))
ENDS = np.float64(np.arange(30) % 3 == 0)


def transition(action):
    return WHERE[0], action, RNG.normal(size=30), WHERE[1], ENDS


def number(moving, slot="lr", now=(NOW,), **settings):
    return Case(slot, schedules.around(moving)(**settings), now)


# Every learned function of an elementwise slot; all but progress are [n].
FUNCTIONS = {
    name: Case(
        case.slot,
        case.make(),
        (
            *(
                np.float64(np.broadcast_to(x, 41))
                for x in test_spaces.INPUTS[case.slot]
            ),
            *[np.float64(0.3)] * case.make().spec.get("temporal", False),
        ),
    )
    for name, case in test_spaces.CASES.items()
    if case.slot in numpy_export.INPUTS
} | {
    f"{name} temporal": Case(
        case.slot,
        case.make(temporal=True),
        (
            *(
                np.float64(np.broadcast_to(x, 41))
                for x in test_spaces.INPUTS[case.slot]
            ),
            np.float64(0.3),
        ),
    )
    for name, case in test_spaces.CASES.items()
    if case.slot in numpy_export.INPUTS and name in test_spaces.TEMPORAL
}
FUNCTIONS |= {
    "policy": Case(
        "actor",
        policies.policy((2, 3), BOX, (8, 4), "tanh"),
        (10 * RNG.normal(size=(200, 2, 3)),),
    ),
    "steps": Case("lr", schedules.steps(5), (NOW,)),
    "knots": number(schedules.knots, kind="linear", num_knots=5, **MOVING),
    "knots at the end": number(
        schedules.knots, now=(np.float64(1.0),), kind="linear", num_knots=5, **MOVING
    ),
    "knots cubic": number(
        schedules.knots,
        "gamma",
        kind="cubic",
        num_knots=6,
        **MOVING | {"transform": "one_minus_log", "default": 0.99},
    ),
    "knots of a schedule": number(
        schedules.knots,
        "epsilon",
        kind="linear",
        num_knots=2,
        **MOVING | {"transform": "logit", "default": BENT},
    ),
    "feedback": number(
        schedules.feedback,
        now=(np.float64(1.3), np.float64(0.007)),
        stats={"kl": 0.01, "entropy": 1.0},
        features=[8],
        **MOVING,
    ),
    "feedback of a schedule": number(
        schedules.feedback,
        now=(np.float64(0.3), NOW),
        stats={"kl": 0.01},
        features=[8],
        **MOVING | {"transform": "linear", "default": BENT},
    ),
    "potential": Case(
        "reward", rewards.potential([1.0, 0.5]), transition(RNG.normal(size=30))
    ),
    "free_reward": Case(
        "reward",
        rewards.free([1.0, 0.5], {"num": 3}),
        transition(np.float64(np.arange(30) % 3)),
    ),
    "free_reward continuous": Case(
        "reward",
        rewards.free([1.0, 0.5], {"size": 2}),
        transition(RNG.normal(size=(30, 2))),
    ),
    "free_reward temporal": Case(
        "reward",
        rewards.free([1.0, 0.5], {"num": 3}, temporal=True),
        (*transition(np.float64(np.arange(30) % 3)), NOW),
    ),
    "impact": Case(
        "reward",
        rewards.impact([1.0, 0.5], 3),
        (*transition(np.zeros(30)), NOW),
    ),
    "graded": Case(
        "exploration",
        exploration.graded(),
        (RNG.normal(size=(30, 4)), np.float64(0.2), NOW),
    ),
}
OPTIMIZERS = {
    f"{name}{' temporal' * temporal}": case.make(temporal=temporal)
    for name, case in test_spaces.CASES.items()
    if case.slot == "optimizer"
    for temporal in (False, True)
}
WITHOUT: dict[str, str] = {}
"""Operations without a reference, and why."""


def test_every_operation_has_a_reference_or_a_reason():
    tried = {case.learned.spec["op"] for case in FUNCTIONS.values()}
    tried |= {learned.spec["op"] for learned in OPTIMIZERS.values()}
    assert tried | WITHOUT.keys() == artifacts.OPERATIONS.keys()
    assert not tried & WITHOUT.keys()
    assert all(WITHOUT.values())


def off_its_start(learned):
    key = jax.random.key(0)
    return jax.tree.map(
        lambda x: x + 0.3 * jax.random.normal(key, x.shape), learned.init(key)
    )


def written(name, path):
    """The function, its parameters off their start, and the saved reference."""
    slot, learned, _ = FUNCTIONS[name]
    params = off_its_start(learned)
    artifacts.save(path, {slot: params}, {slot: learned.spec}, {}, {})
    return params, getattr(numpy_reference.load(path), slot)


def by_jax(name, params, inputs, along=None):
    """Values, and the gradient of their sum with respect to each input."""
    slot, learned, _ = FUNCTIONS[name]
    given, seen, call = numpy_export.signature(slot, learned.spec)

    def apply(*inputs):
        scalars = dict(zip(seen, inputs[len(given) :], strict=True))
        progress = scalars.pop("progress", 0.0)
        context = Context(progress=progress, stats=scalars) if seen else None
        return call(learned.apply, params, inputs[: len(given)], context)

    @jax.jit
    def both(inputs):
        value, pull = jax.vjp(apply, *inputs)
        return value, pull(jnp.ones_like(value) if along is None else along)

    value, gradient = both([jnp.asarray(x) for x in inputs])
    return np.asarray(value), [np.asarray(x) for x in gradient]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float64_against_jax_in_x64(name, tmp_path):
    params, mine = written(name, tmp_path)
    inputs = FUNCTIONS[name].inputs
    along = RNG.normal(size=np.shape(mine(*inputs)))
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jnp.asarray(np.float64(x)), params)
        value, gradient = by_jax(name, params, inputs, along)
    assert value.dtype == np.float64
    np.testing.assert_allclose(mine(*inputs), value, rtol=0, atol=1e-9)
    mine = mine.gradient(*inputs, along=along)
    # Of nothing it would say nothing; steps are flat.
    assert name == "steps" or max(np.abs(x).max() for x in mine) > 1e-4
    for a, b in zip(mine, gradient, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float32_against_jax(name, tmp_path):
    params, mine = written(name, tmp_path)
    inputs = [np.float32(x) for x in FUNCTIONS[name].inputs]
    value, gradient = by_jax(name, params, inputs)
    found = mine(*inputs, dtype=np.float32)
    assert found.dtype == np.float32
    assert (np.abs(found - value) <= 1e-5 * np.maximum(1, np.abs(value))).all()
    for a, b in zip(mine.gradient(*inputs, dtype=np.float32), gradient, strict=True):
        assert (np.abs(a - b) <= 1e-5 * np.maximum(1, np.abs(b))).all()


# --- optimizers -----------------------------------------------------------------------

STEPS = [  # gradients of the agent's network; some are nothing at all
    jax.tree.map(
        lambda x, i=i: np.float64(size * np.cos(5 * i + 7 * x)), test_spaces.AGENT
    )
    for i, size in enumerate((0.1, 0.01, 1.0, 0.0, 0.3))
]


def directions(name, path, dtype):
    """All directions that JAX goes, and those of the reference, with JAX's noise."""
    learned = OPTIMIZERS[name]
    params = off_its_start(learned)
    artifacts.save(path, {"optimizer": params}, {"optimizer": learned.spec}, {}, {})
    mine = numpy_reference.load(path).optimizer
    agent = jax.tree.map(dtype, test_spaces.AGENT)
    params = jax.tree.map(lambda x: jnp.asarray(dtype(x)), params)
    theirs, state = learned.bind(params), mine.init(agent, dtype)
    known, found = theirs.init(jax.tree.map(jnp.asarray, agent)), []
    update = jax.jit(learned.update)
    for i, gradient in enumerate(STEPS):
        gradient = jax.tree.map(dtype, gradient)
        progress = i / len(STEPS)
        noise = None
        if "noise" in learned.told:
            leaves, tree = jax.tree.flatten(agent)
            noise = tree.unflatten([np.cos(i + 3 * x) for x in leaves])
        context = Context(progress=progress)
        told = {} if noise is None else {"noise": jax.tree.map(jnp.asarray, noise)}
        expected, known = update(
            params, jax.tree.map(jnp.asarray, gradient), known, agent, context, **told
        )
        got, state = mine.update(gradient, state, agent, progress, noise, dtype)
        found += list(zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True))
        agent = jax.tree.map(lambda p, d: p - dtype(0.01) * d, agent, got)
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimiser_in_float64_against_jax_in_x64(name, tmp_path):
    with jax.enable_x64(True):
        for mine, theirs in directions(name, tmp_path, np.float64):
            assert theirs.dtype == np.float64
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimiser_in_float32_against_jax(name, tmp_path):
    for mine, theirs in directions(name, tmp_path, np.float32):
        assert mine.dtype == np.float32
        error = np.abs(mine - theirs)
        assert (error <= 1e-5 * np.maximum(1, np.abs(theirs))).all()


def test_an_optimiser_of_one_array_and_what_it_has_to_be_told(tmp_path):
    learned = OPTIMIZERS["adam_numbers temporal"]
    params = learned.init(jax.random.key(0))
    artifacts.save(tmp_path, {"optimizer": params}, {"optimizer": learned.spec}, {}, {})
    mine = numpy_reference.load(tmp_path).optimizer
    x = np.arange(6.0).reshape(2, 3)
    direction, _ = mine.update(np.full((2, 3), 3.0), mine.init(x), x, progress=0.0)
    np.testing.assert_allclose(direction, np.full((2, 3), 1.0), rtol=1e-5)  # Adam's
    with pytest.raises(TypeError, match="give progress"):
        mine.update(x, mine.init(x), x)


# --- what it refuses ------------------------------------------------------------------


def test_a_choice_has_no_gradient(tmp_path):
    learned = policies.policy((3,), {"num": 4}, (8,), "relu")
    params = learned.init(jax.random.key(0))
    artifacts.save(tmp_path, {"actor": params}, {"actor": learned.spec}, {}, {})
    mine = numpy_reference.load(tmp_path).actor
    obs = np.random.default_rng(0).normal(size=(50, 3))
    np.testing.assert_array_equal(mine(obs), learned.apply(params, jnp.float32(obs)))
    with pytest.raises(ValueError, match="no gradient"):
        mine.gradient(obs)


def test_it_needs_no_jax(tmp_path):
    _, mine = written("residual_network", tmp_path / "solution")
    code = (
        "import sys, numpy as np; from metaevo import reference; "
        f"loss = reference.load({str(tmp_path)!r}).value_loss; "
        "print(repr(float(loss([1.5], [0.25], [1.0])[0]))); "
        "assert 'jax' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == float(mine([1.5], [0.25], [1.0])[0])


def test_unknown_operations_are_refused(tmp_path):
    written("residual_network", tmp_path)
    program = {
        "inputs": [0],
        "shapes": [["n"]],
        "equations": [["system", [0], 1, {}]],
        "outputs": [1],
    }
    with pytest.raises(ValueError, match="unknown operation 'system'"):
        numpy_reference.run(program, [np.ones(3)], np.float64)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert set(manifest["reference"]) == {"value_loss"}
    (tmp_path / "arrays.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="sha256"):
        numpy_reference.load(tmp_path)


def test_a_wrong_number_of_inputs_says_what_was_expected(tmp_path):
    _, mine = written("td_network", tmp_path)
    with pytest.raises(TypeError, match=r"td_error.*q.*target"):
        mine([1.0])
