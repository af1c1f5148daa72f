"""Members of a generation that are stopped early."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from metaevo import fitness
from metaevo.engine import checks
from metaevo.errors import ConfigError
from metaevo.evaluators import stages
from metaevo.evaluators.local import LocalEvaluator
from metaevo.fitness import Halving
from metaevo.types import Proposal, Search
from strategies.snes import snes

QUARTERS = Halving(4, factor=2)  # rungs at 1 and 2
KEY = jax.random.key(1)
LOOP = toys.quadratic(num_segments=8)


def search(loop=LOOP, **options):
    given = {"fitness": fitness.area_under_curve, "num_generations": 1, **options}
    return Search(loop, toys.space(), snes(toys.space(), 10, 0.1), **given)


def proposal(size=10):
    return Proposal({"lr": jnp.linspace(-3.0, -1.0, size)})


def evaluated(num_devices=1, given=None, **options):
    devices = jax.devices()[:num_devices]
    evaluator = LocalEvaluator(search(chunk_size=2, **options), devices)
    found, _ = evaluator(KEY, proposal() if given is None else given, ())
    assert evaluator.programs["run/0"]._cache_size() == 1  # trains all stages
    return found


def test_those_that_live_on_are_the_best_and_have_the_scores_of_whole_lives():
    whole = evaluated(num_seeds=2)
    some = evaluated(num_seeds=2, stopping=QUARTERS)
    lived = np.isfinite(np.asarray(some.train[0]["return"])).all((0, 2))
    assert lived.sum() == stages.lengths(search(stopping=QUARTERS), 10)[-1] == 3
    curves = np.asarray(whole.train[0]["return"])
    halves = np.isfinite(np.asarray(some.train[0]["return"])).sum(2)[0]
    assert sorted(halves) == [2] * 5 + [4] * 2 + [8] * 3
    early = np.argsort(-curves[..., :2].mean((0, 2)))[:5]
    assert {*np.flatnonzero(halves > 2)} == {*early}
    later = early[np.argsort(-curves[:, early, :4].mean((0, 2)))[:3]]
    assert {*np.flatnonzero(lived)} == {*later}
    np.testing.assert_allclose(
        some.fitness[0][:, lived], whole.fitness[0][:, lived], rtol=1e-5
    )
    np.testing.assert_allclose(
        np.asarray(some.train[0]["return"])[:, lived], curves[:, lived], rtol=1e-5
    )
    # Stopped ones have their own scores, but at most the least of whole lives.
    least = some.fitness[0][:, lived].min(1, keepdims=True)
    own = curves[:, halves == 2, :2].mean(2)
    expected = np.minimum(own, least)
    np.testing.assert_allclose(some.fitness[0][:, halves == 2], expected, rtol=1e-5)
    assert some.healthy.all()


def test_devices_do_not_change_the_bits_of_those_that_are_stopped():
    one, four = (evaluated(n, num_seeds=2, stopping=QUARTERS) for n in (1, 4))
    jax.tree.map(np.testing.assert_array_equal, one[:2], four[:2])
    jax.tree.map(np.testing.assert_array_equal, one.train, four.train)


def test_failed_members_are_stopped_first_and_stay_failed():
    loop = toys.quadratic(num_segments=8, fail_below=0.01)
    found = evaluated(loop=loop, stopping=Halving(2, keep=0.5))
    failed = ~np.isfinite(found.fitness[0, 0])
    assert failed.sum() == 4
    lived = np.isfinite(np.asarray(found.train[0]["return"]))[0, :, -1]
    assert lived.sum() == 5
    assert not (failed & lived).any()
    np.testing.assert_array_equal(found.healthy[0, 0], ~failed)


def test_equal_members_are_stopped_by_lot():
    """By place the mirror images, which are the second half, would always be."""
    stopped = np.zeros(10)
    given = search(stopping=Halving(2, factor=2), common_random_numbers=True)
    evaluator = LocalEvaluator(given)
    for seed in range(20):
        equal = Proposal({"lr": jnp.full(10, -1.0)})
        found, _ = evaluator(jax.random.key(seed), equal, ())
        stopped += np.isnan(np.asarray(found.train[0]["return"]))[0, :, -1]
    assert stopped.sum() == 100
    assert 2 < stopped[:5].sum() / 10 < 8


def test_frames_are_those_that_are_trained():
    whole, some = search(), search(stopping=QUARTERS)
    assert stages.lengths(some, 10) == [10, 5, 3, 3]
    ratio = checks.frames_per_generation(some, 10) / checks.frames_per_generation(
        whole, 10
    )
    assert ratio == (10 + 5 + 3 + 3) / 40


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (
            r"halving=3\): the horizon must divide the 8 segments",
            {"stopping": Halving(3)},
        ),
        ("known at the end of a life alone", {"fitness": fitness.final_return}),
        ("only newborn members", {"segments_per_generation": 2}),
        ("only newborn members", {"loop": toys.shared_critic()}),
        ("first=4 must be below horizon=4", {"stopping": Halving(4, first=4)}),
    ],
)
def test_what_cannot_be_stopped_is_refused(words, options):
    with pytest.raises(ConfigError, match=words):
        checks.check(search(**{"stopping": QUARTERS, **options}))
