"""The lift, phases and collectives."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from metaevo import fitness, population
from metaevo.analysis import holdout
from metaevo.errors import ConfigError
from metaevo.evaluators import stepwise
from metaevo.evaluators.lift import lift
from metaevo.evaluators.local import LocalEvaluator
from metaevo.rl import networks
from metaevo.types import InnerState, Proposal, Search

NONE = fitness.final_return


def evaluator(loop, num_devices=1, **options):
    options = {"num_generations": 1, "fitness": NONE} | options
    search = Search(loop, toys.space(), None, **options)
    return LocalEvaluator(search, jax.devices()[:num_devices])


def learning_rates(size):
    return Proposal({"lr": jnp.linspace(-2.0, 1.0, size)})


def assert_same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


# --- members, seeds, devices ----------------------------------------------------------


def test_members_equal_single_runs_to_the_bit_with_chunk_one():
    """A member alone has the bits that it has among others, with chunks of one."""
    proposal, key = learning_rates(3), jax.random.key(3)
    options = {"chunk_size": 1, "num_seeds": 2, "common_random_numbers": False}
    together, _ = evaluator(toys.quadratic(), **options)(key, proposal, ())
    loop, space = toys.quadratic(), toys.space()
    lifted = lift(loop, space, NONE, loop.num_segments, False)
    seed_keys = jax.vmap(jax.random.fold_in, (None, 0))(
        jax.random.fold_in(key, 0), jnp.arange(2)
    )
    for i in range(3):
        ids, params = jnp.array([i]), jax.tree.map(lambda x: x[i : i + 1], proposal[0])
        state = jax.jit(lifted.init)(seed_keys, ids, params)
        _, outcome = jax.jit(lifted.run)(seed_keys, ids, params, state)
        assert_same_bits(outcome.fitness[:, 0], together.fitness[0][:, i])


def test_common_random_numbers_are_common():
    equal = Proposal({"lr": jnp.zeros(4)})
    key = jax.random.key(0)
    shared, _ = evaluator(toys.quadratic(), common_random_numbers=True)(key, equal, ())
    own, _ = evaluator(toys.quadratic(), common_random_numbers=False)(key, equal, ())
    assert len(np.unique(shared.fitness)) == 1
    assert len(np.unique(own.fitness)) == 4


def test_seeds_differ_and_devices_do_not_change_the_bits():
    """1 and 4 devices, with a population that does not fill its chunks."""
    one, four = (
        evaluator(toys.quadratic(), n, chunk_size=2, num_seeds=2)(
            jax.random.key(1), learning_rates(10), ()
        )[0]
        for n in (1, 4)
    )
    assert one.fitness.shape == (1, 2, 10)
    assert (one.fitness[0, 0] != one.fitness[0, 1]).all()
    assert_same_bits((one.fitness, one.train), (four.fitness, four.train))


@pytest.mark.parametrize(
    ("size", "num_seeds", "expected"), [(1, 7, 2), (3, 5, 5), (2, 5, 3)]
)
def test_seeds_are_divided_where_members_are_fewer_than_devices(
    size, num_seeds, expected
):
    spread = evaluator(toys.quadratic(), 4, num_seeds=num_seeds)
    spread.prepare(learning_rates(size))
    assert spread.sized.seeds_at_once == expected
    assert len(spread.devices) == -(-num_seeds // expected) * size


def test_divided_seeds_do_not_change_the_bits():
    """Two members on 1 and 4 devices, with seeds that do not divide."""
    key, loop, proposal = jax.random.key(1), toys.quadratic(), learning_rates(2)
    spread = evaluator(loop, 4, num_seeds=5)
    first, _ = spread(key, proposal, ())
    assert first.fitness.shape == (1, 5, 2)
    # Another machine reads the size that the manifest keeps.
    again = LocalEvaluator(spread.sized, jax.devices()[:1])
    assert_same_bits(again(key, proposal, ())[0], first)
    whole = evaluator(loop, 1, num_seeds=5, chunk_size=1)
    together, _ = whole(key, proposal, ())
    assert whole.sized.seeds_at_once == 5
    for x, y in zip(*map(jax.tree.leaves, (together, first)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


def test_a_divided_member_is_scored_and_traced_as_it_trained():
    """`score` of newborn policies, and `segments`, which trains one member again."""
    key, proposal = jax.random.key(1), learning_rates(2)
    one, four = (
        evaluator(toys.quadratic(), n, num_seeds=5, chunk_size=1, seeds_at_once=s)
        for n, s in ((1, 5), (4, 2))
    )
    (a, agents_a), (b, agents_b) = (x.score(key, proposal, ()) for x in (one, four))
    for x, y in zip(*map(jax.tree.leaves, ((a, agents_a), (b, agents_b))), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
    evaluated, _ = four(key, proposal, ())
    found = list(stepwise.segments(four, key, proposal, (), 1))
    last = [x for x in found if x.index == toys.quadratic().num_segments - 1]
    assert [x.seed for x in last] == [0, 1, 2, 3, 4]
    for x in last:
        metrics = x.loop.evaluate(x.key, x.meta, x.after)
        np.testing.assert_allclose(
            metrics["return"], evaluated.fitness[0, x.seed, 1], rtol=1e-5
        )


def test_a_comparison_of_a_search_with_divided_seeds_trains_one_seed_a_member():
    alone = holdout.alone(
        evaluator(toys.quadratic(), 4, num_seeds=8, seeds_at_once=2).search,
        toys.space(),
    )
    evaluate = LocalEvaluator(alone, jax.devices()[:1])
    evaluated, _ = evaluate(jax.random.key(0), learning_rates(3), ())
    assert evaluated.fitness.shape == (1, 1, 3)
    assert evaluate.layout.seeds == 1


def test_seeds_that_must_train_together_are_not_divided():
    for options in ({"segments_per_generation": 1}, {"hurdles": (0.0,)}):
        evaluate = evaluator(toys.quadratic(), 4, num_seeds=4, **options)
        evaluate.prepare(learning_rates(1))
        assert evaluate.sized.seeds_at_once == 4
    coupled = evaluator(toys.shared_critic(), 2, num_seeds=4)
    coupled.prepare(learning_rates(2)._replace(parents=jnp.full(2, -1)))
    assert coupled.sized.seeds_at_once is None


def test_several_tasks():
    search = Search(
        [toys.quadratic(), toys.quadratic(dim=5)], toys.space(), None, 1, NONE
    )
    evaluated, _ = LocalEvaluator(search)(jax.random.key(0), learning_rates(4), ())
    assert evaluated.fitness.shape == (2, 1, 4)
    assert not np.array_equal(evaluated.fitness[0], evaluated.fitness[1])


# --- shared and clock -----------------------------------------------------------------


def test_shared_and_clock_come_from_the_default_meta():
    """Even if the loop's init lets evolved values in, they are not used."""
    loop = toys.shared_critic()

    def init(key, meta):
        state = loop.init(key, meta)
        return state._replace(shared=jnp.ones(2) * meta.lr)

    lifted = lift(loop._replace(init=init), toys.space(), NONE, 1, False)
    keys = jax.random.split(jax.random.key(0), 2)
    params = {"lr": jnp.array([1.0, 2.0, 3.0])}
    state = jax.jit(lifted.init)(keys, jnp.arange(3), params)
    np.testing.assert_allclose(state.shared, np.full((2, 2), 0.1))


