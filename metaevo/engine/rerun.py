"""The training of one member of a former generation, to the bit.

The strategy's state before that generation comes from the nearest earlier checkpoint,
or from the start. Where members are newborn, the generations between follow from the
log: a strategy learns from fitness alone. Otherwise they are trained again. Then the
chunk that holds the member is trained, whose program is that of the run; or all of
them, where the fitness is no mean over tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import fitness, population
from metaevo.config import RunConfig
from metaevo.engine import checks, loop, not_finite, records
from metaevo.engine.job import (
    Job,
    Progress,
    State,
    initial_state,
    make,
    roles,
    state_template,
)
from metaevo.engine.loggers.console import ConsoleLogger
from metaevo.errors import ConfigError
from metaevo.evaluators import choose, stepwise
from metaevo.evaluators.stepwise import Segment
from metaevo.storage import checkpoint, jsonl, manifests, run_directory
from metaevo.types import Proposal, Search, keep, mean


class Failure(NamedTuple):
    """The first segment after which a member's numbers are not finite.

    Attributes:
        segment: the segment, with the state before it.
        leaves: paths of the agent's arrays that are not finite after it.
        origin: the operation that made the first such number; None if it is not found,
            as of a coupled loop, or where the member alone stays finite.
    """

    segment: Segment
    leaves: tuple[str, ...]
    origin: not_finite.NonFinite | None


class Rerun(NamedTuple):
    """A member that was trained again.

    Attributes:
        generation: of the run, as in `metrics.jsonl`, from 0.
        member: index in the population.
        numbers: its number slots by name.
        fitness: its fitness; NaN if it failed or was not scored.
        logged: its fitness in the log of the run.
        train: metrics of training by name, [S, K], one dict a task.
        failures: the first bad segment of each task and seed in which it failed.
    """

    generation: int
    member: int
    numbers: Mapping[str, float]
    fitness: float
    logged: float
    train: tuple[Mapping[str, np.ndarray], ...]
    failures: tuple[Failure, ...]

    @property
    def same(self) -> bool:
        """The fitness is that of the log, to the bit."""
        return np.float32(self.fitness).tobytes() == np.float32(self.logged).tobytes()


def rerun(
    search: Search,
    directory: str | Path,
    generation: int,
    member: int,
    say: Callable[[str], None] = lambda line: None,
    visit: Callable[[Segment], None] | None = None,
) -> Rerun:
    """Train one member of a former generation again.

    Args:
        search: the search of the run.
        directory: the run directory; it is read alone.
        generation: as in `metrics.jsonl`, from 0.
        member: index in the population, from 0.
        say: takes a line on what is done now.
        visit: called with each of the member's segments, with its state before; they
            are trained once more for it.

    Raises:
        ConfigError: the run has no such generation or member, or took formulas that
            others wrote.
        CheckpointError: files of the run are damaged.
    """
    manifest = run_directory.read_manifest(directory)
    logged = jsonl.read_generations(run_directory.paths(directory).metrics)
    if not 0 <= generation < len(logged):
        raise ConfigError(
            f"generation={generation}: the run has generations 0 to {len(logged) - 1}"
        )
    if run_directory.paths(directory).proposed.exists():
        raise ConfigError(
            f"{directory} took formulas that others wrote (run.propose), and its "
            "generations cannot be made again from their scores"
        )
    scores = _scores(logged[generation])
    if not 0 <= member < len(scores):
        raise ConfigError(
            f"member={member}: the population has members 0 to {len(scores) - 1}"
        )
    start_from = manifest.get("run", {}).get("start_from")
    if start_from is not None:
        search = checks.starting_from(search, start_from)
    search = manifests.sized(search, manifest)
    job = _job(search, Path(directory), manifest)
    progress = _before(job, generation, logged, say)
    asking, training, _ = roles(job.keys, generation)
    proposal, _ = job.programs.ask(asking, progress.state.strategy)
    numbers = job.programs.numbers(proposal.params)
    named = {slot: float(x[member]) for slot, x in numbers.items()}
    say(f"training member {member} of generation {generation}")
    column, places = member, None
    # Other aggregates may see all members, as ranks do.
    alone = search.aggregate is mean and not search.coupled
    alone &= not search.hurdles and search.stopping is None
    if proposal.parents is None and alone:
        size = search.chunk_size or population.size(proposal.params)
        first = member // size * size
        places = np.minimum(np.arange(first, first + size), len(scores) - 1)
        proposal = Proposal(population.take(proposal.params, places))
        column = member - first
    carried = progress.state.carried if places is None else ()
    evaluator: Any = job.evaluator
    evaluated, _ = evaluator(training, proposal, carried, places)
    evaluated = fitness.with_hurdles(search, evaluated)
    raw = np.asarray(search.aggregate(jnp.asarray(evaluated.fitness)))
    healthy = np.asarray(evaluated.healthy)[:, :, column]
    failures = _failures(
        stepwise.segments(evaluator, training, proposal, carried, column, places),
        ~healthy,
        search.coupled,
        visit,
        say,
    )
    return Rerun(
        generation,
        member,
        named,
        float(raw[column]),
        float(scores[member]),
        tuple(
            {name: np.asarray(x)[:, column] for name, x in metrics.items()}
            for metrics in evaluated.train
        ),
        failures,
    )


def _failures(
    segments: Iterable[Segment],
    failed: np.ndarray,
    coupled: bool,
    visit: Callable[[Segment], None] | None,
    say: Callable[[str], None],
) -> tuple[Failure, ...]:
    """Find the first bad segment of each task and seed in which the member failed."""
    found: dict[tuple[int, int], Failure] = {}
    for segment in segments if failed.any() or visit is not None else ():
        if visit is not None:
            visit(segment)
        where = segment.task, segment.seed
        if segment.healthy or not failed[where] or where in found:
            continue
        say(f"segment {segment.index} is the first that is not finite")
        origin = None
        if not coupled:
            origin = not_finite.find(
                lambda state, s=segment: s.loop.train(s.key, s.meta, state)[0].agent,
                segment.before,
            )
        leaves = not_finite.first_bad(segment.after.agent)
        found[where] = Failure(segment, tuple(leaves), origin)
    return tuple(found.values())


def _scores(record: Mapping[str, Any]) -> np.ndarray:
    """Return the logged fitness of each member, [P]; NaN where it is not finite."""
    scores = [np.nan if x is None else x for x in record["population"]]
    return np.asarray(scores, np.float32)


def _job(search: Search, directory: Path, manifest: Mapping[str, Any]) -> Job:
    """Return what running a generation takes; nothing is written."""
    factory = choose.local_factory(jax.devices())
    return make(
        search,
        RunConfig(seed=manifest["identity"]["seed"]),
        name=manifest["identity"]["search"],
        directory=directory,
        factory=factory,
        evaluator=factory.make(search),
        console=ConsoleLogger(0),
        manifest=manifest,
    )


def _before(
    job: Job,
    generation: int,
    logged: list[dict[str, Any]],
    say: Callable[[str], None],
) -> Progress:
    """Return the progress before a generation."""
    progress = _nearest(job, generation)
    for number in range(progress.generation, generation):
        state = _learned(job, progress.state, logged[number], number)
        if state is None:
            say(f"training generation {number} again, of {generation} before")
            state, _ = loop.generation(job, progress._replace(generation=number))
        progress = Progress(state, number + 1)
    return progress


def _nearest(job: Job, generation: int) -> Progress:
    """Return the newest checkpoint at or before a generation, or the start."""
    template = state_template(job)
    store = checkpoint.of_run(job.directory)
    found = store.before(generation, template)
    if found is None:
        return Progress(initial_state(job))
    arrays, manifest = found
    state = checkpoint.from_arrays(template, arrays)
    return Progress(state, manifest["generation"])


def _learned(
    job: Job, state: State, record: Mapping[str, Any], generation: int
) -> State | None:
    """Return the state after a generation, from its logged fitness.

    Returns:
        the state; None if the log does not determine it: agents live on, params are
        inherited, or it does not say which members failed and which were not scored.
    """
    search = job.search
    missing = record["failed"], record.get("not_scored", 0)
    if search.segments_per_generation is not None or search.space.inherit is not keep:
        return None
    if all(missing):
        return None
    role = roles(job.keys, generation)
    proposal, strategy = job.programs.ask(role.ask, state.strategy)
    raw = _scores(record)
    waiting = ~np.isfinite(raw) if missing[1] else None
    scores, _ = fitness.sanitize(raw, search.strategy.mirrored, waiting)
    counts = {"failed": missing[0], "not_scored": missing[1]}
    if records.has_signal(search, len(raw), counts):
        strategy = job.programs.tell(role.tell, strategy, proposal, jnp.asarray(scores))
    return State(strategy, state.carried)
