"""Planning of memory: as many members, and of a member as many seeds, train as fit.

The sizes are chosen once, before generation 0, from the memory analysis of the compiled
program. They are kept in the run's manifest, because they change the last bits. A run
that continues is checked with the sizes that it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from metaevo import population
from metaevo.errors import ConfigError
from metaevo.evaluators.memory import (
    ACCELERATOR,
    COMPARISON,
    SEARCH,
    MemoryNeed,
    available,
    give_back,
    resident,
)
from metaevo.text import byte_size
from metaevo.types import Proposal, Strategy

if TYPE_CHECKING:
    from metaevo.evaluators.local import LocalEvaluator

__all__ = ["needed", "plan"]

SHARE = 0.9  # of the available memory, which a plan may use
LARGE = 256 << 20  # bytes of a proposal from which on its strategy's memory counts


def needed(evaluator: LocalEvaluator, proposal: Proposal) -> MemoryNeed:
    """Return the bytes that a search needs at its peak.

    Members that live on exist before a generation and after it. The agents that are
    trained in a round are copies of the former, and become a part of the latter. A
    checkpoint is written from where the arrays lie.

    Args:
        evaluator: Evaluator of the search.
        proposal: Proposal of the whole population, or its shapes.
    """
    a_round = evaluator.memory(proposal)
    carried = evaluator.carried_bytes(proposal)
    if evaluator.devices[0].platform != "cpu":
        # Rounds are joined on the accelerator, beside what was before and is after.
        copies = carried * (1 if _share(evaluator, proposal) >= 1 else 3)
        return MemoryNeed(ACCELERATOR * len(evaluator.devices), a_round, copies)
    training, copies = a_round, 0
    if carried:
        # Before and after; where one round is all, its state is the latter.
        share = _share(evaluator, proposal)
        copies = carried * (1 if share >= 1 else 2)
        if len(evaluator.devices) > 1:
            # When its temporary arrays are gone, the state of a round is brought to
            # the host, array by array.
            moved = share * (carried + evaluator.largest(proposal))
            training = max(training, int(moved))
    # The comparison afterwards trains newborn members beside those that live on.
    search, comparison = SEARCH + training + copies, COMPARISON + a_round + carried
    later = max(search, comparison) - training - copies
    give_back()
    return MemoryNeed(resident() + later, training, copies)


def _share(evaluator: LocalEvaluator, proposal: Proposal) -> float:
    """Return the share of the members in one round; more than 1 with padding."""
    width = evaluator.chunk_size * len(evaluator.devices)
    return width / population.size(proposal.params)


def plan(evaluator: LocalEvaluator, proposal: Proposal) -> LocalEvaluator:
    """Return an evaluator whose rounds fit into memory.

    Its `announced` is what it needs.

    Args:
        evaluator: Evaluator of the search.
        proposal: Proposal of the whole population, or its shapes.

    Returns:
        The evaluator, or one like it with smaller chunks, at last of few seeds.

    Raises:
        ConfigError: The population's params do not fit, or one member at a time, or
            the requested chunk, or the loop is coupled and cannot be cut. The message
            gives the bytes.
    """
    have = available(evaluator.devices[0])
    _check_population(evaluator, proposal, have)
    search = evaluator.search  # as asked
    asked = search.chunk_size is not None
    platform = evaluator.devices[0].platform
    while True:
        memory = evaluator.announced = needed(evaluator, proposal)
        more = memory.training + memory.carried
        # On a CPU the process is there already, and `have` is what is left beside it.
        if platform != "cpu":
            # Each accelerator has its own memory; the bytes are those of all devices.
            more = -(-memory.peak // len(evaluator.devices))
        if have is None or more <= SHARE * have:
            return evaluator
        chunk, seeds = evaluator.chunk_size, evaluator.layout.seeds
        divisible = search.seeds_alone and search.seeds_at_once is None and seeds > 1
        if evaluator.coupled or asked or (chunk == 1 and not divisible):
            size = population.size(proposal.params)
            carried = memory.carried
            kept = f", {byte_size(carried)} of it members that live on" * bool(carried)
            raise ConfigError(
                f"not enough memory: {chunk} of {size} members on each of "
                f"{len(evaluator.devices)} {platform} device(s) need "
                f"{byte_size(more)}{kept}, and {byte_size(have)} are available. "
                f"{_remedy(evaluator, asked)}"
            )
        if chunk > 1:
            evaluator = evaluator.with_chunk(chunk // 2, search.seeds_at_once)
        else:
            evaluator = evaluator.with_chunk(1, seeds // 2)


def _check_population(
    evaluator: LocalEvaluator, proposal: Proposal, have: int | None
) -> None:
    """Check that a population and its strategy fit, before an agent's program compiles.

    A strategy holds a large population several times while it asks and tells.
    """
    more = _bytes(proposal.params)
    fits = have is None or more <= SHARE * have
    if fits and more > LARGE:
        more = max(more, _strategy_bytes(evaluator.search.strategy, proposal))
    if have is not None and more > SHARE * have:
        raise ConfigError(
            f"population_size={population.size(proposal.params)}: not enough memory: "
            f"the evolved numbers of all members need {byte_size(more)}, and "
            f"{byte_size(have)} are available on {evaluator.devices[0].platform}; "
            "lower it"
        )


def _strategy_bytes(strategy: Strategy, proposal: Proposal) -> int:
    """Return the bytes of a strategy's programs at their peak; they are compiled."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(strategy.init, key)
    fitness = jax.ShapeDtypeStruct((population.size(proposal.params),), jnp.float32)

    def peak(function, *shapes):
        used = jax.jit(function).lower(*shapes).compile().memory_analysis()
        if used is None:  # the platform does not report it
            return 0
        sizes = used.argument_size_in_bytes, used.output_size_in_bytes
        return sum(sizes) + used.temp_size_in_bytes

    asking = peak(strategy.ask, key, state)
    return max(asking, peak(strategy.tell, key, state, proposal, fitness))


def _bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _remedy(evaluator: LocalEvaluator, asked: bool) -> str:
    if asked:
        return (
            "Leave chunk_size None, or lower it; a run keeps the chunk_size that it "
            "began with, so one that continues needs more memory."
        )
    if evaluator.coupled:
        return "A coupled population cannot be cut: lower its size or the buffer's."
    fewer = "" if evaluator.search.seeds_alone else "num_seeds, or "
    return f"Lower {fewer}the sizes in inner.*, such as buffer_size."
