"""Formulas: text, instructions, the machine, and what they stand for in slots."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaevo import drifts, formulas, losses, spaces
from metaevo.errors import ConfigError
from metaevo.learned import language, rescalings
from metaevo.slots import Context

LEAVES = ("d", "q", "y")
NOW = Context(progress=0.25, return_std=2.0)
FAMILIES = [
    (slot, family) for slot in formulas.SLOTS for family in formulas.families(slot)
]


def value(text, **leaves):
    formula = language.parse(text, LEAVES)
    given = [np.float32(leaves.get(name, 0.0)) for name in LEAVES]
    return float(language.run(formula, formula.constants, given))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.5*d**2 + 0.1*q", 0.5 * 9 - 0.2),
        ("-d", -3.0),
        ("d/4 - q", 2.75),
        ("d**3 + q**4", 43.0),
        ("ratio(q, d)", -6 / 9.01),
        ("max(d, q) - min(d, q)", 5.0),
        ("gate(d, q) + gate(q, d)", -2.0),
        ("abs(q) + log1p(q)", 2 + np.log(3)),
        ("exp(9*d) + tanh(q)", np.exp(6) + np.tanh(-2)),
        ("a = d*q; a*a - a", 42.0),
        ("1000*(d*1000)**2", 1e9),
    ],
)
def test_text_has_its_value(text, expected):
    """By hand, at d = 3 and q = -2; a value stays within a billion."""
    np.testing.assert_allclose(value(text, d=3.0, q=-2.0), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("d - d + q*1 + 0", "q"),
        ("(d + q)*(d - q)", "(d + q)*(d - q)"),
        ("d - (q - y)", "d - (q - y)"),
        ("2*3 + max(q, q)", "6 + q"),
        ("abs(d**2)*d*d", "d**2*d*d"),
        ("(d*q)**2", "(d*q)**2"),
        ("a = tanh(d); a*q + a*y", "x1 = tanh(d); x1*q + x1*y"),
        ("gate(-1, d) + y", "y"),
        ("d**4", "(d**2)**2"),
        ("((d**2)**2)**2", "((d**2)**2)**2"),
        ("d + (q + y)", "d + (q + y)"),
        ("2*(3*d)", "2*(3*d)"),
        ("log1p(abs(d)) + abs(exp(d))", "log1p(d) + exp(d)"),
    ],
)
def test_text_is_simplified(text, shown):
    found = language.text(language.parse(text, LEAVES))
    assert found == shown
    assert language.text(language.parse(found, LEAVES)) == found
    inputs = {"d": 0.7, "q": -1.3, "y": 2.1}
    np.testing.assert_allclose(value(found, **inputs), value(text, **inputs), rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("d/q", r"ratio\(x, y\)"),
        ("d**q", "a power is 2, 3 or 4"),
        ("foo(d)", "unknown operation 'foo'; there are ratio"),
        ("z + 1", "unknown name 'z'; there are d, q, y"),
        ("max(d)", "max takes 2 arguments"),
        ("1e10*d", "a number beyond"),
        ("d.real", "not part of a formula"),
        ("[d]", "not part of a formula"),
        ("True", "not part of a formula"),
        ("(lambda: d)()", "not part of a formula"),
        ("__import__('os').system('x')", "not part of a formula"),
        ("import os; d", "before the last part"),
        ("d = q; d", "'d' is given twice"),
        ("a = d", "ends without a value"),
        ("", "ends without a value"),
        ("(" * 500 + "d" + ")" * 500, "no expression"),
        ("d +", "no expression"),
        ("d" + "+d" * 3000, "longer than 4,000"),
        ("".join(f"a{i}=a{i - 1}**3;" for i in range(1, 80)) + "a79", "unknown name"),
        (
            "a0=d**3;" + "".join(f"a{i}=a{i - 1}**3;" for i in range(1, 80)) + "a79",
            "160 operations",
        ),
    ],
)
def test_what_is_no_formula_is_refused(text, why):
    with pytest.raises(ConfigError, match=why):
        language.parse(text, LEAVES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "0.5*d**2 - ratio(q, y)*(q + 1)",
            r"0.5 \, \delta^2 - \frac{Q \, y}{y^2 + 0.01} \, (Q + 1)",
        ),
        ("ratio(q, d*y)", r"\frac{Q \, (\delta \, y)}{(\delta \, y)^2 + 0.01}"),
        ("exp(d)**2 + d**4", r"(e^{\delta})^2 + (\delta^2)^2"),
        ("ratio(q, y)**2", r"(\frac{Q \, y}{y^2 + 0.01})^2"),
        ("gate(d, q) - log1p(y)", r"[\delta > 0] \, Q - \log(1 + |y|)"),
        ("max(d, -2)*q", r"\max(\delta, -2) \, Q"),
    ],
)
def test_latex(text, expected):
    formula = language.parse(text, LEAVES)
    assert language.latex(formula, {"d": r"\delta", "q": "Q"}) == expected


def test_the_text_of_any_program_is_read_back():
    """Random programs: the text has the program's values, and is its own text."""
    rng = np.random.default_rng(0)
    inputs = list(np.float32(3 * rng.normal(size=(3, 50))))
    draw = jax.jit(lambda key: language.random_instructions(key, 12, 3, (1.0, 0.1, -2)))
    for i in range(60):
        params = jax.device_get(draw(jax.random.key(i)))
        program = language.of_arrays(params, LEAVES)
        text = language.text(program)
        again = language.parse(text, LEAVES)
        assert language.text(again) == text
        expected = language.run(program, program.constants, inputs)
        found = language.run(again, again.constants, inputs)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=text)


