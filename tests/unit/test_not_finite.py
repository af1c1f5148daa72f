"""The operation that made the first number that is not finite is found."""

import inspect

import jax
import jax.numpy as jnp
import pytest

from metaevo.engine import not_finite


def loops(x):
    """The third iteration takes the logarithm of a negative number."""

    def body(carry, _):
        x, unused = carry
        x = jnp.log(x)  # 20 -> 3.0 -> 1.1 -> 0.09 -> NaN
        return (x, unused / 0.0), (unused * jnp.nan).sum()

    (x, _), ys = jax.lax.scan(body, (x, jnp.ones(2)), None, 6)
    return {"x": x * 2.0}, ys


def inside_cond(x):
    return jax.lax.cond(x[0] > 0, lambda x: x / (x - x[0]), lambda x: x, x)


def inside_jit_and_gradient(x):
    return jax.grad(lambda x: jax.jit(jnp.sqrt)(x).sum())(x)


def inside_while(x):
    return jax.lax.while_loop(lambda x: x[0] < 1e38, lambda x: x * 1e30, x)


def inside_while_that_closes_over(x):
    bound, factor = x[0] * 1e30, x * 1e20
    return jax.lax.while_loop(lambda x: x[0] < bound, lambda x: x * factor, x)


def through_vmap(x):
    return jax.vmap(lambda x: jnp.where(x > 0, x, jnp.arccosh(x)))(x)


@pytest.mark.parametrize(
    ("fn", "x", "operation", "text"),
    [
        (lambda x: loops(x)[0], jnp.full(2, 20.0), "log", "jnp.log(x)"),
        (inside_cond, jnp.ones(2), "div", "x / (x - x[0])"),
        (inside_jit_and_gradient, jnp.zeros(1), "div", "jnp.sqrt"),
        (inside_while, jnp.full(1, 1e-8), "mul", "x * 1e30"),
        (inside_while_that_closes_over, jnp.full(1, 1e4), "mul", "x * factor"),
        (through_vmap, jnp.array([-1.0, 0.5]), "acosh", "jnp.arccosh"),
    ],
)
def test_origin_is_the_line_that_made_it(fn, x, operation, text):
    found = not_finite.find(fn, x)
    assert found is not None
    assert found.operation == operation
    assert found.file == __file__
    line = inspect.getsource(inspect.getmodule(loops)).splitlines()[found.line - 1]
    assert text in line


def test_numbers_that_the_result_does_not_use_do_not_count():
    """In `loops` another carry and the stacked output are bad from the start."""
    assert not_finite.find(lambda x: loops(x)[0], jnp.full(2, 20.0)).operation == "log"
    assert not_finite.find(lambda x: loops(x)[1], jnp.full(2, 20.0)).operation != "log"


def test_finite_result_and_bad_argument_have_no_origin():
    assert not_finite.find(jnp.sin, jnp.ones(2)) is None
    assert not_finite.find(lambda x: x + 1, jnp.array([jnp.nan])) is None
