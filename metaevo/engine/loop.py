"""Runs a search: the one place with side effects.

A generation is ask -> evaluate -> sanitize -> tell -> log -> checkpoint. Its random
numbers come from `fold_in(key, generation)` and nothing else, so a run that was killed
and resumed gives the bits of one that was not.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import fitness, population
from metaevo.analysis import holdout, lineage, report, results, stats
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.results import Scores, Solution
from metaevo.config import RunConfig
from metaevo.engine import checks
from metaevo.engine.loggers.console import ConsoleLogger
from metaevo.engine.loggers.tensorboard import TensorboardLogger
from metaevo.engine.loggers.wandb import WandbLogger
from metaevo.errors import (
    CheckpointError,
    ConfigError,
    InterruptedRunError,
    NumericalError,
)
from metaevo.evaluators import choose, distributed
from metaevo.evaluators.choose import EvaluatorFactory
from metaevo.storage import checkpoint, jsonl, run_directory
from metaevo.storage.jsonl import JsonlLogger
from metaevo.text import byte_size, duration
from metaevo.types import Evaluated, Evaluator, Params, Proposal, PyTree, Search

# What the run's key and a generation's key are split into, by role.
_INIT, _GENERATIONS, _HELD_OUT, _NOISE, _SCORES = range(5)
_ASK, _EVALUATE, _TELL = range(3)

MAX_FAILURES = 3  # generations in a row in which every member failed


class Result(NamedTuple):
    """What came out.

    Attributes:
        directory: with metrics, checkpoints, `solution/` and `report/`.
        solution: the strategy's solution, not the luckiest member.
        held_out: by name: `solution`, `hand-made` and `start`; empty if not run.
        verdicts: per task, solution against hand-made; empty if not run.
    """

    directory: Path
    solution: Params
    held_out: Mapping[str, HeldOut]
    verdicts: tuple[stats.Paired, ...]


class State(NamedTuple):
    """What a checkpoint holds, beside plain numbers in its manifest."""

    strategy: PyTree
    carried: PyTree


def run(
    search: Search,
    config: RunConfig = RunConfig(),
    name: str = "search",
    settings: Mapping[str, Any] | None = None,
    changes: Sequence[str] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> Result | None:
    """Runs or resumes a search to its last generation, then reports.

    Args:
        name: of the search, for directories and reports.
        settings: the search's configuration as plain data, kept with the run. A
            directory that holds a run with other settings is refused, except for
            `num_generations`, which extends it.
        changes: `key=value` of what differs from the search's defaults, to be shown.
        should_stop: asked several times a generation. On True the generation is
            abandoned and the state before it saved.

    Returns:
        what came out; None in a process of a distributed job that is not the first.

    Raises:
        InterruptedRunError: `should_stop` or `run.max_seconds` said so.
        ConfigError: something in the search or the configuration does not fit.
        LockedError: the directory is in use.
        checkpoint.CheckpointError: there are checkpoints and none can be read.
        NumericalError: see there; the last checkpoint is intact.
    """
    if settings is None and config.directory is None:
        raise ConfigError(
            "RunConfig(directory=...) is needed: without settings a default one could "
            "not tell this search from another"
        )
    if config.start_from is not None:
        search = checks.starting_from(search, config.start_from)
        settings = dict(settings or {}) | {"start_from": config.start_from}
    proposal = checks.check(search)
    population_size = population.size(proposal.params)
    fingerprint = checks.fingerprint(search, population_size)
    settings = dict(settings or {}) | {"search": fingerprint}
    choose.check(config, search)
    if config.distributed and not distributed.is_coordinator():
        return choose.run_worker(search, proposal, config, should_stop)
    with contextlib.ExitStack() as stack:
        stack.enter_context(distributed.coordinator(config))
        directory = run_directory.prepare(
            config.directory
            or run_directory.default_directory(name, config.seed, settings)
        )
        stack.enter_context(run_directory.lock(directory))
        workers = stack.enter_context(choose.factory(config, should_stop))
        evaluator = None
        if run_directory.has_manifest(directory):
            manifest = run_directory.read_manifest(directory)
            run_directory.check_same_run(directory, manifest, name, config, settings)
        else:
            evaluator, chunk_size = workers.plan(search, proposal)
            manifest = run_directory.create_manifest(
                directory, name, config, settings, chunk_size, workers.device, changes
            )
        search = search._replace(chunk_size=manifest["chunk_size"])
        evaluator = evaluator or workers.make(search)
        the_run = _Run(search, config, name, directory, workers, evaluator, manifest)
        return the_run.run(changes)


class _Run:
    """One run in its locked directory."""

    def __init__(
        self,
        search: Search,
        config: RunConfig,
        name: str,
        directory: Path,
        workers: EvaluatorFactory,
        evaluator: Evaluator,
        manifest: Mapping[str, Any],
    ):
        self.search, self.config, self.name = search, config, name
        self.directory, self.workers, self.manifest = directory, workers, manifest
        self.evaluator = evaluator
        root = jax.random.key(config.seed)
        self.init_key, self.key, self.held_out_key, self.noise_key, self.scores_key = (
            jax.random.fold_in(root, role)
            for role in (_INIT, _GENERATIONS, _HELD_OUT, _NOISE, _SCORES)
        )
        strategy = search.strategy
        self.programs = {
            "ask": jax.jit(strategy.ask),
            "tell": jax.jit(strategy.tell),
            "metrics": jax.jit(strategy.metrics),
            "solution": jax.jit(strategy.solution),
            "numbers": jax.jit(jax.vmap(self._numbers)),
        }
        limit = float("inf") if config.max_seconds is None else config.max_seconds
        self.deadline = time.monotonic() + limit
        self.store = checkpoint.Store(directory / "checkpoints")
        self.console = ConsoleLogger(search.num_generations)
        self.mirrors = []

    def run(self, changes: Sequence[str]) -> Result:
        try:
            state, generation, failures, offset = self._restore()
            proposal = self._proposal(state)
            size = population.size(proposal.params)
            self._greet(proposal, generation, changes)
            run_directory.note(self.directory, "started", generation)
            self._open_mirrors(generation)
            state = self._search(state, generation, failures, offset, size)
            run_directory.note(self.directory, "finished", self.search.num_generations)
            return self._finish(state)
        except (InterruptedRunError, NumericalError) as error:
            run_directory.note(self.directory, str(error), self.generation)
            raise
        finally:
            for mirror in self.mirrors:
                mirror.close()
            self.console.close()

    def _open_mirrors(self, generation: int) -> None:
        """wandb and TensorBoard, which repeat what is logged."""
        identity = self.manifest["identity"]
        if self.config.tensorboard:
            self.mirrors.append(TensorboardLogger(self.directory, generation))
        if self.config.wandb != "disabled":
            self.mirrors.append(
                WandbLogger(
                    self.directory,
                    self.config.wandb,
                    self.name,
                    identity["settings"] | {"run.seed": self.config.seed},
                    tuple(self.search.space.spec),
                    self.search.num_generations,
                )
            )

    def _search(self, state, generation, failures, offset, size) -> State:
        """Generation by generation to the last one."""
        frames = checks.frames_per_generation(self.search, size)
        saved = self.generation = generation
        pending = []  # records that no checkpoint covers yet
        log = JsonlLogger(self.directory / "metrics.jsonl", offset)
        self.console.now("compiling, and the first generation")
        try:
            while generation < self.search.num_generations:
                started = time.monotonic()
                try:
                    state, record = self._generation(state, generation)
                except InterruptedRunError:
                    if saved < generation:
                        self._save(state, generation, failures, offset)
                    raise InterruptedRunError(
                        f"stopped before generation {generation}"
                    ) from None
                failures = failures + 1 if record["failed"] == size else 0
                seconds = time.monotonic() - started
                record |= {
                    "frames": (generation + 1) * frames,
                    "seconds": seconds,
                    "frames_per_second": frames / seconds,
                }
                offset = log.log(record)
                self.console.log(record)
                pending.append(record)
                generation = self.generation = generation + 1
                last = generation == self.search.num_generations
                stop = failures == MAX_FAILURES
                if last or stop or generation % self.config.checkpoint_every == 0:
                    self._save(state, generation, failures, offset)
                    saved = generation
                    for mirror in self.mirrors:
                        for record in pending[:-1]:
                            mirror.log(record)
                        mirror.log(pending[-1], partial(self._drawn, state))
                    pending = []
                self.console.now(
                    f"generation {generation + 1}; checkpoint before generation "
                    f"{saved + 1}"
                )
                if stop:
                    raise self._all_failed_error()
                if time.monotonic() > self.deadline and not last:
                    if saved < generation:
                        self._save(state, generation, failures, offset)
                    raise InterruptedRunError(
                        f"run.max_seconds={self.config.max_seconds:g} are over, "
                        f"stopped before generation {generation}"
                    )
        finally:
            log.close()
        return state

    def _numbers(self, params: Params) -> dict[str, jax.Array]:
        """Number slots as one member has them."""
        meta = self.search.space.bind(params, self.search.tasks[0].meta)
        return {
            name: jnp.asarray(getattr(meta, name))
            for name, op in self.search.space.spec.items()
            if op["op"] == "number"
        }

    def _drawn(self, state: State) -> bytes | None:
        """A PNG of the solution as it is now, for the mirrors."""
        solution = self.programs["solution"](state.strategy)
        meta = self.search.space.bind(solution, self.search.tasks[0].meta)
        return report.evolved(self.search.space, meta, solution)

    def _all_failed_error(self) -> NumericalError:
        return NumericalError(
            f"every member failed in {MAX_FAILURES} generations in a row; the state "
            f"before generation {self.generation} is in {self.store.folder}"
        )

    def _generation(self, state: State, generation: int) -> tuple[State, dict]:
        key = jax.random.fold_in(self.key, generation)
        role = [jax.random.fold_in(key, i) for i in range(3)]
        proposal, strategy = self.programs["ask"](role[_ASK], state.strategy)
        asked = proposal.params
        evaluated, carried = self.evaluator(role[_EVALUATE], proposal, state.carried)
        raw = np.asarray(self.search.aggregate(jnp.asarray(evaluated.fitness)))
        scores, failed = fitness.sanitize(raw, self.search.strategy.mirrored)
        lives_on = self.search.segments_per_generation is not None
        if failed.all() and not (lives_on and evaluated.healthy.all()):
            # Nothing to learn from; the next generation starts from the same state.
            carried = state.carried
        else:
            # All may be healthy and have no score yet: then all are told to be equal.
            proposal = proposal._replace(params=evaluated.params)
            strategy = self.programs["tell"](
                role[_TELL], strategy, proposal, jnp.asarray(scores)
            )
            if failed.all():
                raw, failed = raw[:0], failed[:0]
        record = {
            "generation": generation,
            **_summary(raw[~failed]),
            "failed": int(failed.sum()),
            "population": raw,
            **self.programs["metrics"](strategy),
            **_means(evaluated),
        }
        if self.search.strategy.persistent_agents:
            record["parents"] = proposal.parents
            numbers = self.programs["numbers"](asked)
            record |= {f"numbers/{slot}": x for slot, x in numbers.items()}
        return State(strategy, carried), record

    # --- persistence ------------------------------------------------------------------

    def _initial(self) -> State:
        return State(jax.jit(self.search.strategy.init)(self.init_key), ())

    def _proposal(self, state: State) -> Proposal:
        """The shapes of a proposal."""
        ask = self.search.strategy.ask
        return jax.eval_shape(ask, self.init_key, state.strategy)[0]

    def _restore(self) -> tuple[State, int, int, int]:
        self.generation = 0
        loaded = self.store.load()
        log = self.directory / "metrics.jsonl"
        if loaded is None:
            lines = len(jsonl.read(log)) if log.exists() else 0
            if lines > self.config.checkpoint_every:
                raise CheckpointError(
                    f"{log} has {lines} generations, and {self.store.folder} no "
                    "checkpoint; move the directory away to start anew"
                )
            return self._initial(), 0, 0, 0
        arrays, manifest = loaded
        strategy = jax.eval_shape(self.search.strategy.init, self.init_key)
        template = State(strategy, ())
        template = State(strategy, self.evaluator.template(self._proposal(template)))
        state = checkpoint.from_arrays(template, arrays)
        self.generation = manifest["generation"]
        failures = manifest["failures"]
        if failures == MAX_FAILURES:
            # Another start tries again from the same state, if it may.
            if self.generation >= self.search.num_generations:
                raise self._all_failed_error()
            failures = 0
        return state, self.generation, failures, manifest["log_bytes"]

    def _save(self, state: State, generation: int, failures: int, offset: int) -> None:
        self.store.save(
            generation,
            state,
            {"generation": generation, "failures": failures, "log_bytes": offset},
        )

    # --- before and after -------------------------------------------------------------

    def _greet(
        self, proposal: Proposal, generation: int, changes: Sequence[str]
    ) -> None:
        search, size = self.search, population.size(proposal.params)
        loops = ", ".join(
            f"{loop.frames_per_segment * loop.num_segments:,} frames"
            for loop in search.tasks
        )
        start = f"resumed at generation {generation}" if generation else "new"
        held = self.evaluator.state_bytes(proposal)
        self.console.say(
            f"{self.name}: {size} members x {search.num_seeds} seeds, lifetimes of "
            f"{loops}",
            f"evolving {', '.join(search.space.spec)} for the {search.fitness.name}",
            f"changed: {', '.join(changes) or 'nothing'}",
            f"{self.workers.num_devices} {self.workers.platform} device(s), chunks of "
            f"{self.manifest['chunk_size']}, {byte_size(held)} of state and buffers",
            f"{self.directory}: {start}",
        )

    def _finish(self, state: State) -> Result:
        """Artifact, scores and comparison on fresh seeds, report."""
        for stale in ("held_out", "agents", "closed_form"):
            shutil.rmtree(self.directory / stale, ignore_errors=True)
        solution = Solution(
            self.search.space,
            jax.device_get(self.programs["solution"](state.strategy)),
        )
        scores = self._score(state, solution)
        if self.search.strategy.persistent_agents:
            records = jsonl.read(self.directory / "metrics.jsonl")
            best = scores.best if scores else lineage.fittest(records[-1])
            solution = results.schedule(self.search, records, best)
        provenance = {"search": self.name, "run": self.manifest}
        results.save(self.directory, self.search, solution, provenance)
        held_out = self._hold_out(state, solution)
        report.write(self.directory)
        for mirror in self.mirrors:
            mirror.finish(self.directory)
        verdicts = holdout.verdicts(held_out)
        self._conclude(held_out, verdicts, scores)
        return Result(self.directory, solution.params, held_out, verdicts)

    def _score(self, state: State, solution: Solution) -> Scores | None:
        """Agents on fresh episodes, where a search breeds agents or policies."""
        search, num = self.search, self.config.held_out_seeds
        policies = results.breeds_policies(search)
        if not num or not (search.strategy.persistent_agents or policies):
            return None
        self.console.now("scoring agents on fresh episodes")
        proposal, _ = self.programs["ask"](self.scores_key, state.strategy)
        carried = state.carried if search.strategy.persistent_agents else None
        scores = results.best_agent(
            self.directory,
            self.evaluator,
            proposal,
            carried,
            self.scores_key,
            max(1, num // 4),
        )
        if policies and not search.strategy.persistent_agents:
            own = results.policies(
                self.directory,
                search,
                solution.params,
                self.held_out_key,
                num,
                self.workers.make_after,
            )
            scores = scores._replace(
                evaluations={results.SOLUTION: own, **scores.evaluations}
            )
        results.write_scores(self.directory, scores)
        return scores

    def _hold_out(self, state: State, solution: Solution) -> dict[str, HeldOut]:
        """Solution, start and hand-made algorithm on the same fresh seeds; saved."""
        search, num_seeds = self.search, self.config.held_out_seeds
        if not num_seeds or results.breeds_policies(search):
            return {}
        if any(loop.coupled for loop in search.tasks):
            self.console.say(
                "no comparison on held-out seeds: in a coupled loop a member cannot be "
                "trained alone"
            )
            return {}
        began = time.monotonic()
        self.console.now(f"comparing on {num_seeds} held-out seeds")
        learned = {results.SOLUTION: solution.params}
        if not search.strategy.persistent_agents:
            start = self._initial().strategy
            learned["start"] = jax.device_get(self.programs["solution"](start))
        held_out = results.compare(
            self.directory,
            search,
            solution.space,
            learned,
            self.held_out_key,
            num_seeds,
            self.workers.make_after,
        )
        facts = {
            "measure": search.fitness.name,
            "frames_per_segment": [loop.frames_per_segment for loop in search.tasks],
            "noise": self._noise(state),
        }
        holdout.save(self.directory / "held_out", held_out, facts)
        seconds = duration(time.monotonic() - began)
        self.console.say(f"compared on {num_seeds} held-out seeds in {seconds}")
        return held_out

    def _noise(self, state: State) -> dict[str, float] | None:
        """None for members that live on: they cannot live twice."""
        if self.search.segments_per_generation is not None:
            return None
        self.console.now("evaluating one population twice")
        keys = [jax.random.fold_in(self.noise_key, i) for i in range(3)]
        proposal, _ = self.programs["ask"](keys[0], state.strategy)
        return results.noise(self.search, self.evaluator, proposal, keys[1:])

    def _conclude(self, held_out, verdicts, scores) -> None:
        say = self.console.say
        for name, x in (scores.evaluations if scores else {}).items():
            say(f"{name:>16}: return {holdout.average(x):.2f} on fresh episodes")
        measure = self.search.fitness.name
        for name, runs in held_out.items():
            say(
                f"{name:>16}: {measure} {holdout.average(runs.fitness):.2f}"
                f", final return {holdout.average(runs.final_return):.2f}"
            )
        for task, paired in enumerate(verdicts):
            where = f" on task {task}" if len(verdicts) > 1 else ""
            sentence = report.verdict_sentence(paired, measure)
            say(f"verdict{where}: {sentence}")
        say(
            f"artifact: {self.directory / 'solution'}",
            f"report:   {self.directory / 'report' / 'index.html'}",
        )


# --- records --------------------------------------------------------------------------


def _summary(scores: np.ndarray) -> dict[str, float]:
    """Statistics of the members that did not fail."""
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
