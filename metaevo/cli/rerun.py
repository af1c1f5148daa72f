"""`metaevo rerun`: what one member of a former generation did, in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from metaevo.cli.options import RerunOptions
from metaevo.engine import rerun as engine
from metaevo.engine.rerun import Failure, Rerun
from metaevo.errors import ConfigError
from metaevo.evaluators.stepwise import Segment
from metaevo.types import Search


def rerun(search: Search, directory: str | Path, chosen: RerunOptions) -> Rerun:
    """Train a member again and print what came of it.

    Raises:
        ConfigError: The run has no such generation, member, segment or seed.
    """
    if chosen.segment is not None:
        number = search.segments_per_generation or max(
            loop.num_segments for loop in search.tasks
        )
        if chosen.segment not in range(number) or chosen.seed not in range(
            search.num_seeds
        ):
            raise ConfigError(
                f"segment={chosen.segment}, seed={chosen.seed}: the search has "
                f"{number} segments a generation and {search.num_seeds} seeds, counted "
                "from 0"
            )

    def visit(segment: Segment) -> None:
        if (segment.index, segment.seed) == (chosen.segment, chosen.seed):
            without_jit(segment)

    found = engine.rerun(
        search,
        directory,
        chosen.generation,
        chosen.member,
        print,
        None if chosen.segment is None else visit,
    )
    for line in lines(found):
        print(line)
    return found


def without_jit(segment: Segment) -> None:
    """Train a segment operation by operation: every value is a number.

    Loops of JAX are loops of Python then, and take seconds to minutes.
    """
    print(f"training segment {segment.index} without jit")
    with jax.disable_jit():
        segment.loop.train(segment.key, segment.meta, segment.before)


def lines(found: Rerun) -> Iterator[str]:
    """Yield what came of a rerun, in lines."""
    head = f"generation {found.generation}, member {found.member}: "
    numbers = [f"{slot}={x:.6g}" for slot, x in found.numbers.items()]
    yield head + (", ".join(numbers) or "no number slots")
    if found.same:
        yield f"fitness {found.fitness:.6g}, the logged one to the bit"
    else:
        yield (
            f"fitness {found.fitness!r}, and the log has {found.logged!r}: the code, "
            "versions or devices are not those of the run"
        )
    for task, metrics in enumerate(found.train):
        where = f"task {task}: " if len(found.train) > 1 else ""
        returns = np.asarray(metrics["return"])
        shown = [" ".join(f"{x:.6g}" for x in row) for row in returns]
        yield f"{where}return in each segment: {'; '.join(shown)}"
    for failure in found.failures:
        yield from _failure(failure)


def _failure(failure: Failure) -> Iterator[str]:
    segment = failure.segment
    named = ", ".join(failure.leaves[:4])
    more = f" and {len(failure.leaves) - 4} more" if len(failure.leaves) > 4 else ""
    yield (
        f"seed {segment.seed}: not finite from segment {segment.index} on, in the "
        f"agent's {named}{more}"
    )
    if failure.origin is not None:
        yield f"first made by {failure.origin}"
