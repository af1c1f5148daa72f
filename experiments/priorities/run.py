"""Prioritized sampling in several forms, and an update of Ape-X against DQN's.

    python -m experiments.priorities.run > experiments/priorities/results.jsonl

One JSON line per variant, CPU microseconds a step and member, medians of interleaved
runs. `forms`: 48 new windows, a draw of 128 and their new priorities, for M members
under vmap in a scan, of 1e4, 1e5 and 1e6 windows; whole buffers of transitions are not
in it. `update`: a whole update of Ape-X (actors, insertion, sample, gradient,
priorities) beside that of DQN with the same sizes, 1e5 frames in the buffer.

* `tree of K`: `metaevo.rl.sum_tree`, with K children a node.
* `cumulative sum`: of all masses, then a binary search.
* `blocks of K`: sums of blocks of K masses, computed again for each draw.
* `flashbax`: its sum tree, `set_batch_bincount` and stratified draws. flashbax 0.1 is
  optional.
"""

import contextlib
import functools
import json
import os
import platform
import statistics
import sys
import time

import jax
import jax.numpy as jnp

from inner_loops import apex, dqn
from metaevo import envs
from metaevo.rl import sum_tree

ENVS, WINDOW, BATCH, REPEATS = 16, 3, 128, 5
STEPS = {10_000: 400, 100_000: 100, 1_000_000: 20}
CHILDREN = (8, 16, 64)


# --- forms ----------------------------------------------------------------------------


def written(masses, indices, values):
    """Of repeated ones the largest, whatever the order of writing."""
    return masses.at[indices].set(0.0).at[indices].max(values)


def tree(children):
    def within(function):
        def call(*args):
            # The module's constant is read while JAX traces.
            usual, sum_tree.CHILDREN = sum_tree.CHILDREN, children
            try:
                return function(*args)
            finally:
                sum_tree.CHILDREN = usual

        return call

    return (
        within(lambda size: sum_tree.build(jnp.ones(size))),
        within(lambda key, levels: sum_tree.draw(key, levels, (BATCH,))[0]),
        within(sum_tree.assign),
    )


def cumulative():
    def draw(key, masses):
        upto = jnp.cumsum(masses)
        uniform = jax.random.uniform(key, (BATCH,)) * upto[-1]
        return jnp.searchsorted(upto, uniform, side="right")

    return jnp.ones, draw, written


def blocks(size):
    def draw(key, masses):
        keys = jax.random.split(key)
        masses = masses.reshape(-1, size)
        upto = jnp.cumsum(masses.sum(-1))
        uniform = jax.random.uniform(keys[0], (BATCH,)) * upto[-1]
        block = jnp.searchsorted(upto, uniform, side="right")
        inside = jnp.cumsum(masses[block], -1)
        uniform = jax.random.uniform(keys[1], (BATCH, 1)) * inside[:, -1:]
        return block * size + (inside <= uniform).sum(-1)

    return lambda n: jnp.ones(-(-n // size) * size), draw, written


def flashbax():
    from flashbax.buffers import sum_tree as theirs

    def start(size):
        every = jnp.arange(size)
        return theirs.set_batch_bincount(theirs.init(size), every, jnp.ones(size))

    def draw(key, state):
        return theirs.stratified_sample(state, BATCH, key)

    return start, draw, theirs.set_batch_bincount


def form(parts, size, num_members):
    """A timed run in place, compiled: CPU microseconds a step and member."""
    start, draw, write = parts

    def member(key, state, t):
        keys = jax.random.split(key)
        new = (t * ENVS + jnp.arange(ENVS * WINDOW)) % size
        state = write(state, new, jnp.ones(ENVS * WINDOW))
        indices = draw(keys[0], state)
        state = write(state, indices, jax.random.uniform(keys[1], (BATCH,)))
        return state, indices.sum()

    def step(carry, key):
        state, t = carry
        keys = jax.random.split(key, num_members)
        state, out = jax.vmap(member, (0, 0, None))(keys, state, t)
        return (state, t + 1), out.sum()

    state = jax.jit(jax.vmap(lambda _: start(size)))(jnp.arange(num_members))
    return timed(step, (state, jnp.int32(0)), STEPS[size], num_members)


def timed(step, state, num_steps, num_members):
    @functools.partial(jax.jit, donate_argnums=0)
    def scan(state, key):
        return jax.lax.scan(step, state, jax.random.split(key, num_steps))

    holder = [scan(state, jax.random.key(0))[0]]
    jax.block_until_ready(holder[0])

    def once():
        began = time.process_time()
        holder[0], out = scan(holder[0], jax.random.key(1))
        jax.block_until_ready((holder[0], out))
        return 1e6 * (time.process_time() - began) / num_steps / num_members

    return once


# --- a whole update -------------------------------------------------------------------

SIZES = {"total_timesteps": 101_600, "num_segments": 1, "learning_starts": 100_000}
SIZES |= {"buffer_size": 100_000, "num_envs": ENVS, "batch_size": BATCH}
SIZES |= {"num_step_return": WINDOW, "double": True, "dueling": True}
UPDATES = 100


def update(module, num_members):
    """A segment of a lifetime with a full buffer; see `form`."""
    loop = module.make(envs.make("gymnax/CartPole-v1"), module.Config(**SIZES))
    keys = jax.random.split(jax.random.key(0), num_members)
    state = jax.jit(jax.vmap(loop.init, (0, None)))(keys, loop.meta)
    clock = jax.tree.map(lambda x: x[0], state.clock)
    state = state._replace(clock=clock)
    axes = type(state)(0, 0, (), None)

    def member(key, state):
        state, metrics = loop.train(key, loop.meta, state)
        return state, metrics["q"]

    train = jax.vmap(member, (0, axes), (axes, 0))

    @functools.partial(jax.jit, donate_argnums=1)
    def segment(key, state):
        return train(jax.random.split(key, num_members), state)

    holder = [segment(jax.random.key(1), state)[0]]
    jax.block_until_ready(holder[0])

    def once():
        began = time.process_time()
        holder[0], out = segment(jax.random.key(1), holder[0])
        jax.block_until_ready((holder[0], out))
        return 1e6 * (time.process_time() - began) / UPDATES / num_members

    return once


# --- all ------------------------------------------------------------------------------


def interleaved(variants):
    times = {name: [] for name in variants}
    for _ in range(REPEATS):
        for name, once in variants.items():
            times[name].append(once())
    return times


def report(benchmark, times, **more):
    for name, found in times.items():
        line = {
            "benchmark": benchmark,
            "variant": name,
            **more,
            "microseconds": round(statistics.median(found), 1),
            "all": [round(x, 1) for x in found],
            "device": jax.devices()[0].device_kind,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "load": round(os.getloadavg()[0], 1),
            "jax": jax.__version__,
        }
        print(json.dumps(line), flush=True)


def main():
    for num_members in (1, 4):
        modules = {"DQN": dqn, "Ape-X": apex}
        once = {name: update(module, num_members) for name, module in modules.items()}
        report("update", interleaved(once), members=num_members, rows=100_000)
    for size in STEPS:
        parts = {f"tree of {n}": tree(n) for n in CHILDREN}
        parts |= {"cumulative sum": cumulative(), "blocks of 64": blocks(64)}
        with contextlib.suppress(ImportError):
            parts["flashbax"] = flashbax()
        if "flashbax" not in parts:
            print("without flashbax", file=sys.stderr)
        once = {name: form(one, size, 1) for name, one in parts.items()}
        report("forms", interleaved(once), members=1, rows=size)


if __name__ == "__main__":
    main()