@pytest.mark.parametrize("part", ["shared", "clock"])
def test_a_member_specific_value_in_a_common_part_raises(part):
    loop = toys.shared_critic()

    def train(key, meta, state):
        new, metrics = loop.train(key, meta, state)
        leak = {
            "shared": new.shared + meta.lr,
            "clock": type(new.clock)(new.clock.update + jnp.int32(meta.lr)),
        }
        return new._replace(**{part: leak[part]}), metrics

    bad = evaluator(loop._replace(train=train))
    with pytest.raises(ValueError, match="out_axes"):
        bad(jax.random.key(0), learning_rates(2), ())


def test_a_cond_on_the_clock_stays_a_cond():
    """Under seeds x members, where a cond on member data becomes a select."""
    loop = toys.quadratic()
    lifted = lift(loop, toys.space(), NONE, 2, False)
    keys, ids = jax.random.split(jax.random.key(0), 2), jnp.arange(3)
    params = {"lr": jnp.zeros(3)}
    state = jax.eval_shape(lifted.init, keys, ids, params)
    assert "cond[" in str(jax.make_jaxpr(lifted.run)(keys, ids, params, state))

    def train(key, meta, state):
        mine = state.clock.update + jnp.int32(state.agent[0] > 1e9)
        state = state._replace(clock=state.clock._replace(update=mine))
        state, metrics = loop.train(key, meta, state)
        return state._replace(clock=toys.Clock(jnp.int32(0))), metrics

    broken = lift(loop._replace(train=train), toys.space(), NONE, 2, False)
    assert "cond[" not in str(jax.make_jaxpr(broken.run)(keys, ids, params, state))


