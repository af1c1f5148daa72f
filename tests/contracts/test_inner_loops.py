"""What every inner loop keeps to, over all of them."""

import dataclasses
import functools
import json
import math
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import loops
import numpy as np
import pytest
from loops import OFF_POLICY_LOOPS, SMALL

from metaevo import fitness, spaces
from metaevo.errors import ConfigError
from metaevo.evaluators.lift import lift
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Proposal, Search

AUC = fitness.last_segments(1)


def same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def close(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


def numbers(agent):
    """What an agent learned; its optimizer's state differs between optimizers."""
    fields = agent._asdict()
    named = {k: v for k, v in fields.items() if k in ("params", "actor", "critic")}
    networks = {k: getattr(v, "params", v) for k, v in named.items()}
    if "log_temperature" in fields:
        networks["temperature"] = agent.log_temperature.params
    return networks


def result(name, state, metrics):
    """What a slot can change: what is learned, or the returns of who learns nothing."""
    learned = numbers(state.agent)
    return learned if SMALL[name].learns else (learned, metrics["return"])


@functools.cache
def programs(name):
    loop = SMALL[name].make()
    return jax.jit(loop.init), jax.jit(loop.train)


@functools.cache
def trained(name, **change):
    """The state and metrics after one lifetime; `change` holds slots."""
    init, train = programs(name)
    meta = SMALL[name].meta._replace(**change)
    return train(jax.random.key(1), meta, init(jax.random.key(0), meta))


def test_every_loop_is_here():
    assert sorted(SMALL) == loops.FOUND
    for name, small in SMALL.items():
        optional = {"actor", "diversity_coef"} & set(small.meta._fields)
        assert set(small.changes) | optional == set(small.meta._fields), name


@pytest.mark.parametrize("name", SMALL)
def test_two_half_lifetimes_equal_one_whole_to_the_bit(name):
    whole, _ = trained(name)
    meta, halves = SMALL[name].meta, SMALL[name].make(num_segments=2)
    half = jax.jit(halves.train)
    state = jax.jit(halves.init)(jax.random.key(0), meta)
    for _ in range(2):
        state, _ = half(jax.random.key(1), meta, state)
    same(state, whole)
    assert int(state.clock.update) == int(state.agent.age) == 4


@pytest.mark.parametrize("name", SMALL)
def test_metrics_are_those_promised(name):
    _, metrics = trained(name)
    assert {"return", "episodes", "length", "diverged"} <= set(metrics)
    assert all(x.shape == () for x in metrics.values())
    loop = SMALL[name].make()
    evaluation = jax.eval_shape(
        loop.evaluate, jax.random.key(0), loop.meta, trained(name)[0]
    )
    assert {"return", "length"} <= set(evaluation)


@pytest.mark.parametrize(
    ("name", "slot"), [(n, slot) for n, s in SMALL.items() for slot in s.changes]
)
def test_every_slot_reaches_the_result(name, slot):
    """A searched value that changes nothing would be searched in vain."""
    plain = result(name, *trained(name))
    changed = result(name, *trained(name, **{slot: SMALL[name].changes[slot]}))
    with pytest.raises(AssertionError):
        close(changed, plain, rtol=1e-6)


@pytest.mark.parametrize("name", SMALL)
def test_the_defaults_are_the_plain_algorithm(name):
    """Every function slot, written once more with other operations."""
    plain = result(name, *trained(name))
    rewritten = result(name, *trained(name, **SMALL[name].rewritten))
    close(rewritten, plain, rtol=2e-3, atol=2e-4)


def lifted(name, num_members=3, **config):
    """The loop over members that differ in γ, with worlds of their own."""
    tuned = SMALL[name].tuned
    space = spaces.tune(**{tuned: spaces.logit()})
    loop = SMALL[name].make(**config)
    both = lift(loop, space, AUC, 1, False)
    keys, ids = jax.random.split(jax.random.key(0), 2), jnp.arange(num_members)
    return both, (keys, ids, {tuned: jnp.linspace(0.0, 1.0, num_members)})


@pytest.mark.parametrize("name", SMALL)
def test_members_equal_single_runs_after_one_update(name):
    """Rule 12: what a member learns does not depend on who is beside it."""
    updates = {"total_timesteps": SMALL[name].config["total_timesteps"] // 4}
    if name in OFF_POLICY_LOOPS:
        config = SMALL[name].config
        frames = config["num_envs"] * config["num_steps"]
        updates = {"total_timesteps": config["learning_starts"] + frames}
    loop, (keys, ids, params) = lifted(name, **updates)

    def run(ids, params):
        state = jax.jit(loop.init)(keys, ids, params)
        state, outcome = jax.jit(loop.run)(keys, ids, params, state)
        return result(name, state, outcome.train)

    together = run(ids, params)
    for i in range(3):
        alone = run(ids[i : i + 1], jax.tree.map(lambda x: x[i : i + 1], params))
        mine = jax.tree.map(lambda x: x[:, i : i + 1], together)
        close(mine, alone, rtol=1e-4, atol=1e-5)


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
        own = carried[0].experience.own[0] // steps
        assert own.tolist() == [3, 3, 1, 3]


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


@pytest.mark.parametrize("name", OFF_POLICY_LOOPS)
def test_the_buffer_is_written_in_place_and_conds_stay(name):
    """Under seeds x members no select, scatter or cond touches a buffer, and DQN's
    target update stays a branch. With the clock per member all that is lost, which
    shows that the test can tell."""
    both, arguments = lifted(name, buffer_size=4096, total_timesteps=5000)
    state = jax.eval_shape(both.init, *arguments)
    size = math.prod(state.experience.rows.shape)

    def run(state):
        return both.run(*arguments, state)[0]

    found, conds = operations(run, state, size)
    passes = {"scan", "while", "reshape", "jit", "pjit", "squeeze", "copy"}
    passes |= {"dynamic_update_slice", "broadcast_in_dim", "custom_vmap_call"}
    assert set(found) <= passes, set(found) - passes
    assert "dynamic_update_slice" in found
    assert (conds > 0) == (name == "dqn")

    loop = SMALL[name].make(buffer_size=4096, total_timesteps=5000)
    meta = loop.meta
    one = jax.eval_shape(loop.init, jax.random.key(0), meta)
    per_member = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((3, *x.shape), x.dtype), one
    )
    bad = jax.vmap(lambda state: loop.train(jax.random.key(0), meta, state)[0])
    found, conds = operations(bad, per_member, 3 * math.prod(one.experience.rows.shape))
    assert "scatter" in found
    assert conds == 0


# --- bad input ------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_bad_sizes_are_refused(name):
    small = SMALL[name]
    for field in dataclasses.fields(small.module.Config):
        if field.type == "int":
            with pytest.raises(ConfigError, match=rf"inner\.{field.name}=0"):
                small.make(**{field.name: 0})
    with pytest.raises(ConfigError, match="swoosh"):
        small.make(activation="swoosh")
    with pytest.raises(ConfigError, match=r"total_timesteps=65 .* at least"):
        small.make(total_timesteps=65, buffer_size=65) if (
            name in OFF_POLICY_LOOPS
        ) else small.make(total_timesteps=65)


@pytest.mark.parametrize("name", OFF_POLICY_LOOPS)
def test_a_buffer_too_small_for_the_warm_up_is_refused(name):
    with pytest.raises(ConfigError, match=r"learning_starts=64 .*buffer_size=32"):
        SMALL[name].make(buffer_size=32)


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("dqn", "gymnax/Pendulum-v1"),
        ("pqn", "gymnax/Pendulum-v1"),
        ("td3", "gymnax/CartPole-v1"),
        ("sac", "gymnax/CartPole-v1"),
    ],
)
def test_actions_of_the_wrong_kind_are_refused(name, env):
    from metaevo import envs

    with pytest.raises(ConfigError, match=env):
        SMALL[name].make(env=envs.make(env))


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