# --- the machine ----------------------------------------------------------------------


@functools.cache
def machine(slot, family):
    """A function of programs, its mutation and its formula, compiled once."""
    start = "0.01" if slot == "number" else None
    made = formulas.expression(slot, family=family, start=start)
    moves = formulas.moved_inputs(slot)

    @jax.jit
    def both(params, *inputs):
        def total(*x):
            found = made.apply(params, *x, NOW)
            return found.sum(), found

        if not moves:
            return total(*inputs)[1], ()
        (_, found), slopes = jax.value_and_grad(total, moves, has_aux=True)(*inputs)
        return found, slopes

    return made, jax.jit(made.programs.mutate), both


def inputs_of(slot):
    rng = np.random.default_rng(3)
    given = [
        jnp.asarray(rng.normal(size=9), jnp.float32)
        for _ in range(formulas.num_inputs(slot))
    ]
    if slot == "td_loss":
        given[0] = given[2] - given[1]
    elif slot == "actor_loss":
        given[1] = jnp.stack([given[1], given[0]], -1)
    elif slot == "rescale":
        given[0] *= 30
    return given


@pytest.mark.parametrize(("slot", "family"), FAMILIES)
def test_a_program_is_its_formula(slot, family):
    """Values and slopes of the machine are those of the text that it settles to."""
    made, mutate, both = machine(slot, family)
    inputs, params = inputs_of(slot), made.init(jax.random.key(1))
    moves = formulas.moved_inputs(slot)
    for i in range(61):
        params = mutate(jax.random.fold_in(jax.random.key(2), i), params)
        if i % 30:
            continue
        kept, numbers = made.programs.settled(params)

        def total(*x, kept=kept, numbers=numbers):
            if slot == "td_loss":  # the agent moves Q, and the error with it
                x = (x[2] - x[1], *x[1:])
            values = kept.apply(numbers, *x, NOW)
            return values.sum(), values

        found, slopes = both(params, *inputs)
        if moves:
            slopes_and_values = jax.grad(total, moves, has_aux=True)
            expected_slopes, expected = slopes_and_values(*inputs)
        else:
            expected_slopes, expected = (), kept.apply(numbers, *inputs, NOW)
        text = kept.spec["text"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=text)
        for slope, expected in zip(slopes, expected_slopes, strict=True):
            np.testing.assert_allclose(slope, expected, rtol=2e-3, atol=1e-4)


HAND_MADE = {
    ("td_loss", "weighted"): losses.td_square,
    ("td_loss", "free"): losses.td_square,
    ("value_loss", "weighted"): losses.square,
    ("value_loss", "free"): losses.square,
    ("actor_loss", "free"): losses.minus_q,
    ("rescale", "increasing"): rescalings.signed_root,
    ("q_transform", "increasing"): lambda q: jnp.clip(q, 0.0, 1.0),
    **{("drift", name): one for name, one in drifts.HAND_MADE.items()},
}


