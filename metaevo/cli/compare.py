"""Comparison of learned, hand-made, tuned and random on seeds that none of them saw.

Every candidate is trained for whole lifetimes on the same fresh seeds, in the setting
of the search and in other settings. The hand-made algorithm is trained as it is and
*tuned*: its hyperparameters (`InnerLoop.tunable`) are searched by the same strategy
with as many training runs. The random control runs that strategy many times on random
numbers in place of fitness, which gives what a search finds without any information.

This module trains, and keeps what was trained; `compare_report` has the statistics and
the files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from metaevo import population
from metaevo.analysis import holdout
from metaevo.analysis.holdout import HeldOut
from metaevo.cli import compare_report
from metaevo.cli.compare_report import AS_TRAINED, HAND_MADE, TUNED, Scores, slug
from metaevo.cli.options import CompareOptions
from metaevo.config import RunConfig
from metaevo.engine import identity
from metaevo.engine import loop as engine
from metaevo.engine.loggers.console import ConsoleLogger
from metaevo.errors import ConfigError
from metaevo.evaluators import choose
from metaevo.storage import artifacts, checkpoint
from metaevo.types import Key, Params, Search, Space


class Candidate(NamedTuple):
    """An algorithm to be trained.

    Attributes:
        space: Space that binds the params.
        params: Result of each of its searches; the hand-made algorithm has one.
    """

    space: Space
    params: Sequence[Params]


def compare(
    groups: Mapping[str, Sequence[Path]],
    make: Callable[[Path, Sequence[str]], Search],
    out: Path,
    settings: CompareOptions,
    devices: list,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[str]:
    """Train all candidates, and write table, figures and sentences to `out`.

    What was trained is kept there, so that the same call continues where the last one
    stopped.

    Args:
        groups: Directories of finished runs by name; those of a group differ in
            `run.seed` alone.
        make: Makes the search of a run, with further `key=value` changes.
        out: Folder of the results.
        settings: Options of the command; `out` is not read.
        devices: JAX devices on which candidates are trained.
        should_stop: Asked often; True abandons the comparison.

    Returns:
        The sentences.

    Raises:
        ConfigError: The runs cannot be compared.
        InterruptedRunError: `should_stop` returned True.
    """
    console = ConsoleLogger(0)
    runs = [run for group in groups.values() for run in group]
    search = make(runs[0], ())
    for run in runs[1:]:
        _comparable(runs[0], search, run, make(run, ()))
    candidates = {HAND_MADE: Candidate(holdout.HAND_MADE, [holdout.NOTHING])}
    candidates |= {name: _learned(directories) for name, directories in groups.items()}
    first = next(iter(groups.values()))
    if settings.tuned:
        candidates[TUNED] = _tuned(search, len(first), out, console, should_stop)
    key = jax.random.fold_in(jax.random.key(settings.seed), 0x5EED)
    conditions = {AS_TRAINED: search}
    for changes in settings.on:
        conditions[changes] = make(runs[0], changes.split(";"))

    found: dict[tuple[str, str], Scores] = {}
    try:
        for condition, tasks in conditions.items():
            for name, candidate in candidates.items():
                console.now(f"{condition}: {name}")
                trained = _trained(
                    out, condition, name, tasks, candidate, key, settings.seeds,
                    devices, should_stop,
                )  # fmt: skip
                for task in range(len(tasks.tasks)):
                    env = tasks.tasks[task].env
                    place = condition
                    if len(tasks.tasks) > 1:
                        place += f", {env.name if env else f'task {task}'}"
                    found[place, name] = compare_report.scores(trained, task)
        control = None
        if settings.controls and not search.strategy.persistent_agents:
            console.now(f"random control: {settings.controls} searches")
            random = Candidate(search.space, random_solutions(search, settings))
            trained = _trained(
                out, AS_TRAINED, "random", search, random, key,
                settings.control_seeds, devices, should_stop,
            )  # fmt: skip
            control = np.stack([x.fitness for x in trained]).mean(1)
    finally:
        console.close()
    return compare_report.write(
        out, found, list(groups), search.fitness.name, control, settings
    )


def _comparable(first: Path, a: Search, run: Path, b: Search) -> None:
    """Check that two runs' candidates can be trained in one setting.

    Raises:
        ConfigError: They cannot.
    """

    def facts(search):
        return [
            (loop.env and loop.env.name, loop.num_segments, loop.frames_per_segment)
            for loop in search.tasks
        ] + [search.fitness.name, type(search.tasks[0].meta).__module__]

    if facts(a) != facts(b):
        raise ConfigError(
            f"{first} and {run} cannot be compared: {facts(a)} is not {facts(b)} "
            "(environments, segments and their frames, fitness, algorithm)"
        )
    for search in (a, b):
        holdout.require_uncoupled(search, run)


def _learned(directories: Sequence[Path]) -> Candidate:
    """Return the solutions of runs that differ in their seed."""
    bound = [artifacts.as_space(directory / "solution") for directory in directories]
    if any(space.spec != bound[0][0].spec for space, _ in bound):
        raise ConfigError(f"{directories[0]} and others evolved in different spaces")
    return Candidate(bound[0][0], [params for _, params in bound])


def _tuned(
    search: Search, num: int, out: Path, console: ConsoleLogger, should_stop: Callable
) -> Candidate:
    """Search the hand-made algorithm's hyperparameters, as the rival was searched."""
    numbers = search.tasks[0].tunable
    if (
        numbers is None
        or search.strategy.with_space is None
        or search.strategy.persistent_agents
    ):
        raise ConfigError(
            "tuned=true: this search's algorithm names no hyperparameters, or its "
            "strategy cannot go over another space; give tuned=false"
        )
    alike = search._replace(space=numbers, strategy=search.strategy.with_space(numbers))
    found = []
    for seed in range(num):
        config = RunConfig(
            seed=seed,
            directory=str(out / "tuned" / f"seed{seed}"),
            held_out_seeds=0,
            wandb="disabled",
        )
        console.say(f"tuning the hand-made algorithm, search {seed + 1} of {num}")
        result = engine.run(alike, config, "tuned", should_stop=should_stop)
        assert result is not None, "this is the only process"
        found.append(result.solution)
    return Candidate(numbers, found)


