"""Memory planning: chunks that fit, and populations that do not."""

import ctypes
import functools
import json
import logging
import platform
import re

import jax
import optax
import pytest
import toys
from runs import write_short_reports

import metaevo
from metaevo import population
from metaevo.errors import ConfigError
from metaevo.evaluators import chunking, memory
from metaevo.evaluators.local import LocalEvaluator
from strategies.open_es import open_es


def search(**options):
    strategy = open_es(toys.space(), 16, 0.5, optax.adam(0.1))
    return toys.search(strategy, num_generations=1, **options)


def proposal_of(search):
    key = jax.random.key(0)
    return jax.eval_shape(search.strategy.ask, key, search.strategy.init(key))[0]


@functools.cache
def needed(chunk):
    evaluator = LocalEvaluator(search(chunk_size=chunk), jax.devices()[:2])
    return evaluator.memory(proposal_of(search()))


def say(monkeypatch, num_bytes):
    monkeypatch.setattr(chunking, "available", lambda device: num_bytes)


def planned(**options):
    found = search(**options)
    evaluator = LocalEvaluator(found, jax.devices()[:2])
    return chunking.plan(evaluator, proposal_of(found))


@pytest.mark.parametrize("chunk", [8, 2])
def test_a_population_is_cut_into_the_largest_chunks_that_fit(monkeypatch, chunk):
    assert needed(8) > needed(2)
    say(monkeypatch, needed(chunk) / chunking.SHARE + 1)
    assert planned().chunk_size == chunk


def test_a_population_whose_numbers_do_not_fit_is_refused_before_it_compiles(
    monkeypatch,
):
    say(monkeypatch, 16 * 4 - 1)
    monkeypatch.setattr(chunking, "needed", None)
    with pytest.raises(ConfigError, match=r"population_size=16: .*need 64 B, and 63 B"):
        planned()


def test_a_large_population_is_counted_as_often_as_its_strategy_holds_it(monkeypatch):
    """OpenAI-ES of evosax holds it more than once while it asks, and while it tells."""
    monkeypatch.setattr(chunking, "LARGE", 0)
    monkeypatch.setattr(chunking, "needed", None)
    strategy = open_es(toys.space(), 4096, 0.5, optax.adam(0.1))
    found = toys.search(strategy, num_generations=1)
    held = chunking._strategy_bytes(strategy, proposal_of(found))
    assert 2 * 4096 * 4 <= held <= 16 * 4096 * 4
    say(monkeypatch, held)
    evaluator = LocalEvaluator(found, jax.devices()[:2])
    with pytest.raises(ConfigError, match=r"population_size=4096: .*members need"):
        chunking.plan(evaluator, proposal_of(found))


def test_one_that_cannot_fit_is_refused_with_the_figure(monkeypatch):
    say(monkeypatch, 100)
    with pytest.raises(ConfigError, match=r"1 of 16 members.*need .*B.*100 B"):
        planned()
    with pytest.raises(ConfigError, match="Leave chunk_size None"):
        planned(chunk_size=4)


@functools.cache
def living(chunk=None, num_devices=1):
    pbt = toys.search(toys.pbt(), num_generations=1, segments_per_generation=1)
    found = pbt._replace(chunk_size=chunk)
    return LocalEvaluator(found, jax.devices()[:num_devices]), proposal_of(pbt)


def test_members_that_live_on_all_count(monkeypatch):
    evaluator, proposal = living()
    found = chunking.needed(evaluator, proposal)
    carried = evaluator.carried_bytes(proposal)
    assert evaluator.chunk_size == 4
    assert found.carried == carried > 1
    assert found.training == evaluator.memory(proposal)
    assert found.process > 50e6  # this one
    say(monkeypatch, (found.training + carried) / chunking.SHARE)
    assert chunking.plan(evaluator, proposal).chunk_size == 4
    assert evaluator.announced.peak == sum(evaluator.announced)
    say(monkeypatch, (found.training + carried - 1) / chunking.SHARE)
    with pytest.raises(ConfigError, match="of it members that live on"):
        chunking.plan(evaluator.with_chunk(4), proposal)


def test_members_that_live_on_exist_before_and_after_a_generation_of_rounds():
    evaluator, proposal = living(chunk=1)
    carried = evaluator.carried_bytes(proposal)
    assert chunking.needed(evaluator, proposal).carried == 2 * carried
    # Brought to the host from several devices, a round exists twice for a moment.
    evaluator, proposal = living(chunk=2, num_devices=2)
    training = chunking.needed(evaluator, proposal).training
    assert training >= carried + evaluator.largest(proposal)


