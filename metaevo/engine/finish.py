"""The end of a run: artifact, scores, comparison on held-out seeds, report.

It is made in steps that are kept in `conclusion/` as they finish, so that a process
that is stopped continues. When all are there, they replace what an earlier end of the
run has left. So `held_out/`, `agents/` and `closed_form/` always belong to `solution/`.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from metaevo.analysis import (
    evidence,
    holdout,
    lineage,
    report,
    results,
    rivals,
    verdicts,
)
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.independent import judge
from metaevo.analysis.independent.judge import Judged
from metaevo.analysis.results import Agents, Scores, Solution
from metaevo.analysis.steps import Steps
from metaevo.engine import costs, earlier_solutions, identity, kept_rivals
from metaevo.engine.job import Job, Progress, initial_state
from metaevo.engine.journal import Journal
from metaevo.engine.result import Result
from metaevo.errors import ArtifactError, CheckpointError, InterruptedRunError
from metaevo.evaluators.devices import choose_devices
from metaevo.storage import artifacts, checkpoint, history, jsonl, run_directory
from metaevo.text import duration, score
from metaevo.types import PyTree

COMPARISON = "the comparison on held-out seeds"


class Ending(NamedTuple):
    """Results of the end of a run.

    Attributes:
        solution: the solution that is reported.
        scores: returns of agents as they are; None if none were scored.
        held_out: runs on held-out seeds by name; empty if they were not made.
        facts: about them, as plain data.
        agents: trained agents that are not written yet.
        judged: scores in an independent agent; None if it did not judge.
    """

    solution: Solution
    scores: Scores | None
    held_out: Mapping[str, HeldOut]
    facts: Mapping
    agents: Agents
    judged: Judged | None = None


def finish(job: Job, progress: Progress, journal: Journal) -> Result:
    """Save and compare the solution of a search, and write the report.

    Results of an earlier end of the run are used if they are of the same solution and
    of as many seeds.

    Args:
        progress: after the last generation.
        journal: its loggers get the report.

    Raises:
        InterruptedRunError: asked to stop, or out of time; the same call continues.
    """
    earlier_solutions.keep_newest(job, progress.state)
    found = ending = _found(job, progress)
    enough = ending is not None and _has_all_scores(job, ending)
    if ending is None or not enough:
        before = None if found is None else found.judged
        ending = _make(job, progress)._replace(judged=before)
    if not enough or not _has_independent_scores(job, ending):
        judged = _judge(job, progress, ending)
        ending = ending._replace(judged=judged)
        _publish(job, progress, ending, found)
    history.note(job.directory, history.FINISHED, progress.generation)
    with _stage(job, "writing the report", "the report"):
        report.write(job.directory, lambda: _stop_if_asked(job))
    journal.finish()
    return _result(job, ending)


def already(job: Job, progress: Progress) -> Result | None:
    """Return the result of a run that is finished, with no work left to do.

    Nothing is changed.

    Returns:
        the result; None if the run, the comparison that is asked for, or the report is
        not done.
    """
    if progress.generation < job.search.num_generations:
        return None
    if not history.is_reported(job.directory, progress.generation):
        return None
    ending = _found(job, progress)
    if ending is None or not (
        _has_all_scores(job, ending) and _has_independent_scores(job, ending)
    ):
        return None
    job.console.say(f"already finished, at generation {progress.generation}")
    return _result(job, ending)


# --- what is there --------------------------------------------------------------------


def _found(job: Job, progress: Progress) -> Ending | None:
    """Read the results of an earlier end; None if they are of another solution."""
    paths = run_directory.paths(job.directory)
    try:
        there = artifacts.load(paths.solution)
        params = artifacts.params(paths.solution)
    except ArtifactError:
        return None
    scores, held_out, facts = None, {}, {}
    with contextlib.suppress(CheckpointError, ValueError, KeyError):
        scores = results.read_scores(job.directory)
    if paths.held_out.is_dir():
        with contextlib.suppress(CheckpointError, KeyError):
            held_out, facts = holdout.load(paths.held_out)
    judged = None
    if paths.independent.is_dir():
        with contextlib.suppress(CheckpointError):
            judged = judge.load(paths.independent)
    generation = there.manifest["provenance"].get("generation")
    solution = _solution(job, progress, scores)
    if generation != progress.generation or not _equal(params, solution.params):
        return None
    return Ending(solution, scores, held_out, facts, {}, judged)


def _equal(a: PyTree, b: PyTree) -> bool:
    """Return True if two trees hold the same bits under the same names."""
    a, b = checkpoint.to_arrays(a), checkpoint.to_arrays(b)
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and np.array_equal(a[name], b[name])
        for name in a
    )


def _has_all_scores(job: Job, ending: Ending) -> bool:
    """Return True if an earlier end made all scores asked for, on as many seeds."""
    num, search = job.config.held_out_seeds, job.search
    if costs.compares(search):
        runs = ending.held_out.get(results.SOLUTION)
        if num > (0 if runs is None else runs.fitness.shape[1]):
            return False
        there = ending.facts.get("tasks", costs.task_names(search))
        if num and not set(job.config.held_out_tasks) <= set(there):
            return False
        paths = run_directory.paths(job.directory)
        names = (results.SOLUTION, results.HAND_MADE) if num else ()
        if not all((paths.agents / name).is_dir() for name in names):
            return False
    if num and costs.scores_agents(search):
        scored = ending.scores.evaluations if ending.scores else {}
        return len(scored.get(results.BEST, ())) >= max(1, num // 4)
    return True


def _has_independent_scores(job: Job, ending: Ending) -> bool:
    """Return True if an independent agent judged on as many seeds, if it is to."""
    num = 0 if ending.judged is None else ending.judged.num_seeds
    return not job.config.independent or num >= job.config.held_out_seeds


# --- what is made ---------------------------------------------------------------------


def _make(job: Job, progress: Progress) -> Ending:
    """Score, compare and measure the noise; all of it is kept in `conclusion/`."""
    steps = _steps(job, progress)
    scores, agents = _score(job, progress, steps)
    solution = _solution(job, progress, scores)
    held_out, facts, trained = _hold_out(job, progress, solution, steps)
    return Ending(solution, scores, held_out, facts, {**agents, **trained})


def _steps(job: Job, progress: Progress) -> Steps:
    """Steps of the end of this run, kept in `conclusion/`."""
    search = job.search
    digest = identity.digest(
        identity.identity(search),
        identity.sources(search),
        progress.generation,
        *job.config.held_out_tasks,
        *(identity.plain(x.baselines) for x in search.tasks if x.baselines),
        *(name for simple in rivals.of(search).values() for name in simple),
    )
    folder = run_directory.paths(job.directory).conclusion

    def count(found: Mapping[str, np.ndarray]) -> None:
        if "fitness" in found:  # its last axis is that of the seeds, each a lifetime
            job.console.advance(found["fitness"].shape[-1])

    return Steps(folder, digest, lambda: _pause(job), count)


def _judge(job: Job, progress: Progress, ending: Ending) -> Judged | None:
    """Judge the solution in an independent agent, if the run is asked to.

    Otherwise what was judged of this solution before stays.
    """
    search, num_seeds = job.search, job.config.held_out_seeds
    if not job.config.independent:
        return ending.judged
    job.console.say(
        f"judging in an independent agent on {num_seeds} seeds, "
        f"{costs.frames_judged(search, job.config):,} frames"
    )
    done = "judged in an independent agent"
    with _stage(job, "judging in an independent agent", "the independent agent", done):
        return judge.judge(
            _steps(job, progress),
            search,
            ending.solution.params,
            job.keys.held_out,
            num_seeds,
            None if job.config.distributed else choose_devices(job.config),
        )


def _solution(job: Job, progress: Progress, scores: Scores | None) -> Solution:
    """The solution; for agents that live on, the schedule of the best one's line."""
    if not job.search.strategy.persistent_agents:
        params = jax.device_get(job.programs.solution(progress.state.strategy))
        return results.settled(job.search.space, params)
    # The log may hold more than the checkpoint covers, and that need not be ours.
    log = run_directory.paths(job.directory).metrics
    records = jsonl.read_generations(log, progress.generation)
    best = lineage.fittest(records[-1])
    if scores is not None and scores.best is not None:
        best = scores.best
    return results.schedule(job.search, records, best)


