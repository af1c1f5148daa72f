"""Run a search, generation by generation.

A generation is ask -> evaluate -> sanitize -> tell -> log -> checkpoint. Its random
numbers come from `fold_in(key, generation)` and nothing else, so a run that was killed
and resumed gives the same bits as one that was not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import fitness, population
from metaevo.analysis import report
from metaevo.config import RunConfig
from metaevo.engine import checks, finish, identity
from metaevo.engine.job import (
    Job,
    Progress,
    Result,
    State,
    initial_state,
    keys,
    programs,
    proposal_shapes,
)
from metaevo.engine.journal import Journal
from metaevo.engine.loggers.console import ConsoleLogger
from metaevo.errors import (
    CheckpointError,
    ConfigError,
    InterruptedRunError,
    NumericalError,
)
from metaevo.evaluators import choose, distributed
from metaevo.storage import checkpoint, jsonl, run_directory
from metaevo.text import byte_size
from metaevo.types import Evaluated, Proposal, Search

__all__ = ["MAX_FAILURES", "Result", "run"]

MAX_FAILURES = 3  # generations in a row in which every member failed

_ASK, _EVALUATE, _TELL = range(3)  # roles of a generation's keys


def run(
    search: Search,
    config: RunConfig = RunConfig(),
    name: str = "search",
    settings: Mapping[str, Any] | None = None,
    changes: Sequence[str] = (),
    should_stop: Callable[[], bool] = lambda: False,
    source: str | Path | None = None,
) -> Result | None:
    """Run or resume a search to its last generation, then report.

    A directory that holds a run of another search is refused: of another environment,
    `Config`, slot, strategy, space, fitness, size or seed; see `engine.identity`. The
    horizon `num_generations` may grow, which extends the run. Changed source files are
    no other search: they are named on the terminal and in `history.jsonl`.

    Args:
        search: the search.
        config: how to run it.
        name: name of the search, for directories and reports.
        settings: the search's configuration as plain data, kept with the run and
            compared on resume.
        changes: `key=value` of what differs from the search's defaults, to be shown.
        should_stop: asked several times a generation. If it returns True, the
            generation is abandoned and the state before it saved.
        source: the file in which the search is put together, to notice its changes.

    Returns:
        the result; None in a process of a distributed job that is not the first.

    Raises:
        InterruptedRunError: `should_stop` or `run.max_seconds` ended the run.
        ConfigError: something in the search or the configuration does not fit.
        LockedError: another process uses the directory.
        CheckpointError: the manifest is damaged, or no checkpoint can be read.
        NumericalError: every member failed in three generations in a row. The last
            checkpoint is intact.
    """
    if settings is None and config.directory is None:
        raise ConfigError(
            "RunConfig(directory=...) is needed: without settings a default one could "
            "not tell this search from another"
        )
    settings = dict(settings or {})
    if config.start_from is not None:
        search = checks.starting_from(search, config.start_from)
        settings["start_from"] = config.start_from
    proposal = checks.check(search)
    choose.check(config, search)
    if config.distributed and not distributed.is_coordinator():
        return choose.run_worker(search, proposal, config, should_stop)
    size = population.size(proposal.params)
    # Runs of 0.1 are found and compared by what 0.1 recorded of a search.
    settings_0_1 = settings | {"search": identity.fingerprint_0_1(search, size)}
    settings |= {"search": identity.identity(search)}
    sources = identity.sources(search, source)
    with contextlib.ExitStack() as stack:
        stack.enter_context(distributed.coordinator(config))
        directory = run_directory.prepare(
            config.directory
            or run_directory.default_directory(
                name, config.seed, settings, settings_0_1
            )
        )
        stack.enter_context(run_directory.lock(directory))
        factory = stack.enter_context(choose.factory(config, should_stop))
        if run_directory.has_manifest(directory):
            manifest = run_directory.read_manifest(directory)
            run_directory.check_same_run(
                directory, manifest, name, config, settings, settings_0_1
            )
            search = search._replace(chunk_size=manifest["chunk_size"])
            store = checkpoint.Store(run_directory.paths(directory).checkpoints)
            if max(store.generations(), default=0) < search.num_generations:
                # Its chunk size is fixed, and must fit into what is free now.
                evaluator, _ = factory.plan(search, proposal)
            else:
                evaluator = factory.make(search)
        else:
            evaluator, chunk_size = factory.plan(search, proposal)
            search = search._replace(chunk_size=chunk_size)
            manifest = run_directory.create_manifest(
                directory,
                name,
                config,
                settings,
                chunk_size,
                factory.device,
                changes,
                sources,
            )
        console = stack.enter_context(
            contextlib.closing(ConsoleLogger(search.num_generations))
        )
        limit = float("inf") if config.max_seconds is None else config.max_seconds
        job = Job(
            search=search,
            config=config,
            name=name,
            directory=directory,
            manifest=manifest,
            factory=factory,
            evaluator=evaluator,
            programs=programs(search),
            keys=keys(config.seed),
            console=console,
            deadline=time.monotonic() + limit,
        )
        return _run(job, changes, run_directory.changed_sources(manifest, sources))


def _run(job: Job, changes: Sequence[str], changed_sources: Sequence[str]) -> Result:
    """Restore, search and finish; close the journal in any case."""
    progress = _restore(job)
    journal = Journal(job, progress.generation, progress.log_bytes)
    with contextlib.closing(journal), _noted(job, journal):
        progress = _try_again(job, progress)
        _greet(job, progress, changes)
        run_directory.note(job.directory, "started", progress.generation)
        for name in changed_sources:
            event = f"{name} has changed since this run was started"
            job.console.say(f"warning: {event}")
            run_directory.note(job.directory, event, progress.generation)
        journal.open_loggers()
        # Agents that live on need much memory: this frame must not keep the first.
        first = [progress]
        del progress
        progress = _search(job, journal, first.pop())
        run_directory.note(job.directory, "finished", progress.generation)
        return finish.finish(job, progress.state, journal)


@contextlib.contextmanager
def _noted(job: Job, journal: Journal) -> Iterator[None]:
    """Note in the run's history why it stopped."""
    try:
        yield
    except (InterruptedRunError, NumericalError) as error:
        run_directory.note(job.directory, str(error), journal.generation)
        raise


