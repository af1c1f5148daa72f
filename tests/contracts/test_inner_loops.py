"""Properties of every inner loop in `inner_loops/`."""

import dataclasses
import functools
import itertools
import math
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import loops
import numpy as np
import optax
import pytest
from jax.tree_util import Partial
from lifetimes import close, same
from loops import ALL, OFF_POLICY_LOOPS, SMALL

from inner_loops import ppo
from metaevo import advantages, envs, fitness, losses, slots
from metaevo.errors import ConfigError
from metaevo.evaluators.lift import lift
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Proposal, Search, Space

AUC = fitness.last_segments(1)
CARTPOLE = envs.make("gymnax/CartPole-v1")


def numbers(agent):
    """Numbers that an agent learned; states of optimizers differ in form."""
    fields = agent._asdict()
    named = {k: v for k, v in fields.items() if k in ("params", "actor", "critic")}
    networks = {k: getattr(v, "params", v) for k, v in named.items()}
    if "log_temperature" in fields:
        networks["temperature"] = agent.log_temperature.params
    return networks


def result(name, agent, returns):
    """What a slot can change: what is learned, or the returns of who learns nothing."""
    learned = numbers(agent)
    return learned if ALL[name].learns else (learned, returns)


# --- slots ----------------------------------------------------------------------------

# Values of slots whose default, None, stands for them.
NOTHING = {
    "policy_loss": lambda log_prob, *_: jnp.zeros_like(log_prob),
    "activation": jnp.tanh,
    "learn": 1.0,
    "max_grad_norm": 1e9,
    "policy_delay": 2.0,
    "delay": 2.0,
    "lag": 2.0,
    "advantage": advantages.vtrace.func,
}
DEFAULT, CHANGED, REWRITTEN = range(3)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Choices:
    """Functions as a static argument."""

    functions: tuple

    def __iter__(self):
        return iter(self.functions)


def choose(index, choices, *args):
    """Calls one of several functions; the index is traced."""
    return jax.lax.switch(index, [lambda *a, f=f: f(*a) for f in choices], *args)


def constant(slot):
    """A number as a schedule."""
    return lambda context: jnp.float32(slot)


def switched(name, slot, index):
    """A slot that holds its default, its change or the default written once more.

    All are in one program: the index is an argument of it.
    """
    small = ALL[name]
    default = getattr(small.meta, slot)
    known = NOTHING[slot] if default is None else default
    values = known, small.changes[slot], small.rewritten.get(slot, known)
    if isinstance(known, slots.Optimizer):
        updates = Choices(tuple(x.update for x in values))
        return default._replace(update=Partial(choose, index, updates))
    if not any(callable(x) for x in values):
        return jnp.asarray(values, jnp.float32)[index]
    functions = tuple(x if callable(x) else constant(x) for x in values)
    return Partial(choose, index, Choices(functions))


def bind(name, indices, meta):
    return meta._replace(**{k: switched(name, k, i) for k, i in indices.items()})


# Loops of another's code, in which its slots are: those that they add to them.
OWN = {
    "r2d3": ("demo_ratio",),
    "gumbel_alphazero": ("q_scale", "q_visits", "gumbel_scale"),
}
FIRST, COPY, ALL_REWRITTEN, OTHERS = range(4)


def tried(name):
    """Names of the slots that are changed, in order."""
    return OWN.get(name, tuple(ALL[name].changes))


def members(name):
    """Indices by slot, [P]: of the default, its copy, all slots rewritten, and of one
    member for each slot, which holds its change."""
    changes = tried(name)
    table = {slot: np.zeros(OTHERS + len(changes), np.int32) for slot in changes}
    for i, slot in enumerate(changes):
        table[slot][ALL_REWRITTEN] = REWRITTEN
        table[slot][OTHERS + i] = CHANGED
    return table


def equals(name):
    """Indices by slot of as many members that are all the default, [P]."""
    return {slot: np.zeros_like(indices) for slot, indices in members(name).items()}


