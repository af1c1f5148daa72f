"""`metaevo list`: an overview, each kind, and one thing in detail."""

import os
import sys
from pathlib import Path

import pytest

import metaevo
from metaevo import envs, slots
from metaevo.cli import details, listing
from metaevo.envs import gymnax, sparse
from metaevo.errors import ConfigError
from metaevo.learned import operations

ROOT = Path(metaevo.__file__).parents[1]


def test_the_overview_has_every_name_and_fits_a_screen():
    text = listing.overview()
    words = set(text.split())
    for kind in listing.KINDS.values():
        assert {*kind.names()} <= words
    assert {"ppo_value_loss", "pqn", "open_es", "tune", "final_return"} <= words
    assert {"weighted_square", "gymnax/", "ppo/minatar", "td_loss"} <= words
    lines = text.splitlines()
    assert len(lines) < 80
    assert max(map(len, lines)) <= 80


def test_nothing_private_is_listed():
    for kind in listing.KINDS.values():
        assert not [name for name in kind.names() if name.startswith("_")]


@pytest.mark.parametrize("kind", [x for x in listing.KINDS if x != "environments"])
def test_everything_that_is_listed_has_its_details(kind):
    for name in listing.KINDS[kind].names():
        text = details.text(name)
        assert name in text
        assert len(text.splitlines()) >= 2, text
        # The folder that metaevo lies in may have any length.
        lines = text.replace(f"{ROOT}{os.sep}", "").splitlines()
        assert kind == "presets" or max(map(len, lines)) <= 88


def test_a_suite_has_the_names_of_its_environments():
    for name in ("grid", "grid/"):
        assert details.text(name).split("environments grid/\n")[1].split()


def test_a_learned_function_says_where_it_fits_and_what_holds():
    text = details.text("weighted_square")
    assert "of slot value_loss(value, target, old_value)" in text
    assert "convex=False, max_weight=8.0, max_bias=1.0" in " ".join(text.split())
    assert f"coercive: {operations.GUARANTEES['coercive'][:20]}" in text
    fitting = next(x for x in text.splitlines() if "algorithms with the slot" in x)
    assert {"ppo", "a2c"} <= {*fitting.split()}
    listed = " ".join(listing.text("functions").split())
    assert "[value_loss; nonnegative, coercive, scale-equivariant]" in listed
    for kind in {one.slot for one in operations.everything().values()}:
        assert kind in slots.SIGNATURES
        assert f"[{kind}" in listed


def test_an_algorithm_has_a_line_for_each_slot():
    text = details.text("ppo_rnn")
    assert "    gae_lambda=0.95  trace decay, in [0, 1]" in text
    assert "    drift=drifts.ppo_clip " in text


def test_a_slot_says_who_has_it_and_what_evolves_in_it():
    text = details.text("exploration")
    assert text.startswith("slot exploration=exploration.epsilon_greedy of apex")
    assert "algorithms with the slot: apex dqn gorila pqn" in text
    assert "functions that evolve in it: graded" in text
    assert "functions" not in details.text("tau")


def test_a_preset_shows_its_lines():
    text = details.text("ppo/minatar")
    assert text.startswith("preset ppo/minatar: metaevo train ppo preset=minatar\n")
    assert "  inner.torso=cnn" in text
    lines = details.text("ppo/control").splitlines()  # of which the first is long
    assert "  inner.total_timesteps=150000" in lines
    assert details.text("minatar").count("\npreset ") >= 4


def test_an_environment_says_what_it_gives_and_takes():
    text = details.text("gymnax/CartPole-v1")
    assert text.startswith("environment gymnax/CartPole-v1\n")
    assert "observations: numbers of shape [4]" in text
    assert "actions: one of 2" in text
    assert "at most 500 steps" in text
    with pytest.raises(ConfigError, match="Did you mean gymnax/CartPole-v1"):
        details.text("gymnax/CartPol-v1")


def test_a_fitness_and_a_space_say_how_they_are_written():
    assert "fitness fitness.last_segments\n  Mean" in details.text("last_segments")
    assert "final_return          final return\n" in listing.text("fitnesses")
    text = details.text("tune")
    assert text.startswith("space spaces.tune\n")
    assert "  tune(**transforms: Transform)\n" in text


def test_listing_environments_makes_none(monkeypatch):
    def made(*_):
        raise AssertionError("an environment was made")

    monkeypatch.setattr(gymnax, "make", made)
    monkeypatch.setattr(envs, "make", made)
    assert "sparse/ gymnax/" in listing.text("environments")


def test_those_listed_with_sparse_rewards_observe_vectors():
    shapes = {x: gymnax.make(x).observation.shape for x in gymnax.names()}
    vectors = [f"gymnax/{x}" for x, shape in shapes.items() if len(shape) == 1]
    assert sparse.names() == vectors


@pytest.mark.parametrize(
    ("suite", "package", "extra"),
    [("jumanji", "jumanji", "jumanji"), ("pgx", "pgx", "games"), ("brax",) * 3],
)
def test_a_suite_that_is_missing_lists_no_names(suite, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    told = listing.environments(suite)
    assert told.endswith(f"pip install 'metaevo[{extra}]'")
