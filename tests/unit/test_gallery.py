"""Portraits of numbers, and that portraits are true.

That every operation has one is in `tests/contracts/test_learned_functions.py`.
"""

import jax
import learned as helper
import numpy as np
import pytest

from metaevo import drifts, losses, rewards
from metaevo.analysis.plots import figures, gallery
from metaevo.storage import artifacts, numpy_reference

TUNABLE = {
    "tuned": {"op": "number", "transform": "log", "scale": 0.5},
    "prior": {"op": "number", "prior": "uniform", "low": 0.0, "high": 1.0},
}


def drawn(slot, op, function, params):
    """Its only portrait, and the panels as they were drawn."""
    each = ({slot: x} for x in (function, op, params, (-2, 3)))
    (portrait,) = gallery.gallery(*each)
    seen = []

    def draw(*panels):
        portrait.draw(*panels)
        seen.extend(
            (p.get_xlabel(), p.get_ylabel(), bool(p.has_data())) for p in panels
        )

    return portrait, figures.png(draw, portrait.num_panels, dpi=20), seen


def portrayed(slot, learned):
    params = helper.away(learned)
    return params, *drawn(slot, learned.spec, learned.bind(params), params)


@pytest.mark.parametrize("kind", TUNABLE)
def test_numbers_are_drawn_together(kind):
    op, x = TUNABLE[kind], np.float32(0.6)
    portrait, _, panels = drawn("lr", op, 0.1, x)
    assert panels[0][0]
    moved = 0.3 if kind == "tuned" else 0.6
    assert portrait.table[1][0][2] == pytest.approx(moved)


def column(portrait, name):
    header, rows = portrait.table
    return np.array([row[header.index(name)] for row in rows])


def test_portrait_of_a_drift_holds_the_drift(tmp_path):
    learned = drifts.drift_network()
    params, portrait, *_ = portrayed("drift", learned)
    artifacts.save(tmp_path, {"drift": params}, {"drift": learned.spec}, {}, {})
    mine = numpy_reference.load(tmp_path).drift
    d, a = column(portrait, "log_ratio"), column(portrait, "advantage")
    inputs = d, a, np.full_like(d, 0.2)
    np.testing.assert_allclose(
        column(portrait, "evolved D"), mine(*inputs), rtol=1e-4, atol=1e-4
    )
    slope = mine.gradient(*inputs)[0] / np.exp(d)
    found = column(portrait, "evolved dD/dr")
    # A kink lies on grid points, where either side's slope will do.
    assert np.mean(np.abs(found - slope) < 1e-3) > 0.98


def test_potential_is_drawn_over_the_components_that_move_it():
    learned = rewards.potential([1.0, 2.0, 0.5], (8,))
    params = learned.init(jax.random.key(0))
    # Only the last component is seen.
    params["w0"] = params["w0"].at[:2].set(0.0)
    params["w1"] = params["w1"] + 1.0
    portrait, *_ = drawn("reward", learned.spec, learned.bind(params), params)
    assert "component 2" in portrait.table[0]
    across, phi = column(portrait, "component 2"), column(portrait, "potential")
    assert np.ptp(phi[across == 1.0]) == pytest.approx(0, abs=1e-6)
    assert np.ptp(phi) > 0.1


def test_temporal_function_is_drawn_at_three_moments():
    _, portrait, *_ = portrayed("td_loss", losses.td_network(temporal=True))
    assert {"middle loss", "end of life loss"} <= set(portrait.table[0])
