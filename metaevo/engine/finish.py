"""The end of a run: artifact, scores, comparison on held-out seeds, report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence

import jax

from metaevo.analysis import holdout, lineage, report, results
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.results import Scores, Solution
from metaevo.engine.job import Job, Result, State, initial_state
from metaevo.engine.journal import Journal
from metaevo.storage import jsonl, run_directory
from metaevo.text import duration


def finish(job: Job, state: State, journal: Journal) -> Result:
    """Save and compares the solution of a search, and writes the report.

    Args:
        state: after the last generation.
        journal: its loggers get the report.
    """
    paths = run_directory.paths(job.directory)
    for stale in (paths.held_out, paths.agents, paths.closed_form):
        shutil.rmtree(stale, ignore_errors=True)
    params = jax.device_get(job.programs.solution(state.strategy))
    solution = Solution(job.search.space, params)
    scores = _score(job, state, solution)
    if job.search.strategy.persistent_agents:
        records = jsonl.read(paths.metrics)
        best = lineage.fittest(records[-1])
        if scores is not None and scores.best is not None:
            best = scores.best
        solution = results.schedule(job.search, records, best)
    provenance = {"search": job.name, "run": job.manifest}
    results.save(job.directory, job.search, solution, provenance)
    held_out = _hold_out(job, state, solution)
    report.write(job.directory)
    journal.finish()
    verdicts = holdout.verdicts(held_out, job.search.fitness.name)
    _conclude(job, held_out, verdicts, scores)
    return Result(job.directory, solution.params, held_out, verdicts)


def _score(job: Job, state: State, solution: Solution) -> Scores | None:
    """Score agents on fresh episodes, if the search breeds agents or policies."""
    search, num = job.search, job.config.held_out_seeds
    policies = results.breeds_policies(search)
    if not num or not (search.strategy.persistent_agents or policies):
        return None
    job.console.now("scoring agents on fresh episodes")
    proposal, _ = job.programs.ask(job.keys.scores, state.strategy)
    carried = state.carried if search.strategy.persistent_agents else None
    scores = results.best_agent(
        job.directory,
        job.evaluator,
        proposal,
        carried,
        job.keys.scores,
        max(1, num // 4),
    )
    if policies and not search.strategy.persistent_agents:
        returns = results.policies(
            job.directory,
            search,
            solution.params,
            job.keys.held_out,
            num,
            job.factory.make_after,
        )
        scores = scores._replace(
            evaluations={results.SOLUTION: returns, **scores.evaluations}
        )
    results.write_scores(job.directory, scores)
    return scores


def _hold_out(job: Job, state: State, solution: Solution) -> dict[str, HeldOut]:
    """Train solution, start and hand-made algorithm on the same fresh seeds."""
    search, num_seeds = job.search, job.config.held_out_seeds
    if not num_seeds or results.breeds_policies(search):
        return {}
    if search.coupled:
        job.console.say(f"no comparison on held-out seeds: {holdout.COUPLED}")
        return {}
    began = time.monotonic()
    job.console.now(f"comparing on {num_seeds} held-out seeds")
    learned = {results.SOLUTION: solution.params}
    if not search.strategy.persistent_agents:
        start = initial_state(job).strategy
        learned["start"] = jax.device_get(job.programs.solution(start))
    held_out = results.compare(
        job.directory,
        search,
        solution.space,
        learned,
        job.keys.held_out,
        num_seeds,
        job.factory.make_after,
    )
    facts = {
        "measure": search.fitness.name,
        "frames_per_segment": [loop.frames_per_segment for loop in search.tasks],
        "noise": _noise(job, state),
    }
    holdout.save(run_directory.paths(job.directory).held_out, held_out, facts)
    seconds = duration(time.monotonic() - began)
    job.console.say(f"compared on {num_seeds} held-out seeds in {seconds}")
    return held_out


def _noise(job: Job, state: State) -> dict[str, float | None] | None:
    """Noise of the fitness; None for agents that live on and cannot live twice."""
    if job.search.segments_per_generation is not None:
        return None
    job.console.now("evaluating one population twice")
    keys = [jax.random.fold_in(job.keys.noise, i) for i in range(3)]
    proposal, _ = job.programs.ask(keys[0], state.strategy)
    return results.noise(job.search, job.evaluator, proposal, keys[1:])


def _conclude(
    job: Job,
    held_out: Mapping[str, HeldOut],
    verdicts: Sequence[holdout.Verdict],
    scores: Scores | None,
) -> None:
    """Print the scores, the verdicts and the places of the files."""
    say = job.console.say
    for name, x in (scores.evaluations if scores else {}).items():
        say(f"{name:>16}: return {holdout.average(x):.2f} on fresh episodes")
    measure = job.search.fitness.name
    for name, runs in held_out.items():
        say(
            f"{name:>16}: {measure} {holdout.average(runs.fitness):.2f}"
            f", final return {holdout.average(runs.final_return):.2f}"
        )
    for verdict in verdicts:
        where = f" on task {verdict.task}" if len(job.search.tasks) > 1 else ""
        say(f"verdict{where}: {verdict.sentence}")
    paths = run_directory.paths(job.directory)
    if held_out:
        _, facts = holdout.load(paths.held_out)
        for sentence in holdout.warnings(facts):
            say(f"warning: {sentence}")
    say(
        f"artifact: {paths.solution}",
        f"report:   {paths.report / 'index.html'}",
    )
