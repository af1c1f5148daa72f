"""`metaevo.train`: agents of one inner loop, trained as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from inspect import ismodule
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from metaevo import population
from metaevo.analysis import results, training_curve
from metaevo.config import RunConfig
from metaevo.engine import checks, failures, loop, preparation, training
from metaevo.engine.job import Progress, initial_state, make
from metaevo.engine.loggers.console import ConsoleLogger
from metaevo.errors import CheckpointError, ConfigError
from metaevo.evaluators import choose
from metaevo.evaluators.devices import choose_devices
from metaevo.storage import checkpoint, run_directory
from metaevo.types import InnerLoop, PyTree

__all__ = ["Training", "load", "train"]


class Training(NamedTuple):
    """N agents that were trained with different seeds.

    Attributes:
        metrics: metrics of training by name, [N, K] for K segments; `return` is NaN
            where no episode ended. All are NaN after an agent's numbers were not
            finite.
        agents: the trained agents, [N, ...] per leaf, for `InnerLoop.act`.
        frames: frames of one agent after each segment, [K].
        final_return: mean return of each agent's deterministic policy on fresh
            episodes, [N]; NaN where its numbers were not finite.
        directory: run directory; None if nothing was written.
    """

    metrics: Mapping[str, np.ndarray]
    agents: PyTree
    frames: np.ndarray
    final_return: np.ndarray
    directory: Path | None = None


def train(
    inner_loop: InnerLoop, num_seeds: int = 8, config: RunConfig | None = None
) -> Training:
    """Train agents of an inner loop for a lifetime, with different seeds.

    Args:
        inner_loop: such as `ppo.make(envs.make("gymnax/CartPole-v1"))`.
        num_seeds: N, number of agents.
        config: `seed`, `stop` and `devices` of the run. With a `directory` it is a run
            like those of `python -m inner_loops.NAME`: with a log, checkpoints, a
            report, and the same bits; the same call resumes it. `metaevo play` and
            `resume` are for runs from the command line. None or without one, nothing
            is written.

    Raises:
        ConfigError: it is no inner loop, a number is out of range, or the loop is
            coupled.
        NumericalError: every agent failed in three segments in a row.
        MemoryError: the agents do not fit into memory.
    """
    if not isinstance(inner_loop, InnerLoop):
        given = f"the module {inner_loop.__name__}" if ismodule(inner_loop) else None
        raise ConfigError(
            "metaevo.train: expected an inner loop, such as "
            "ppo.make(envs.make('gymnax/CartPole-v1')); got "
            f"{given or repr(inner_loop)[:200]}"
        )
    config = RunConfig() if config is None else config
    search = training.as_search(inner_loop, num_seeds)
    if config.directory is not None:
        loop.run(search, config, training.UNNAMED)
        return load(config.directory, inner_loop)
    search, proposal, stop = preparation.prepare(search, config)
    factory = choose.local_factory(choose_devices(config))
    evaluator, search = factory.plan(search, proposal)
    with contextlib.closing(
        ConsoleLogger(search.num_generations, unit="segment")
    ) as console:
        job = make(
            search,
            config,
            name="training",
            directory=Path(),
            factory=factory,
            evaluator=evaluator,
            console=console,
        )
        progress, records = Progress(initial_state(job)), []
        frames = checks.frames_per_generation(search, population.size(proposal.params))
        for number in range(1, search.num_generations + 1):
            state, record = loop.timed_generation(job, progress, frames)
            failed = progress.failures + 1 if record["failed"] == num_seeds else 0
            progress = Progress(state, number, failed)
            records.append(record)
            console.log(records[-1])
            if failed == failures.MAX:
                raise failures.unsaved(inner_loop)
            if stop is not None and stop.holds(records[-1]):
                break
        final_return, agents = training.scored(job, progress.state, records)
    return _training(records, agents, final_return, None)


def load(directory: str | Path, inner_loop: InnerLoop) -> Training:
    """Read a finished training run.

    Args:
        directory: run directory.
        inner_loop: that of the run, for the shapes of its agents.

    Raises:
        ConfigError: there is no run.
        CheckpointError: its files are damaged or missing, or it is another loop's.
    """
    run_directory.read_manifest(directory)
    folder = run_directory.paths(directory).agents / training.TRAINED
    records, scores = (
        training_curve.records(directory),
        results.read_scores(Path(directory)),
    )
    num = len(records[0]["population"])
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((num, *x.shape), x.dtype),
        population.agent_shapes(inner_loop),
    )
    arrays, _ = checkpoint.read_tree(folder, shapes)
    agents = checkpoint.from_arrays(shapes, arrays)
    if scores is None or training.TRAINED not in scores.evaluations:
        raise CheckpointError(f"{folder} has no scores beside it")
    returns = scores.evaluations[training.TRAINED]
    return _training(records, agents, returns, Path(directory))


def _training(
    records: Sequence[Mapping[str, Any]],
    agents: PyTree,
    final_return: np.ndarray,
    directory: Path | None,
) -> Training:
    return Training(
        training_curve.metrics(records),
        agents,
        training_curve.frames(records),
        final_return,
        directory,
    )