# --- coupling -------------------------------------------------------------------------


def test_coupled_training_equals_the_population_written_out():
    """mean, gather and index against the same update on [P, D] arrays, 2 devices."""
    lr = 0.1 * jnp.exp(jnp.linspace(-2.0, 1.0, 4))
    proposal = learning_rates(4)._replace(parents=jnp.arange(4))
    evaluate = evaluator(toys.shared_critic(), 2, segments_per_generation=1)
    _, first = evaluate(jax.random.key(0), proposal, ())
    before = jax.device_get(first[0])
    _, second = evaluate(jax.random.key(1), proposal, first)
    after = second[0]

    @jax.jit
    @jax.grad
    def slope(w):
        return (w * before.shared[0]).sum() - toys.diversity(w)

    weights = before.agent[0] - lr[:, None] * slope(before.agent[0])
    np.testing.assert_allclose(after.agent[0], weights, rtol=1e-4)
    shared = before.shared[0] + 0.1 * weights.mean(0)
    np.testing.assert_allclose(after.shared[0], shared, rtol=1e-5)
    assert int(after.clock.update) == 2


def test_gather_carries_no_gradient():
    """Without the stop-gradient the gradient would be P times as large."""

    def member(w):
        return jax.grad(lambda w: population.gather(w).sum())(w)

    axis = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), (population.DEVICES,), axis_types=axis)
    spec = jax.sharding.PartitionSpec(population.DEVICES)
    lifted = jax.shard_map(
        jax.vmap(member, axis_name=population.MEMBERS),
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    np.testing.assert_array_equal(jax.jit(lifted)(jnp.ones(4)), np.zeros(4))


def test_collectives_need_a_coupled_loop_that_is_never_chunked():
    loop = toys.shared_critic()._replace(coupled=False)
    with pytest.raises(RuntimeError, match="coupled=True"):
        evaluator(loop)(jax.random.key(0), learning_rates(2), ())
    whole = evaluator(toys.shared_critic(), chunk_size=2)
    with pytest.raises(ConfigError, match="chunk_size=2"):
        whole(jax.random.key(0), learning_rates(4), ())


def test_a_failed_member_does_not_break_a_coupled_population():
    loop = toys.shared_critic()

    def train(key, meta, state):
        state, metrics = loop.train(key, meta, state)
        broken = (population.index() == 2) & (state.clock.update == 1)
        return state._replace(agent=jnp.where(broken, jnp.nan, state.agent)), metrics

    evaluate = evaluator(loop._replace(train=train), 2, segments_per_generation=3)
    evaluated, carried = evaluate(jax.random.key(0), learning_rates(4), ())
    np.testing.assert_array_equal(np.isnan(evaluated.fitness[0, 0]), [0, 0, 1, 0])
    assert np.isfinite(carried[0].shared).all()


def test_gather_gives_only_rows_that_a_member_has():
    """A failed member has another's, in all leaves; averages happened to nobody."""

    def everyone(i):
        reward = jnp.where(i == 1, jnp.nan, 10.0 * i)
        return population.gather({"reward": reward, "step": 7 + i, "end": i > 1})

    run = jax.jit(
        jax.vmap(jax.vmap(everyone, axis_name="members"), axis_name="devices")
    )
    rows = jax.tree.map(lambda x: x[0, 0].tolist(), run(jnp.arange(4)[None]))
    assert rows == {
        "reward": [0.0, 0.0, 20.0, 30.0],
        "step": [7, 7, 9, 10],
        "end": [False, False, True, True],
    }


def test_no_two_roles_draw_the_same_numbers():
    """Seeds, members and what they share, in a loop that splits its key further."""

    def init(key, meta):
        parts = jax.random.key_data(jax.random.split(key, 4))
        clock = toys.Clock(jnp.int32(0))
        return InnerState(parts, jax.random.key_data(key), parts, clock)

    loop = toys.shared_critic()._replace(init=init)
    lifted = lift(loop, toys.space(), NONE, 1, False)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0), jnp.arange(3))
    state = jax.jit(lifted.init)(keys, jnp.arange(6), {"lr": jnp.zeros(6)})
    everything = [np.asarray(x).reshape(-1, 2) for x in state[:3]]
    everything = np.concatenate(everything)
    assert len(np.unique(everything, axis=0)) == len(everything)


