"""Functions that `metaevo.load` gives: shapes of their inputs, and their types.

One learned function of every slot is loaded; that values are the searched ones is in
`tests/contracts/test_learned_functions.py`, of all functions of the registry.
"""

import functools

import jax
import jax.numpy as jnp
import learned as helper
import numpy as np
import pytest

import metaevo
from inner_loops import ppo
from metaevo import losses, slots
from metaevo.learned import shapes
from metaevo.portable import tracing
from metaevo.slots import Context
from metaevo.storage import artifacts, numpy_reference

CASES = {name: x for name, x in helper.cases().items() if " " not in name}
# The same code checks and casts the inputs of all functions of a slot.
ONE_A_SLOT = {
    case.operation.slot: name
    for name, case in CASES.items()
    if case.operation.slot not in ("optimizer", "number", *slots.ONE_TRANSITION)
}
OF_SEVERAL = [
    name
    for slot, name in ONE_A_SLOT.items()
    if len(tracing.signature(CASES[name].make().spec).given) > 1
    and slot != "exploration"  # one input and a scalar
]
HALF = [jnp.float16, jnp.bfloat16]


@functools.cache
def folder_of(name):
    case = CASES[name]
    learned, path = case.make(), FOLDER / name.replace(" ", "_")
    params = {case.slot: helper.away(learned)}
    artifacts.save(path, params, {case.slot: learned.spec}, {}, {})
    return path


@functools.cache
def loaded(name):
    return metaevo.load(folder_of(name)).slots[CASES[name].slot]


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory):
    global FOLDER
    FOLDER = tmp_path_factory.mktemp("artifacts")
    yield
    folder_of.cache_clear()
    loaded.cache_clear()


def inputs(name, dtype=jnp.float32):
    """Its inputs, their axes of one element, and its context, a keyword."""
    case = CASES[name]
    given, seen, _ = tracing.signature(case.make().spec)
    arrays = [np.asarray(x, dtype) for x in case.inputs()]
    named = {}
    if case.operation.slot not in slots.WITHOUT_CONTEXT:
        scalars = dict(zip(seen, arrays[len(given) :], strict=True))
        named["context"] = tracing.context_of(scalars)
    inner = shapes.inner(case.operation.slot, case.operation.shapes(case.make().spec))
    return arrays[: len(given)], inner, named


def first_two(inner):
    """The first two inputs that have elements."""
    return [i for i, axes in enumerate(inner.values()) if axes is not None][:2]


@pytest.mark.parametrize("name", OF_SEVERAL)
def test_a_column_beside_a_row_is_refused_in_one_line(name):
    """A critic's [n, 1] and targets [n] would give a loss [n, n]."""
    given, inner, named = inputs(name)
    one, two = first_two(inner)
    (first, axes), second = list(inner.items())[one], list(inner)[two]
    wrong = list(given)
    wrong[one] = np.expand_dims(wrong[one], wrong[one].ndim - len(axes))
    with pytest.raises(ValueError, match=first) as caught:
        jax.jit(loaded(name))(*wrong, **named)
    message, wrong_shapes = str(caught.value), (wrong[one].shape, wrong[two].shape)
    assert "\n" not in message
    for part in (CASES[name].slot, first, second, *map(str, wrong_shapes)):
        assert part in message

    mine = getattr(numpy_reference.load(folder_of(name)), CASES[name].slot)
    beside = CASES[name].inputs()
    beside[one] = wrong[one]
    with pytest.raises(ValueError, match=f"{first}.*{second}") as caught:
        mine(*beside)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [x for x in OF_SEVERAL if x != "shaper"])
def test_a_scalar_stands_for_all_elements(name):
    given, inner, named = inputs(name)
    at = first_two(inner)[1]
    assert not list(inner.values())[at]
    number, function = np.float32(given[at].flat[0]), loaded(name)

    @jax.jit
    def both(given, named, number):
        full = [*given[:at], jnp.full_like(given[at], number), *given[at + 1 :]]
        alone = [*given[:at], number, *given[at + 1 :]]
        return function(*full, **named), function(*alone, **named)

    expected, found = both(given, named, number)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["recurrent_advantage", "potential", "impact"])
def test_the_reference_takes_a_scalar_for_all_elements(name):
    """Also where inputs are no list of numbers: a rollout, and observations."""
    mine = getattr(numpy_reference.load(folder_of(name)), CASES[name].slot)
    given = CASES[name].inputs()
    at = mine.inputs.index("terminated")
    full = [*given[:at], np.zeros_like(given[at]), *given[at + 1 :]]
    alone = [*given[:at], 0.0, *given[at + 1 :]]
    np.testing.assert_array_equal(mine(*alone), mine(*full))
    slopes, expected = mine.gradient(*alone), mine.gradient(*full)
    assert slopes[at].shape == ()
    np.testing.assert_allclose(slopes[at], expected[at].sum())
    np.testing.assert_array_equal(slopes[0], expected[0])