# --- the loop -------------------------------------------------------------------------


def _search(job: Job, journal: Journal, progress: Progress) -> Progress:
    """Run generation by generation to the last one.

    Raises:
        InterruptedRunError: asked to stop, or out of time; the progress is saved.
        NumericalError: every member failed `MAX_FAILURES` times; likewise.
    """
    search, config = job.search, job.config
    size = population.size(proposal_shapes(job, progress.state.strategy).params)
    frames = checks.frames_per_generation(search, size)
    job.console.now("compiling, and the first generation")
    while progress.generation < search.num_generations:
        started = time.monotonic()
        try:
            state, record = _generation(job, progress)
        except InterruptedRunError:
            _save(job, journal, progress)
            raise InterruptedRunError(
                f"stopped before generation {progress.generation}"
            ) from None
        seconds = time.monotonic() - started
        record |= {
            "frames": (progress.generation + 1) * frames,
            "seconds": seconds,
            "frames_per_second": frames / seconds,
        }
        journal.record(record)
        progress = Progress(
            state,
            journal.generation,
            progress.failures + 1 if record["failed"] == size else 0,
            journal.log_bytes,
        )
        last = progress.generation == search.num_generations
        hopeless = progress.failures == MAX_FAILURES
        late = not last and time.monotonic() > job.deadline
        due = progress.generation % config.checkpoint_every == 0
        if last or hopeless or late or due:
            _save(job, journal, progress)
        saved = progress.generation - len(journal.pending)
        job.console.now(
            f"generation {progress.generation + 1}; checkpoint before generation "
            f"{saved + 1}"
        )
        if hopeless:
            raise _all_failed_error(job, progress)
        if late:
            raise InterruptedRunError(
                f"run.max_seconds={config.max_seconds:g} are over, "
                f"stopped before generation {progress.generation}"
            )
    return progress


def _generation(job: Job, progress: Progress) -> tuple[State, dict[str, Any]]:
    """Run one generation; returns the state after it and its record."""
    search, state = job.search, progress.state
    key = jax.random.fold_in(job.keys.generations, progress.generation)
    role = [jax.random.fold_in(key, i) for i in range(3)]
    proposal, strategy = job.programs.ask(role[_ASK], state.strategy)
    asked = proposal.params
    evaluated, carried = job.evaluator(role[_EVALUATE], proposal, state.carried)
    raw: Any = np.asarray(search.aggregate(jnp.asarray(evaluated.fitness)))
    scores, failed = fitness.sanitize(raw, search.strategy.mirrored)
    lives_on = search.segments_per_generation is not None
    if failed.all() and not (lives_on and evaluated.healthy.all()):
        # Nothing to learn from; the next generation starts from the same state.
        carried = state.carried
    else:
        # If all are healthy and have no score yet, they are told to be equal.
        proposal = proposal._replace(params=evaluated.params)
        strategy = job.programs.tell(
            role[_TELL], strategy, proposal, jnp.asarray(scores)
        )
        if failed.all():
            raw, failed = raw[:0], failed[:0]
    record = {
        "generation": progress.generation,
        **summary(raw[~failed]),
        "failed": int(failed.sum()),
        "population": raw,
        **job.programs.metrics(strategy),
        **_means(evaluated),
    }
    if search.strategy.persistent_agents:
        record["parents"] = proposal.parents
        numbers = job.programs.numbers(asked)
        record |= {f"numbers/{slot}": x for slot, x in numbers.items()}
    return State(strategy, carried), record


def _all_failed_error(job: Job, progress: Progress) -> NumericalError:
    return NumericalError(
        f"every member failed in {MAX_FAILURES} generations in a row; the state "
        f"before generation {progress.generation} is in "
        f"{run_directory.paths(job.directory).checkpoints}"
    )


