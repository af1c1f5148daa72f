"""Comparison of learned, hand-made, tuned and random on seeds that none of them saw.

Every candidate is trained for whole lifetimes on the same fresh seeds, in the setting
of the search and in other settings. The hand-made algorithm is trained as it is and
*tuned*: its hyperparameters (`InnerLoop.tunable`) are searched by the same strategy
with as many training runs, from a sigma of 1 (`candidates.TUNING_SIGMA`). With
`rivals="all"` the best simple function, the best static choices of the algorithm and
these with tuned numbers stand beside it (`engine.strongest`). The random control runs
the strategy many times on random numbers in place of fitness, which gives what a search
finds without any information. `analysis.comparison` has the statistics and the files.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from metaevo.analysis import comparison, holdout, verdicts
from metaevo.analysis import rivals as simple_rivals
from metaevo.analysis.comparison import AS_TRAINED, TUNED, Comparison
from metaevo.analysis.verdicts import HAND_MADE, SIMPLEST, STATIC
from metaevo.engine import candidates as standing
from metaevo.engine import checks, choices, identity, strongest
from metaevo.engine.candidates import Candidate
from metaevo.engine.costs import task_names
from metaevo.engine.loggers.console import ConsoleLogger
from metaevo.errors import CheckpointError, ConfigError
from metaevo.storage import artifacts, manifests, run_directory
from metaevo.types import Search

_HARDEST = 3  # role for which the key of the fresh seeds is split


class Group(NamedTuple):
    """Searches that differ in their seed alone.

    Attributes:
        name: Name of the learned candidate.
        directories: One finished run per search.
        search: The search, with the number of generations that the runs have done.
        frames: Frames that each of the searches trained for.
    """

    name: str
    directories: Sequence[Path]
    search: Search
    frames: int


def of_runs(
    made: Mapping[Path, Callable[[Sequence[str]], Search]],
    out: str | Path,
    should_stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> Comparison:
    """Compare finished runs, of which those that differ in their seed alone are one.

    Args:
        made: Directories, each with what makes its search again, with further
            `key=value` changes.
        out: Folder of the results.
        should_stop: As of `compare`; so are `options`.

    Raises:
        ConfigError: As `compare`, or `out` cannot be written to.
    """
    out = Path(out)
    run_directory.check_writable("out", out)
    groups = grouped({x: run_directory.read_manifest(x) for x in made})
    lines = compare(
        groups,
        lambda directory, changes: made[directory](changes),
        out,
        jax.devices(),
        should_stop,
        **options,
    )
    return Comparison(tuple(lines), out / "index.html")


def grouped(runs: Mapping[Path, Mapping[str, Any]]) -> dict[str, list[Path]]:
    """Group finished runs that differ in their seed alone.

    Args:
        runs: Directories and their manifests.

    Returns:
        The directories of each group by name: the search's, with a number if the
        same search was run with several settings.
    """
    groups: dict[str, list[Path]] = {}
    kinds: list[dict[str, Any]] = []
    for directory, manifest in runs.items():
        facts = manifest["identity"]
        kind = next((k for k in kinds if manifests.alike(k, facts)), facts)
        if kind is facts:
            kinds.append(kind)
        search = facts["search"]
        named = [k for k in kinds if k["search"] == search]
        number = next(i for i, k in enumerate(named, 1) if k is kind)
        name = search if number == 1 else f"{search} {number}"
        groups.setdefault(name, []).append(directory)
    return groups


def compare(
    groups: Mapping[str, Sequence[Path]],
    make: Callable[[Path, Sequence[str]], Search],
    out: Path,
    devices: list,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    seeds: int = 32,
    tuned: bool = True,
    rivals: str = "tuned",
    controls: int = 20,
    control_seeds: int = 8,
    on: Sequence[str] = (),
    seed: int = 0,
    unequal_budgets: bool = False,
    optimum: float | None = None,
) -> list[str]:
    """Train all candidates, and write table, figures and sentences to `out`.

    Groups that share their setting and the way that they were searched share their
    baselines. Others are trained in their own setting, beside a hand-made algorithm of
    that setting that is tuned by their own strategy. What was trained is kept in `out`
    under the identity of all that it depends on, so that the same call continues where
    the last one stopped and another call does not read it.

    Args:
        groups: Directories of finished runs by name; those of a group differ in
            `run.seed` alone.
        make: Makes the search of a run, with further `key=value` changes.
        out: Folder of the results.
        devices: JAX devices on which candidates are trained.
        should_stop: Asked often; True abandons the comparison.
        seeds: N, fresh seeds on which each candidate is trained, at least 3.
        tuned: Tune the hand-made algorithm, which costs as much as the searches did.
            It is left out where the searches are of these numbers themselves.
        rivals: `all` adds the best simple function, the best static choices
            (`InnerLoop.choices`) and, if `tuned`, these with tuned numbers. They are
            chosen on half as many seeds of their own, and so is the best rival of all,
            with which the first sentences compare. `tuned` adds none.
        controls: Number of random searches.
        control_seeds: Fresh seeds on which each random search's result is trained, at
            least 1.
        on: Other settings, each `key=value` or several joined by `;`.
        seed: Seed of the fresh seeds.
        unequal_budgets: Compare searches that trained for different numbers of frames.
        optimum: Highest fitness that counts. The optimality gap is the mean distance
            by which runs stay below it.

    Returns:
        The sentences.

    Raises:
        ConfigError: The runs cannot be compared.
        InterruptedRunError: `should_stop` returned True.
        LockedError: Another process writes to `out`.
    """
    _check_own(out)
    named = [_group(name, runs, make) for name, runs in groups.items()]
    alike = _alike(named, rivals == "all")
    everyone = [group for section in alike for group in section]
    _check_comparable(everyone, unequal_budgets)
    key = jax.random.fold_in(jax.random.key(seed), 0x5EED)
    train = functools.partial(
        standing.trained, out=out, key=key, devices=devices, should_stop=should_stop
    )
    choose, choose_again = (
        functools.partial(
            train,
            num_seeds=simple_rivals.choosing_seeds(seeds),
            key=jax.random.fold_in(key, role),
        )
        for role in (simple_rivals.CHOOSING, _HARDEST)
    )
    # All settings are made before anything is trained: one of them may be wrong.
    settings = [_conditions(section[0], make, on) for section in alike]
    measure = everyone[0].search.fitness.name
    scores, random_scores, environments, hardest, notes = {}, {}, {}, {}, []
    out.mkdir(parents=True, exist_ok=True)
    with (
        run_directory.lock(out),
        contextlib.closing(ConsoleLogger(0)) as console,
    ):
        for section, conditions in zip(alike, settings, strict=True):
            joined = ", ".join(group.name for group in section)
            own = f" ({joined})" if len(alike) > 1 else ""
            usual = functools.partial(_as_hand_made, section[0], make)
            candidates = {HAND_MADE: Candidate(holdout.HAND_MADE, [holdout.NOTHING])}
            candidates |= {x.name: standing.learned(x.directories) for x in section}
            tune = functools.partial(
                standing.tuned,
                num=len(section[0].directories),
                out=out,
                console=console,
                should_stop=should_stop,
            )
            copies = tuned and all(_is_tuning(x, usual(())) for x in section)
            if copies:
                notes.append(f"{TUNED}{own}: left out, it is the search of {joined}")
                console.say(notes[-1])
            elif tuned:
                candidates[TUNED] = tune(usual(()))
            if rivals == "all":
                offered = choices.valid(usual, on=on)
                kinds = {
                    SIMPLEST: ("simple functions", simple_rivals.num_tried(usual(()))),
                    STATIC: ("static choices", len(offered)),
                }
                tried = {x: kind for x, kind in kinds.items() if kind[1]}
                among = ", ".join(f"{x} ({num})" for x, num in tried.values())
                console.say(
                    f"choosing rivals{own}, on {simple_rivals.choosing_seeds(seeds)} "
                    f"seeds: {among or 'none to choose among'}"
                )
                console.now(f"choosing rivals{own}")
                others = strongest.chosen(
                    usual, offered, choose, tune if tuned else None
                )
                candidates |= others
                rival = strongest.hardest(usual, choose_again, candidates)
                hardest |= {
                    (place, x.name): rival
                    for x in section
                    for place in _places(AS_TRAINED + own, x.search)
                }
                for name in tried:
                    x = others.get(name)
                    told = " ".join((x.what, *x.changes)).strip() if x else "none"
                    notes.append(f"{name}{own}: {told}")
                    console.say(notes[-1])
            console.say(f"training {len(candidates)} candidates{own} on {seeds} seeds")
            for condition, (search, changes) in conditions.items():
                environments[condition + own] = ", ".join(
                    filter(None, task_names(search))
                )
                places = _places(condition + own, search)
                for name, candidate in candidates.items():
                    console.now(f"{condition}{own}: {name}")
                    setting = search
                    if own_changes := candidate.changes:
                        setting = _changed(section[0], make, (*changes, *own_changes))
                    if name not in [x.name for x in section]:
                        setting = holdout.as_hand_made(setting)
                    runs = train(setting, candidate, num_seeds=seeds)
                    scores |= verdicts.table(name, runs, places, measure)
            for group in section:
                search = group.search
                if not controls or search.strategy.persistent_agents:
                    continue
                console.now(f"random control: {controls} searches")
                found = standing.random_solutions(search, controls, seed)
                control = Candidate(search.space, found)
                runs = train(search, control, num_seeds=control_seeds)
                places = _places(AS_TRAINED + own, search)
                table = verdicts.table(group.name, runs, places, measure)
                random_scores |= {
                    x: y for x, y in table.items() if x.measure == measure
                }
    frames = {group.name: group.frames for group in everyone}
    return comparison.write(
        *(out, scores, frames, measure, random_scores, optimum, environments),
        hardest,
        notes,
    )


def _conditions(
    group: Group, make: Callable[[Path, Sequence[str]], Search], on: Sequence[str]
) -> dict[str, tuple[Search, Sequence[str]]]:
    """Return the search as it was trained, and in other settings, by name.

    Returns:
        Name -> search, and the changes that make it.

    Raises:
        ConfigError: A setting is wrong.
    """
    found: dict[str, tuple[Search, Sequence[str]]] = {AS_TRAINED: (group.search, ())}
    for changes in on:
        try:
            search = make(group.directories[0], changes.split(";"))
            checks.check(search)
        except ConfigError as error:
            raise ConfigError(f"on={changes}: {error}") from None
        found[changes] = search, changes.split(";")
    return found


def _as_hand_made(
    group: Group,
    make: Callable[[Path, Sequence[str]], Search],
    changes: Sequence[str],
) -> Search:
    """Return the search of a group in a setting, in the loops of its rivals."""
    return holdout.as_hand_made(_changed(group, make, changes))


def _changed(
    group: Group,
    make: Callable[[Path, Sequence[str]], Search],
    changes: Sequence[str],
) -> Search:
    """Return the search of a group in another setting, for as many generations."""
    if not changes:
        return group.search
    search = make(group.directories[0], changes)
    return search._replace(num_generations=group.search.num_generations)


def _check_own(out: Path) -> None:
    """Check that a folder is empty, or holds a comparison.

    Raises:
        ConfigError: It holds other files, which would be written over.
    """
    ours = any((out / name).is_dir() for name in ("trained", "tuned"))
    left = {run_directory.Paths().lock.name}  # by one that was refused
    if out.is_dir() and {x.name for x in out.iterdir()} - left and not ours:
        raise ConfigError(
            f"out={out} holds other files than a comparison; give another folder"
        )


def _group(
    name: str,
    directories: Sequence[Path],
    make: Callable[[Path, Sequence[str]], Search],
) -> Group:
    """Return a group of runs with the budget that each of its solutions had.

    Raises:
        ConfigError: The runs differ in more than their seed, or their members cannot
            be trained alone.
    """
    search, *others = (make(directory, ()) for directory in directories)
    for directory, other in zip(directories[1:], others, strict=True):
        if identity.identity(other) != identity.identity(search):
            raise ConfigError(
                f"{directories[0]} and {directory} cannot be compared as one "
                "candidate: they are runs of different searches"
            )
    first, done = directories[0], [generations(x) for x in directories]
    for directory, num in zip(directories, done, strict=True):
        if num != done[0]:
            raise ConfigError(
                f"{first} did {done[0]} generations and {directory} {num}; extend the "
                f"shorter one with: metaevo resume RUN num_generations={max(done)}"
            )
    search = search._replace(num_generations=done[0])
    holdout.require_uncoupled(search, first)
    size = identity.population_size(search)
    frames = checks.frames_per_generation(search, size) * done[0]
    return Group(name, directories, search, frames)


def generations(directory: Path) -> int:
    """Return the number of generations after which a run's solution was taken.

    It may be more than the run was started with, because runs can be extended.

    Raises:
        CheckpointError: The solution does not say it.
    """
    solution = run_directory.paths(directory).solution
    found = artifacts.load(solution).manifest["provenance"].get("generation")
    if not isinstance(found, int):
        raise CheckpointError(f"{solution} does not say its generation")
    return found


def _alike(groups: Sequence[Group], by_slots: bool) -> list[list[Group]]:
    """Join groups that share their setting, strategy, budget and number of searches.

    Args:
        by_slots: Keep groups apart whose slots have other simple functions.
    """
    joined: dict[str, list[Group]] = {}
    for group in groups:
        facts = identity.identity(group.search)
        del facts["space"]
        size = len(group.directories), group.frames
        if by_slots:
            size = (*size, *simple_rivals.of(group.search))
        joined.setdefault(identity.digest(facts, size), []).append(group)
    return list(joined.values())


def _places(condition: str, search: Search) -> list[str]:
    """Name a setting, once per task."""
    names = [name or f"task {i}" for i, name in enumerate(task_names(search))]
    if len(names) == 1:
        return [condition]
    return [f"{condition}, {name}" for name in verdicts.numbered(names)]


def _check_comparable(groups: Sequence[Group], unequal_budgets: bool) -> None:
    """Check that all groups searched for the same, for equally long.

    Raises:
        ConfigError: They did not; the message names what differs.
    """

    def facts(group: Group) -> list:
        return [
            (loop.env and loop.env.name, loop.num_segments, loop.frames_per_segment)
            for loop in group.search.tasks
        ] + [
            group.search.fitness.name,
            type(group.search.tasks[0].meta).__module__,
        ]

    first = groups[0]
    for group in groups[1:]:
        if facts(first) != facts(group):
            raise ConfigError(
                f"{first.directories[0]} and {group.directories[0]} cannot be "
                f"compared: {facts(first)} is not {facts(group)} (environments, "
                "segments and their frames, fitness, algorithm)"
            )
        least, most = sorted((first.frames, group.frames))
        if most > 1.01 * least and not unequal_budgets:
            raise ConfigError(
                f"{first.name} was searched for {first.frames:,} frames and "
                f"{group.name} for {group.frames:,}; extend the shorter one with "
                "metaevo resume, or give unequal_budgets=true"
            )


def _is_tuning(group: Group, usual: Search) -> bool:
    """Return whether a group searched what its tuned rival would search."""
    rival = identity.identity(standing.tuning(usual))
    return rival == identity.identity(group.search)
