"""Portraits: one for every operation, drawn with names on its axes, and true."""

import jax
import numpy as np
import pytest
import test_export

from metaevo.analysis.plots import figures, gallery
from metaevo.storage import artifacts, numpy_reference

KINDS = {
    name: (case.slot, case.learned) for name, case in test_export.FUNCTIONS.items()
}
KINDS |= {name: ("optimizer", f) for name, f in test_export.OPTIMIZERS.items()}
TUNABLE = {
    "tuned": {"op": "number", "transform": "log", "scale": 0.5},
    "prior": {"op": "number", "prior": "uniform", "low": 0.0, "high": 1.0},
}


def drawn(slot, op, function, params):
    """Its only portrait, and the panels as they were drawn."""
    (portrait,) = gallery.gallery({slot: function}, {slot: op}, {slot: params}, (-2, 3))
    seen = []

    def draw(*panels):
        portrait.draw(*panels)
        seen.extend(
            (p.get_xlabel(), p.get_ylabel(), bool(p.has_data())) for p in panels
        )

    return portrait, figures.png(draw, portrait.num_panels), seen


def portrayed(name):
    slot, learned = KINDS[name]
    params = jax.tree.map(np.asarray, test_export.off_its_start(learned))
    return params, *drawn(slot, learned.spec, learned.bind(params), params)


@pytest.mark.parametrize("name", KINDS)
def test_everything_that_evolves_has_a_portrait(name):
    _, portrait, png, panels = portrayed(name)
    assert png.startswith(b"\x89PNG")
    assert len(panels) == portrait.num_panels
    assert all(x and y and data for x, y, data in panels), panels
    header, rows = portrait.table
    assert len(rows) > 0
    assert all(len(row) == len(header) for row in rows)
    numbers = [x for row in rows for x in row if not isinstance(x, str)]
    assert np.isfinite(numbers).all()
    assert portrait.caption.endswith(".")


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


def test_what_is_drawn_of_a_drift_is_the_drift(tmp_path):
    params, portrait, *_ = portrayed("drift_network")
    learned = KINDS["drift_network"][1]
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


def test_a_potential_is_drawn_over_the_components_that_matter():
    from metaevo import rewards

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


def test_a_temporal_function_is_drawn_thrice():
    _, portrait, *_ = portrayed("td_network temporal")
    assert {"middle loss", "end of life loss"} <= set(portrait.table[0])
