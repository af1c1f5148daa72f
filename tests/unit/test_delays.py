"""The ring of past parameters, against a list of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaevo.rl import delays
from metaevo.slots import Context

MOST = 3


def params(update):
    return {"w": jnp.full((2, 3), 1.0 + update), "b": jnp.float32(update)}


@pytest.mark.parametrize("born", [0, 5])
def test_the_params_of_any_delay_are_those_of_that_update(born):
    """Also of members born when the clock stood elsewhere."""
    history = [params(100)]
    past = delays.start(history[0], MOST)
    read = jax.jit(delays.read)
    for update in range(born, born + 9):
        for delay in range(MOST + 1):
            found = read(past, update, history[-1], jnp.int32(delay))
            expected = history[max(len(history) - 1 - delay, 0)]
            jax.tree.map(np.testing.assert_array_equal, found, expected)
        past = delays.push(past, jnp.int32(update), history[-1])
        history.append(params(update))


def test_without_a_delay_nothing_is_kept():
    past = delays.start(params(0), 0)
    assert jax.tree.leaves(past) == []
    assert delays.push(past, jnp.int32(0), params(0)) == past
    found = delays.read(past, jnp.int32(3), params(7), jnp.int32(0))
    jax.tree.map(np.testing.assert_array_equal, found, params(7))


def test_members_with_delays_of_their_own_read_their_own():
    """And the write stays one slice: the clock is not a member's."""
    past = jax.vmap(lambda x: delays.start(params(x), MOST))(jnp.arange(4))
    now = jax.vmap(lambda x: params(10 + x))(jnp.arange(4))

    def step(past, update, now, delay):
        past = delays.push(past, update, now)
        return past, delays.read(past, update + 1, now, delay)

    over = jax.vmap(step, (0, None, 0, 0))
    _, found = over(past, jnp.int32(0), now, jnp.array([0, 1, 2, 3]))
    np.testing.assert_array_equal(found["b"], [10, 11, 2, 3])
    written = str(jax.make_jaxpr(over)(past, jnp.int32(0), now, jnp.arange(4)))
    assert "dynamic_update_slice" in written
    assert "scatter" not in written


def test_a_delay_is_rounded_and_kept_in_range():
    context = Context(0.5)

    def bounded(slot):
        return int(delays.bounded(slot, MOST, context))

    assert [bounded(x) for x in (0.0, 1.4, 1.6, 99.0, -5.0)] == [0, 1, 2, 3, 0]
    assert bounded(None) == MOST
    assert bounded(jax.tree_util.Partial(lambda context: 4 * context.progress)) == 2