def random_solutions(search: Search, settings: CompareOptions) -> list[Params]:
    """Return the strategy's solutions for fitness drawn from N(0, 1).

    Nothing is trained.

    Args:
        search: Search whose strategy and number of generations are used.
        settings: `controls` is the number of solutions, `seed` draws them.
    """
    strategy = search.strategy

    def one(key):
        def generation(state, key):
            ask, draw, tell = jax.random.split(key, 3)
            proposal, state = strategy.ask(ask, state)
            noise = jax.random.normal(draw, (population.size(proposal.params),))
            return strategy.tell(tell, state, proposal, noise), None

        init, run = jax.random.split(key)
        keys = jax.random.split(run, search.num_generations)
        return strategy.solution(jax.lax.scan(generation, strategy.init(init), keys)[0])

    keys = jax.random.split(jax.random.key(settings.seed), settings.controls)
    found = jax.jit(lambda keys: jax.lax.map(one, keys))(keys)
    return [jax.tree.map(lambda x, i=i: x[i], found) for i in range(len(keys))]


def _trained(
    out: Path,
    condition: str,
    name: str,
    search: Search,
    candidate: Candidate,
    key: Key,
    num_seeds: int,
    devices: list,
    should_stop: Callable[[], bool],
) -> list[HeldOut]:
    """Return the runs of a candidate's params, from `out` if they are there."""
    folder = out / "trained" / slug(condition) / slug(name)
    arrays = {
        f"{i}/{path}": np.asarray(x)
        for i, params in enumerate(candidate.params)
        for path, x in checkpoint.to_arrays(params).items()
    }
    digest = hashlib.sha256(
        identity.digest(
            identity.identity(search),
            identity.sources(search),
            condition,
            num_seeds,
            candidate.space.spec,
        ).encode()
        + jax.random.key_data(key).tobytes()
        + b"".join(arrays[path].tobytes() for path in sorted(arrays))
    ).hexdigest()
    if folder.is_dir():
        runs, facts = holdout.load(folder)
        if facts["what"] == digest:
            return list(runs.values())
    params = {str(i): x for i, x in enumerate(candidate.params)}
    runs, _ = holdout.train(
        search,
        candidate.space,
        params,
        key,
        num_seeds,
        choose.local_factory(devices, should_stop).make,
    )
    holdout.save(folder, runs, {"what": digest})
    return list(runs.values())
