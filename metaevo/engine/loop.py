"""Run a search, generation by generation.

A generation is ask -> evaluate -> sanitize -> tell -> log -> checkpoint. Its random
numbers come from `fold_in(key, generation)` and nothing else, so a run that was killed
and resumed gives the same bits as one that was not.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import fitness, population
from metaevo.analysis import report, results
from metaevo.config import RunConfig
from metaevo.engine import (
    checks,
    costs,
    earlier_solutions,
    failures,
    finish,
    identity,
    preparation,
    proposals,
    records,
    training,
)
from metaevo.engine.job import (
    Job,
    Progress,
    State,
    greeting,
    initial_state,
    make,
    roles,
    state_template,
)
from metaevo.engine.journal import Journal
from metaevo.engine.loggers.console import ConsoleLogger
from metaevo.engine.result import Result
from metaevo.errors import (
    CheckpointError,
    ConfigError,
    InterruptedRunError,
    NumericalError,
)
from metaevo.evaluators import choose, distributed, stages
from metaevo.storage import (
    checkpoint,
    history,
    jsonl,
    manifests,
    own_runs,
    owner,
    provenance,
    run_directory,
)
from metaevo.types import Search

__all__ = ["Result", "run"]

NEWEST_EVERY = 5.0
"""Seconds between two writings of the solution for `metaevo watch`."""


def check_one_seed(config: RunConfig) -> None:
    """Check that a call from Python asks for one search.

    Raises:
        ConfigError: it asks for several.
    """
    if config.seeds != 1:
        raise ConfigError(
            f"run.seeds={config.seeds} is for the command line; run one seed at a time"
        )


def run(
    search: Search,
    config: RunConfig = RunConfig(),
    name: str = "search",
    settings: Mapping[str, Any] | None = None,
    changes: Sequence[str] = (),
    should_stop: Callable[[], bool] = lambda: False,
    source: own_runs.Source | None = None,
    defaults: Mapping[str, Any] | None = None,
    evaluators: choose.Evaluators = choose.factory,
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
        source: the place of the function that makes the search, to notice its changes
            and to make the search again; None: it is not known.
        defaults: `settings` where nothing was given. Those that stand at theirs do not
            name the default directory; None: there are none.
        evaluators: gives the evaluators while the run lasts.

    Returns:
        the result; None in a process of a distributed job that is not the first.

    Raises:
        InterruptedRunError: `should_stop` or `run.max_seconds` ended the run.
        ConfigError: something in the search or the configuration does not fit.
        LockedError: another process uses the directory.
        CheckpointError: the manifest is damaged, or no checkpoint can be read.
        NumericalError: every member failed in three generations in a row, or in all.
            The last checkpoint is intact.
    """
    check_one_seed(config)
    if settings is None and config.directory is None:
        raise ConfigError(
            "RunConfig(directory=...) is needed: without settings a default one could "
            "not tell this search from another"
        )
    prepared = preparation.prepare(search, config)
    if config.distributed and not distributed.is_coordinator():
        return choose.run_worker(*prepared[:2], config, should_stop)
    given = manifests.Settings(settings or {}, defaults or {})
    given = preparation.settings(prepared, config, given)
    given = prepared, config, name, given, changes, should_stop, source
    with opened(*given, evaluators) as job:
        return _run(job)


@contextlib.contextmanager
def opened(
    prepared: preparation.Prepared,
    config: RunConfig,
    name: str,
    settings: manifests.Settings,
    changes: Sequence[str] = (),
    should_stop: Callable[[], bool] = lambda: False,
    source: own_runs.Source | None = None,
    evaluators: choose.Evaluators = choose.factory,
) -> Iterator[Job]:
    """Hold the directory of a run, and make what running the search takes.

    A new run gets its manifest. That of one that goes on is compared, and its chunk
    size must fit into what is free now.

    Args:
        prepared: the search, checked.
        config: as of `run`; so are the other arguments.
        settings: by which the run is told from others.
    """
    search, proposal, stop = prepared
    with contextlib.ExitStack() as stack:
        stack.enter_context(distributed.coordinator(config))
        directory = run_directory.chosen_directory(config, name, settings)
        directory = run_directory.prepare(directory)
        stack.enter_context(run_directory.lock(directory))
        factory = stack.enter_context(evaluators(config, should_stop))
        device = factory.device
        files = identity.source_files(search, source and source.file)
        done, manifest = 0, None
        if run_directory.has_manifest(directory):
            manifest = run_directory.read_manifest(directory)
            run_directory.check_same_run(directory, manifest, name, config, settings)
            search = manifests.sized(search, manifest)
            done = max(checkpoint.of_run(directory).generations(), default=0)
        if manifest is None or done < search.num_generations:
            evaluator, search = factory.plan(search, proposal)
        else:
            evaluator = factory.make(search)
        if manifest is None:
            manifest = run_directory.create_manifest(
                directory, name, config, settings, search, device, changes, files
            )
        if source is not None:
            own_runs.remember(directory, manifest, source, changes)
        size = population.size(proposal.params)
        following = costs.generations_after(
            search, config, size, factory.num_devices, factory.platform
        )
        unit = "segment" if costs.trains(search) else "generation"
        programs = costs.num_programs(search, config)
        console = ConsoleLogger(search.num_generations, following, unit, programs)
        stack.enter_context(contextlib.closing(console))
        limit = float("inf") if config.max_seconds is None else config.max_seconds
        yield make(
            search,
            config,
            name=name,
            directory=directory,
            factory=factory,
            evaluator=evaluator,
            console=console,
            manifest=manifest,
            deadline=time.monotonic() + limit,
            should_stop=should_stop,
            stop=stop,
            changes=changes,
            changed=provenance.changes(manifest, device, provenance.digests(files)),
        )