# --- records --------------------------------------------------------------------------


def summary(scores: np.ndarray) -> dict[str, float]:
    """Return statistics of the members that did not fail; NaN if there are none.

    Args:
        scores: [N] finite fitness.

    >>> summary(np.array([1.0, 2.0, 6.0]))["fitness_mean"].item()
    3.0
    """
    if not len(scores):
        scores = np.array([np.nan])
    quantiles = np.quantile(scores, (0.0, 0.25, 0.5, 0.75, 1.0))
    return {
        "fitness_best": quantiles[4],
        "fitness_mean": scores.mean(),
        "fitness_median": quantiles[2],
        "fitness_sd": scores.std(),
        "fitness_worst": quantiles[0],
        "fitness_q25": quantiles[1],
        "fitness_q75": quantiles[3],
    }


def _means(evaluated: Evaluated) -> dict[str, float]:
    """Mean over seeds and members of the last segment's metrics, finite ones."""
    record = {}
    for task, train in enumerate(evaluated.train):
        prefix = f"task{task}/" if len(evaluated.train) > 1 else ""
        metrics = {f"train/{name}": np.asarray(x)[..., -1] for name, x in train.items()}
        for name, x in evaluated.evaluation[task].items():
            metrics[f"evaluation/{name}"] = np.asarray(x)
        for name, x in metrics.items():
            x = x[np.isfinite(x)]
            record[f"{prefix}{name}"] = x.mean() if len(x) else np.nan
    return record


# --- persistence ----------------------------------------------------------------------


def _save(job: Job, journal: Journal, progress: Progress) -> None:
    """Save a checkpoint, unless the newest one holds this progress already."""
    if not journal.pending:
        return
    _store(job).save(
        progress.generation,
        progress.state,
        {
            "generation": progress.generation,
            "failures": progress.failures,
            "log_bytes": progress.log_bytes,
        },
    )
    journal.release(lambda: _drawn(job, progress.state))


def _restore(job: Job) -> Progress:
    """Read the newest checkpoint that verifies; the start if there is none at all.

    Raises:
        CheckpointError: no checkpoint can be read, or they were lost.
    """
    loaded = _store(job).load()
    if loaded is None:
        paths = run_directory.paths(job.directory)
        lines = len(jsonl.read(paths.metrics)) if paths.metrics.exists() else 0
        if lines > job.config.checkpoint_every:
            raise CheckpointError(
                f"{paths.metrics} has {lines} generations, and {paths.checkpoints} no "
                "checkpoint; move the directory away to start over"
            )
        return Progress(initial_state(job))
    arrays, manifest = loaded
    strategy = jax.eval_shape(job.search.strategy.init, job.keys.init)
    carried = job.evaluator.template(proposal_shapes(job, strategy))
    return Progress(
        checkpoint.from_arrays(State(strategy, carried), arrays),
        manifest["generation"],
        manifest["failures"],
        manifest["log_bytes"],
    )


def _try_again(job: Job, progress: Progress) -> Progress:
    """Let a run that every member's failure had stopped try from the same state.

    Raises:
        NumericalError: it stopped so, and no generations are left.
    """
    if progress.failures < MAX_FAILURES:
        return progress
    if progress.generation >= job.search.num_generations:
        raise _all_failed_error(job, progress)
    return progress._replace(failures=0)


def _store(job: Job) -> checkpoint.Store:
    return checkpoint.Store(run_directory.paths(job.directory).checkpoints)


def _drawn(job: Job, state: State) -> bytes | None:
    """A PNG of the solution as it is now, for the loggers."""
    solution = job.programs.solution(state.strategy)
    meta = job.search.space.bind(solution, job.search.tasks[0].meta)
    return report.evolved(job.search.space, meta, solution)


# --- the terminal ---------------------------------------------------------------------


def _greet(job: Job, progress: Progress, changes: Sequence[str]) -> None:
    """Print the head of a run: what is searched, with what, where."""
    search = job.search
    proposal: Proposal = proposal_shapes(job, progress.state.strategy)
    loops = ", ".join(
        f"{loop.frames_per_segment * loop.num_segments:,} frames"
        for loop in search.tasks
    )
    start = f"resumed at generation {progress.generation}"
    held = job.evaluator.state_bytes(proposal)
    needed = getattr(job.evaluator, "announced", None)  # unknown on other hosts
    memory = f", {byte_size(needed.peak)} of memory" if needed else ""
    job.console.say(
        f"{job.name}: {population.size(proposal.params)} members x "
        f"{search.num_seeds} seeds, lifetimes of {loops}",
        f"evolving {', '.join(search.space.spec)} for the {search.fitness.name}",
        f"changed: {', '.join(changes) or 'nothing'}",
        f"{job.factory.num_devices} {job.factory.platform} device(s), chunks of "
        f"{job.manifest['chunk_size']}, {byte_size(held)} of state and buffers{memory}",
        f"{job.directory}: {start if progress.generation else 'new'}",
    )
