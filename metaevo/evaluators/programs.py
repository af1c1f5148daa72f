"""Compiled programs of an evaluator: a loop over seeds, members and devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from metaevo.evaluators.layout import MEMBERS, SEEDS_MEMBERS, STATE
from metaevo.evaluators.lift import lift
from metaevo.types import InnerLoop, Proposal, Search


class TaskPrograms(NamedTuple):
    """Programs of one task, each compiled once.

    All take `(seed_keys [devices x seeds], ids [width], params [width, ...])`, the last
    two also a state; see `Lifted`. `run` consumes its state.
    """

    init: Any
    members: Any
    run: Any
    evaluate: Any


def common_random_numbers(search: Search, proposal: Proposal) -> bool:
    """Return True if the members of a seed draw the same random numbers.

    It is as the search asks; by default, if members are newborn in each generation or
    come in mirrored pairs, which are compared, and the loop is not coupled.
    """
    if search.common_random_numbers is not None:
        return search.common_random_numbers
    mirrored = getattr(search.strategy, "mirrored", False)
    compared = proposal.parents is None or mirrored
    return compared and not search.coupled


def make_programs(
    search: Search, loop: InnerLoop, mesh: Mesh, shared_numbers: bool, evaluate: bool
) -> TaskPrograms:
    """Return the programs of one task on the devices of `mesh`.

    Args:
        search: Search whose space and fitness are used.
        loop: Inner loop of the task.
        mesh: Devices, in one axis.
        shared_numbers: Whether members draw common random numbers.
        evaluate: Run `InnerLoop.evaluate` even if the fitness does not need it.
    """
    segments = search.segments_per_generation or loop.num_segments
    if search.stopping is not None:
        segments = loop.num_segments // search.stopping.horizon
    lifted = lift(
        loop,
        search.space,
        search.fitness,
        segments,
        shared_numbers,
        evaluate,
        search.vary,
        search.world_per_member,
    )

    def program(fn: Callable, in_specs: tuple, out_specs: Any, donate: tuple = ()):
        # Constant scan carries inside the environments fail the varying-axes check.
        fn = jax.shard_map(
            fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        return jax.jit(fn, donate_argnums=donate)

    inputs = (MEMBERS, MEMBERS, MEMBERS)
    return TaskPrograms(
        init=program(lifted.init, inputs, STATE),
        members=program(lifted.members, inputs, STATE),
        run=program(lifted.run, (*inputs, STATE), (STATE, SEEDS_MEMBERS), donate=(3,)),
        evaluate=program(lifted.evaluate, (*inputs, STATE), SEEDS_MEMBERS),
    )
