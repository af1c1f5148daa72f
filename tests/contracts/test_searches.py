"""The searches of the folder: each fits together."""

import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from metaevo import losses, population
from metaevo.engine import checks
from metaevo.slots import Context

FOLDER = Path(__file__).parents[2] / "searches"
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))


def load(name):
    return importlib.import_module(f"searches.{name}").search


@pytest.mark.parametrize("name", NAMES)
def test_every_search_passes_the_checks_as_it_is(name):
    search = load(name)()
    shapes = checks.check(search)
    assert population.size(shapes.params) >= 2


# --- the learned loss of a temporal difference ----------------------------------------

DELTA = jnp.linspace(-40, 40, 81)
Q = jnp.linspace(-5, 5, 81)


@pytest.mark.parametrize("base", ["td_square", "td_huber"])
def test_the_start_is_the_hand_made_loss(base):
    learned = losses.td_network(base)
    assert learned.starts_hand_made
    start = learned.bind(learned.init(jax.random.key(0)))
    hand_made = losses.HAND_MADE_TD[base]

    def gradient(loss):
        # As algorithms differentiate it: with respect to Q, the target held.
        return jax.vmap(jax.grad(lambda q, y: loss(y - q, q, y, Context())))(
            Q, DELTA + Q
        )

    np.testing.assert_array_equal(
        start(DELTA, Q, DELTA + Q), hand_made(DELTA, Q, DELTA + Q)
    )
    np.testing.assert_allclose(gradient(start), gradient(hand_made), rtol=1e-6)


def test_dqnreg_is_a_member_of_the_family():
    """δ² + 0.1 Q, the positive control, up to its factor of 2."""
    learned = losses.td_network("td_square")
    params = learned.init(jax.random.key(0)) | {"tilt": jnp.float32(0.05)}
    found = 2 * learned.bind(params)(DELTA, Q, DELTA + Q)
    np.testing.assert_allclose(found, DELTA**2 + 0.1 * Q, rtol=1e-5, atol=1e-5)
