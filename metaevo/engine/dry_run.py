"""The cost of a search, from its compiled programs and a few timed generations."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax

from metaevo import population
from metaevo.analysis import holdout, results
from metaevo.config import RunConfig
from metaevo.engine import checks, costs, loop, pilot, preparation
from metaevo.engine.job import Job, Progress, initial_state, make
from metaevo.engine.loggers.console import ConsoleLogger
from metaevo.evaluators import choose, chunking, memory
from metaevo.evaluators.devices import choose_devices
from metaevo.evaluators.local import LocalEvaluator
from metaevo.storage import checkpoint, run_directory
from metaevo.storage.jsonl import JsonlLogger
from metaevo.text import byte_size, duration
from metaevo.types import Proposal, Search

ENOUGH_SECONDS, ENOUGH_GENERATIONS = 3.0, 10  # for which generations are timed
LONG_SECONDS = 30.0  # of a generation in which compiling is of no account


class Times(NamedTuple):
    """Seconds that were measured.

    Attributes:
        compiling: the first generation, its programs compiled.
        generation: a later one, in which members live on if they ever do.
        saving: its record and its checkpoint, on the disk.
        following: estimate of what follows the last generation.
    """

    compiling: float
    generation: float
    saving: float
    following: float


def plan(
    search: Search,
    config: RunConfig,
    should_stop: Callable[[], bool] = lambda: False,
    signal: bool = False,
) -> str:
    """Compile a search at its real size and time some generations of it.

    Checkpoints are written where the run's would be, to be timed, and removed.

    Args:
        should_stop: asked after each round of training; True ends the dry run.
        signal: evaluate one generation twice, and say what it can tell.

    Returns:
        lines of text: population, devices, frames, memory, time, signal, disk.

    Raises:
        ConfigError: the search cannot run.
        InterruptedRunError: `should_stop` returned True.
    """
    if signal:
        pilot.check(search)
    job, evaluator, times, saved = _timed(search, config, should_stop)
    search = job.search
    told = []
    if signal:
        seeds = search.num_seeds, config.held_out_seeds
        told = pilot.lines(pilot.measure(job), *seeds)
    shapes = checks.proposal_shapes(search.strategy)
    devices, size = evaluator.devices, population.size(shapes.params)
    folder = run_directory.existing_parent(config.directory or "runs")
    needed = evaluator.announced or chunking.needed(evaluator, shapes)
    frames = checks.frames_per_generation(search, size)
    generations = search.num_generations
    params = jax.eval_shape(search.space.init, job.keys.init)
    numbers = sum(x.size for x in jax.tree.leaves(params))
    each = times.generation + times.saving / config.checkpoint_every
    free = memory.available(devices[0])
    several = [
        f"seeds        {config.seeds} searches like this, one after another, and their "
        "comparison"
    ] * (config.seeds > 1)
    lines = [
        f"population   {size} members x {search.num_seeds} seeds x "
        f"{len(search.tasks)} task(s), {numbers} evolved numbers each",
        f"devices      {len(evaluator.devices)} {devices[0].platform}, "
        f"{evaluator.chunk_size} members in one vmap",
        f"frames       {frames:,} a generation, {frames * generations:,} in all",
        f"memory       {needed}" + (f"; {byte_size(free)} available" if free else ""),
        f"time         {duration(times.compiling)} to compile and warm up, "
        f"{each:.2g} s a generation ({frames / each:,.0f} frames/s), "
        f"{duration(each * generations)} for {generations}",
        *_following(job, times, each * generations),
        *told,
        f"disk         {byte_size(saved)} a checkpoint, {times.saving:.2g} s to write, "
        f"3 are kept; {byte_size(shutil.disk_usage(folder).free)} free",
        *several,
        f"nothing was started; what was written to {folder} was removed",
    ]
    return "\n".join(lines)


def measure(
    search: Search, config: RunConfig, should_stop: Callable[[], bool] = lambda: False
) -> Times:
    """Return the seconds that `plan` measures.

    Raises:
        ConfigError, InterruptedRunError: as `plan`.
    """
    return _timed(search, config, should_stop)[2]


def _timed(
    search: Search, config: RunConfig, should_stop: Callable[[], bool]
) -> tuple[Job, LocalEvaluator, Times, int]:
    """Run a few generations in a temporary folder.

    Returns:
        their job and its evaluator, their times, and the bytes of a checkpoint.
    """
    search, shapes, _ = preparation.prepare(search, config)
    devices = choose_devices(config)
    where = config.directory or "runs"
    run_directory.check_writable("run.directory", where)
    folder = run_directory.existing_parent(where)
    factory = choose.local_factory(devices, should_stop)
    evaluator = chunking.plan(
        LocalEvaluator(search, devices, False, should_stop), shapes
    )
    search = evaluator.sized
    with (
        tempfile.TemporaryDirectory(prefix=".dry-run-", dir=folder) as temporary,
        contextlib.closing(ConsoleLogger(0)) as console,
    ):
        job = make(
            search,
            config,
            name="dry run",
            directory=Path(temporary),
            factory=factory,
            evaluator=evaluator,
            console=console,
            should_stop=should_stop,
        )
        return job, evaluator, *_measure(job)


def _measure(job: Job) -> tuple[Times, int]:
    """Run generations as a run does, and time them.

    Returns:
        the times, and the bytes of a checkpoint.
    """
    store = checkpoint.of_run(job.directory)
    metrics = run_directory.paths(job.directory).metrics
    progress = Progress(initial_state(job))
    # The first generation of members that live on compiles how they are taken along.
    warm = 1 if job.search.segments_per_generation is None else 2
    trained, saved = [], []
    with contextlib.closing(JsonlLogger(metrics)) as log:
        while not _enough(trained, warm):
            began = time.monotonic()
            state, record = loop.generation(job, progress)
            jax.block_until_ready(state)
            trained.append(time.monotonic() - began)
            began = time.monotonic()
            log_bytes = log.log(record)
            number = progress.generation + 1
            store.save(number, state, {"generation": number, "log_bytes": log_bytes})
            saved.append(time.monotonic() - began)
            progress = Progress(state, number, 0, log_bytes)
    num_bytes = sum(x.nbytes for x in checkpoint.to_arrays(progress.state).values())
    later = trained[warm:] or trained[-1:]
    times = Times(trained[0], median(later), median(saved), 0.0)
    after = _time_after(job, progress, times.generation)
    return times._replace(following=after), num_bytes


def _enough(trained: list[float], warm: int) -> bool:
    """Return True if the generations timed so far will do."""
    later = trained[warm:]
    if not later:
        return len(trained) == 2 and trained[-1] > LONG_SECONDS
    return sum(later) > ENOUGH_SECONDS or len(later) >= ENOUGH_GENERATIONS


def _time_after(job: Job, progress: Progress, generation: float) -> float:
    """Estimate the seconds of what follows the last generation.

    Args:
        generation: seconds of a generation.
    """
    search, config = job.search, job.config
    size = population.size(checks.proposal_shapes(search.strategy).params)
    num_devices, platform = job.factory.num_devices, job.factory.platform
    scorings = costs.num_scorings(search, config)
    seconds = scorings * _scoring(job, progress) if scorings else 0.0
    if search.segments_per_generation is not None:
        return seconds + _comparing(job, generation)
    after = costs.generations_after(search, config, size, num_devices, platform)
    if results.breeds_policies(search):
        after -= scorings  # they are measured
    return seconds + after * generation


def _scoring(job: Job, progress: Progress) -> float:
    """Return the seconds in which the agents of a population are scored once."""
    proposal, _ = job.programs.ask(job.keys.scores, progress.state.strategy)
    persistent = job.search.strategy.persistent_agents
    carried = progress.state.carried if persistent else None
    return _second_call(lambda: job.evaluator.score(job.keys.scores, proposal, carried))


def _comparing(job: Job, generation: float) -> float:
    """Estimate the seconds of the comparison from a part of one round's lifetime.

    A generation of members that live on may be too short to tell.

    Args:
        generation: seconds of a generation.
    """
    search, num_seeds = job.search, job.config.held_out_seeds
    if not costs.frames_compared(search, job.config):
        return 0.0
    lifetime = search.tasks[0].num_segments
    per_generation = search.segments_per_generation or lifetime
    num_segments = int(per_generation * max(1.0, ENOUGH_SECONDS / generation))
    num_segments = min(num_segments, lifetime)
    alone = holdout.alone(search, holdout.HAND_MADE)
    evaluator = job.factory.make_after(
        alone._replace(segments_per_generation=num_segments), evaluate=True
    )
    width = min((search.chunk_size or 1) * job.factory.num_devices, num_seeds)
    proposal = Proposal(holdout.copies(holdout.NOTHING, width))
    seconds = _second_call(lambda: evaluator(job.keys.held_out, proposal, None))
    rounds = costs.num_candidates(search) * -(-num_seeds // width)
    rounds += -(-costs.num_choices(search, job.config) // width)
    # A task that the search does not have is taken to cost as much as its mean one.
    more = len(costs.compared(search, job.config).tasks) / len(search.tasks)
    return seconds * lifetime / num_segments * rounds * more


def _second_call(fn: Callable[[], Any]) -> float:
    """Return the seconds of the second of two calls; the first one compiles."""
    jax.block_until_ready(fn())
    began = time.monotonic()
    jax.block_until_ready(fn())
    return time.monotonic() - began


def _following(job: Job, times: Times, searching: float) -> list[str]:
    """Describe what follows the last generation, and the time of all; [] if nothing.

    Args:
        searching: seconds of all generations.
    """
    search, config = job.search, job.config
    parts = []
    if scorings := costs.num_scorings(search, config):
        parts.append(f"agents scored {scorings} times")
    if frames := costs.frames_compared(search, config):
        parts.append(
            f"{costs.num_candidates(search)} candidates x {config.held_out_seeds} "
            f"held-out seeds, {frames:,} frames"
        )
    if judged := costs.frames_judged(search, config):
        parts.append(f"an independent agent, {judged:,} frames")
    if repeats := costs.num_repeats(search, config):
        parts.append(f"a population evaluated {repeats} times for the noise")
    if not parts:
        return []
    programs = costs.num_programs(search, config)
    compiled = f" and {programs} compilations" if programs else ""
    return [
        f"afterwards   {'; '.join(parts)}",
        f"             {duration(times.following)}{compiled}; "
        f"{duration(searching + times.following)} with the search",
    ]
