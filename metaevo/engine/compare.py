"""Comparison of learned, hand-made, tuned and random on seeds that none of them saw.

Every candidate is trained for whole lifetimes on the same fresh seeds, in the setting
of the search and in other settings. The hand-made algorithm is trained as it is and
*tuned*: its hyperparameters (`InnerLoop.tunable`) are searched by the same strategy
with as many training runs, from a sigma of 1 (`TUNING_SIGMA`). With `rivals="all"` the
best simple function, the best static choices of the algorithm and these with tuned
numbers stand beside it. The random control runs
that strategy many times on random numbers in place of fitness, which gives what a
search finds without any information.

This module trains, and keeps what was trained; `analysis.comparison` has the statistics
and the files.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import population, slots, spaces
from metaevo.analysis import comparison, holdout, verdicts
from metaevo.analysis import rivals as simple_rivals
from metaevo.analysis.comparison import AS_TRAINED, BOTH, TUNED, Comparison
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.steps import Steps
from metaevo.analysis.verdicts import HAND_MADE, SIMPLEST, STATIC
from metaevo.config import RunConfig
from metaevo.engine import checks, identity
from metaevo.engine import loop as engine
from metaevo.engine.costs import task_names
from metaevo.engine.loggers.console import ConsoleLogger
from metaevo.errors import CheckpointError, ConfigError
from metaevo.evaluators import choose
from metaevo.storage import artifacts, manifests, run_directory
from metaevo.types import Key, Params, Search, Space

# Numbers need a larger sigma than losses do; `benchmarks/outer_loops.py` measures it.
TUNING_SIGMA = 1.0

_HARDEST = 3  # role for which the key of the fresh seeds is split


class Candidate(NamedTuple):
    """An algorithm to be trained.

    Attributes:
        space: Space that binds the params.
        params: Result of each of its searches; the hand-made algorithm has one.
        what: What tells the space from others that its `spec` does not.
        changes: `key=value`, by which its setting differs from that of the search.
    """

    space: Space
    params: Sequence[Params]
    what: str = ""
    changes: tuple[str, ...] = ()


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
    """
    _check_own(out)
    named = [_group(name, runs, make) for name, runs in groups.items()]
    alike = _alike(named, rivals == "all")
    everyone = [group for section in alike for group in section]
    _check_comparable(everyone, unequal_budgets)
    key = jax.random.fold_in(jax.random.key(seed), 0x5EED)
    train = functools.partial(
        trained, out=out, key=key, devices=devices, should_stop=should_stop
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
    with contextlib.closing(ConsoleLogger(0)) as console:
        for section, conditions in zip(alike, settings, strict=True):
            joined = ", ".join(group.name for group in section)
            own = f" ({joined})" if len(alike) > 1 else ""
            usual, make_usual = _as_hand_made(section[0], make)
            candidates = {HAND_MADE: Candidate(holdout.HAND_MADE, [holdout.NOTHING])}
            candidates |= {x.name: _learned(x.directories) for x in section}
            tune = functools.partial(
                _tuned, usual, out=out, console=console, should_stop=should_stop
            )
            copies = tuned and all(_tunes_alike(usual, x) for x in section)
            if copies:
                notes.append(f"{TUNED}{own}: left out, it is the search of {joined}")
                console.say(notes[-1])
            elif tuned:
                candidates[TUNED] = tune(usual.search)
            if rivals == "all":
                console.now(f"choosing rivals{own}")
                choices = _choices(usual, make_usual, on)
                tunes = tune if tuned else None
                others = _rivals(usual, make_usual, choices, choose, tunes)
                candidates |= others
                rival = _hardest(usual, make_usual, choose_again, candidates)
                hardest |= {
                    (place, x.name): rival
                    for x in section
                    for place in _places(AS_TRAINED + own, x.search)
                }
                for name in (SIMPLEST, STATIC):
                    x = others.get(name)
                    told = " ".join((x.what, *x.changes)).strip() if x else "none"
                    notes.append(f"{name}{own}: {told}")
                    console.say(notes[-1])
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
                found = random_solutions(search, controls, seed)
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
    group: Group, make: Callable[[Path, Sequence[str]], Search]
) -> tuple[Group, Callable[[Path, Sequence[str]], Search]]:
    """Return a group in the loops that its rivals are trained in, and their `make`."""

    def make_usual(directory: Path, changes: Sequence[str]) -> Search:
        return holdout.as_hand_made(make(directory, changes))

    return group._replace(search=holdout.as_hand_made(group.search)), make_usual


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


