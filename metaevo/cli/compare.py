"""`metaevo compare`: learned, hand-made, tuned and random, on seeds none of them saw.

Every candidate is trained for whole lifetimes on the same fresh seeds, in the setting
the search ran in and in others that it never met. The hand-made algorithm is there as
it is and *tuned*: its hyperparameters (`InnerLoop.tunable`) were searched by the same
strategy with as many training runs. The random control is that strategy with random
numbers for fitness, many times: what it finds is what a search finds without looking.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from metaevo import population
from metaevo.analysis import holdout, stats
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.plots import figures
from metaevo.config import RunConfig
from metaevo.engine import identity
from metaevo.engine import loop as engine
from metaevo.engine.loggers.console import ConsoleLogger
from metaevo.errors import ConfigError
from metaevo.evaluators import choose
from metaevo.storage import artifacts, checkpoint
from metaevo.types import Key, Params, Search, Space

AS_TRAINED = "as trained"
HAND_MADE, TUNED = "hand-made", "tuned hand-made"
PERCENTILE = 95  # of the random control, that a discovery has to beat


class Candidate(NamedTuple):
    """Something to be trained.

    Attributes:
        space: that binds it.
        params: of each of its searches; the hand-made algorithm has one.
    """

    space: Space
    params: Sequence[Params]


class Scores(NamedTuple):
    """What a candidate reached in one setting on one task.

    Attributes:
        fitness: [searches, N], on the same N seeds for all.
        final_return: likewise.
    """

    fitness: np.ndarray
    final_return: np.ndarray


class Settings(NamedTuple):
    """What `metaevo compare` is told.

    Attributes:
        seeds: N, fresh seeds for each candidate.
        tuned: whether to tune the hand-made algorithm, which costs as much as the
            searches did.
        controls: random searches.
        control_seeds: fresh seeds for each of these.
        on: other settings, each `key=value` or several joined by `;`.
        seed: of the fresh seeds.
        optimum: a fitness beyond which more is not asked for; the optimality gap is
            how far runs stay below it, on average.
    """

    seeds: int = 32
    tuned: bool = True
    controls: int = 20
    control_seeds: int = 8
    on: tuple[str, ...] = ()
    seed: int = 0
    optimum: float | None = None


def compare(
    groups: Mapping[str, Sequence[Path]],
    make: Callable[[Path, Sequence[str]], Search],
    out: Path,
    settings: Settings,
    devices: list,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[str]:
    """Trains all candidates, and writes table, figures and sentences to `out`.

    What was trained is kept there: the same command goes on where it was stopped.

    Args:
        groups: name -> directories of finished runs that differ in `run.seed` alone.
        make: the search of a run, with further `key=value` changes.

    Returns:
        the sentences.

    Raises:
        ConfigError: the runs cannot be compared.
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
                    found[place, name] = _scores(trained, task)
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
    measure = search.fitness.name
    rows = _table(found, settings.optimum)
    lines = _sentences(found, list(groups), measure, control, settings)
    _write(out, rows, found, lines, measure, settings)
    return lines


def _comparable(first: Path, a: Search, run: Path, b: Search) -> None:
    """Whether two runs' candidates can be trained in one setting."""

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
    """The solutions of runs that differ in their seed."""
    bound = [artifacts.as_space(directory / "solution") for directory in directories]
    if any(space.spec != bound[0][0].spec for space, _ in bound):
        raise ConfigError(f"{directories[0]} and others evolved in different spaces")
    return Candidate(bound[0][0], [params for _, params in bound])


def _tuned(
    search: Search, num: int, out: Path, console: ConsoleLogger, should_stop: Callable
) -> Candidate:
    """The hand-made algorithm's hyperparameters, searched as the rival was."""
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
        found.append(result.solution)
    return Candidate(numbers, found)


def random_solutions(search: Search, settings: Settings) -> list[Params]:
    """What the strategy comes to if fitness is N(0, 1): no inner run is needed."""
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
    """Runs of each of a candidate's params; from `out`, if they are there."""
    folder = out / "trained" / _slug(condition) / _slug(name)
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
        choose.local(devices, should_stop).make,
    )
    holdout.save(folder, runs, {"what": digest})
    return list(runs.values())


def _scores(trained: Sequence[HeldOut], task: int) -> Scores:
    return Scores(
        np.stack([x.fitness[task] for x in trained]),
        np.stack([x.final_return[task] for x in trained]),
    )


# --- statistics -----------------------------------------------------------------------


def difference(a: Scores, b: Scores) -> stats.Paired:
    """Mean paired difference in fitness, over searches and seeds.

    Of the intervals over seeds (searches averaged) and over searches (seeds averaged)
    the wider one: the result has to hold on other seeds and in another search.
    """
    over_seeds = stats.paired_difference(a.fitness.mean(0), b.fitness.mean(0))
    searches = len(a.fitness)
    if searches == 1:
        return over_seeds
    theirs = np.full(searches, np.nanmean(b.fitness))
    over_searches = stats.paired_difference(np.nanmean(a.fitness, 1), theirs)
    widest = max(over_seeds, over_searches, key=lambda x: x.high - x.low)
    return widest._replace(num_failed=over_seeds.num_failed)


