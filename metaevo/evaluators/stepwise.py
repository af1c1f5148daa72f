"""One member of a generation, segment by segment, with its state before each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import population
from metaevo.evaluators.layout import num_groups
from metaevo.evaluators.lift import lift
from metaevo.evaluators.local import LocalEvaluator, continued_sources, healthy
from metaevo.evaluators.programs import common_random_numbers, make_programs
from metaevo.types import InnerLoop, InnerState, Key, Proposal, PyTree


class Segment(NamedTuple):
    """A segment of one member's training on one task with one seed.

    Attributes:
        task, seed, index: which one.
        before, after: the member's state.
        healthy: whether all numbers of the agent after it are finite.
        key, loop, meta: `loop.train(key, meta, before)` trains the segment again, of
            this member alone. Alone it may round otherwise than among its chunk.
    """

    task: int
    seed: int
    index: int
    before: InnerState
    after: InnerState
    healthy: bool
    key: Key
    loop: InnerLoop
    meta: Any


def segments(
    evaluator: LocalEvaluator,
    key: Key,
    proposal: Proposal,
    carried: PyTree,
    member: int,
    places: np.ndarray | None = None,
) -> Iterator[Segment]:
    """Train the chunk of one member again, and yield each of its segments.

    Args:
        evaluator: of the search.
        key, proposal, carried, places: as in a call of it.
        member: index of the member in `proposal`.
    """
    evaluator.prepare(proposal, places is not None)
    search, layout = evaluator.search, evaluator.layout
    size = population.size(proposal.params)
    shared = common_random_numbers(search, proposal)
    for task, loop in enumerate(search.tasks):
        one = search._replace(segments_per_generation=1, stopping=None)
        programs = make_programs(one, loop, layout.mesh, shared, False)
        alone = lift(
            loop,
            search.space,
            search.fitness,
            1,
            shared,
            vary=search.vary,
            world_per_member=search.world_per_member,
        ).alone
        old = carried[task] if carried else None
        sources = None
        if old is not None:
            alive = healthy(old, size)
            sources = continued_sources(loop, proposal.parents, alive)
        arguments = evaluator.arguments(key, task, proposal, places)
        for ids, column in _rounds_of(evaluator, member, size):
            args = arguments(ids)
            # A device has the keys of its own lanes' seeds.
            first_key = column // layout.chunk_size * layout.seeds
            first_seed = ids[column] // size * layout.seeds
            num_seeds = min(layout.seeds, search.num_seeds - first_seed)
            state = evaluator.start(task, args, ids, sources, old)
            place = int(member if places is None else places[member])
            params = jax.tree.map(lambda x, at=column: x[at], args[2])
            for index in range(search.segments_per_generation or loop.num_segments):
                before = jax.tree.map(jnp.copy, state)  # `run` consumes its input
                state, outcome = programs.run(*args, state)
                after = jax.tree.map(jnp.copy, state)
                finite = np.asarray(outcome.healthy)
                for seed in range(num_seeds):
                    seed_key = args[0][first_key + seed]
                    train_key, here, meta = alone(seed_key, jnp.int32(place), params)
                    yield Segment(
                        task,
                        first_seed + seed,
                        index,
                        _of_member(before, seed, column),
                        _of_member(after, seed, column),
                        bool(finite[seed, column]),
                        train_key,
                        here,
                        meta,
                    )


def _rounds_of(
    evaluator: LocalEvaluator, member: int, size: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the rounds in which a member trains, and its place in each."""
    groups = num_groups(evaluator.sized)
    lanes = np.repeat(np.arange(groups), size)
    for ids, real in evaluator.layout.rounds(groups * size, lanes):
        for column in np.flatnonzero((ids % size == member) & real):
            yield ids, int(column)


def _of_member(state: InnerState, seed: int, column: int) -> InnerState:
    """Return one member's state of one seed."""
    return InnerState(
        agent=jax.tree.map(lambda x: x[seed, column], state.agent),
        experience=jax.tree.map(lambda x: x[seed, column], state.experience),
        shared=jax.tree.map(lambda x: x[seed], state.shared),
        clock=state.clock,
    )
