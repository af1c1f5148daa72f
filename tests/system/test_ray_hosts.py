"""Hosts of a Ray cluster that die, stop and join: the bits of one machine."""

import threading
from pathlib import Path

import own_trainers
import pytest
import toy_trials
import toys

import metaevo
from benchmarks import tiny
from metaevo import spaces
from metaevo.storage import jsonl
from strategies.random_search import random_search

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")

from benchmarks import reliability_hosts as reliability  # noqa: E402
from metaevo.engine.trials import hosts, processes  # noqa: E402
from metaevo.evaluators.ray import RayEvaluator  # noqa: E402


@pytest.fixture(scope="module")
def two_hosts():
    with reliability.cluster(2) as made:
        yield made


@pytest.fixture
def cluster(two_hosts):
    """Two hosts; those that a test adds leave after it."""
    before = two_hosts.list_all_nodes()
    yield two_hosts
    for node in set(two_hosts.list_all_nodes()) - set(before):
        two_hosts.remove_node(node, allow_graceful=False)


def of_one_machine(search, directory):
    """Run a search without hosts, and return its digest."""
    config = metaevo.RunConfig(
        directory=str(directory), held_out_seeds=0, wandb="disabled"
    )
    metaevo.run(search, config, "local")
    return reliability.digest(directory)


def test_killed_late_and_new_hosts_give_the_bits_of_one_machine(cluster, tmp_path):
    search = tiny.search(num_generations=12, steps=20_000)
    events = {
        3: reliability.kill,
        6: reliability.stop(60.0),
        9: reliability.add(cluster),
    }
    found = reliability.run(tmp_path / "ray", search, events)
    assert found["digest"] == of_one_machine(search, tmp_path / "local")
    assert found["hosts lost"] >= 1
    assert found["tasks given twice"] >= 1


def test_states_that_are_lost_with_a_host_are_made_again(
    cluster, tmp_path, monkeypatch
):
    """From the start, and from a checkpoint, which is some generations old."""
    # More chunks than hosts, so that the new one is given some at once.
    options = {"segments_per_generation": 1, "chunk_size": 1, "num_generations": 40}
    # Ray keeps objects below 100 kB with the driver, where nothing is lost.
    search = toys.search(toys.pbt(8), toys.quadratic(dim=50_000), **options)
    added, live, newest = [], RayEvaluator._live, []

    def noted(self, *args):
        evaluated, states = live(self, *args)
        newest[:] = [states]
        return evaluated, states

    monkeypatch.setattr(RayEvaluator, "_live", noted)

    def add(pool):
        added.append(cluster.add_node(**reliability.host()))
        while len([x for x in pool.actors if x.ready is None]) < len(
            cluster.list_all_nodes()
        ):
            pool.poll()
        return True

    def lose(pool):
        hosts = {x.node for x in newest[0].chunks} - {None}
        if newest[0].copy or added[-1].node_id not in hosts:
            return False  # it has nothing that the driver lacks
        cluster.remove_node(added.pop(), allow_graceful=False)
        return True

    events = {0: add, 2: lose, 4: add, 10: lose}
    found = reliability.run(tmp_path / "ray", search, events, checkpoint_every=4)
    assert found["digest"] == of_one_machine(search, tmp_path / "local")
    assert found["hosts lost"] >= 2
    assert found["trained again"] >= 2


# --- functions of the user's ----------------------------------------------------------


def trials(directory):
    found = jsonl.read(directory / "trials.jsonl")
    return {x["trial"]: x["score"] for x in found}, len(found)


def test_trials_on_hosts_of_which_one_is_lost_are_those_of_one_machine(
    cluster, tmp_path
):
    space = spaces.prior(x=spaces.log_uniform(0.1, 10.0))
    host = cluster.add_node(**reliability.host())
    log = tmp_path / "ray" / "trials.jsonl"

    def lose_a_host():
        nonlocal host
        if host is not None and log.exists() and log.read_bytes().count(b"\n") >= 4:
            cluster.remove_node(host, allow_graceful=False)
            host = None
        return False

    for name, options in (
        ("ray", {"evaluator": "ray", "should_stop": lose_a_host}),
        ("local", {}),
    ):
        metaevo.optimize(
            space,
            random_search(space, 6),
            toy_trials.slow_distance,
            num_generations=2,
            num_seeds=2,
            workers=3,
            timeout=60,
            directory=tmp_path / name,
            held_out_seeds=0,
            wandb="disabled",
            **options,
        )
    assert host is None
    found, expected = trials(tmp_path / "ray"), trials(tmp_path / "local")
    assert found == expected
    assert found[1] == len(found[0])  # none is doubled


def test_lives_that_are_stopped_on_hosts_are_those_that_the_log_says(cluster, tmp_path):
    """In the order of their arrivals, with a host that is lost and a run that stops."""
    host = cluster.add_node(**reliability.host())
    log = tmp_path / "trials.jsonl"

    def should_stop():
        nonlocal host
        ended = log.read_bytes().count(b"\n") if log.exists() else 0
        if host is not None and ended >= 6:
            cluster.remove_node(host, allow_graceful=False)
            host = None
        return ended >= 12 and not going_on

    going_on: list[bool] = []
    halving = metaevo.Halving(4, factor=2)

    def optimize():
        own_trainers.optimize(
            tmp_path, own_trainers.RATES, random_search(own_trainers.RATES, 8),
            toy_trials.grow, stopping=halving, num_seeds=2, workers=3, timeout=60,
            defaults={"rate": 0.1}, evaluator="ray", should_stop=should_stop,
        )  # fmt: skip

    with pytest.raises(metaevo.InterruptedRunError):
        optimize()
    assert host is None
    before = jsonl.read(log)
    going_on.append(True)
    optimize()
    found = own_trainers.trials(tmp_path)
    assert [*found.values()][: len(before)] == before
    own_trainers.explained(found, halving, num_seeds=2, population_size=8)


def test_a_trial_that_misbehaves_on_a_host_fails_there(cluster, tmp_path):
    del cluster
    found = {}
    for behaviour, timeout in (("raises", 60), ("hangs", 5), ("leaves_a_child", 60)):
        given = {"params": {}, "seed": 0, "budget": None, "parent": None}
        own = tmp_path / behaviour / "files"
        own.mkdir(parents=True)
        where = processes.target(f"{toy_trials.__file__}:_{behaviour}")
        with hosts.runner(None) as run:
            limits = processes.Limits(1, timeout)
            trial = given | {"folder": str(own)}
            found[behaviour] = run(where, trial, own.parent, limits, threading.Event())
    assert "this one fails" in found["raises"].problem
    assert "timeout=5s" in found["hangs"].problem
    assert found["leaves_a_child"].score == 2.0
    child = int((tmp_path / "leaves_a_child" / "files" / "process").read_text())
    stat = Path(f"/proc/{child}/stat")
    assert not stat.exists() or ") Z " in stat.read_text()  # not yet reaped
