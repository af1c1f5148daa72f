"""Closed forms are kept where agents train with them as with what was found."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import metaevo
from metaevo import closed_forms, fitness, losses
from metaevo.analysis import distill
from metaevo.errors import ConfigError
from metaevo.slots import Context
from metaevo.storage import artifacts
from metaevo.types import InnerLoop, InnerState

KEY = jax.random.key(0)

# --- the decision ---------------------------------------------------------------------

SCORES = np.random.default_rng(0).normal(10.0, 1.0, 32)


@pytest.mark.parametrize(
    ("closed", "kept"),
    [
        (SCORES, True),
        (SCORES + 0.1, True),
        (SCORES - 2.0, False),
        (SCORES + 2.0, False),  # it does better, but it is not what was found
        (np.where(np.arange(32) < 2, np.nan, SCORES), False),
        (np.full(32, np.nan), False),
    ],
)
def test_a_form_has_to_be_equivalent(closed, kept):
    found = distill.equivalence(SCORES, closed, 0.75)
    assert (found.refused_for is None) == kept
    assert found.num_failed[0] == 0
    if found.num_pairs == 32:
        assert found.margin == pytest.approx(0.75 * SCORES.std(ddof=1))


def test_where_the_original_fails_as_often_it_is_no_worse():
    failing = np.where(np.arange(32) < 2, np.nan, SCORES)
    assert distill.equivalence(failing, failing, 0.75).refused_for is None


def test_noisy_seeds_refuse_a_form_and_do_not_keep_it():
    rng = np.random.default_rng(0)
    closed = SCORES + rng.normal(0.0, 5.0, 32)
    found = distill.equivalence(SCORES, closed, 0.75)
    assert "not shown" in found.refused_for


# --- with agents of one number --------------------------------------------------------


class Meta(NamedTuple):
    value_loss: Any = losses.square
    lr: Any = 0.1


def descent() -> InnerLoop:
    """A value goes down its loss, from somewhere in ±3; the return is -|value|."""

    def init(key, meta):
        del meta
        return InnerState(jax.random.uniform(key, (), minval=-3.0, maxval=3.0), ())

    def train(key, meta, state):
        del key
        slope = jax.grad(lambda v: meta.value_loss(v, 0.0, v, Context()))

        def step(v, _):
            return jnp.clip(v - 0.02 * slope(v), -9, 9), None

        value, _ = jax.lax.scan(step, state.agent, length=500)
        metrics = {"return": -jnp.abs(value), "episodes": jnp.ones(())}
        return state._replace(agent=value), metrics

    def evaluate(key, meta, state):
        del key, meta
        return {"return": -jnp.abs(state.agent), "length": jnp.ones(())}

    return InnerLoop(Meta(), init, train, evaluate, 1, None, frames_per_segment=500)


def found(folder, learned, params, **numbers):
    """A finished run, as far as `distill` looks at it."""
    params = {"value_loss": jax.tree.map(np.float32, params)}
    spec = {"value_loss": learned.spec}
    for name in numbers:
        spec[name] = {"op": "number", "transform": "log", "scale": 1.0}
        params[name] = np.float32(0.0)
    artifacts.save(folder / "solution", params, spec, numbers, {"search": "test"})
    return folder


def distilled(folder, said=None, **options):
    search = metaevo.Search(descent(), None, None, 1, fitness.final_return)
    given = {"num_seeds": 64, "seed": 0} | options
    say = said.append if said is not None else lambda line: None
    return distill.distill(search, folder, devices=jax.devices()[:1], say=say, **given)


def constants(**given):
    return jax.tree.map(float, closed_forms.error_loss("zero").init(KEY)) | given


def test_a_loss_of_the_family_is_kept(tmp_path):
    known = {"huber": 1.3, "knee": 0.8, "tilt": 0.4}
    learned = closed_forms.error_loss("zero")
    found(tmp_path, learned, constants(**known), lr=0.25)
    said = []
    lines = distilled(tmp_path, said)
    assert said == ["training 128 agents for 500 frames each"]
    assert lines[0] == (
        "value_loss: 1.3 Huber(x; 0.8) + 0.4 x,  x = value - target  (R² 1.0000)"
    )
    assert "tolerated ±" in lines[1]
    assert "(90 % interval, 64 paired seeds)" in lines[1]
    assert lines[-1] == f"kept: {tmp_path / 'closed_form'}"
    artifact = metaevo.load(tmp_path / "closed_form")
    for name, x in known.items():
        assert float(artifact.value_loss.args[0][name]) == pytest.approx(x, abs=1e-3)
    assert artifact.lr == 0.25  # what is no function stays as it is
    says = artifact.manifest["provenance"]["closed_form"]["forms"]["value_loss"]
    assert says["formula"].startswith("1.3 Huber")
    assert artifact.manifest["provenance"]["search"] == "test"
    assert metaevo.load(tmp_path).manifest["provenance"] == {"search": "test"}


def test_a_loss_far_from_the_family_is_refused(tmp_path):
    """A square with a wall at ±1: who starts outside stays there."""
    learned = losses.residual_network("square", (2,), scale=1.0, limit=8.0)
    params = {
        "w0": [[4.0, 4.0]],
        "b0": [-4.0, 4.0],
        "w1": [[-2.0], [2.0]],
        "b1": [0.0],
    }
    found(tmp_path, learned, {name: np.float32(x) for name, x in params.items()})
    # One that was kept before, of another solution.
    found(tmp_path / "old", closed_forms.error_loss("zero"), constants(square=0.5))
    (tmp_path / "old" / "solution").rename(tmp_path / "closed_form")
    lines = distilled(tmp_path, margin=0.25)
    assert lines[-1] == (
        "refused: agents are not shown to train with it as with the original"
    )
    facts = distill.read(tmp_path)
    assert not facts["kept"]
    assert 0.0 < facts["forms"]["value_loss"]["r2"] < 0.9
    assert facts["checks"][0]["original"] < -0.7
    with pytest.raises(metaevo.ArtifactError, match="no artifact here"):
        metaevo.load(tmp_path / "closed_form")


def test_what_has_no_closed_form_is_said_before_anything_is_trained(tmp_path):
    learned = losses.residual_network(temporal=True)
    found(tmp_path, learned, learned.init(KEY))
    with pytest.raises(ConfigError, match="has a closed form"):
        distilled(tmp_path)
    together = descent()._replace(coupled=True)
    search = metaevo.Search(together, None, None, 1, fitness.final_return)
    with pytest.raises(ConfigError, match="coupled"):
        distill.distill(search, tmp_path, 16, 0, jax.devices())


def test_too_few_seeds_are_refused(tmp_path):
    found(tmp_path, closed_forms.error_loss("zero"), constants(square=0.5))
    with pytest.raises(ConfigError, match="seeds=15 must be at least 16"):
        distilled(tmp_path, num_seeds=15)
