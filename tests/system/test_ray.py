"""A search on a Ray cluster: the bits of one machine, whoever dies."""

import threading
from pathlib import Path

import jax
import numpy as np
import optax
import own_trainers
import pytest
import toy_trials
import toys

import metaevo
from benchmarks import tiny
from inner_loops import impala
from metaevo import fitness, population, spaces
from metaevo.errors import ConfigError
from metaevo.evaluators import choose
from metaevo.storage import jsonl
from metaevo.types import InnerLoop, Proposal, Search
from searches import impala_vtrace
from strategies.pes import pes
from strategies.random_search import random_search

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")

from benchmarks import reliability_hosts as reliability  # noqa: E402
from metaevo.engine.trials import hosts, processes  # noqa: E402
from metaevo.errors import HostError  # noqa: E402
from metaevo.evaluators import ray_hosts  # noqa: E402
from metaevo.evaluators.local import LocalEvaluator  # noqa: E402
from metaevo.evaluators.ray import RayEvaluator  # noqa: E402


@pytest.fixture(scope="module")
def cluster():
    with reliability.cluster(2) as made:
        yield made


@pytest.fixture
def pool(cluster):
    with ray_hosts.pool(None) as opened:
        yield opened


def test_killed_late_and_new_hosts_give_the_bits_of_one_machine(cluster, tmp_path):
    search = tiny.search(num_generations=12, steps=20_000)
    events = {
        3: reliability.kill,
        6: reliability.stop(60.0),
        9: reliability.add(cluster),
    }
    found = reliability.run(tmp_path / "ray", search, events)
    config = metaevo.RunConfig(
        directory=str(tmp_path / "local"), held_out_seeds=0, wandb="disabled"
    )
    metaevo.run(search, config, "tiny")
    assert found["digest"] == reliability.digest(tmp_path / "local")
    assert found["hosts lost"] >= 1
    assert found["tasks given twice"] >= 1


def test_impala_on_three_hosts_one_of_which_dies_gives_the_same_bits(cluster, tmp_path):
    search = impala_vtrace.search(
        delays=(0, 4),
        population_size=6,
        num_generations=4,
        inner=impala.Config(40_000, max_delay=4, num_segments=2),
    )
    events = {1: reliability.add(cluster), 2: reliability.kill}
    found = reliability.run(tmp_path / "ray", search, events)
    config = metaevo.RunConfig(
        directory=str(tmp_path / "local"), held_out_seeds=0, wandb="disabled"
    )
    metaevo.run(search, config, "impala")
    assert found["digest"] == reliability.digest(tmp_path / "local")
    assert found["hosts lost"] >= 1


def test_what_follows_the_search_is_the_same_too(pool, tmp_path):
    """Agents, scores on fresh episodes, an odd chunk at the end, several tasks."""
    search = tiny.search(population_size=10, chunk_size=4)
    search = search._replace(
        inner_loop=[tiny.loop(4), tiny.loop(6)], num_seeds=2, strategy=None
    )
    key = jax.random.key(3)
    proposal = Proposal({"lr": jax.numpy.linspace(-1.0, 1.0, 10)})
    here = LocalEvaluator(search, jax.devices()[:1], keep_agents=True, evaluate=True)
    there = RayEvaluator(search, pool, keep_agents=True, evaluate=True)
    for method in ("__call__", "score"):
        a = getattr(here, method)(key, proposal, ())
        b = getattr(there, method)(key, proposal, ())
        if method == "__call__":
            a = a[0], [state.agent for state in a[1]]
            b = b[0], [state.agent for state in b[1]]
        assert jax.tree.structure(a) == jax.tree.structure(b)
        jax.tree.map(np.testing.assert_array_equal, a, b)


def test_seeds_are_divided_among_hosts(pool):
    """The driver's sizes, the same bits on one device; also of scores of policies."""
    search = tiny.search(population_size=2)._replace(num_seeds=5, strategy=None)
    search = search._replace(chunk_size=1, seeds_at_once=2)
    key, proposal = jax.random.key(3), Proposal({"lr": jax.numpy.linspace(-1, 0, 2)})
    here = LocalEvaluator(search, jax.devices()[:1])
    there = RayEvaluator(search, pool)
    a, b = here(key, proposal, ())[0], there(key, proposal, ())[0]
    assert a.fitness.shape == (1, 5, 2)
    jax.tree.map(np.testing.assert_array_equal, a, b)
    a, b = here.score(key, proposal, ()), there.score(key, proposal, ())
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_members_that_are_computed_when_needed(pool):
    rule = population.Rule(6, _member, np.float32(0.5))
    search = tiny.search(population_size=6)
    key = jax.random.key(0)
    a, _ = LocalEvaluator(search, jax.devices()[:1])(key, Proposal(rule), ())
    b, _ = RayEvaluator(search, pool)(key, Proposal(rule), ())
    np.testing.assert_array_equal(a.fitness, b.fitness)
    assert b.params is rule