# --- carried agents -------------------------------------------------------------------


@pytest.mark.parametrize("forgets", [False, True])
def test_agents_follow_parents_and_experience_stays(forgets):
    """It forgets what another agent reached, if it can."""
    loop = toys.quadratic()
    if forgets:
        loop = loop._replace(for_new_agent=jnp.zeros_like)
    evaluate = evaluator(loop, 2, segments_per_generation=1, chunk_size=2)
    frozen = {"lr": jnp.full(4, -50.0)}  # nobody learns: agents only move
    born = Proposal(frozen, jnp.full(4, -1))
    evaluated, first = evaluate(jax.random.key(0), born, ())
    # To index arrays on several CPU devices is a collective; two could deadlock.
    for leaf in jax.tree.leaves((evaluated, first)):
        assert isinstance(leaf, np.ndarray) or len(leaf.devices()) == 1
    first = jax.device_get(first)
    parents = jnp.array([0, 0, 3, -1])
    _, second = evaluate(jax.random.key(1), Proposal(frozen, parents), first)
    old, new = first[0], second[0]
    assert_same_bits(new.agent[0, :3], old.agent[0, [0, 0, 3]])
    assert not np.array_equal(new.agent[0, 3], old.agent[0, 3])  # newborn
    kept = [[1], [0], [0]] if forgets else 1
    assert_same_bits(new.experience[0, :3], np.where(kept, old.experience[0, :3], 0))
    assert not np.array_equal(new.experience[0, 3], old.experience[0, 3])
    assert int(new.clock.update) == 2


def test_copies_of_one_agent_do_not_stay_clones():
    """PBT copies agents, never randomness."""
    evaluate = evaluator(toys.quadratic(), segments_per_generation=1)
    equal = {"lr": jnp.zeros(2)}
    _, first = evaluate(jax.random.key(0), Proposal(equal, jnp.full(2, -1)), ())
    both = Proposal(equal, jnp.array([0, 0]))
    _, second = evaluate(jax.random.key(2), both, jax.device_get(first))
    _, third = evaluate(jax.random.key(3), both._replace(parents=jnp.arange(2)), second)
    assert not np.array_equal(third[0].agent[0, 0], third[0].agent[0, 1])


def test_what_is_not_finite_is_born_anew():
    """A diverged member would never recover, nor a healthy agent given to its world."""
    loop = toys.quadratic()

    def init(key, meta):
        state = loop.init(key, meta)
        return state._replace(experience=jax.random.normal(key, (2,)))

    evaluate = evaluator(loop._replace(init=init), segments_per_generation=1)
    frozen = {"lr": jnp.full(3, -50.0)}
    _, first = evaluate(jax.random.key(0), Proposal(frozen, jnp.full(3, -1)), ())
    state, live = jax.device_get(first[0]), Proposal(frozen, jnp.arange(3))
    for part in ("agent", "experience"):
        old = getattr(state, part)
        broken = old.copy()
        broken[0, 1] = np.inf
        carried = (state._replace(**{part: broken}),)
        evaluated, after = evaluate(jax.random.key(1), live, carried)
        assert evaluated.healthy.all()
        new = getattr(after[0], part)
        assert np.isfinite(new).all()
        assert not np.array_equal(new[0, 1], old[0, 1])
        assert_same_bits(new[0, [0, 2]], old[0, [0, 2]])


