"""Properties of every inner loop in `inner_loops/`."""

import dataclasses
import functools
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import loops
import numpy as np
import optax
import pytest
from jax.tree_util import Partial
from loops import ALL, OFF_POLICY_LOOPS, SMALL

from inner_loops import ppo
from metaevo import advantages, envs, fitness, losses, slots, spaces
from metaevo.errors import ConfigError
from metaevo.evaluators.lift import lift
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Proposal, Search

AUC = fitness.last_segments(1)
CARTPOLE = envs.make("gymnax/CartPole-v1")


def same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def close(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


def numbers(agent):
    """Numbers that an agent learned; states of optimizers differ in form."""
    fields = agent._asdict()
    named = {k: v for k, v in fields.items() if k in ("params", "actor", "critic")}
    networks = {k: getattr(v, "params", v) for k, v in named.items()}
    if "log_temperature" in fields:
        networks["temperature"] = agent.log_temperature.params
    return networks


def result(name, state, metrics):
    """What a slot can change: what is learned, or the returns of who learns nothing."""
    learned = numbers(state.agent)
    return learned if ALL[name].learns else (learned, metrics["return"])


@functools.cache
def programs(name):
    loop = loops.alone(ALL[name].make())
    return jax.jit(loop.init), jax.jit(loop.train)


@functools.cache
def trained(name, **change):
    """The state and metrics after one lifetime; `change` holds slots."""
    init, train = programs(name)
    meta = ALL[name].meta._replace(**change)
    return train(jax.random.key(1), meta, init(jax.random.key(0), meta))


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


@functools.cache
def choices_of(name, slot):
    """Default, change, and default written once more: functions, or numbers."""
    small = ALL[name]
    default = getattr(small.meta, slot)
    default = NOTHING[slot] if default is None else default
    change, again = small.changes[slot], small.rewritten.get(slot, default)
    if isinstance(default, slots.Optimizer):
        return Choices((default.update, change.update, default.update))
    choices = default, change, again
    if any(callable(x) for x in choices):
        return Choices(tuple(x if callable(x) else constant(x) for x in choices))
    return choices


def switched(name, slot, index):
    """A slot that holds its default, its change or the default written once more.

    All are in one program: the index is an argument of it.
    """
    choices, default = choices_of(name, slot), getattr(ALL[name].meta, slot)
    if not isinstance(choices, Choices):
        return jnp.float32(choices[index])
    called = Partial(choose, jnp.int32(index), choices)
    if isinstance(default, slots.Optimizer):
        return default._replace(update=called)
    return called


@functools.cache
def with_slots_switched(name, changed=None, index=DEFAULT):
    """The result of a lifetime with one slot, or all for REWRITTEN, not the default.

    One program serves all slots of a loop.
    """
    init, train = programs(name)
    small = ALL[name]
    meta = small.meta._replace(
        **{
            slot: switched(name, slot, index if changed in (slot, "all") else DEFAULT)
            for slot in small.changes
        }
    )
    state, metrics = train(jax.random.key(1), meta, init(jax.random.key(0), meta))
    return result(name, state, metrics)


@pytest.mark.parametrize("name", ALL)
def test_slots_that_are_switched_give_the_plain_algorithm(name):
    plain = result(name, *trained(name))
    close(with_slots_switched(name), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "slot"), [(n, slot) for n, s in ALL.items() for slot in s.changes]
)
def test_every_slot_reaches_the_result(name, slot):
    """A searched value that changes nothing would be searched in vain."""
    plain = with_slots_switched(name)
    changed = with_slots_switched(name, slot, CHANGED)
    with pytest.raises(AssertionError):
        close(changed, plain, rtol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_defaults_written_by_other_operations_give_the_plain_algorithm(name):
    plain = result(name, *trained(name))
    # Not from the cache of results: the programs may have been released since.
    run = with_slots_switched.__wrapped__
    run(name)
    num_programs = programs(name)[1]._cache_size()
    rewritten = run(name, "all", REWRITTEN)
    close(rewritten, plain, rtol=2e-3, atol=2e-4)
    # One for all slots, and the plain one if it is still there.
    assert programs(name)[1]._cache_size() == num_programs
    assert num_programs in (1, 2)


def as_plain(slot):
    """A slot's function, or its optax transformation, as a user would give it."""
    if slot is loops.SGD:
        return optax.identity()
    return slot.func


def traced(loop, meta):
    """The programs of a lifetime as text."""
    state = jax.eval_shape(loops.alone(loop).init, jax.random.key(0), loop.meta)

    def life(state):
        init, train = loops.alone(loop).init, loops.alone(loop).train
        key = jax.random.key(0)
        return init(key, meta), train(key, meta, state)

    return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(life)(state)))


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
    jax.tree.leaves(given.meta)
    expected = traced(loop, loop.meta)
    assert traced(given, given.meta) == expected
    later = small.make()._replace(meta=loop.meta)
    assert traced(later, small.meta._replace(**plain)) == expected


@pytest.mark.parametrize("name", ALL)
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


@pytest.mark.parametrize("name", ALL)
def test_two_half_lifetimes_equal_one_whole_to_the_bit(name):
    whole, _ = trained(name)
    meta, halves = ALL[name].meta, loops.alone(ALL[name].make(num_segments=2))
    half, state = jax.jit(halves.train), programs(name)[0](jax.random.key(0), meta)
    for _ in range(2):
        state, _ = half(jax.random.key(1), meta, state)
    same(state, whole)
    assert int(state.clock.update) == int(state.agent.age) == 4