@pytest.mark.parametrize("name", ONE_A_SLOT.values())
def test_half_precision_is_finite_with_its_gradients(name):
    function = loaded(name)

    @jax.jit
    def both(given, named):
        value = function(*given, **named)
        if not jnp.issubdtype(value.dtype, jnp.floating):
            return value, given

        def total(given):
            return function(*given, **named).astype(jnp.float32).sum()

        return value, jax.grad(total)(given)

    for dtype in HALF:
        given, _, named = inputs(name, dtype)
        value, slopes = both(given, named)
        if jnp.issubdtype(value.dtype, jnp.floating):
            kept = CASES[name].slot == "activation"
            assert value.dtype == (dtype if kept else jnp.float32)
        for slope, x in zip(slopes, given, strict=True):
            assert slope.dtype == dtype
            assert slope.shape == x.shape
        found = jax.tree.map(np.float32, (value, slopes))
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))


def test_a_loss_of_hundreds_is_finite_in_float16():
    """Half the square of 400 is more than float16 holds."""
    value, zero = np.float16([400.0, 3.0]), np.float16(0.0)
    loss = jax.jit(metaevo.load("zoo:value_loss").value_loss)
    found = loss(value, zero, zero, Context(return_std=np.float16(100.0)))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("name", ["td_weighted_square", "scaled_error_loss"])
def test_a_batch_of_one_has_no_deviation_and_is_finite(name):
    given, _, named = inputs(name)
    given = [x[:1] for x in given]
    context = named["context"]._replace(return_std=given[0].std())
    function = loaded(name)

    def total(given, context):
        return function(*given, context).sum()

    value, slopes = jax.jit(jax.value_and_grad(total))(given, context)
    assert all(np.isfinite(x).all() for x in (value, *slopes))


@pytest.mark.parametrize("dtype", HALF)
def test_directions_of_an_optimizer_have_the_type_of_the_gradient(dtype):
    one = loaded("adam_numbers")
    update = jax.jit(one.update)
    agent = jax.tree.map(lambda x: x.astype(dtype), helper.agent())
    state = one.init(agent)
    for gradient in helper.gradients(0.1, 1e-6, 0.0):
        gradient = jax.tree.map(lambda x, y: y.astype(x.dtype), agent, gradient)
        move, state = update(gradient, state, agent, Context(0.5))
        for x in jax.tree.leaves(move):
            assert x.dtype == dtype
            assert np.isfinite(np.float32(x)).all()
    kept = (x.dtype for x in jax.tree.leaves(state) if hasattr(x, "dtype"))
    assert dtype not in kept


def test_a_reward_takes_one_transition():
    reward = jax.jit(metaevo.load("zoo:potential").reward)
    obs, many = np.zeros(2), np.zeros((5, 2))
    assert reward(obs, 0, 1.0, obs, False).shape == ()
    assert reward(obs, np.zeros(3), 1.0, obs, False).shape == ()  # it is not read
    with pytest.raises(ValueError, match=r"reward has shape \(5,\).*jax.vmap"):
        reward(obs, 0, np.ones(5), obs, False)
    with pytest.raises(ValueError, match=r"obs has shape \(5, 2\).*\(2,\)"):
        reward(many, 0, 1.0, obs, False)


def test_checks_leave_the_program_as_it_is():
    """They are done while JAX traces: what runs is what ran without."""
    checked = metaevo.load("zoo:value_loss").value_loss
    bare = slots.unchecked(checked)
    given = (jnp.ones(3), jnp.ones(3), jnp.ones(3), Context(return_std=2.0))
    one, other = (str(jax.make_jaxpr(f)(*given)) for f in (checked, bare))
    assert one == other


def test_a_loop_calls_the_bare_function():
    loaded = metaevo.load("zoo:value_loss").value_loss
    bare = slots.unchecked(loaded)
    assert bare.func is not loaded.func
    meta = slots.checked(ppo.Meta(value_loss=loaded))
    assert meta.value_loss.func is bare.func
    assert slots.unchecked(meta.value_loss) is meta.value_loss
    assert slots.unchecked(0.5) == 0.5
    assert slots.unchecked(losses.square) is losses.square
    number = meta.value_loss(jnp.ones((2, 1)), jnp.ones(2), 0.0, Context(0.0, 1.0))
    assert number.shape == (2, 2)


def test_an_optimizer_in_a_loop_is_bare():
    one = loaded("adam_numbers")
    bare = slots.unchecked(one)
    assert bare.update.func is one.update.func.unchecked
    assert slots.unchecked(bare) is bare