def test_what_was_learned_is_inherited_but_not_of_an_agent_that_failed():
    """It failed if a number of it is not finite, and scores NaN."""
    space = toys.space()._replace(
        inherit=lambda params, state: {"lr": params["lr"] + state.agent.sum()}
    )
    search = Search(toys.quadratic(fail_below=0.05), space, None, 1, NONE)
    evaluated, _ = LocalEvaluator(search)(jax.random.key(0), learning_rates(4), ())
    failed = np.isnan(evaluated.fitness[0, 0])
    lr = 0.1 * np.exp(np.linspace(-2.0, 1.0, 4))
    np.testing.assert_array_equal(failed, lr < 0.05)
    given, found = learning_rates(4).params["lr"], evaluated.params["lr"]
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found == given, failed)
    several = LocalEvaluator(search._replace(num_seeds=2))
    with pytest.raises(ConfigError, match="num_seeds"):
        several(jax.random.key(0), learning_rates(4), ())


# --- phases ---------------------------------------------------------------------------


def scaled(scale, x):
    loss = lambda v: ((v * scale) ** 2).sum()  # noqa: E731 closes over a batched value
    step = population.phase(lambda x: x - jax.grad(loss)(x))
    return jax.lax.scan(lambda x, _: (step(x), None), x, None, length=2)[0]


@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_phase_computes_what_its_function_computes(monkeypatch, one_by_one):
    monkeypatch.setattr(population, "_one_by_one", lambda: one_by_one)
    scale, x = np.arange(1.0, 4.0, dtype="f4"), np.ones((3, 2), "f4")
    out = jax.jit(jax.vmap(scaled))(scale, x)
    np.testing.assert_allclose(out, (1 - 2 * scale[:, None] ** 2) ** 2 * x)
    nested = jax.vmap(jax.vmap(scaled, (None, 0)), (0, None))
    out = jax.jit(nested)(scale, jnp.ones((5, 2)))
    np.testing.assert_allclose(out[:, 0, 0], (1 - 2 * scale**2) ** 2)


@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_phase_keeps_unbatched_outputs_unbatched(monkeypatch, one_by_one):
    monkeypatch.setattr(population, "_one_by_one", lambda: one_by_one)

    @population.phase
    def both(x, clock):
        return x + clock, clock + 1

    members = jax.vmap(both, (0, None), (0, None))
    seeds = jax.jit(jax.vmap(members, (0, None), (0, None)))
    for program, x in ((jax.jit(members), np.ones(3)), (seeds, np.ones((2, 3)))):
        found, clock = program(x, 4)
        np.testing.assert_array_equal(found, np.full(x.shape, 5.0))
        assert clock == 5


def test_a_phase_runs_members_in_sequence_on_cpu_and_together_elsewhere(monkeypatch):
    def program():
        return str(jax.make_jaxpr(jax.vmap(scaled))(jnp.ones(3), jnp.ones((3, 2))))

    in_sequence = program()
    monkeypatch.setattr(population, "_one_by_one", lambda: False)
    assert in_sequence.count("scan[") == program().count("scan[") + 1


def test_collectives_inside_a_phase_raise():
    @population.phase
    def bad(x):
        return population.mean(x)

    with pytest.raises(RuntimeError, match="inside a phase"):
        jax.vmap(bad, axis_name=population.MEMBERS)(jnp.ones(3))


# --- the initializer ------------------------------------------------------------------


def test_the_vmapped_orthogonal_initializer_factors_one_matrix_at_a_time():
    """LAPACK's QR of several at once can wait for itself on a CPU, for ever."""
    init = networks.orthogonal(1.0)

    @jax.jit
    @jax.vmap
    def drawn(key):
        return [init(key, shape) for shape in ((16, 16), (4, 16), (16, 2))]

    lowered = drawn.lower(jax.random.split(jax.random.key(0), 8))
    batched = re.findall(r'lapack_.*?num_batch_dims = "(.)"', lowered.as_text())
    assert len(batched) >= 3
    assert set(batched) == {"0"}
    last = lowered.compile()(jax.random.split(jax.random.key(0), 8))[2][3]
    np.testing.assert_allclose(last.T @ last, np.eye(2), atol=1e-5)