@pytest.mark.parametrize("name", ALL)
def test_metrics_are_those_promised(name):
    _, metrics = trained(name)
    assert {"return", "episodes", "length", "diverged"} <= set(metrics)
    assert all(x.shape == () for x in metrics.values())
    loop = ALL[name].make()
    evaluation = jax.eval_shape(
        loop.evaluate, jax.random.key(0), loop.meta, trained(name)[0]
    )
    assert {"return", "length"} <= set(evaluation)


def lifted(name, num_members=3, **config):
    """The loop over members that differ in γ, with worlds of their own."""
    tuned = SMALL[name].tuned
    space = spaces.tune(**{tuned: spaces.logit()})
    loop = SMALL[name].make(**config)
    both = lift(loop, space, AUC, 1, False)
    keys, ids = jax.random.split(jax.random.key(0), 2), jnp.arange(num_members)
    return both, (keys, ids, {tuned: jnp.linspace(0.0, 1.0, num_members)})


@pytest.mark.parametrize("name", SMALL)
def test_members_learn_the_same_among_copies_of_themselves(name):
    """The learning of a member does not depend on the others in its chunk. Both chunks
    are of the same size, so that one program runs them."""
    updates = {"total_timesteps": SMALL[name].config["total_timesteps"] // 4}
    if name in OFF_POLICY_LOOPS:
        config = SMALL[name].config
        frames = config["num_envs"] * config["num_steps"]
        updates = {"total_timesteps": config["learning_starts"] + frames}
    loop, (keys, ids, params) = lifted(name, **updates)

    @jax.jit
    def run(ids, params):
        state = loop.init(keys, ids, params)
        state, outcome = loop.run(keys, ids, params, state)
        return result(name, state, outcome.train)

    together = run(ids, params)
    for i in range(3):
        copies = jnp.full(3, i)
        among = run(ids[copies], jax.tree.map(lambda x, i=copies: x[i], params))
        mine = jax.tree.map(lambda x, i=copies: x[:, i], together)
        close(mine, among, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_members_that_live_on_compile_once(name):
    """Weak types or a counter of another type would compile a second time; one is
    born among the others and has its own age and, if it has one, its own buffer."""
    small = SMALL[name]
    search = Search(
        small.make(num_segments=4),
        spaces.tune(**{small.tuned: spaces.logit()}),
        None,
        3,
        AUC,
        segments_per_generation=1,
    )
    evaluate = LocalEvaluator(search, jax.devices()[:2])
    params, carried = {small.tuned: jnp.zeros(4)}, ()
    for i, parents in enumerate(([-1] * 4, [0, 1, 2, 3], [1, 1, -1, 3])):
        proposal = Proposal(params, jnp.array(parents))
        evaluated, carried = evaluate(jax.random.key(i), proposal, carried)
    agent = carried[0].agent
    assert agent.age[0].tolist() == [3, 3, 1, 3]
    assert {p._cache_size() for p in evaluate.programs.values()} <= {0, 1}
    assert evaluated.healthy.all()
    if name in OFF_POLICY_LOOPS:
        steps = small.config["num_steps"]
        own = carried[0].experience.steps_since_birth[0] // steps
        assert own.tolist() == [3, 3, 1, 3]
    if "Pendulum" in small.env:
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


def operations(run, state, size):
    """Names of the operations that give an array of `size` numbers or more."""
    closed = jax.make_jaxpr(run)(state)
    found = [
        e.primitive.name
        for e in equations(closed.jaxpr)
        if any(math.prod(v.aval.shape) >= size for v in e.outvars)
    ]
    conds = sum(e.primitive.name == "cond" for e in equations(closed.jaxpr))
    return found, conds


def smallest(experience):
    """Numbers in the smallest array of a buffer that the columns of priorities are not
    as large as."""
    columns = jax.tree.leaves(getattr(experience, "priorities", ()))
    column = max((math.prod(x.shape) for x in columns), default=0)
    sizes = [math.prod(x.shape) for x in jax.tree.leaves(experience.rows)]
    return min(size for size in sizes if size > column)


@pytest.mark.parametrize("name", OFF_POLICY_LOOPS)
def test_the_buffer_is_written_in_place_and_conds_stay(name):
    """Under seeds x members no select, scatter or cond touches a buffer, and DQN's
    target update stays a branch. With the clock per member all that is lost, which
    shows that the test can tell."""
    both, arguments = lifted(name, buffer_size=4096, total_timesteps=5000)
    state = jax.eval_shape(both.init, *arguments)
    size = smallest(state.experience)

    def run(state):
        return both.run(*arguments, state)[0]

    found, conds = operations(run, state, size)
    passes = {"scan", "while", "reshape", "jit", "pjit", "squeeze", "copy"}
    passes |= {"dynamic_update_slice", "broadcast_in_dim", "custom_vmap_call"}
    assert set(found) <= passes, set(found) - passes
    assert "dynamic_update_slice" in found
    assert (conds > 0) == (name in ("dqn", "gorila", "apex", "r2d2", "r2d3"))

    loop = SMALL[name].make(buffer_size=4096, total_timesteps=5000)
    meta = loop.meta
    one = jax.eval_shape(loop.init, jax.random.key(0), meta)
    per_member = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((3, *x.shape), x.dtype), one
    )
    bad = jax.vmap(lambda state: loop.train(jax.random.key(0), meta, state)[0])
    found, conds = operations(bad, per_member, 3 * smallest(one.experience))
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


# --- memory ---------------------------------------------------------------------------


@pytest.mark.slow
def test_announced_memory_is_what_is_taken():
    """A gigabyte of replay buffers, in a process of its own."""
    script = Path(__file__).parents[1] / "helpers" / "memory_of.py"
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    print(f"\nannounced {found['announced']:,}, measured {found['measured']:,} bytes")
    assert found["announced"] > 2**30
    assert found["measured"] == pytest.approx(found["announced"], rel=0.1)