def whole_or_parts(name, num_parts):
    """The loop whose first four updates are in so many segments.

    Those with a replay buffer live on, since it is to be larger than other arrays.
    """
    if name not in OFF_POLICY_LOOPS:
        return ALL[name].make(num_segments=num_parts)
    sizes = SMALL[name].config
    updates = 4096 // (sizes["num_envs"] * sizes["num_steps"])
    return SMALL[name].make(
        total_timesteps=64 + 4096,
        buffer_size=4096,
        num_segments=updates // 4 * num_parts,
    )


@functools.cache
def evaluator(name):
    """Of a search whose params are indices."""
    table = members(name)
    size = len(next(iter(table.values())))
    space = Space(
        lambda key: dict.fromkeys(table, jnp.int32(0)),
        lambda params, meta: bind(name, params, meta),
    )
    search = Search(
        *(whole_or_parts(name, 4), space, None, size, AUC),
        segments_per_generation=1,
        common_random_numbers=True,
        chunk_size=size,
    )
    return LocalEvaluator(search, jax.devices()[:1])


def generations(name, indices, *parents):
    """Yield what each generation gives, one segment each: evaluation, and state."""
    carried = ()
    for each in parents:
        params = jax.tree.map(jnp.asarray, indices)
        proposal = Proposal(params, jnp.asarray(each, jnp.int32))
        evaluated, carried = evaluator(name)(jax.random.key(1), proposal, carried)
        yield evaluated, carried[0]


def lifetimes(name, indices):
    """Results of members [P, ...] after a lifetime of four updates."""
    if name not in SMALL:
        return vmapped(name)(indices)
    size = len(next(iter(indices.values())))
    lives = generations(name, indices, np.full(size, -1), *[np.arange(size)] * 3)
    return after_four(name, lives)


def after_four(name, lives):
    """Results after four generations of those that `lives` yields."""
    lived = list(itertools.islice(lives, 4))
    returns, episodes = (
        np.stack([one.train[0][metric] for one, _ in lived])
        for metric in ("return", "episodes")
    )
    # Of a whole lifetime; [generations, S, P, 1]. Segments without an end have NaN.
    mean = np.nansum(returns * episodes, 0) / np.maximum(episodes.sum(0), 1)
    results = result(name, lived[-1][1].agent, mean[..., 0])
    return jax.tree.map(lambda x: np.asarray(x[0]), results)


@functools.cache
def vmapped(name):
    """Lifetimes without an evaluator: coupled loops, of which each is alone here, and
    those in no `Env`."""
    loop = loops.alone(ALL[name].make())

    def lifetime(indices):
        meta = bind(name, indices, ALL[name].meta)
        state = loop.init(jax.random.key(0), meta)
        state, metrics = loop.train(jax.random.key(1), meta, state)
        return result(name, state.agent, metrics["return"])

    return jax.jit(jax.vmap(lifetime))


@functools.cache
def different(name):
    return lifetimes(name, members(name))


@functools.cache
def alike(name):
    """Members that are all the default: their results after a lifetime; then those of a
    fifth generation, in which one is born among the others, as `generations`."""
    indices = equals(name)
    if name not in SMALL:
        return lifetimes(name, indices), None
    size = len(next(iter(indices.values())))
    itself, parents = np.arange(size), np.arange(size)
    parents[:4] = [1, 1, -1, 3]
    lives = generations(name, indices, np.full(size, -1), *[itself] * 3, parents)
    return after_four(name, lives), next(lives)


def member(results, i):
    return jax.tree.map(lambda x: x[i], results)


class Plain(NamedTuple):
    """A lifetime of the algorithm as it is: the state after it, and its metrics.

    It is in one segment. `halves` is the state after two, in loops that are `HALVED`.
    """

    state: Any
    metrics: Any
    halves: Any


# In the others four segments, of the members above, equal one to rounding.
HALVED = ["ppo", "dqn", *(name for name in ALL if name not in SMALL)]


