"""Populations of training runs to be timed: ours, and references under vmap.

A `Runner` goes on training what it holds, for some frames a call. Births are not timed:
a lifetime is long, a benchmark short.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from benchmarks import reference_ppo
from metaevo import fitness
from metaevo.analysis import holdout
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import InnerLoop, Proposal, Search


class Runner(NamedTuple):
    """A timed case: `run` trains the population for `frames` frames in all."""

    run: Callable[[], object]
    frames: int


def ours(
    loop: InnerLoop, size: int, devices: list, chunk_size: int | None = None
) -> Runner:
    """`size` members of a loop through the engine's evaluator, one segment a call."""
    search = Search(
        loop,
        holdout.HAND_MADE,
        None,
        1,
        fitness.area_under_curve,
        segments_per_generation=1,
        chunk_size=chunk_size,
    )
    evaluator = LocalEvaluator(search, devices)
    params = holdout.copies(holdout.NOTHING, size)
    proposal = Proposal(params, parents=jnp.arange(size))
    carried = [()]

    def run():
        _, carried[0] = evaluator(jax.random.key(0), proposal, carried[0])

    run()
    return Runner(run, size * loop.frames_per_segment)


def mapped(
    init: Callable, train: Callable, size: int, devices: list, frames: int
) -> Runner:
    """`size` members of one under `jit(vmap)`, in equal parts per device.

    Args:
        init: `key -> carry` of one member.
        train: `carry -> (carry, info)`, some `frames` of one member.
    """
    keys = jax.random.split(jax.random.key(0), size)
    # LAPACK's QR under vmap can wait for itself on CPU: one member after the other.
    carry = jax.jit(partial(jax.lax.map, init))(keys)
    axis = {"axis_types": (AxisType.Auto,), "devices": devices}
    mesh = jax.make_mesh((len(devices),), ("devices",), **axis)
    spec = PartitionSpec("devices")
    program = jax.jit(
        jax.shard_map(
            jax.vmap(train), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
        ),
        donate_argnums=0,
    )
    held = [jax.device_put(carry, NamedSharding(mesh, spec))]

    def run():
        held[0], info = program(held[0])
        jax.block_until_ready((held[0], info))

    return Runner(run, size * frames)


def reference(config: dict, size: int, devices: list, num_updates: int) -> Runner:
    """`size` members of `reference_ppo`, `num_updates` updates a call."""
    update = reference_ppo.make_update(config)

    def train(carry):
        return jax.lax.scan(update, carry, None, num_updates)

    frames = num_updates * config["NUM_STEPS"] * config["NUM_ENVS"]
    return mapped(reference_ppo.make_init(config), train, size, devices, frames)
