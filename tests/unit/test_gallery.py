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


def drawn(slot, op, params):
    """Its only portrait, and the panels as they were drawn."""
    each = ({slot: x} for x in (op, params, (-2, 3)))
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
    return params, *drawn(slot, learned.spec, params)


@pytest.mark.parametrize("kind", TUNABLE)
def test_numbers_are_drawn_together(kind):
    op, x = TUNABLE[kind], np.float32(0.6)
    portrait, _, panels = drawn("lr", op, x)
    assert panels[0][0]
    moved = 0.3 if kind == "tuned" else 0.6
    assert portrait.table[1][0][1] == pytest.approx(moved)


def column(portrait, name):
    header, rows = portrait.table
    return np.array([x for row in rows if (x := row[header.index(name)]) != ""])


def test_portrait_of_a_drift_holds_the_drift(tmp_path):
    learned = drifts.drift_network()
    params, portrait, *_ = portrayed("drift", learned)
    artifacts.save(tmp_path, {"drift": params}, {"drift": learned.spec}, {}, {})
    mine = numpy_reference.load(tmp_path).drift
    both = "D(r, A), evolved"
    r, a = (column(portrait, f"{both}: {x}") for x in ("ratio r", "advantage A"))
    np.testing.assert_allclose(
        column(portrait, both),
        mine(np.log(r), a, np.full_like(r, 0.2)),
        rtol=1e-4,
        atol=1e-4,
    )
    r = column(portrait, "ratio r")
    slope = mine.gradient(np.log(r), np.ones_like(r), np.full_like(r, 0.2))[0] / r
    found = column(portrait, "dD/dr at A = 1: evolved")
    # A kink lies on grid points, where either side's slope will do.
    assert np.mean(np.abs(found - slope) < 1e-3) > 0.98


def test_potential_is_drawn_over_the_components_that_move_it():
    learned = rewards.potential([1.0, 2.0, 0.5], (8,))
    params = learned.init(jax.random.key(0))
    # Only the last component is seen.
    params["w0"] = params["w0"].at[:2].set(0.0)
    params["w1"] = params["w1"] + 1.0
    portrait, *_ = drawn("reward", learned.spec, params)
    phi = column(portrait, "potential, other inputs 0")
    across = column(portrait, "potential, other inputs 0: component 2")
    assert across.max() == 0.5  # its unit
    assert np.ptp(phi[across == 0.5]) == pytest.approx(0, abs=1e-6)
    changes = column(portrait, "mean change of the potential")
    np.testing.assert_array_equal(changes > 0, [False, False, True])
    assert np.ptp(phi) > 0.1


def test_temporal_function_is_drawn_at_three_moments():
    _, portrait, *_ = portrayed("td_loss", losses.td_network(temporal=True))
    names = "evolved, start", "middle", "end of life", "hand-made"
    assert {f"gradient: {name}" for name in names} <= set(portrait.table[0])


def test_a_slot_that_follows_the_number_of_another_is_not_drawn():
    number = {"op": "number"}
    spec = {"lr": number, "max_grad_norm": number}
    (portrait,) = gallery.gallery(spec, {"lr": 0.25, "max_grad_norm": {}})
    assert portrait.table[1] == [("lr", 0.25)]
