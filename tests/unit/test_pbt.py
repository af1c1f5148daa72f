"""Population-based training, its lineage, and the searches that use it."""

import functools
import importlib
import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from climbing import compiled
from runs import undrawn

import metaevo
from inner_loops import ppo, td3
from metaevo import envs, fitness, spaces
from metaevo.analysis import lineage
from metaevo.engine import checks
from metaevo.errors import ConfigError
from metaevo.evaluators.local import LocalEvaluator
from metaevo.slots import Context
from metaevo.types import Proposal, Search
from searches import pbt_toy, ppo_pbt
from strategies import _pbt
from strategies import pb2 as pb2_module
from strategies.asha import asha
from strategies.grid import grid
from strategies.pb2 import pb2
from strategies.pbt import pbt
from strategies.pes import pes
from strategies.random_search import random_search

SEARCHES = ("ppo_pbt", "dqn_pbt", "td3_pbt", "sac_pbt")


def box(num=2):
    return spaces.prior(**{f"n{i}": spaces.log_uniform(1e-4, 1.0) for i in range(num)})


def told(strategy, fitness, key=0):
    """One generation with this fitness."""

    @jax.jit
    def generation(key, fitness):
        proposal, state = strategy.ask(key, strategy.init(key))
        return proposal, strategy.tell(key, state, proposal, fitness)

    return generation(jax.random.key(key), np.float32(fitness))


# --- the paper's toy ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"exploit": False}, 0.39),
        ({"copies": "agent", "noise": 0.0}, 1.2),
        ({"noise": 0.0}, 0.39),
        ({}, 1.2),
    ],
)
def test_figure_2_of_the_paper(settings, expected):
    search = pbt_toy.search(**settings)
    (loop,), strategy = search.tasks, search.strategy

    def generation(carry, key):
        state, agents = carry
        proposal, state = strategy.ask(key, state)
        agents = jax.tree.map(lambda x: x[proposal.parents], agents)
        metas = jax.vmap(search.space.bind, (0, None))(proposal.params, loop.meta)
        agents, metrics = jax.vmap(loop.train, (None, 0, 0))(key, metas, agents)
        score = metrics["return"]
        return (strategy.tell(key, state, proposal, score), agents), score

    @jax.jit
    def run(key):
        newborn = jax.vmap(loop.init, (0, None))(jax.random.split(key, 2), loop.meta)
        keys = jax.random.split(key, search.num_generations)
        return jax.lax.scan(generation, (strategy.init(key), newborn), keys)[1]

    assert run(jax.random.key(0))[-1].max() == pytest.approx(expected, abs=1e-2)


# --- exploit --------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=(1, 2))
def all_donors(fitness, exploit, num):
    keys = jax.vmap(jax.random.key)(jnp.arange(num))
    return jax.vmap(lambda key: _pbt.donors(key, fitness, exploit, 0.25))(keys)


def donors(fitness, exploit="truncation", num=1):
    """Each member's donor, [num, P], by as many keys."""
    return np.asarray(all_donors(np.float32(fitness), exploit, num))


def test_truncation_by_hand():
    (found,) = donors([3.0, 1.0, 4.0, 0.0, 5.0, 9.0, 2.0, 6.0])
    losers = [1, 3]
    assert set(found[losers]) <= {5, 7}
    others = np.delete(np.arange(8), losers)
    np.testing.assert_array_equal(found[others], others)


def test_every_winner_is_somebodys_donor():
    assert set(donors(np.arange(8), num=50)[:, :2].ravel()) == {6, 7}


def test_tournament_follows_only_upwards():
    fitness = np.random.default_rng(1).normal(size=64)
    (found,) = donors(fitness, "tournament")
    assert (fitness[found] >= fitness).all()
    assert 0.2 < (found != np.arange(64)).mean() < 0.8


def test_the_winner_takes_all():
    np.testing.assert_array_equal(donors([1.0, 5.0, 2.0], "winner"), [[1, 1, 1]])


@pytest.mark.parametrize("exploit", _pbt.EXPLOITS)
def test_equal_members_exploit_as_well(exploit):
    """And none is favored for its place."""
    moved = donors(np.zeros(8), exploit, num=100) != np.arange(8)
    assert moved.any(1).all()
    assert (moved.mean(0) > 0.05).all()


