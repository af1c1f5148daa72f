"""Shared seeds: the bits of OpenAI-ES, without the memory for its members."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import toys
from climbing import assert_equal, compiled, members
from runs import undrawn

import metaevo
from metaevo import fitness as fitness_of
from metaevo.config import RunConfig
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Proposal, Search, Space
from strategies import open_es, shared_seed_es


def vector(dim):
    return Space(lambda key: jnp.full(dim, 2.0), lambda params, meta: meta)


def test_shared_seeds_equal_open_es_with_the_same_noise():
    """64 members of 1000 numbers, all held at once; and as evosax computes them."""
    options = (vector(1000), 64, 0.3, optax.adam(0.1))
    ours = compiled(shared_seed_es.shared_seed_es(*options))
    theirs = compiled(open_es.open_es(*options))
    key = jax.random.key(0)
    state, held = ours.init(key), theirs.init(key)
    for i in range(3):
        key = jax.random.fold_in(key, i)
        proposal, state = ours.ask(key, state)
        x = members(proposal.params)
        noise = (x[:32] - state.mean) / 0.3
        assert abs(float(noise.std()) - 1) < 0.02
        assert np.abs(np.corrcoef(noise) - np.eye(32)).max() < 0.2
        fitness = jnp.sin(x).sum(1)
        state = ours.tell(key, state, proposal, fitness)
        held = theirs.tell(key, held, Proposal(x), fitness)
        np.testing.assert_allclose(state.mean, held.es.mean, rtol=1e-5)


def test_shared_seeds_take_no_memory_for_members():
    """256 x 50,000 numbers are 51 MB, and a vector of them 0.2 MB."""
    dim, size = 50_000, 256
    strategy = shared_seed_es.shared_seed_es(vector(dim), size, 0.3, optax.adam(0.1))
    key = jax.random.key(0)
    state = jax.eval_shape(strategy.init, key)
    proposal, _ = jax.eval_shape(strategy.ask, key, state)
    fitness = jax.ShapeDtypeStruct((size,), jnp.float32)
    for program, args in (
        (strategy.ask, (key, state)),
        (strategy.tell, (key, state, proposal, fitness)),
    ):
        used = jax.jit(program).lower(*args).compile().memory_analysis()
        taken = used.temp_size_in_bytes + used.output_size_in_bytes
        assert taken < 10 * dim * 4


def test_shared_seeds_are_the_same_on_any_devices():
    """To the bit: one device, and four in another order."""
    results = []
    for devices in (jax.devices()[:1], jax.devices()[::-1]):
        strategy = compiled(
            shared_seed_es.shared_seed_es(toys.space(), 16, 0.3, optax.adam(0.1))
        )
        search = Search(
            toys.quadratic(), toys.space(), strategy, 3, fitness_of.final_return
        )._replace(chunk_size=2)
        evaluate = LocalEvaluator(search, devices)
        state = strategy.init(jax.random.key(0))
        for i in range(3):
            key = jax.random.fold_in(jax.random.key(1), i)
            proposal, state = strategy.ask(key, state)
            fitness = fitness_of.mean(evaluate(key, proposal, ())[0].fitness)
            state = strategy.tell(
                key, state, proposal, jnp.asarray(fitness, jnp.float32)
            )
        results.append((state, fitness))
    assert_equal(*results)


def test_a_search_of_shared_seeds_runs(tmp_path, monkeypatch):
    """Through the engine: the rule is computed wherever members are needed."""
    undrawn(monkeypatch)
    strategy = shared_seed_es.shared_seed_es(toys.space(), 8, 0.3, optax.adam(0.1))
    search = Search(
        toys.quadratic(), toys.space(), strategy, 4, fitness_of.final_return
    )
    config = RunConfig(directory=str(tmp_path / "run"), held_out_seeds=0)
    result = metaevo.run(search, config)
    assert np.isfinite(result.solution["lr"])
    assert result.solution["lr"] != toys.space().init(None)["lr"]