@pytest.mark.parametrize("kind", ["pbt", "pes", "newborn"])
def test_members_that_live_on_are_those_of_one_machine(pool, kind):
    """Agents, experience and scores, with an odd chunk and a member that fails."""
    if kind == "pbt":
        loop = toys.quadratic(fail_below=-1.5)  # the first member
        search = toys.search(toys.pbt(5), loop, segments_per_generation=1, chunk_size=2)
    else:
        space = spaces.tune(lr=spaces.log())
        strategy = pes(space, 6, 0.1, optax.adam(0.1), 4)
        if kind == "newborn":  # they train for a part of a lifetime
            strategy = tiny.search(6).strategy
        search = toys.search(strategy, segments_per_generation=1, chunk_size=4)
    here = LocalEvaluator(search, jax.devices()[:1])
    there = RayEvaluator(search, pool)
    state, mine, theirs = search.strategy.init(jax.random.key(0)), (), ()
    for generation in range(4):
        key = jax.random.key(generation)
        proposal, state = search.strategy.ask(key, state)
        a, mine = here(key, proposal, mine)
        b, theirs = there(key, proposal, theirs)
        if generation == 2:  # as after a checkpoint was read
            theirs = there.collected(theirs)
        jax.tree.map(np.testing.assert_array_equal, a, b)
        state = search.strategy.tell(key, state, proposal, a.fitness.mean((0, 1)))
    collected = there.collected(theirs)
    assert jax.tree.structure(mine) == jax.tree.structure(collected)
    jax.tree.map(np.testing.assert_array_equal, mine, collected)
    there.collected(there(key, proposal, collected)[1])
    if kind != "newborn":
        a, b = (x.score(key, proposal, y) for x, y in ((here, mine), (there, theirs)))
        jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("generation", [2, 6])
def test_states_that_are_lost_with_a_host_are_made_again(
    cluster, tmp_path, monkeypatch, generation
):
    """From the start, or from a checkpoint, which is some generations old."""
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

    events = {0: add, generation: lose}
    found = reliability.run(tmp_path / "ray", search, events, checkpoint_every=4)
    config = metaevo.RunConfig(
        directory=str(tmp_path / "local"), held_out_seeds=0, wandb="disabled"
    )
    metaevo.run(search, config, "toy")
    assert found["digest"] == reliability.digest(tmp_path / "local")
    assert found["trained again"] >= 1


def _member(scale, i):
    return {"lr": scale * i}


def failing(loop: InnerLoop, message: str) -> InnerLoop:
    def train(key, meta, state):
        def check(x):
            if x > 5.0:
                raise ValueError(message)
            return x

        shape = jax.ShapeDtypeStruct((), np.float32)
        lr = jax.pure_callback(check, shape, meta.lr, vmap_method="sequential")
        return loop.train(key, meta._replace(lr=lr), state)

    return loop._replace(train=train)


def test_an_error_is_tried_again_and_then_names_its_members(pool):
    search = tiny.search(population_size=8)
    search = search._replace(inner_loop=failing(tiny.loop(4), "no such luck"))
    params = {"lr": jax.numpy.zeros(8).at[5].set(10.0)}
    with pytest.raises(HostError, match=r"members 4 to 5 failed twice.*"):
        RayEvaluator(search, pool)(jax.random.key(0), Proposal(params), ())


@pytest.mark.parametrize(
    ("search", "reason"),
    [
        (
            Search(
                toys.shared_critic(),
                spaces.tune(lr=spaces.log()),
                tiny.search(8).strategy,
                2,
                fitness.final_return,
            ),
            "coupled",
        ),
    ],
)
def test_what_needs_its_members_alive_is_refused_at_once(search, reason, tmp_path):
    config = metaevo.RunConfig(directory=str(tmp_path), evaluator="ray")
    with pytest.raises(ConfigError, match=reason) as error:
        metaevo.run(search, config, "refused")
    assert "run.evaluator=local" in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_search_that_cannot_travel_says_so(pool):
    lock = __import__("threading").Lock()
    loop = tiny.loop(4)
    held = loop._replace(init=lambda key, meta: (lock, loop.init(key, meta))[1])
    search = tiny.search(population_size=8)._replace(inner_loop=held)
    with pytest.raises(ConfigError, match="cannot be sent to other hosts"):
        RayEvaluator(search, pool)


def test_every_search_travels():
    import pkgutil
    from importlib import import_module

    import searches

    for module in pkgutil.iter_modules(searches.__path__):
        if module.name.startswith("_"):
            continue
        search = import_module(f"searches.{module.name}").search()
        data = ray.cloudpickle.dumps(search._replace(strategy=None))
        again = ray.cloudpickle.loads(data)
        params = jax.eval_shape(again.space.init, jax.random.key(0))
        assert params == jax.eval_shape(search.space.init, jax.random.key(0))


def test_stopping_abandons_the_generation(pool):
    search = tiny.search(population_size=8)
    evaluate = RayEvaluator(search, pool, should_stop=lambda: True)
    proposal = Proposal({"lr": jax.numpy.zeros(8)})
    with pytest.raises(metaevo.InterruptedRunError):
        evaluate(jax.random.key(0), proposal, ())


def test_hosts_describe_themselves(pool):
    assert pool.kind == ("cpu", "cpu")
    assert pool.num_devices >= 1
    assert choose.EvaluatorFactory


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