def test_a_failed_member_is_nobodys_donor():
    """The engine ranks it strictly last."""
    assert (donors([1.0, -1e9, 2.0, 3.0], num=20)[:, 1] == 3).all()


def test_nobody_moves_without_exploitation():
    proposal, state = told(pbt(box(), 8, fraction=0.0), np.arange(8.0))
    np.testing.assert_array_equal(state.parents, np.arange(8))
    for a, b in zip(
        *map(jax.tree.leaves, (proposal.params, state.params)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


# --- explore --------------------------------------------------------------------------


@pytest.mark.parametrize("resample", [0.0, 1.0])
def test_numbers_move_independently_of_each_other(resample):
    """One key each: 'all up' or 'all down' together would be a correlation of 1.

    Of clones, which have no variance, it would be NaN.
    """
    strategy = pbt(box(2), 1024, exploit="winner", resample=resample)
    _, state = told(strategy, np.arange(1024.0))
    moved = np.stack(list(state.params.values()), 1)[:1023]
    assert abs(np.corrcoef(moved.T)[0, 1]) < 4 / np.sqrt(1023)


def test_a_factor_multiplies_the_number():
    space = spaces.prior(
        actor_lr=spaces.log_uniform(1e-5, 1.0),
        noise_clip=spaces.uniform(0.0, 1.0),
        gamma=spaces.horizon_uniform(0.5, 0.999),
    )
    params = {"actor_lr": 0.5, "noise_clip": 0.5, "gamma": 0.5}
    params = jax.tree.map(jnp.float32, params)
    factors = jax.tree.map(lambda x: jnp.float32(1.2), params)
    bind = jax.jit(lambda params: space.bind(params, td3.Meta()))
    old, new = bind(params), bind(jax.jit(space.perturb)(params, factors))
    assert new.actor_lr / old.actor_lr == pytest.approx(1.2, rel=1e-4)
    assert new.noise_clip / old.noise_clip == pytest.approx(1.2, rel=1e-4)
    horizons = (1 - old.gamma) / (1 - new.gamma)
    assert horizons == pytest.approx(1.2, rel=1e-3)


def test_numbers_stay_in_their_prior():
    strategy = pbt(box(3), 32, exploit="winner", resample=0.0, factors=(0.01, 100.0))
    strategy = compiled(strategy)
    key = jax.random.key(0)
    state = strategy.init(key)
    for i in range(10):
        proposal, state = strategy.ask(key, state)
        key = jax.random.key(i)
        state = strategy.tell(key, state, proposal, proposal.params["n0"])
        x = np.stack([*state.params.values()])
        assert ((x >= 0) & (x <= 1)).all()


def test_draws_of_the_prior_cover_it_evenly():
    space = spaces.prior(lr=spaces.log_uniform(1e-6, 1.0))
    keys = jax.random.split(jax.random.key(0), 4000)
    bind = jax.jit(jax.vmap(lambda key: space.bind(space.init(key), ppo.Meta()).lr))
    numbers = bind(keys)
    decades = np.histogram(np.log10(numbers), bins=6, range=(-6, 0))[0] / 4000
    np.testing.assert_allclose(decades, 1 / 6, atol=0.03)


@pytest.mark.parametrize(
    ("copies", "agents", "params"),
    [("both", True, True), ("agent", True, False), ("params", False, True)],
)
def test_what_a_loser_takes_over(copies, agents, params):
    strategy = pbt(box(), 4, exploit="winner", copies=copies, explore=lambda key, p: p)
    proposal, state = told(strategy, [0.0, 1.0, 3.0, 2.0])
    np.testing.assert_array_equal(state.parents, [2] * 4 if agents else np.arange(4))
    assert _pbt.num_exploited(state) == (3 if agents else 0)
    expected = proposal.params["n0"][jnp.full(4, 2) if params else jnp.arange(4)]
    np.testing.assert_array_equal(state.params["n0"], expected)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda space: pbt(space, 4), "num_generations=5"),
        (lambda space: pes(space, 4, 0.1, optax.sgd(0.1), 5), "horizon=5"),
    ],
)
def test_members_that_outlive_their_step_size_are_refused(make, name):
    """After `num_segments` segments an annealed step is 0: nothing would be learned."""
    space = spaces.prior(lr=spaces.log_uniform(1e-5, 1e-2))
    env = envs.make("gymnax/CartPole-v1")

    def check(**config):
        sizes = {"total_timesteps": 4096, "num_segments": 4} | config
        loop, score = ppo.make(env, ppo.Config(**sizes)), fitness.last_segments(1)
        checks.check(
            Search(loop, space, make(space), 5, score, segments_per_generation=1)
        )

    with pytest.raises(ConfigError, match=rf"{name} .*num_segments=4.*anneal_lr"):
        check()
    check(anneal_lr=False)
    check(num_segments=5)


