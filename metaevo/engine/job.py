"""The parts of a run that stay the same from its first generation to its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import population
from metaevo.analysis import holdout
from metaevo.config import RunConfig, Stop
from metaevo.engine import checks, identity
from metaevo.engine.loggers.console import ConsoleLogger
from metaevo.errors import printable
from metaevo.evaluators.choose import EvaluatorFactory
from metaevo.text import byte_size, joined_tasks
from metaevo.types import (
    Evaluator,
    InnerLoop,
    Key,
    Params,
    Population,
    PyTree,
    Search,
)


class State(NamedTuple):
    """The arrays of a checkpoint.

    Attributes:
        strategy: state of the strategy.
        carried: agents that live on between generations, see `Evaluator`.
    """

    strategy: PyTree
    carried: PyTree


class Progress(NamedTuple):
    """The progress of a run between two generations.

    Attributes:
        state: arrays after `generation` generations.
        generation: number of generations done.
        failures: how many of the last generations, in a row, had no member that did
            not fail.
        log_bytes: length of `metrics.jsonl` up to here.
        log_sha256: digest of these bytes; None at the start, before there are any.
    """

    state: State
    generation: int = 0
    failures: int = 0
    log_bytes: int = 0
    log_sha256: str | None = None


class Keys(NamedTuple):
    """Random keys of a run by role. The order is part of a seed's meaning."""

    init: Key
    generations: Key
    held_out: Key
    noise: Key
    scores: Key


class Roles(NamedTuple):
    """Random keys of a generation by role, likewise."""

    ask: Key
    evaluate: Key
    tell: Key


class Programs(NamedTuple):
    """Compiled functions of the strategy, and `numbers`.

    Attributes:
        numbers: `params [P, ...] -> {slot: [P]}`, the number slots of each member.
    """

    ask: Callable
    tell: Callable
    metrics: Callable
    solution: Callable
    numbers: Callable


class Job(NamedTuple):
    """A search with everything that running it takes.

    Attributes:
        search: the search, its chunk size chosen.
        config: how to run it.
        name: its name, for directories and reports.
        directory: the run directory, which this process has locked.
        factory: makes evaluators.
        evaluator: evaluates the search's generations.
        programs: compiled functions of the strategy.
        keys: random keys by role.
        console: terminal output.
        manifest: the run's manifest; empty: nothing is saved.
        deadline: `time.monotonic` after which no generation starts, and no step of what
            follows the last one.
        should_stop: True if the run was asked to stop.
        stop: condition on a generation's record that ends the run; None: there is none.
        changes: `key=value` of what differs from the search's defaults.
        changed: sentences on what is not as it was when the run was started.
    """

    search: Search
    config: RunConfig
    name: str
    directory: Path
    factory: EvaluatorFactory
    evaluator: Evaluator
    programs: Programs
    keys: Keys
    console: ConsoleLogger
    manifest: Mapping[str, Any] = {}
    deadline: float = float("inf")
    should_stop: Callable[[], bool] = lambda: False
    stop: Stop | None = None
    changes: Sequence[str] = ()
    changed: Sequence[str] = ()


def make(search: Search, config: RunConfig, **fields: Any) -> Job:
    """Return a job, with the strategy's functions and the keys of `config.seed`.

    Args:
        search: the search, its chunk size chosen.
        config: how to run it.
        **fields: the other fields of `Job`.
    """
    return Job(
        search=search,
        config=config,
        programs=programs(search),
        keys=keys(config.seed),
        **fields,
    )


def keys(seed: int) -> Keys:
    """Return the keys of a run's roles, all of which follow from its seed."""
    root = jax.random.key(seed)
    return Keys(*(jax.random.fold_in(root, i) for i in range(len(Keys._fields))))


def roles(keys: Keys, generation: int) -> Roles:
    """Return the keys of a generation's roles."""
    key = jax.random.fold_in(keys.generations, generation)
    return Roles(*(jax.random.fold_in(key, i) for i in range(len(Roles._fields))))


def programs(search: Search) -> Programs:
    """Return the functions of a search that run once a generation, to be compiled."""

    slots = [x for x, op in search.space.spec.items() if op["op"] == "number"]

    def numbers(params: Params) -> dict[str, jax.Array]:
        meta = search.space.bind(params, search.tasks[0].meta)
        return {name: jnp.asarray(getattr(meta, name)) for name in slots}

    @jax.jit
    def numbers_of_all(params: Population) -> dict[str, jax.Array]:
        everyone = np.arange(population.size(params))
        return jax.vmap(numbers)(population.take(params, everyone))

    strategy = search.strategy
    return Programs(
        ask=jax.jit(strategy.ask),
        tell=jax.jit(strategy.tell),
        metrics=jax.jit(strategy.metrics),
        solution=jax.jit(strategy.solution),
        numbers=numbers_of_all if slots else lambda params: {},
    )


def initial_state(job: Job) -> State:
    """Return the state before generation 0."""
    return State(jax.jit(job.search.strategy.init)(job.keys.init), ())


def state_template(job: Job) -> State:
    """Return shapes and dtypes of the arrays of a checkpoint."""
    strategy = jax.eval_shape(job.search.strategy.init, job.keys.init)
    shapes = checks.proposal_shapes(job.search.strategy)
    return State(strategy, job.evaluator.template(shapes))


def _lifetime(loop: InnerLoop) -> str:
    """Say how long a lifetime is. Warm-up, in which nothing is learned, is apart."""
    frames = loop.frames_per_segment * loop.num_segments
    warmup = getattr(loop.config, "learning_starts", 0)
    return f"{frames:,} frames{f' after {warmup:,} of warm-up' if warmup else ''}"


def greeting(job: Job, progress: Progress) -> list[str]:
    """Return the head of a run as lines: what is searched, with what, where."""
    search = job.search
    proposal = checks.proposal_shapes(search.strategy)
    lives = [_lifetime(loop) for loop in search.tasks]
    loops = ", ".join(lives)
    if len(lives) > 1 and len({*lives}) == 1:
        loops = f"{lives[0]} on each of {len(lives)} tasks"
    start = f"resumed at generation {progress.generation}"
    held = job.evaluator.state_bytes(proposal)
    needed = getattr(job.evaluator, "announced", None)  # unknown on other hosts
    memory = f", {byte_size(needed.peak)} of memory" if needed else ""
    size = population.size(proposal.params)
    joined = joined_tasks(identity.plain(search.aggregate), len(search.tasks))
    aim = ", ".join(filter(None, (search.fitness.name, joined)))
    head = [
        f"{job.name}: {size} members x {search.num_seeds} seeds, lifetimes of {loops}",
        f"evolving {', '.join(search.space.spec)} for the {aim}",
    ]
    if search.space is holdout.HAND_MADE:
        on = ", ".join(loop.env.name for loop in search.tasks if loop.env is not None)
        head = [f"{job.name}: training {size} agents on {on}, {loops} each"]
    where = (
        f"{job.factory.num_devices} {job.factory.platform} device(s), chunks of "
        f"{job.manifest['chunk_size']}, {byte_size(held)} of state and buffers{memory}"
    )
    if any(loop.outside for loop in search.tasks):
        where = f"trials in processes, {job.factory.num_devices} at a time"
    return [
        *head,
        f"changed: {', '.join(map(printable, job.changes)) or 'nothing'}",
        where,
        f"{job.directory}: {start if progress.generation else 'new'}",
    ]