def _choices(
    group: Group, make: Callable[[Path, Sequence[str]], Search], on: Sequence[str]
) -> list[str]:
    """Return the static choices that the search takes in every setting.

    One whose key a setting has as well is left out: it would change the setting.
    """
    settings = [(), *(changes.split(";") for changes in on)]
    keys = {change.partition("=")[0] for setting in settings for change in setting}
    found = []
    for choice in group.search.tasks[0].choices:
        changes = choice.split(";")
        if keys & {change.partition("=")[0] for change in changes}:
            continue
        with contextlib.suppress(ConfigError):  # a key that this search has not
            for setting in settings:
                checks.check(make(group.directories[0], (*setting, *changes)))
            found.append(choice)
    return found


def _rivals(
    group: Group,
    make: Callable[[Path, Sequence[str]], Search],
    choices: Sequence[str],
    choose: Callable[[Search, Candidate], list[HeldOut]],
    tune: Callable[[Search], Candidate] | None,
) -> dict[str, Candidate]:
    """Return the best simple function and the best static choices, also tuned."""
    found = {}
    if several := simple_rivals.of(group.search):

        def train(slot, space, numbers):
            names = ", ".join(several[slot])
            return choose(group.search, Candidate(space, numbers, f"{slot}: {names}"))

        name, slot, number, _ = simple_rivals.choose(group.search, train)
        space = simple_rivals.chosen_from(several[slot], slot)
        found[SIMPLEST] = Candidate(space, [number], name)
    if changes := _static(group, make, choices, choose):
        nothing = [holdout.NOTHING]
        found[STATIC] = Candidate(holdout.HAND_MADE, nothing, changes=changes)
        if tune is not None:
            tuned = tune(_changed(group, make, changes))
            found[BOTH] = tuned._replace(changes=changes)
    return found


def _static(
    group: Group,
    make: Callable[[Path, Sequence[str]], Search],
    choices: Sequence[str],
    choose: Callable[[Search, Candidate], list[HeldOut]],
) -> tuple[str, ...]:
    """Return the static choices that are best for the hand-made algorithm.

    The best one is added as long as it is better than what there is.
    """

    def score(changes: tuple[str, ...]) -> list[float]:
        search = _changed(group, make, changes)
        (runs,) = choose(search, Candidate(holdout.HAND_MADE, [holdout.NOTHING]))
        return [simple_rivals.mean_of_all(x) for x in runs.fitness]

    left = [*choices]
    chosen: tuple[str, ...] = ()
    while left:
        tried = {"": score(chosen)}
        tried |= {choice: score((*chosen, *choice.split(";"))) for choice in left}
        best = simple_rivals.least_ranks(tried)
        if not best:
            break
        chosen = (*chosen, *best.split(";"))
        left.remove(best)
    return chosen


def _hardest(
    group: Group,
    make: Callable[[Path, Sequence[str]], Search],
    choose: Callable[[Search, Candidate], list[HeldOut]],
    candidates: Mapping[str, Candidate],
) -> str:
    """Return the name of the best rival of a group, by the seeds of `choose`."""
    tried = {}
    for name in comparison.RIVALS:
        if candidate := candidates.get(name):
            runs = choose(_changed(group, make, candidate.changes), candidate)
            means = [[simple_rivals.mean_of_all(x) for x in y.fitness] for y in runs]
            tried[name] = list(np.mean(means, 0))
    return simple_rivals.least_ranks(tried)


def _check_own(out: Path) -> None:
    """Check that a folder is empty, or holds a comparison.

    Raises:
        ConfigError: It holds other files, which would be written over.
    """
    ours = any((out / name).is_dir() for name in ("trained", "tuned"))
    if out.is_dir() and any(out.iterdir()) and not ours:
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


def _learned(directories: Sequence[Path]) -> Candidate:
    """Return the solutions of runs that differ in their seed."""
    bound = [artifacts.as_space(directory / "solution") for directory in directories]
    specs = [space.spec for space, _ in bound]
    if all(spec == specs[0] for spec in specs):
        return Candidate(bound[0][0], [params for _, params in bound])
    if any(_without_texts(spec) != _without_texts(specs[0]) for spec in specs):
        raise ConfigError(f"{directories[0]} and others evolved in different spaces")
    numbers = [np.int32(i) for i in range(len(bound))]
    texts = "; ".join(str(op.get("text")) for spec in specs for op in spec.values())
    return Candidate(_numbered(bound), numbers, texts)