@pytest.mark.parametrize(("slot", "family"), HAND_MADE)
def test_programs_start_as_the_hand_made_function(slot, family):
    made, _, both = machine(slot, family)
    inputs = inputs_of(slot)
    found, _ = both(made.init(jax.random.key(0)), *inputs)
    expected = HAND_MADE[slot, family](*inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    assert made.starts_hand_made == (family not in ("dpo", "zero"))


@pytest.mark.parametrize(
    ("slot", "low", "high"), [("rescale", -400, 400), ("q_transform", 0, 1)]
)
def test_increasing_functions_increase_whatever_the_formula(slot, low, high):
    x = np.linspace(low, high, 301, dtype=np.float32)
    for text in ("-20 + 9*t", "tanh(9*%s) - t", "9 - abs(9*%s)"):
        name = "h" if slot == "rescale" else "q"
        found = jax.jit(formulas.fixed(slot, text.replace("%s", name)))(x, NOW)
        assert (np.diff(found) > 0).all(), text
        assert float(found[150 if slot == "rescale" else 0]) == 0.0


def test_a_number_follows_its_formula():
    number = formulas.fixed("number", "0.002*(1 - t)")
    np.testing.assert_allclose(number(NOW), 0.0015, rtol=1e-6)
    with pytest.raises(ConfigError, match="give the text of its start"):
        formulas.expression("number")


def identity(text, family="free", slot="td_loss"):
    return np.asarray(
        formulas.behaviour(slot, formulas.fixed(slot, f"{family}:{text}"))
    )


def test_step_sizes_in_disguise_are_one_behaviour():
    square = identity("0.5*d**2")
    assert square.any()
    np.testing.assert_array_equal(identity("7*d**2 + 3"), square)
    np.testing.assert_array_equal(identity("0.3", "weighted"), square)
    np.testing.assert_array_equal(identity("0.5*d**2 + y"), square)
    for other in ("0.5*d**2 + 0.1*q", "abs(d)", "-d**2", "0.5*d**2 + gate(d, d**2)"):
        assert (identity(other) != square).any()


def test_nothing_is_learned_from_what_the_agent_does_not_move():
    for text in ("3", "y**2", "t*y"):
        assert not identity(text).any()


def test_a_drift_with_twice_the_size_is_another():
    one, two = (identity(x, "zero", "drift") for x in ("max(A, 0)", "2*max(A, 0)"))
    assert (one != two).any()


def test_mutation_keeps_operands_before_their_instruction():
    made, mutate, _ = machine("td_loss", "free")
    params = made.init(jax.random.key(0))
    first = 4 + len(params["constants"])
    seen = set()
    for i in range(200):
        params = mutate(jax.random.fold_in(jax.random.key(5), i), params)
        places = first + np.arange(len(params["op"]))
        for name in ("a", "b"):
            assert (params[name] < places).all()
            assert (params[name] >= 0).all()
        seen |= set(np.asarray(params["op"]).tolist())
    assert seen == set(map(float, range(len(language.OPERATIONS))))


def test_programs_and_numbers_evolve_together():
    space = spaces.combine(
        spaces.replace(td_loss=formulas.expression("td_loss")),
        spaces.tune(lr=spaces.log()),
    )
    programs = space.programs
    assert programs is not None
    start, mutate = space.init(jax.random.key(0)), jax.jit(programs.mutate)
    changed = set()
    for i in range(12):
        after = mutate(jax.random.key(i), start)
        differs = jax.tree.map(lambda a, b: (a != b).any(), start, after)
        changed |= {name for name in start if any(jax.tree.leaves(differs[name]))}
    assert changed == {"td_loss", "lr"}
    moved = start | {"lr": jnp.float32(1.0)}
    assert (programs.behaviour(moved) != programs.behaviour(start)).any()
    kept, params = programs.settled(moved)
    assert kept.spec["td_loss"]["text"] == "0"
    assert kept.spec["lr"]["op"] == "number"
    assert params["lr"] == 1.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"slot": "reward"}, "slot='reward': expected one of td_loss"),
        ({"slot": "td_loss", "family": "x"}, "family='x': expected one of weighted"),
        ({"slot": "td_loss", "length": 17}, "length=17 must be in"),
        (
            {"slot": "td_loss", "length": 1, "start": "d*q + y"},
            "a formula of 2 operations; length=1",
        ),
        ({"slot": "td_loss", "start": "d/"}, "no expression"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        formulas.expression(**wrong).init(jax.random.key(0))


def test_a_network_and_a_program_do_not_evolve_together():
    network = losses.td_network()
    program = formulas.expression("value_loss")
    with pytest.raises(ConfigError, match="search one after the other"):
        spaces.replace(td_loss=network, value_loss=program)