def seed_key():
    """Of the only seed, as the evaluator derives it."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(1), 0), 0)


@functools.cache
def plain(name):
    loop, meta = loops.alone(whole_or_parts(name, 1)), ALL[name].meta
    first, key = jax.random.key(0), jax.random.key(1)
    if name in SMALL:
        space = Space(lambda key: jnp.int32(0), lambda params, meta: meta)
        of_member = lift(loop, space, AUC, 1, True).alone(seed_key(), 0, ())
        first = jax.random.fold_in(jax.random.fold_in(seed_key(), 1), 0)
        key, loop, meta = of_member

    @jax.jit
    def lifetime():
        start = loop.init(first, meta)
        state, metrics = loop.train(key, meta, start)
        if name not in HALVED:
            return state, metrics, None
        half = loops.alone(whole_or_parts(name, 2))
        halves, _ = jax.lax.scan(lambda x, _: half.train(key, meta, x), start, length=2)
        return state, metrics, halves

    return Plain(*lifetime())


@pytest.mark.parametrize("name", ALL)
def test_slots_that_are_switched_give_the_plain_algorithm(name):
    expected = result(name, plain(name).state.agent, plain(name).metrics["return"])
    close(member(different(name), FIRST), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_every_slot_reaches_the_result(name):
    """A searched value that changes nothing would be searched in vain."""
    first = member(different(name), FIRST)
    idle = []
    for i, slot in enumerate(tried(name)):
        changed = member(different(name), OTHERS + i)
        pairs = zip(jax.tree.leaves(changed), jax.tree.leaves(first), strict=True)
        if all(np.allclose(x, y, rtol=1e-6, atol=0, equal_nan=True) for x, y in pairs):
            idle.append(slot)
    assert idle == []


@pytest.mark.parametrize("name", ALL)
def test_defaults_written_by_other_operations_give_the_plain_algorithm(name):
    rewritten = member(different(name), ALL_REWRITTEN)
    close(rewritten, member(different(name), FIRST), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", ALL)
def test_members_learn_the_same_to_the_bit_whoever_is_beside_them(name):
    """The program is that of the members that differ."""
    first, copy = (member(different(name), i) for i in (FIRST, COPY))
    same(copy, first)
    same(member(alike(name)[0], FIRST), first)


def as_plain(slot):
    """A slot's function, or its optax transformation, as a user would give it."""
    if slot is loops.SGD:
        return optax.identity()
    return slot.func


def traced(loop, meta):
    """The program of a lifetime as text."""
    init, train = loops.alone(loop).init, loops.alone(loop).train

    def life(key):
        return train(key, meta, init(key, meta))

    return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(life)(jax.random.key(0))))


# One that `training.inner_loop` makes, as it does most, and those made otherwise.
INNER_LOOPS = ("ppo", "alphazero", "opponents", "partner")


@pytest.mark.parametrize("name", ALL)
def test_plain_functions_in_every_slot_are_the_same_wrapped(name):
    """When the loop is made, and when a space binds them later."""
    small = ALL[name]
    wrapped = {
        k: x for k, x in small.changes.items() if callable(x) or k == "optimizer"
    }
    plain = {slot: as_plain(x) for slot, x in wrapped.items()}
    assert plain or name == "fixed_policy"
    loop = small.make(small.meta._replace(**wrapped))
    given = small.make(small.meta._replace(**plain))
    for slot, function in plain.items():
        held = getattr(given.meta, slot)
        assert isinstance(held, slots.Optimizer) or held.func is function
    later = small.make()._replace(meta=loop.meta)
    bound = small.meta._replace(**plain)
    if name in INNER_LOOPS:
        assert traced(later, bound) == traced(loop, loop.meta)


@pytest.mark.parametrize("name", INNER_LOOPS)
def test_objects_that_no_slot_can_hold_are_refused(name):
    small = ALL[name]
    for slot in small.meta._fields:
        for wrong in ("tanh", object(), {}):
            with pytest.raises(ConfigError, match=rf"meta\.{slot}=.*expected"):
                small.make(small.meta._replace(**{slot: wrong}))