def _table(
    found: Mapping[tuple[str, str], Scores], optimum: float | None = None
) -> list[dict[str, Any]]:
    """A row per setting and candidate."""
    rows = []
    for (condition, name), scores in found.items():
        flat = scores.fitness.ravel()
        finite = flat[np.isfinite(flat)]
        baseline = found[condition, HAND_MADE]
        row = {
            "setting": condition,
            "candidate": name,
            "searches": len(scores.fitness),
            "runs": len(flat),
            "failed": len(flat) - len(finite),
            "mean": holdout.average(flat),
            "median": float(np.median(finite)) if len(finite) else np.nan,
            "final_return": holdout.average(scores.final_return.ravel()),
        }
        if len(finite) >= 3:
            row["iqm"] = stats.bootstrap(finite, stats.iqm)
        if optimum is not None and len(finite):
            row["optimality_gap"] = float(stats.optimality_gap(finite, optimum))
        if name != HAND_MADE and len(finite):
            row["improvement"] = stats.probability_of_improvement(
                finite, baseline.fitness[np.isfinite(baseline.fitness)]
            )
            row["against_hand_made"] = difference(scores, baseline)
            if name != TUNED and (condition, TUNED) in found:
                row["against_tuned"] = difference(scores, found[condition, TUNED])
        rows.append(row)
    return rows


def _sentences(found, groups, measure, control, settings) -> list[str]:
    """What was found, a sentence per setting and group, and one on the control."""
    lines = []
    for (condition, name), scores in found.items():
        if name not in groups:
            continue
        parts = []
        for rival in (HAND_MADE, TUNED):
            if (condition, rival) in found:
                paired = difference(scores, found[condition, rival])
                parts.append(
                    f"{paired.words} the {rival} one ({paired.difference:+.2f} "
                    f"[{paired.low:+.2f}, {paired.high:+.2f}])"
                )
        where = "" if condition == AS_TRAINED else f" on {condition}"
        lines.append(
            f"{name}{where}: {' and '.join(parts)}; {measure}, {len(scores.fitness)} "
            f"searches x {scores.fitness.shape[1]} seeds, 95 % intervals"
        )
    if control is not None:
        bar = float(np.percentile(control[np.isfinite(control)], PERCENTILE))
        for name in groups:
            # On the control's own seeds, the first of all.
            places = [place for place, other in found if other == name]
            own = found[places[0], name].fitness[:, : settings.control_seeds]
            mean = holdout.average(own)
            word = "beats" if mean > bar else "does not beat"
            lines.append(
                f"{name} {word} the {PERCENTILE}th percentile of {len(control)} random "
                f"searches: {mean:.2f} against {bar:.2f}"
            )
    return lines


# --- files ----------------------------------------------------------------------------


def _write(out, rows, found, lines, measure, settings) -> None:
    """table.csv, sentences.txt, figures and index.html."""
    out.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    figures.write_csv(
        out / "table.csv",
        columns,
        [
            ["" if key not in row else _cell(row[key]) for key in columns]
            for row in rows
        ],
    )
    (out / "sentences.txt").write_text("\n".join(lines) + "\n")
    places = list(dict.fromkeys(condition for condition, _ in found))
    drawn = [_profiles(out, place, found, measure) for place in places]
    page = figures.page(
        "compare.html",
        lines=lines,
        rows=rows,
        figures=drawn,
        measure=measure,
        settings=settings,
    )
    (out / "index.html").write_text(page)


def _profiles(out: Path, place: str, found: Mapping, measure: str) -> dict[str, str]:
    """Fraction of runs above each score, per candidate."""
    mine = {
        name: x.fitness.ravel() for (where, name), x in found.items() if where == place
    }
    everything = np.concatenate([x[np.isfinite(x)] for x in mine.values()])
    at = np.linspace(everything.min(), everything.max(), 201)
    curves = {
        name: stats.performance_profile(np.nan_to_num(x, nan=-np.inf), at)
        for name, x in mine.items()
    }

    def draw(axes):
        for i, (name, curve) in enumerate(curves.items()):
            axes.plot(at, curve, color=figures.color(name, i), label=name)
        axes.set(xlabel=measure, ylabel="fraction of runs above", ylim=(0, 1.02))
        figures.legend_above(axes, 2)

    return figures.figure(
        out,
        f"profiles_{_slug(place)}",
        f"Runs above a score, {place}",
        draw,
        (["score", *curves], np.stack([at, *curves.values()], 1)),
        "All searches and seeds of a candidate; a curve further right is better.",
    )


def _cell(x: Any) -> Any:
    if isinstance(x, stats.Interval):
        return f"{x.estimate:.6g} [{x.low:.6g}, {x.high:.6g}]"
    if isinstance(x, stats.Paired):
        return f"{x.difference:+.6g} [{x.low:+.6g}, {x.high:+.6g}]"
    return x


def _slug(text: str) -> str:
    """A name for a file; unlike texts have unlike names."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40]
    return f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
