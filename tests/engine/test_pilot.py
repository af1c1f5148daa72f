"""Two evaluations of one generation, before a search starts."""

import re

import jax.numpy as jnp
import pytest
import toys

from metaevo import fitness
from metaevo.config import RunConfig
from metaevo.engine import dry_run, pilot
from metaevo.errors import ConfigError
from strategies.snes import snes


def told(tmp_path, sigma, held_out_seeds=8, **options):
    loop = toys.quadratic(num_segments=8)
    search = toys.search(
        snes(toys.space(), 24, sigma), loop, fitness=fitness.area_under_curve, **options
    )
    config = RunConfig(directory=str(tmp_path), held_out_seeds=held_out_seeds)
    lines = dry_run.plan(search, config, signal=True).splitlines()
    first = next(i for i, x in enumerate(lines) if x.startswith("signal "))
    last = next(i for i, x in enumerate(lines) if x.startswith("disk "))
    return "\n".join(x[13:] for x in lines[first:last])


def test_members_that_differ_are_told_apart(tmp_path):
    found = told(tmp_path, 1.0)
    agree = re.search("generation 0 agree in rank by ([0-9.]+) ", found)
    assert agree is not None
    assert float(agree[1]) > 0.9
    assert "of 24 members; true differences have a deviation of " in found
    assert "8 held-out seeds tell a difference of about " in found
    assert "too noisy" not in found


def test_a_search_that_is_too_noisy_is_said_to_be(tmp_path):
    found = told(tmp_path, 1e-6, held_out_seeds=0, common_random_numbers=False)
    assert "too noisy to search at this size: " in found
    assert "held-out" not in found


def test_members_that_are_all_equal_have_no_signal(tmp_path):
    equal = toys.search(snes(toys.space(), 8, 1.0), toys.quadratic())._replace(
        aggregate=lambda scores: jnp.zeros(8)
    )
    config = RunConfig(directory=str(tmp_path), held_out_seeds=0)
    text = dry_run.plan(equal, config, signal=True)
    assert "signal       none to measure: " in text


def test_what_selection_gains_follows_from_deviations():
    """No noise: the mean of the better half of a normal distribution."""
    assert pilot.gain(2.0, 0.0) == pytest.approx(2 * 0.7979, rel=1e-4)
    assert pilot.gain(0.0, 1.0) == 0.0
    assert pilot.gain(0.0, 0.0) == 0.0


def test_members_that_live_on_are_refused(tmp_path):
    search = toys.search(toys.pbt(), segments_per_generation=1)
    with pytest.raises(ConfigError, match="--pilot evaluates a generation twice"):
        dry_run.plan(search, RunConfig(directory=str(tmp_path)), signal=True)
