"""Memory planning: chunks that fit, and populations that do not."""

import json
import logging
import re

import jax
import pytest
import toys

import metaevo
from metaevo import population
from metaevo.errors import ConfigError
from metaevo.evaluators import chunking
from metaevo.evaluators.local import LocalEvaluator
from strategies.open_es import open_es


def search(**options):
    import optax

    strategy = open_es(toys.space(), 16, 0.5, optax.adam(0.1))
    return toys.search(strategy, num_generations=1, **options)


def proposal_of(search):
    key = jax.random.key(0)
    return jax.eval_shape(search.strategy.ask, key, search.strategy.init(key))[0]


def needed(chunk):
    evaluator = LocalEvaluator(search(chunk_size=chunk), jax.devices()[:2])
    return evaluator.memory(proposal_of(search()))


def say(monkeypatch, num_bytes):
    monkeypatch.setattr(chunking, "available", lambda device: num_bytes)


def planned(**options):
    found = search(**options)
    evaluator = LocalEvaluator(found, jax.devices()[:2])
    return chunking.plan(evaluator, proposal_of(found))


def test_what_fits_is_not_cut(monkeypatch):
    say(monkeypatch, needed(8) / chunking.SHARE + 1)
    assert planned().chunk_size == 8


def test_a_population_larger_than_memory_is_chunked(monkeypatch):
    assert needed(8) > needed(2) > needed(1)
    say(monkeypatch, needed(2) / chunking.SHARE + 1)
    assert planned().chunk_size == 2


def test_one_that_cannot_fit_is_refused_with_the_figure(monkeypatch):
    say(monkeypatch, 100)
    with pytest.raises(ConfigError, match=r"1 of 16 members.*need .*B.*100 B"):
        planned()
    with pytest.raises(ConfigError, match="Leave chunk_size None"):
        planned(chunk_size=4)


def test_members_that_live_on_all_count(monkeypatch):
    pbt = toys.search(toys.pbt(), num_generations=1, segments_per_generation=1)
    evaluator = LocalEvaluator(pbt, jax.devices()[:1])
    proposal = proposal_of(pbt)
    a_round, carried = evaluator.memory(proposal), evaluator.carried_bytes(proposal)
    assert evaluator.chunk_size == 4
    assert carried > 1
    say(monkeypatch, (a_round + carried) / chunking.SHARE)
    assert chunking.plan(evaluator, proposal).chunk_size == 4
    say(monkeypatch, (a_round + carried - 1) / chunking.SHARE)
    assert chunking.plan(evaluator, proposal).chunk_size < 4


def test_the_chunk_of_a_run_is_planned_once_and_kept(tmp_path, monkeypatch):
    config = metaevo.RunConfig(
        directory=str(tmp_path), devices=2, held_out_seeds=0, wandb="disabled"
    )
    say(monkeypatch, needed(2) / chunking.SHARE + 1)
    metaevo.run(search(), config, "toy")
    assert json.loads((tmp_path / "manifest.json").read_text())["chunk_size"] == 2
    say(monkeypatch, 1)  # a resumed run asks no more
    metaevo.run(search()._replace(num_generations=2), config, "toy")


def test_planning_compiles_nothing_twice(caplog):
    """The program that is analysed is the one that trains."""
    found = search()
    evaluator = LocalEvaluator(found, jax.devices()[:2])
    key = jax.random.key(0)
    proposal, _ = found.strategy.ask(key, found.strategy.init(key))
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        chunking.plan(evaluator, proposal)
        evaluator(key, proposal, ())
    compiled = [
        r.message
        for r in caplog.records
        if re.match(r"Compiling .*run_seed", r.message)
    ]
    assert len(compiled) == 1
    assert population.size(proposal.params) == 16


def test_available_memory_is_known_here():
    assert chunking.available(jax.devices()[0]) > 1e6
