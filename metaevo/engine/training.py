"""Training agents as they are: a search in which nothing evolves.

The members of its population are agents with different random numbers. They live on,
one segment a generation, so that a training run has the checkpoints, the log, the
loggers and the resumption of a search. Its end differs: there is nothing to compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import fitness
from metaevo.analysis import holdout, report, results, training_curve
from metaevo.engine.job import Job, Progress, State
from metaevo.engine.journal import Journal
from metaevo.engine.result import Result
from metaevo.errors import ConfigError, InterruptedRunError
from metaevo.storage import checkpoint, history, run_directory
from metaevo.types import InnerLoop, Proposal, PyTree, Search, Strategy

UNNAMED = "training"
"""Name of runs that `metaevo.train` makes, whose loop no command can make again."""

TRAINED = "trained"
"""Name of the agents in `agents/`."""


def as_search(loop: InnerLoop, num_seeds: int) -> Search:
    """Return the training of `num_seeds` agents for a lifetime as a search.

    Raises:
        ConfigError: `num_seeds` is less than 1, or the loop is coupled.
    """
    if num_seeds < 1:
        raise ConfigError(f"num_seeds={num_seeds} must be at least 1")
    if loop.coupled:
        raise ConfigError(holdout.COUPLED)
    return Search(
        inner_loop=loop,
        space=holdout.HAND_MADE,
        strategy=_no_strategy(num_seeds),
        num_generations=loop.num_segments,
        fitness=fitness.last_segments(1),
        segments_per_generation=1,
        common_random_numbers=False,
    )


def _no_strategy(num_seeds: int) -> Strategy:
    """A strategy that lets `num_seeds` members live on."""
    nothing = holdout.copies(holdout.NOTHING, num_seeds)

    def ask(key, age):
        del key
        parents = jnp.where(age > 0, jnp.arange(num_seeds), -1)
        return Proposal(nothing, parents.astype(jnp.int32)), age

    def tell(key, age, proposal, fitness):
        del key, proposal, fitness
        return age + 1

    return Strategy(
        init=lambda key: jnp.int32(0),
        ask=ask,
        tell=tell,
        solution=lambda age: holdout.NOTHING,
        settings={"strategy": f"{__name__}:as_search", "num_seeds": num_seeds},
    )


# --- the end --------------------------------------------------------------------------


def already(job: Job, progress: Progress) -> Result | None:
    """Return the result of a training run that is finished; None if it is not."""
    agents = run_directory.paths(job.directory).agents / TRAINED
    done = progress.generation >= job.search.num_generations and agents.is_dir()
    if not (done and history.is_reported(job.directory, progress.generation)):
        return None
    job.console.say(f"already finished, after segment {progress.generation}")
    return _result(job)


def finish(job: Job, progress: Progress, journal: Journal) -> Result:
    """Score the agents on fresh episodes, save them, and write the report.

    Args:
        progress: after the last segment.
        journal: its loggers get the report.

    Raises:
        InterruptedRunError: asked to stop; the same call continues.
    """
    records = training_curve.records(job.directory)
    returns, agents = scored(job, progress.state, records)
    results.write_agents(job.directory, {TRAINED: checkpoint.to_arrays(agents)})
    results.write_scores(job.directory, results.Scores(None, {TRAINED: returns}))
    history.note(job.directory, history.FINISHED, progress.generation)
    job.console.now("writing the report")

    def between() -> None:
        if job.should_stop():
            raise InterruptedRunError("stopped in the report")

    report.write(job.directory, between)
    journal.finish()
    return _result(job)


def scored(
    job: Job, state: State, records: Sequence[Mapping[str, Any]]
) -> tuple[np.ndarray, PyTree]:
    """Score the agents on fresh episodes.

    Args:
        state: after the last segment.
        records: of all segments.

    Returns:
        [N] mean return, NaN for agents whose numbers were not finite at some time; and
        the agents, [N, ...] per leaf.
    """
    job.console.now("scoring the agents on fresh episodes")
    proposal, _ = job.programs.ask(job.keys.scores, state.strategy)
    metrics, agents = job.evaluator.score(job.keys.scores, proposal, state.carried)
    returns = np.asarray(metrics[0]["return"])[0]
    returns = np.where(training_curve.alive(records), returns, np.nan)
    return returns, jax.tree.map(lambda x: x[0], agents[0])


def _result(job: Job) -> Result:
    """Print the scores and the places of the files."""
    paths = run_directory.paths(job.directory)
    scores = results.read_scores(job.directory)
    assert scores is not None, "written with the agents"
    returns: Any = scores.evaluations[TRAINED]
    job.console.say(
        f"final return on fresh episodes: {training_curve.sentence(returns)}",
        f"agents: {paths.agents / TRAINED}"
        + (f"; metaevo play {job.directory}" if job.name != UNNAMED else ""),
        f"curve:  {paths.report / training_curve.NAME}.png and .csv",
        f"report: {paths.report / 'index.html'}",
    )
    return Result(job.directory, holdout.NOTHING, {}, ())
