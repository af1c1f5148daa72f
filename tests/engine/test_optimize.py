"""`metaevo.optimize`: searches with functions of the user's."""

import numpy as np
import pytest
import runs
import toy_trials
from own_trainers import SPACE, optimize

from metaevo.errors import NumericalError
from strategies.random_search import random_search


@pytest.fixture(autouse=True)
def _short_reports(monkeypatch):
    runs.write_short_reports(monkeypatch)


def test_a_search_is_judged_on_held_out_seeds(tmp_path):
    given = SPACE, random_search(SPACE, 3), toy_trials.distance
    options = {"defaults": {"x": 9.0}, "num_seeds": 2, "held_out_seeds": 2, "seed": 3}
    result = optimize(tmp_path, *given, **options)
    best = result.artifact.x
    assert set(result.held_out) == {"solution", "start", "hand-made"}
    scores = result.held_out["hand-made"].fitness[0]
    np.testing.assert_allclose(scores, -8, atol=2e-3)
    (verdict,) = result.verdicts
    assert verdict.measure == "score"
    noise = result.held_out["solution"].fitness[0] + abs(best - 1)
    np.testing.assert_allclose(noise, scores + 8, atol=1e-5)  # the same seeds
    record = result.metrics[-1]
    assert {"failed", "signal", "numbers/x", "train/seconds"} <= record.keys()


def test_a_run_in_which_all_fail_ends_and_says_why(tmp_path):
    with pytest.raises(NumericalError, match=r"never.*output\.txt"):
        optimize(
            tmp_path, SPACE, random_search(SPACE, 2), toy_trials.never,
            num_generations=9,
        )  # fmt: skip
    assert len(runs.records(tmp_path)) == 3