def _without_texts(spec: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A spec without the formulas, in which searches of one space differ."""
    return {
        slot: {key: x for key, x in op.items() if key != "text"}
        for slot, op in spec.items()
    }


def _numbered(bound: Sequence[tuple[Space, Params]]) -> Space:
    """Return a space whose params are the number of a solution: one program for all."""

    def bind(number, meta):
        made = [space.bind(params, meta) for space, params in bound]
        changed = {}
        for slot in bound[0][0].spec:
            each = {str(i): getattr(one, slot) for i, one in enumerate(made)}
            if callable(each["0"]):
                chosen = simple_rivals.chosen_from(each, slot)
                changed[slot] = getattr(chosen.bind(number, meta), slot)
            else:
                changed[slot] = jnp.stack(list(each.values()))[number]
        return slots.replace(meta, **changed)

    return Space(lambda key: jnp.int32(0), bind, spec=bound[0][0].spec)


def tuning(search: Search) -> Search:
    """Return the search for hyperparameters that equals a search in all else.

    A strategy with a `sigma` begins with one of `TUNING_SIGMA`, whatever its own: the
    space is scaled, so that step sizes keep their relation to it.

    Raises:
        ConfigError: The algorithm names no hyperparameters, or the strategy cannot
            search them.
    """
    numbers, with_space = search.tasks[0].tunable, search.strategy.with_space
    drawn = search.strategy.persistent_agents or search.strategy.from_ranges
    drawn |= search.strategy.mutates
    if numbers is None or with_space is None or drawn:
        raise ConfigError(
            "tuned=true: this search's algorithm names no hyperparameters, or its "
            "strategy cannot go over another space; give tuned=false"
        )
    if sigma := search.strategy.settings.get("sigma"):
        numbers = spaces.with_sigma(numbers, TUNING_SIGMA, sigma)
    return search._replace(space=numbers, strategy=with_space(numbers))


def _tunes_alike(usual: Group, group: Group) -> bool:
    """Return whether a group searched what its tuned rival would search."""
    rival, own = tuning(usual.search), group.search
    return identity.identity(rival) == identity.identity(own)


def _tuned(
    group: Group,
    search: Search,
    out: Path,
    console: ConsoleLogger,
    should_stop: Callable,
) -> Candidate:
    """Search the hand-made algorithm's hyperparameters, as the rival was searched."""
    alike, num = tuning(search), len(group.directories)
    digest = identity.digest(
        identity.identity(alike), identity.sources(alike), alike.num_generations
    )
    found = []
    for seed in range(num):
        config = RunConfig(
            seed=seed,
            directory=str(out / "tuned" / digest[:12] / f"seed{seed}"),
            held_out_seeds=0,
            wandb="disabled",
        )
        console.say(f"tuning a rival, search {seed + 1} of {num}")
        result = engine.run(alike, config, "tuned", should_stop=should_stop)
        assert result is not None, "this is the only process"
        found.append(result.solution)
    return Candidate(alike.space, found)


def random_solutions(search: Search, num: int, seed: int) -> list[Params]:
    """Return the strategy's solutions for fitness drawn from N(0, 1).

    Nothing is trained.

    Args:
        search: Search whose strategy and number of generations are used.
        num: Number of solutions.
        seed: Draws them.
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

    keys = jax.random.split(jax.random.key(seed), num)
    found = jax.jit(lambda keys: jax.lax.map(one, keys))(keys)
    return [jax.tree.map(lambda x, i=i: x[i], found) for i in range(len(keys))]


def trained(
    search: Search,
    candidate: Candidate,
    num_seeds: int,
    out: Path,
    key: Key,
    devices: list,
    should_stop: Callable[[], bool],
) -> list[HeldOut]:
    """Return the runs of a candidate's params, kept in `out` round by round."""
    params = {str(i): x for i, x in enumerate(candidate.params)}
    digest = identity.digest(
        identity.lifetime(search),
        identity.sources(search),
        dict(candidate.space.spec),
        *([candidate.what] if candidate.what else []),
        [identity.plain(x) for x in candidate.params],
        num_seeds,
        identity.plain(jax.random.key_data(key)),
    )
    runs, _ = holdout.train_kept(
        Steps(out / "trained" / digest[:16], digest),
        search,
        candidate.space,
        params,
        key,
        num_seeds,
        choose.local_factory(devices, should_stop).make,
    )
    return list(runs.values())