def test_a_comparison_trains_beside_the_members_that_live_on(monkeypatch):
    """A round of it, where that and its programs take more than the search does."""
    evaluator, proposal = living()
    carried = evaluator.carried_bytes(proposal)
    monkeypatch.setattr(chunking, "resident", lambda: 0)
    found = chunking.needed(evaluator, proposal)
    assert found.carried == carried
    assert sum(found) == memory.COMPARISON + found.training + carried
    monkeypatch.setattr(chunking, "COMPARISON", 0)
    found = chunking.needed(evaluator, proposal)
    assert sum(found) == memory.SEARCH + found.training + carried


def test_the_chunk_of_a_run_is_planned_once_and_kept(tmp_path, monkeypatch):
    """Check also that a run that no longer fits is refused."""
    write_short_reports(monkeypatch)
    config = metaevo.RunConfig(
        directory=str(tmp_path), devices=2, held_out_seeds=0, wandb="disabled"
    )
    longer = search()._replace(num_generations=2)
    say(monkeypatch, needed(2) / chunking.SHARE + 1)
    metaevo.run(search(), config, "toy")
    assert json.loads((tmp_path / "manifest.json").read_text())["chunk_size"] == 2
    say(monkeypatch, 10)
    with pytest.raises(ConfigError, match=r"need .*B, and 10 B are available"):
        metaevo.run(longer, config, "toy")
    metaevo.run(search(), config, "toy")  # nothing is left to train
    say(monkeypatch, 2 * needed(8))
    metaevo.run(longer, config, "toy")
    assert json.loads((tmp_path / "manifest.json").read_text())["chunk_size"] == 2


# --- what is free ---------------------------------------------------------------------

GIB = 1 << 30


def machine(root, cgroup, groups, free=8 * GIB):
    """A root folder with `proc` and `sys`, and {group: {file: text}}."""
    files = {
        "proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {free // 1024} kB\n",
        "proc/self/cgroup": cgroup,
    }
    for group, contents in groups.items():
        files |= {f"sys/fs/cgroup/{group}/{name}": x for name, x in contents.items()}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return root


def v1(limit, used, cached=0):
    stat = f"cache 1\ninactive_file 7\ntotal_inactive_file {cached}\n"
    return {
        "memory.limit_in_bytes": limit,
        "memory.usage_in_bytes": used,
        "memory.stat": stat,
    }


def v2(limit, used, cached=0):
    stat = f"anon 5\ninactive_file {cached}\n"
    return {"memory.max": limit, "memory.current": used, "memory.stat": stat}


OLD = "9:name=systemd:/\n4:memory:/slurm/job1\n1:cpu:/elsewhere\n"
NEW = "0::/kubepods/pod:1/box\n"


@pytest.mark.parametrize(
    ("cgroup", "groups", "expected"),
    [
        ("", {}, 8 * GIB),
        (OLD, {"memory/slurm/job1": v1(4 * GIB, 3 * GIB)}, GIB),
        (OLD, {"memory/slurm/job1": v1(4 * GIB, 3 * GIB, 2 * GIB)}, 3 * GIB),
        (
            OLD,
            {"memory/slurm": v1(2 * GIB, GIB), "memory/slurm/job1": v1(4 * GIB, 0)},
            GIB,
        ),
        (OLD, {"memory": v1(3 * GIB, GIB)}, 2 * GIB),  # a container's own root
        (OLD, {"memory/slurm/job1": v1(2**63 - 4096, GIB)}, 8 * GIB),
        (OLD, {"cpu/elsewhere": v1(GIB, 0)}, 8 * GIB),
        (NEW, {"kubepods/pod:1/box": v2(4 * GIB, 3 * GIB, GIB)}, 2 * GIB),
        (NEW, {"kubepods": v2(GIB, 0), "kubepods/pod:1/box": v2("max", 5)}, GIB),
        (NEW, {".": v2(GIB, GIB // 2)}, GIB // 2),
        (NEW, {"kubepods": v2(GIB, 2 * GIB)}, 0),
        ("0::/x\n" + OLD, {"unified/x": v2(GIB, 0)}, GIB),
    ],
)
def test_limits_of_control_groups_are_seen(tmp_path, cgroup, groups, expected):
    assert memory.free(machine(tmp_path, cgroup, groups)) == expected


def test_nothing_known_is_none(tmp_path):
    assert memory.free(tmp_path) is None
    assert memory.resident(tmp_path) == 0


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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_free_memory_goes_back_to_the_system():
    """Blocks below one that is held stay with the process until then."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = (ctypes.c_void_p,)
    blocks = [libc.malloc(60_000) for _ in range(2_000)]
    for block in blocks:
        ctypes.memset(block, 1, 60_000)
    held = libc.malloc(60_000)
    for block in blocks:
        libc.free(block)
    before = memory.resident()
    memory.give_back()
    assert before - memory.resident() > 50 << 20
    libc.free(held)
