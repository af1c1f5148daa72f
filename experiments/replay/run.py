"""Insertion and sampling of the replay buffer, at N and 2N rows, against flashbax.

    python -m experiments.replay.run > experiments/replay/results.jsonl

One JSON line per variant: microseconds per step of one insertion of 4 transitions and
one sample of 64, for 8 members under vmap in a scan, medians of interleaved runs.
`scatter` is ours with an index per member, which is what a clock in the member's own
state would give. flashbax 0.1 is optional.
"""

import contextlib
import functools
import json
import os
import platform
import statistics
import time

import jax
import jax.numpy as jnp

from metaevo import envs
from metaevo.rl import off_policy, replay
from metaevo.rl.rollouts import Transition

MEMBERS, ENVS, BATCH, STEPS, REPEATS = 8, 4, 64, 2000, 7
OBS, ACTION = 17, 6


def environment():
    """Only its shapes matter."""
    box = envs.Box((ACTION,), -1.0, 1.0)
    return envs.Env(None, None, None, envs.Box((OBS,)), box, 1)


def transitions(num_rows):
    flag = jnp.zeros((num_rows, ENVS), bool)
    obs = jnp.ones((num_rows, ENVS, OBS))
    return Transition(
        obs, jnp.ones((num_rows, ENVS, ACTION)), obs[..., 0], obs, flag, flag
    )


def total(batch):
    """Sum of all numbers, so that every one of them is sampled."""
    return sum(x.astype(jnp.float32).sum() for x in jax.tree.leaves(batch))


def ours(num_rows, per_member):
    buffer = replay.make(off_policy.template(environment()), num_rows, ENVS, 1)
    rows = jax.vmap(lambda _: buffer.start(transitions(1)))(jnp.arange(MEMBERS))
    clock = jnp.zeros(MEMBERS if per_member else (), jnp.int32)
    axis = 0 if per_member else None

    def member(key, rows, clock):
        rows = buffer.add(rows, clock, transitions(1))
        batch, _ = buffer.sample(key, rows, clock + 1, clock + 1, (BATCH,))
        return rows, total(batch)

    def step(state, key):
        rows, clock = state
        keys = jax.random.split(key, MEMBERS)
        rows, out = jax.vmap(member, (0, 0, axis))(keys, rows, clock)
        return (rows, clock + 1), out.sum()

    return step, (rows, clock)


def flashbax(num_rows):
    import flashbax

    buffer = flashbax.make_item_buffer(num_rows * ENVS, 1, BATCH, add_batches=True)
    one = jax.tree.map(lambda x: x[0, 0], transitions(1))
    start = jax.vmap(lambda _: buffer.init(one))(jnp.arange(MEMBERS))

    def member(key, state):
        state = buffer.add(state, jax.tree.map(lambda x: x[0], transitions(1)))
        batch, _ = buffer.sample(state, key).experience
        return state, total(batch)

    def step(state, key):
        keys = jax.random.split(key, MEMBERS)
        state, out = jax.vmap(member)(keys, state)
        return state, out.sum()

    return step, start


def program(step, start):
    """A timed run in place, compiled: microseconds a step."""

    @functools.partial(jax.jit, donate_argnums=0)
    def scan(state, key):
        return jax.lax.scan(step, state, jax.random.split(key, STEPS))

    holder = [scan(start, jax.random.key(0))[0]]

    def timed():
        began = time.perf_counter()
        holder[0], out = scan(holder[0], jax.random.key(1))
        jax.block_until_ready((holder[0], out))
        return 1e6 * (time.perf_counter() - began) / STEPS

    return timed


def main():
    variants = {}
    for num_rows in (10_000, 20_000):
        variants["ours", num_rows] = program(*ours(num_rows, False))
        variants["scatter", num_rows] = program(*ours(num_rows, True))
        with contextlib.suppress(ImportError):
            variants["flashbax item", num_rows] = program(*flashbax(num_rows))
    times = {name: [] for name in variants}
    for _ in range(REPEATS):
        for name, timed in variants.items():
            times[name].append(timed())
    for (name, num_rows), found in times.items():
        line = {
            "benchmark": "replay",
            "variant": name,
            "rows": num_rows,
            "members": MEMBERS,
            "microseconds": round(statistics.median(found), 1),
            "all": [round(x, 1) for x in found],
            "device": jax.devices()[0].device_kind,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "load": os.getloadavg()[0],
            "jax": jax.__version__,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
