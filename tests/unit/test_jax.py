"""Interfaces of JAX that `metaevo._jax` holds, in the installed version."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from metaevo import _jax


@pytest.mark.parametrize("over", [1, 2])
def test_operands_of_a_scan_are_counted_in_each_jax(over):
    """JAX 0.11 has no `num_consts` and `num_carry` any more."""

    def fn(scale, *arrays):
        return jax.lax.scan(lambda c, x: (c + scale * x[0], c), 0.0, arrays)

    x = jax.ShapeDtypeStruct((3,), jnp.float32)
    traced = jax.make_jaxpr(fn)(jax.ShapeDtypeStruct((), jnp.float32), *over * [x])
    (scan,) = (e for e in traced.jaxpr.eqns if e.primitive.name == "scan")
    assert _jax.scan_sizes(scan.params) == (1, 1)
    parts = ((None,), (None,), (None,) * over)
    later = {"ft_in": SimpleNamespace(unpack=lambda: parts)}
    assert _jax.scan_sizes(later) == (1, 1)


def test_one_equation_runs_alone():
    closed = jax.make_jaxpr(lambda x, y: jnp.sin(x) * y * y)(2.0, 3.0)
    *_, product = closed.jaxpr.eqns
    alone, inputs = _jax.one_equation(closed.jaxpr, product)
    assert len(inputs) == 2
    assert jax.extend.core.jaxpr_as_fun(alone)(2.0, 3.0) == [6.0]


def test_no_client_without_a_distributed_job():
    assert _jax.distributed_client() is None
