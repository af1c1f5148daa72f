"""Evaluators on the hosts of a Ray cluster: the bits of one machine."""

import jax
import numpy as np
import optax
import pytest
import toys

import metaevo
from benchmarks import tiny
from metaevo import fitness, population, spaces
from metaevo.errors import ConfigError
from metaevo.types import InnerLoop, Proposal, Search
from strategies.pes import pes

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")

from benchmarks import reliability_hosts as reliability  # noqa: E402
from metaevo.errors import HostError  # noqa: E402
from metaevo.evaluators import ray_hosts  # noqa: E402
from metaevo.evaluators.local import LocalEvaluator  # noqa: E402
from metaevo.evaluators.ray import RayEvaluator  # noqa: E402


@pytest.fixture(scope="module")
def pool():
    """Two hosts for all tests, since each takes seconds to start."""
    with reliability.cluster(2), ray_hosts.pool(None) as opened:
        yield opened


def test_what_follows_the_search_is_the_same_too(pool):
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
        # Hosts keep an evaluator for searches that differ in their strategy alone.
        size = {"pes": 4, "newborn": 3}[kind]
        search = toys.search(strategy, segments_per_generation=1, chunk_size=size)
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


def test_what_needs_its_members_alive_is_refused_at_once(tmp_path):
    space, strategy = spaces.tune(lr=spaces.log()), tiny.search(8).strategy
    search = Search(toys.shared_critic(), space, strategy, 2, fitness.final_return)
    config = metaevo.RunConfig(directory=str(tmp_path), evaluator="ray")
    with pytest.raises(ConfigError, match="coupled") as error:
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