def test_wrong_kinds_of_slot_values_are_refused():
    with pytest.raises(ConfigError, match=r"meta\.drift=0\.5: expected a function of"):
        ppo.make(CARTPOLE, meta=ppo.Meta(drift=0.5))
    learned = losses.residual_network()
    with pytest.raises(ConfigError, match=r"spaces\.replace\(value_loss="):
        ppo.make(CARTPOLE, meta=ppo.Meta(value_loss=learned))
    with pytest.raises(ConfigError, match=r"optax\.scale_by_adam\(\)"):
        ppo.make(CARTPOLE, meta=ppo.Meta(optimizer=lambda gradient: gradient))
    # It would climb the loss: its steps are to be added.
    with pytest.raises(ConfigError, match=r"step to add .* optax\.scale_by_adam\(\)"):
        ppo.make(CARTPOLE, meta=ppo.Meta(optimizer=optax.adam(1e-3)))
    given = ppo.make(CARTPOLE, meta=ppo.Meta(optimizer=optax.scale_by_adam()))
    assert isinstance(given.meta.optimizer, slots.Optimizer)


# --- lifetimes ------------------------------------------------------------------------


def test_every_loop_is_here():
    assert sorted(ALL) == loops.FOUND
    for name, small in ALL.items():
        optional = {"actor", "diversity_coef"} & set(small.meta._fields)
        assert set(small.changes) | optional == set(small.meta._fields), name


@pytest.mark.parametrize("name", HALVED)
def test_two_half_lifetimes_equal_one_whole_to_the_bit(name):
    same(plain(name).halves, plain(name).state)


@pytest.mark.parametrize("name", ALL)
def test_clock_and_age_count_updates_and_metrics_are_those_promised(name):
    state, metrics, _ = plain(name)
    assert int(state.clock.update) == int(state.agent.age) == 4
    assert {"return", "episodes", "length", "diverged"} <= set(metrics)
    assert all(x.shape == () for x in metrics.values())
    loop = whole_or_parts(name, 1)
    inputs = jax.random.key(0), loop.meta, state
    assert {"return", "length"} <= set(jax.eval_shape(loop.evaluate, *inputs))


@pytest.mark.parametrize("name", SMALL)
def test_members_that_live_on_compile_once(name):
    """Weak types or a counter of another type would compile a second time; one is
    born among the others and has its own age and, if it has one, its own buffer."""
    evaluated, state = alike(name)[1]
    ages = np.full(state.agent.age[0].shape, 5)
    ages[2] = 1
    assert state.agent.age[0].tolist() == ages.tolist()
    assert {p._cache_size() for p in evaluator(name).programs.values()} <= {0, 1}
    assert evaluated.healthy.all()
    if name in OFF_POLICY_LOOPS:
        steps = SMALL[name].config["num_steps"]
        own = state.experience.steps_since_birth[0] // steps
        assert own.tolist() == ages.tolist()
    if "Pendulum" in SMALL[name].env:
        # A few steps of episodes of 200: nothing ended, and nobody failed.
        assert np.isnan(evaluated.fitness).all()


# --- what the compiled program is made of ---------------------------------------------