@pytest.mark.parametrize(
    "aggregate", [fitness.rank_sum, functools.partial(fitness.rank_sum)]
)
def test_ranks_of_one_generation_are_refused_by_who_compares_several(aggregate):
    space = spaces.prior(lr=spaces.log_uniform(1e-5, 1e-2))
    loops = [ppo.make(envs.make(f"gymnax/{x}-v1")) for x in ("CartPole", "Acrobot")]

    def check(strategy):
        search = Search(loops, space, strategy, 2, fitness.final_return)
        checks.check(search._replace(aggregate=aggregate))

    for strategy in random_search(space, 4), asha(space, 4, 4), pb2(space, 4):
        with pytest.raises(ConfigError, match=r"strategy=\w+ compares .*=rank_sum"):
            check(strategy)
    check(grid(space, 2))


# --- PB2, random search, grid ---------------------------------------------------------


def bump(x):
    """Return the gain [P] of numbers [P, 1]; the largest is 1, at 0.3."""
    return jnp.exp(-((x - 0.3) ** 2).sum(1) / (2 * 0.2**2))


def explored(strategy, gain, generations, keys):
    """Mean gain of what losers choose in the second half of the generations, [keys].

    An agent's fitness grows in each generation by the gain of its numbers.
    """

    def generation(carry, i):
        key, state, score = carry
        proposal, state = strategy.ask(jax.random.fold_in(key, 2 * i), state)
        gained = gain(jnp.stack(list(proposal.params.values()), 1))
        score = jnp.where(i == 0, 0, score[proposal.parents]) + gained
        told = jax.random.fold_in(key, 2 * i + 1)
        state = strategy.tell(told, state, proposal, score)
        moved = state.parents != jnp.arange(len(score))
        chosen = gain(jnp.stack(list(state.params.values()), 1))
        return (key, state, score), (chosen, moved)

    @jax.jit
    def search(seed):
        key = jax.random.key(seed)
        state = strategy.init(key)
        size = jax.eval_shape(strategy.ask, key, state)[0].parents.size
        carry = (key, state, jnp.zeros(size))
        return jax.lax.scan(generation, carry, jnp.arange(generations))[1]

    means = []
    for seed in range(keys):
        late = [np.asarray(x)[generations // 2 :] for x in search(seed)]
        means.append(np.mean([x[moved].mean() for x, moved in zip(*late, strict=True)]))
    return np.array(means)


@pytest.mark.parametrize("forgetting", [0.0, 0.1])
def test_the_likeliest_process_is_the_one_that_was_drawn_from(forgetting):
    """Of its grid of length scales and rates of forgetting; 24 generations of 8."""
    rng = np.random.default_rng(0)
    x, time = rng.uniform(size=(192, 1)), np.repeat(np.arange(24.0), 8)
    covariance = pb2_module._kernel(x, time, x, time, 0.4, forgetting)
    covariance = np.asarray(covariance) + pb2_module.NOISE * np.eye(192)
    y = np.linalg.cholesky(covariance) @ rng.normal(size=192)
    valid = jnp.ones(192, bool)
    arrays = [jnp.asarray(a, jnp.float32) for a in (x, time, y)]
    found = jax.jit(pb2_module._likeliest)(*arrays, valid)
    np.testing.assert_allclose(found, [0.4, forgetting], rtol=1e-6)


def test_pb2_finds_an_optimum_inside_its_box():
    """At an edge going to a corner would do; here uniform draws are better."""
    found = explored(pb2(box(1), 8), bump, 20, 2)
    uniform = explored(pbt(box(1), 8, resample=1.0), bump, 20, 2)
    assert (found > uniform + 0.1).all()


def test_random_search_finds_out_a_lucky_score():
    """A generation-0 fluke is looked at again, and loses its place."""
    strategy = compiled(random_search(box(1), 8))
    key = jax.random.key(0)
    state = strategy.init(key)
    for i in range(30):
        proposal, state = strategy.ask(jax.random.fold_in(key, i), state)
        fitness = proposal.params["n0"]
        if i == 0:
            fitness = fitness.at[jnp.argmin(fitness)].set(5.0)
        state = strategy.tell(key, state, proposal, fitness)
    assert strategy.solution(state)["n0"] > 0.9


def test_a_grid_is_every_pair_of_given_numbers_and_of_points_in_a_range():
    space = spaces.prior(lr=spaces.grid([0.1, 0.01, 1.0]), gamma=spaces.uniform(2, 4))
    proposal, _ = grid(space, 2).ask(None, None)
    tasks = jax.vmap(space.bind, (0, None))(proposal.params, ppo.Meta())
    pairs = {tuple(x) for x in np.stack([tasks.lr, tasks.gamma], 1).tolist()}
    lrs = np.float32([0.1, 0.01, 1.0]).tolist()
    assert pairs == {(a, b) for a in lrs for b in (2.0, 4.0)}

    @jax.jit
    def moved(params, factors):
        return space.bind(space.perturb(params, factors), ppo.Meta())

    # PBT goes to a neighbour in the list, and stays at its ends.
    for x, factor, place in (
        (0.5, 1.2, 2),
        (0.5, 0.8, 0),
        (0.9, 1.2, 2),
        (0.1, 0.8, 0),
    ):
        params, factors = {"lr": x, "gamma": 0.5}, {"lr": factor, "gamma": 1.0}
        assert float(moved(params, factors).lr) == lrs[place]


def test_wrong_options_are_refused():
    tuned = spaces.tune(lr=spaces.log())
    for make, message in (
        (lambda: pbt(box(), 1), "population_size=1"),
        (lambda: pbt(box(), 8, exploit="best"), "truncation, tournament, winner"),
        (lambda: pbt(box(), 8, fraction=0.6), r"fraction=0\.6 must be in"),
        (lambda: pbt(box(), 8, factors=(0.8, 0.0)), "factors="),
        (lambda: pbt(box(), 8, resample=1.5), r"resample=1\.5"),
        (lambda: pbt(box(), 8, copies="all"), "copies='all'"),
        (lambda: pb2(tuned, 8), "pb2 needs a space of ranges"),
        (lambda: grid(tuned, 3), "grid needs a space of ranges"),
        (lambda: grid(box(), 1), "num_points=1"),
        (lambda: grid(box()), "num_points=null: it is needed"),
        (lambda: spaces.grid([1.0, 1.0]), "at least two different numbers"),
        (lambda: random_search(box(), 8, num_elites=8), "num_elites=8"),
        (lambda: spaces.log_uniform(0.0, 1.0), "must be positive"),
        (lambda: spaces.uniform(1.0, 0.0), "low < high"),
        (lambda: spaces.horizon_uniform(0.9, 1.0), "must be < 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            make()


# --- lineage --------------------------------------------------------------------------


RECORDS = [
    {"generation": 0, "parents": [-1, -1, -1], "numbers/lr": [1.0, 2.0, 3.0]},
    {"generation": 1, "parents": [0, 0, 2], "numbers/lr": [1.0, 1.2, 3.0]},
    {"generation": 2, "parents": [1, 1, -1], "numbers/lr": [0.96, 1.2, 7.0]},
]


def test_a_line_by_hand():
    assert lineage.line(RECORDS, 0) == [(0, 0), (1, 1), (2, 0)]
    assert lineage.line(RECORDS, 2) == [(2, 2)]  # born late
    np.testing.assert_allclose(
        lineage.schedule(RECORDS, 0, 3)["lr"], [1.0, 1.2, 0.96], rtol=1e-6
    )
    np.testing.assert_allclose(lineage.schedule(RECORDS, 2, 3)["lr"], 7.0)


def small(name, **options):
    """A PBT search that runs in seconds."""
    module = importlib.import_module(f"searches.{name}")
    config = type(inspect.signature(module.search).parameters["inner"].default)
    sizes = {"total_timesteps": 1024, "num_segments": 4, "features": (8,)}
    if name != "ppo_pbt":
        sizes |= {"learning_starts": 128, "batch_size": 16}
    else:
        sizes |= {"num_steps": 16}
    return module.search(population_size=4, inner=config(**sizes), **options)


@pytest.mark.parametrize("name", SEARCHES)
def test_the_switches_of_pbt_are_keys_of_its_searches(name):
    options = {"exploit": "winner", "factors": (0.5, 2.0), "fraction": 0.5}
    options |= {"resample": 1.0, "copies": "params"}
    search = small(name, **options)
    settings = search.strategy.settings
    assert {key: settings[key] for key in options} == options
    before = small(name).strategy
    assert before.settings | before.defaults == before.settings  # defaults of `pbt`
    with pytest.raises(ConfigError, match=r"factors=\(\) must be positive"):
        small(name, factors=())


@pytest.mark.parametrize("name", SEARCHES)
def test_a_searched_number_is_its_slot_alone(name):
    """That every slot reaches the agent is a contract of the loops."""
    search = small(name)
    names = spaces.of_prior(search.space, "test")
    size = len(names) + 1
    params = {slot: jnp.full(size, 0.5).at[i].set(0.3) for i, slot in enumerate(names)}
    (loop,) = search.tasks
    metas = jax.jit(jax.vmap(lambda x: search.space.bind(x, loop.meta)))(params)
    for i, slot in enumerate(names):
        fields = metas._asdict().items()
        moved = {k for k, x in fields if k in names and x[i] != x[-1]}
        assert moved == {slot}


def test_a_run_leaves_its_lineage_and_a_schedule_to_replay(tmp_path, monkeypatch):
    undrawn(monkeypatch)
    search = pbt_toy.search(num_generations=4)
    config = metaevo.RunConfig(
        directory=str(tmp_path), held_out_seeds=4, wandb="disabled", devices=1
    )
    result = metaevo.run(search, config, "pbt_toy")
    records = [json.loads(x) for x in (tmp_path / "metrics.jsonl").open()]
    assert records[0]["parents"] == [-1] * 2
    for record in records[1:]:
        moved = [i for i, parent in enumerate(record["parents"]) if parent != i]
        assert len(moved) == 1  # a half of two
    best = json.loads((tmp_path / "agents" / "scores.json").read_text())["best"]
    artifact = metaevo.load(tmp_path)
    assert set(artifact.slots) == {"h0", "h1"}
    for i, member in lineage.line(records, best):
        value = artifact.h0(Context(progress=(i + 0.5) / 4))
        assert float(value) == pytest.approx(records[i]["numbers/h0"][member])
    assert set(result.held_out) == {"solution", "hand-made"}
    assert (tmp_path / "agents" / "best").is_dir()
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Who came from whom" in page
    assert "Agents on fresh episodes" in page
    table = (tmp_path / "report" / "lineage.csv").read_text().splitlines()
    assert table[0] == "generation,member,parent,h0,h1"
    assert len(table) == 1 + 4 * 2


@pytest.mark.slow
def test_pbt_beats_random_search_at_equal_budget_from_a_bad_prior(tmp_path):
    """PPO on CartPole, 3 searches of 16 lifetimes each; medians over all 48 members."""
    members, drawn = [], []
    for seed in range(3):
        search, directory = ppo_pbt.search(), tmp_path / str(seed)
        config = metaevo.RunConfig(
            seed=seed, directory=str(directory), held_out_seeds=4, wandb="disabled"
        )
        metaevo.run(search, config, "ppo_pbt")
        last = [json.loads(x) for x in (directory / "metrics.jsonl").open()][-1]
        members.append(np.array(last["population"], float))
        scores = json.loads((directory / "agents" / "scores.json").read_text())
        best = np.mean(scores["evaluations"]["best agent"])
        keys = jax.random.split(jax.random.key(seed), 16)
        proposal = Proposal(jax.vmap(search.space.init)(keys))
        alone = search._replace(segments_per_generation=None)
        found, _ = LocalEvaluator(alone)(jax.random.key(seed), proposal, ())
        drawn.append(np.ravel(found.fitness))
        print(
            f"best agent {best:.1f}, median {np.median(members[-1]):.1f}, "
            f"random median {np.nanmedian(drawn[-1]):.1f}"
        )
        assert best >= 475
    pbt_median, random_median = np.nanmedian(members), np.nanmedian(drawn)
    print(f"medians of 48: {pbt_median:.1f}, random {random_median:.1f}")
    assert pbt_median >= 2 * random_median