def _has_stopped(job: Job, progress: Progress) -> bool:
    """Return True if `run.stop` holds after the generations done.

    Raises:
        ConfigError: more are done than the run is to have.
    """
    if progress.generation > job.search.num_generations:
        raise ConfigError(
            f"num_generations={job.search.num_generations}: {job.directory} holds "
            f"{progress.generation} generations; give as many or more"
        )
    if job.stop is None or not progress.generation:
        return False
    log = run_directory.paths(job.directory).metrics
    return job.stop.holds(jsonl.read_generations(log, progress.generation)[-1])


def _run(job: Job) -> Result:
    """Restore, search and finish; close the journal in any case."""
    progress = _restore(job)
    if _has_stopped(job, progress):
        job = _ending_now(job, progress)
    job.console.say(*greeting(job, progress))
    end = training if costs.trains(job.search) else finish
    if (result := end.already(job, progress)) is not None:
        return result
    journal = Journal(job, progress)
    with contextlib.closing(journal), _noted(job, journal):
        progress = failures.forgiven(job, progress)
        history.note(
            job.directory,
            "started",
            progress.generation,
            num_generations=job.search.num_generations,
            **owner.this_process(),
        )
        for event in job.changed:
            job.console.say(f"warning: {event}")
            history.note(job.directory, event, progress.generation)
        journal.open_loggers()
        # Agents that live on need much memory: this frame must not keep the first.
        first = [progress]
        del progress
        progress = _search(job, journal, first.pop())
        result = end.finish(_ending_now(job, progress), progress, journal)
        history.note_parts(job.directory, progress.generation)
        return result


def _ending_now(job: Job, progress: Progress) -> Job:
    """Return the job with the generations done as its horizon."""
    search = job.search._replace(num_generations=progress.generation)
    return job._replace(search=search)


@contextlib.contextmanager
def _noted(job: Job, journal: Journal) -> Iterator[None]:
    """Note in the run's history why it stopped."""
    try:
        yield
    except (ConfigError, InterruptedRunError, NumericalError) as error:
        history.note(job.directory, str(error), journal.generation)
        raise


# --- the loop -------------------------------------------------------------------------


def _search(job: Job, journal: Journal, progress: Progress) -> Progress:
    """Run generation by generation to the last one, or until `run.stop` holds.

    Raises:
        InterruptedRunError: asked to stop, or out of time; the progress is saved.
        NumericalError: every member failed `failures.MAX` times, or all times;
            likewise.
    """
    search, config = job.search, job.config
    size = population.size(checks.proposal_shapes(search.strategy).params)
    frames = checks.frames_per_generation(search, size)
    milestones = costs.milestones(search, config)
    if not progress.generation:
        earlier_solutions.keep_newest(job, progress.state, "start")
    activity = "compiling, and the first generation"
    job.console.now_in_search(activity, progress.generation)
    while progress.generation < search.num_generations:
        # A generation that is stopped saves the state without them.
        asked, entered = proposals.accept(job, progress)
        try:
            state, record = timed_generation(job, asked, frames)
        except InterruptedRunError:
            _save(job, journal, progress)
            raise InterruptedRunError(
                f"stopped before generation {progress.generation}"
            ) from None
        journal.record(record)
        proposals.answer(job, entered, record)
        has_signal = records.has_signal(search, size, record)
        progress = Progress(
            state,
            journal.generation,
            0 if has_signal else progress.failures + 1,
            journal.log_bytes,
            journal.log_sha256,
        )
        if progress.generation in milestones:
            earlier_solutions.keep(job, progress)
        stopped = job.stop is not None and job.stop.holds(record)
        last = stopped or progress.generation == search.num_generations
        hopeless = failures.hopeless(job, progress)
        late = time.monotonic() > job.deadline
        due = progress.generation % config.checkpoint_every == 0
        if last or hopeless or late or due:
            _save(job, journal, progress)
        saved = progress.generation - len(journal.pending)
        if not last:
            job.console.now_in_search(
                f"generation {progress.generation + 1}, {saved} saved",
                progress.generation,
            )
        if hopeless:
            raise failures.error(job, progress)
        if late:
            following = f"generation {progress.generation}"
            raise InterruptedRunError(
                f"run.max_seconds={config.max_seconds:g} are over, stopped before "
                f"{'what follows the last generation' if last else following}"
            )
        if stopped:
            job.console.say(
                f"run.stop={config.stop} holds after generation {progress.generation}"
            )
            break
    return progress