def equations(jaxpr):
    """Every equation of a program, nested ones included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(
            list(equation.params.values()),
            is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr"),
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def operations(closed, size):
    """Names of the operations that give an array of `size` numbers or more, and the
    number of choices of two; a slot above has three."""
    found = [
        e.primitive.name
        for e in equations(closed.jaxpr)
        if any(math.prod(v.aval.shape) >= size for v in e.outvars)
    ]
    conds = sum(
        e.primitive.name == "cond" and len(e.params["branches"]) == 2
        for e in equations(closed.jaxpr)
    )
    return found, conds


def smallest(experience):
    """Numbers in the smallest array of a buffer that the columns of priorities are not
    as large as."""
    columns = jax.tree.leaves(getattr(experience, "priorities", ()))
    column = max((math.prod(x.shape) for x in columns), default=0)
    sizes = [math.prod(x.shape) for x in jax.tree.leaves(experience.rows)]
    return min(size for size in sizes if size > column)


# The buffer of R2D2 is made and written by the functions of R2D3.
@pytest.mark.parametrize("name", [x for x in OFF_POLICY_LOOPS if x != "r2d2"])
def test_the_buffer_is_written_in_place_and_conds_stay(name):
    """Under seeds x members no select, scatter or cond touches a buffer, and DQN's
    target update stays a branch: in the program of the members above."""
    indices = jax.tree.map(jnp.asarray, members(name))
    size = len(next(iter(indices.values())))
    next(generations(name, indices, np.full(size, -1)))
    arguments = evaluator(name).arguments(jax.random.key(1), 0, Proposal(indices), None)
    arguments, programs = arguments(np.arange(size)), evaluator(name).programs
    state = programs["init/0"](*arguments)
    run = programs["run/0"].trace(*arguments, state)
    found, conds = operations(run.jaxpr, smallest(state.experience))
    passes = {"scan", "while", "reshape", "jit", "pjit", "squeeze", "copy", "shard_map"}
    passes |= {"dynamic_update_slice", "broadcast_in_dim", "custom_vmap_call"}
    assert set(found) <= passes, set(found) - passes
    assert "dynamic_update_slice" in found
    if name in ("dqn", "gorila", "apex", "r2d3"):
        assert conds > 0


def test_with_a_clock_for_each_member_the_buffer_is_not_written_in_place():
    """This shows that the test above can tell."""
    loop = whole_or_parts("dqn", 1)
    meta = loop.meta
    one = jax.eval_shape(loop.init, jax.random.key(0), meta)
    per_member = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((3, *x.shape), x.dtype), one
    )
    bad = jax.vmap(lambda state: loop.train(jax.random.key(0), meta, state)[0])
    closed = jax.make_jaxpr(bad)(per_member)
    found, conds = operations(closed, 3 * smallest(one.experience))
    assert "scatter" in found
    assert conds == 0


# --- bad input ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_bad_sizes_are_refused(name):
    small = ALL[name]
    # The key of a search: `inner` is the loop of the agent beside a partner.
    key = "shaper" if name in loops.PARTNERS else "inner"
    for field in dataclasses.fields(small.module.Config):
        if field.type == "int":
            wrong = -1 if field.name in ("max_delay", "burn_in") else 0
            with pytest.raises(ConfigError, match=rf"{key}\.{field.name}={wrong}"):
                small.make(**{field.name: wrong})
    if name in loops.GAMES or name in loops.PARTNERS:
        return
    with pytest.raises(ConfigError, match="swoosh"):
        small.make(activation="swoosh")
    with pytest.raises(ConfigError, match=r"total_timesteps=65 .* at least"):
        small.make(total_timesteps=65, buffer_size=65) if (
            "buffer_size" in small.config
        ) else small.make(total_timesteps=65)


@pytest.mark.parametrize("name", OFF_POLICY_LOOPS)
def test_a_buffer_too_small_for_the_warm_up_is_refused(name):
    with pytest.raises(ConfigError, match=r"learning_starts=64 .*buffer_size=32"):
        SMALL[name].make(buffer_size=32)


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("dqn", "gymnax/Pendulum-v1"),
        ("gorila", "gymnax/Pendulum-v1"),
        ("apex", "gymnax/Pendulum-v1"),
        ("r2d2", "gymnax/Pendulum-v1"),
        ("r2d3", "gymnax/Pendulum-v1"),
        ("pqn", "gymnax/Pendulum-v1"),
        ("td3", "gymnax/CartPole-v1"),
        ("td3_shared", "gymnax/CartPole-v1"),
        ("apex_ddpg", "gymnax/CartPole-v1"),
        ("qtopt", "gymnax/CartPole-v1"),
    ],
)
def test_actions_of_the_wrong_kind_are_refused(name, env):
    with pytest.raises(ConfigError, match=env):
        ALL[name].make(env=envs.make(env))