def _score(job: Job, progress: Progress, steps: Steps) -> tuple[Scores | None, Agents]:
    """Score agents on fresh episodes, if the search breeds agents or policies."""
    state, search, num = progress.state, job.search, job.config.held_out_seeds
    if not num or not costs.scores_agents(search):
        return None, {}
    persistent = search.strategy.persistent_agents
    with _stage(job, "scoring agents on fresh episodes", "the scoring of agents"):
        proposal, _ = job.programs.ask(job.keys.scores, state.strategy)
        scores, agents = results.best_agent(
            steps,
            job.evaluator,
            proposal,
            state.carried if persistent else None,
            job.keys.scores,
            max(1, num // 4),
        )
        if not persistent:
            returns, policy = results.policies(
                steps,
                search,
                _solution(job, progress, None).params,
                job.keys.held_out,
                num,
                job.factory.make_after,
            )
            agents = {**agents, **policy}
            scores = scores._replace(
                evaluations={results.SOLUTION: returns, **scores.evaluations}
            )
    return scores, agents


def _hold_out(
    job: Job, progress: Progress, solution: Solution, steps: Steps
) -> tuple[dict[str, HeldOut], dict, Agents]:
    """Train the candidates on the same fresh seeds."""
    search, num_seeds = job.search, job.config.held_out_seeds
    compared = costs.compared(search, job.config)
    if not num_seeds or not costs.compares(search):
        if num_seeds and search.coupled:
            job.console.say(f"no comparison on held-out seeds: {holdout.COUPLED}")
        return {}, {}, {}
    job.console.say(
        f"comparing {costs.num_candidates(search)} candidates on {num_seeds} held-out "
        f"seeds, {costs.frames_compared(search, job.config):,} frames"
    )
    where = f"on {num_seeds} held-out seeds"
    total = costs.lifetimes_compared(search, job.config)
    with _stage(job, f"comparing {where}", COMPARISON, f"compared {where}", total):
        learned = {results.SOLUTION: solution}
        if costs.compares_start(search):
            start = initial_state(job).strategy
            start = jax.device_get(job.programs.solution(start))
            learned["start"] = Solution(search.space, start)
        held_out, agents = results.compare(
            steps,
            compared,
            learned,
            job.keys.held_out,
            num_seeds,
            job.factory.make_after,
        )
        best = rivals.best(
            steps,
            search,
            compared,
            job.keys.held_out,
            num_seeds,
            job.factory.make_after,
        )
        if best is not None:
            held_out[verdicts.SIMPLEST] = best.runs
        kept = earlier_solutions.kept(job)
        earlier = earlier_solutions.scores(job, steps, kept)
    facts = {
        "measure": search.fitness.name,
        "frames_per_segment": [loop.frames_per_segment for loop in compared.tasks],
        "tasks": costs.task_names(compared),
        "num_searched": len(search.tasks),
        "earlier": earlier,
        "generation": search.num_generations,
        "noise": _noise(job, progress, steps),
        "simple": None if best is None else best.facts,
        "choices": list(search.tasks[0].choices),
        "kept_rivals": kept_rivals.of(holdout.as_hand_made(search)),
        **results.formulas(search, progress.state.strategy, kept),
    }
    return held_out, facts, agents


def _noise(
    job: Job, progress: Progress, steps: Steps
) -> dict[str, float | None] | None:
    """Noise of the fitness; None for agents that live on and cannot live twice."""
    if job.search.segments_per_generation is not None:
        return None
    if costs.seeds_tell_noise(job.search):
        # The log may hold more than the checkpoint covers, and that need not be ours.
        log = run_directory.paths(job.directory).metrics
        records = jsonl.read_generations(log, progress.generation)
        return verdicts.noise_between_seeds(records, job.search.num_seeds)
    with _stage(job, "evaluating one population twice", "the measurement of noise"):
        keys = [jax.random.fold_in(job.keys.noise, i) for i in range(3)]
        proposal, _ = job.programs.ask(keys[0], progress.state.strategy)
        return results.noise(steps, job.search, job.evaluator, proposal, keys[1:])


def _publish(
    job: Job, progress: Progress, ending: Ending, found: Ending | None
) -> None:
    """Replace the published results by the new ones.

    What belongs to another solution is removed before the solution is replaced. All
    that was made is in `conclusion/` until it is written.

    Args:
        found: what is there; None if it belongs to another solution.
    """
    paths = run_directory.paths(job.directory)
    if found is None or not _equal(found.solution.params, ending.solution.params):
        for stale in (
            paths.closed_form,
            paths.held_out,
            paths.independent,
            paths.agents,
        ):
            shutil.rmtree(stale, ignore_errors=True)
    (paths.report / "index.html").unlink(missing_ok=True)
    provenance = {
        "search": job.name,
        "run": job.manifest,
        "generation": progress.generation,
    }
    shown = evidence.evidence(
        ending.held_out,
        {"measure": job.search.fitness.name, **ending.facts},
        ending.judged.verdicts if ending.judged else (),
        costs.task_names(job.search),
        jsonl.read(paths.metrics),
        job.manifest.get("versions", {}).get("metaevo"),
    )
    results.save(
        job.directory, job.search, ending.solution, ending.held_out, provenance, shown
    )
    if ending.held_out:
        holdout.save(paths.held_out, ending.held_out, ending.facts)
    if ending.judged is not None:
        judge.save(paths.independent, ending.judged)
    results.write_agents(job.directory, ending.agents)
    if ending.scores is not None:
        results.write_scores(job.directory, ending.scores)
    shutil.rmtree(paths.conclusion, ignore_errors=True)


# --- stopping -------------------------------------------------------------------------


@contextlib.contextmanager
def _stage(
    job: Job, activity: str, name: str, done: str = "", total: int = 0
) -> Iterator[None]:
    """Show an activity, and say where the run was stopped if it is.

    Args:
        done: what to say at the end, with the time that it took; empty: nothing.
        total: lifetimes that its steps train; 0: no bar is drawn.
    """
    began = time.monotonic()
    job.console.now(activity, total=total)
    try:
        yield
    except InterruptedRunError as error:
        raise InterruptedRunError(f"{str(error) or 'stopped'} in {name}") from None
    if done:
        job.console.say(f"{done} in {duration(time.monotonic() - began)}")


def _stop_if_asked(job: Job) -> None:
    if job.should_stop():
        raise InterruptedRunError


def _pause(job: Job) -> None:
    """Stop between two steps if asked to, or out of time."""
    _stop_if_asked(job)
    if time.monotonic() > job.deadline:
        raise InterruptedRunError(
            f"run.max_seconds={job.config.max_seconds:g} are over, stopped"
        )


# --- the result -----------------------------------------------------------------------


def _result(job: Job, ending: Ending) -> Result:
    """Print the scores, the verdicts and the places of the files; return them."""
    facts = {"measure": job.search.fitness.name, **ending.facts}
    found = verdicts.every(ending.held_out, facts)
    judged = ending.judged.verdicts if ending.judged else ()
    _conclude(job, ending, [*found, *judged])
    return Result(job.directory, ending.solution.params, ending.held_out, found, judged)


def _conclude(job: Job, ending: Ending, found: Sequence[verdicts.Verdict]) -> None:
    """Print the scores, the verdicts and the places of the files."""
    say, scores = job.console.say, ending.scores
    for name, x in (scores.evaluations if scores else {}).items():
        mean = score(verdicts.average(x))
        say(f"{name:>16}: return {mean} on fresh episodes")
    for name, runs in ending.held_out.items():
        measures = verdicts.measures(job.search.fitness.name)
        for task, place in enumerate(verdicts.places(ending.facts, len(runs.fitness))):
            said = ", ".join(
                f"{measure} {score(verdicts.average(getattr(runs, field)[task]))}"
                for measure, field in measures.items()
            )
            say(f"{name:>16}: {said}{' ' * bool(place)}{place}")
    if said := verdicts.simplest(ending.facts):
        say(said)
    for verdict in found:
        say(f"verdict: {verdict.sentence}")
    for sentence in verdicts.warnings(ending.facts, ending.held_out):
        say(f"warning: {sentence}")
    paths = run_directory.paths(job.directory)
    say(
        f"artifact: {paths.solution}",
        f"report:   {paths.report / 'index.html'}",
    )