def timed_generation(
    job: Job, progress: Progress, frames: int
) -> tuple[State, dict[str, Any]]:
    """Run one generation, of `frames` frames, as `generation` does, and time it."""
    started = time.monotonic()
    state, record = generation(job, progress)
    seconds = time.monotonic() - started
    return state, record | {
        "frames": (progress.generation + 1) * frames,
        "seconds": seconds,
        "frames_per_second": frames / seconds,
    }


def generation(job: Job, progress: Progress) -> tuple[State, dict[str, Any]]:
    """Run one generation; returns the state after it and its record."""
    search, state = job.search, progress.state
    role = roles(job.keys, progress.generation)
    proposal, strategy = job.programs.ask(role.ask, state.strategy)
    asked = proposal.params
    evaluated, carried = job.evaluator(role.evaluate, proposal, state.carried)
    evaluated = fitness.with_hurdles(search, evaluated)
    raw: Any = np.asarray(search.aggregate(jnp.asarray(evaluated.fitness)))
    scored, waiting = np.isfinite(raw), fitness.not_scored(evaluated)
    scores, failed = fitness.sanitize(raw, search.strategy.mirrored, waiting)
    counts = {
        "failed": int(failed.sum()),
        "not_scored": int((~scored & ~failed).sum()),
    }
    if records.has_signal(search, len(raw), counts):
        proposal = proposal._replace(params=evaluated.params)
        strategy = job.programs.tell(role.tell, strategy, proposal, jnp.asarray(scores))
    else:
        # The next generation starts from the same state.
        carried = state.carried
    if search.hurdles:
        counts["stopped"] = int((~fitness.reached(search, evaluated.fitness)).sum())
    if search.stopping is not None:
        counts["stopped"] = len(raw) - stages.lengths(search, len(raw))[-1]
    record = {
        "generation": progress.generation,
        **records.summary(raw[scored]),
        **({} if search.stopping else records.signal(evaluated.fitness)),
        **counts,
        "population": raw,
        **job.programs.metrics(strategy),
        **records.means(evaluated),
    }
    if costs.trains(search):
        record |= records.members(evaluated)
    if search.strategy.persistent_agents:
        record["parents"] = proposal.parents
    numbers = job.programs.numbers(asked)
    record |= {f"numbers/{slot}": x for slot, x in numbers.items()}
    return State(strategy, carried), record


# --- persistence ----------------------------------------------------------------------


def _save(job: Job, journal: Journal, progress: Progress) -> None:
    """Save a checkpoint, unless the newest one holds this progress already.

    Raises:
        CheckpointError: the directory, its lock, manifest or log vanished.
    """
    journal.check()
    if not journal.pending:
        return
    state = progress.state
    checkpoint.of_run(job.directory).save(
        progress.generation,
        state._replace(carried=job.evaluator.collected(state.carried)),
        {
            "generation": progress.generation,
            "failures": progress.failures,
            "log_bytes": progress.log_bytes,
            "log_sha256": progress.log_sha256,
            "run_manifest": run_directory.manifest_digest(job.directory),
        },
    )
    earlier_solutions.keep_newest(job, state, every=NEWEST_EVERY)
    journal.release(lambda: _drawn(job, state))


def _restore(job: Job) -> Progress:
    """Read the newest checkpoint that verifies; the start if there is none at all.

    Raises:
        CheckpointError: no checkpoint can be read, they were lost, or they belong to
            another manifest.
    """
    store = checkpoint.of_run(job.directory)
    store.clean()
    template = state_template(job)
    loaded = store.load(template)
    if loaded is None:
        paths = run_directory.paths(job.directory)
        lines = jsonl.count(paths.metrics)
        if lines > job.config.checkpoint_every:
            raise CheckpointError(
                f"{paths.metrics} has {lines} generations, and {paths.checkpoints} no "
                "checkpoint; move the directory away to start over"
            )
        return Progress(initial_state(job))
    arrays, manifest = loaded
    run_directory.check_manifest_digest(job.directory, manifest.get("run_manifest"))
    facts: Any = {x: manifest.get(x) for x in ("generation", "failures", "log_bytes")}
    counted = all(isinstance(x, int) and x >= 0 for x in facts.values())
    log_sha256 = manifest.get("log_sha256")
    if not counted or not isinstance(log_sha256, str):
        raise CheckpointError(
            f"{store.folder}: the newest checkpoint does not say where the run is"
        )
    return Progress(
        checkpoint.from_arrays(template, arrays),
        log_sha256=log_sha256,
        **facts,
    )


def _drawn(job: Job, state: State) -> bytes | None:
    """A PNG of the solution as it is now, for the loggers."""
    solution = jax.device_get(job.programs.solution(state.strategy))
    return report.evolved(*results.settled(job.search.space, solution))
