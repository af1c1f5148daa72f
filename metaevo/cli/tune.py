"""`metaevo tune NAME key=value ...`: the numbers of an algorithm on an environment.

The search is one like any other, over `InnerLoop.tunable` from the algorithm's own
numbers: it has a run directory, a log, a report and a verdict against the algorithm as
it is on seeds that it did not see. `choose=true` chooses static settings first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from metaevo.cli import (
    config,
    docstrings,
    listing,
    presets,
    program,
    strategies,
    train,
)
from metaevo.cli.options import TuneOptions
from metaevo.cli.signals import STOPPING, on_signals
from metaevo.engine.loggers import streams
from metaevo.engine.result import Result
from metaevo.errors import ConfigError, InterruptedRunError
from metaevo.storage import artifacts, run_directory
from metaevo.storage.own_runs import Source
from metaevo.types import InnerLoop, Search

if TYPE_CHECKING:
    from metaevo.config import RunConfig
    from metaevo.engine import preparation


def main(make: Callable[..., InnerLoop], argv: Sequence[str]) -> None:
    """Tune the numbers of an inner loop from the command line, and exit.

    Args:
        make: as of `metaevo.train_main`.
        argv: `key=value` arguments, and those of `TuneOptions`.
    """
    streams.protect(own=True)
    stop = on_signals(STOPPING)
    sys.exit(program.guard(lambda: _tune(make, argv, stop.is_set)))


def _tune(
    make: Callable[..., InnerLoop], argv: Sequence[str], should_stop: Callable
) -> None:
    fields = {f"{field.name}=" for field in dataclasses.fields(TuneOptions)}
    own = [arg for arg in argv if arg.startswith(tuple(fields))]
    options = config.parse_options(TuneOptions, own)
    search = train.as_tuning(make)
    arguments = presets.expanded([arg for arg in argv if arg not in own], search)
    if set(arguments) & set(program.FLAGS):
        if options.choose:
            print("choose=true: shown without static settings, which a run chooses")
    else:
        arguments += decided(search, arguments, options, should_stop)
    for result in program.run(search, arguments, should_stop):
        print("\n".join(found(make, search, arguments, result)))
    if {"-h", "--help"} & set(arguments):
        print("\n".join(_budgets()))


# --- how long -------------------------------------------------------------------------

_SMALLER = (
    "give less: population_size, num_seeds, inner.total_timesteps, run.held_out_seeds"
)


def _budgets() -> list[str]:
    """Return the help of `TuneOptions`."""
    described = docstrings.descriptions(TuneOptions)
    usual = config.assignments(dataclasses.asdict(TuneOptions()))
    lines = zip(usual, described.values(), strict=True)
    return ["", "Before the search", *(f"  {x:27}{y}" for x, y in lines)]


def decided(
    search: Callable[..., Search],
    argv: Sequence[str],
    options: TuneOptions,
    should_stop: Callable[[], bool],
) -> list[str]:
    """Return the arguments that `TuneOptions` stand for.

    Raises:
        ConfigError: the budget is too small, or several machines are asked for.
        InterruptedRunError: `should_stop` returned True.
    """
    began, found, spent = time.monotonic(), [], 0
    asked = [*options.budget, *(["choose=true"] if options.choose else [])]
    if not asked:
        return []
    horizon = [x for x in argv if x.startswith("num_generations=")]
    if options.budget and horizon:
        raise ConfigError(f"{options.budget[0]} and {horizon[-1]}: give one of them")
    chosen = strategies.in_arguments(search, argv)
    run = config.parse(chosen, argv)["run"]
    if run.distributed or run.evaluator == "ray":
        raise ConfigError(
            f"{' '.join(asked)}: for one machine alone; give num_generations=N, and "
            "choices=KEY=VALUE, on several"
        )
    from metaevo.evaluators import surroundings
    from metaevo.evaluators.devices import configure

    configure()
    surroundings.check_platform()
    end = began + 60 * (options.minutes or math.inf)

    def ends() -> bool:
        return should_stop() or time.monotonic() > end

    try:
        if options.choose:
            choices, spent = _chosen(_tuning(search, argv), ends)
            found += [f"choices={';'.join(choices)}"] if choices else []
        if options.budget:
            tuning = _tuning(search, [*argv, *found])
            num = _generations(tuning, options, spent, began, ends)
            found.append(f"num_generations={num}")
    except InterruptedRunError:
        if should_stop():
            raise
        kept = "; a choice continues with more minutes" if options.choose else ""
        raise ConfigError(
            f"minutes={options.minutes:g}: they ended before the search began; "
            f"{_SMALLER}{kept}"
        ) from None
    return found


class _Tuning(NamedTuple):
    """A search for numbers as its arguments say it.

    Attributes:
        name: of its algorithm.
        choices: static settings that are given.
        make: `changes -> search`, with these static settings if there are any.
        prepared: the search as it is given.
        config: options of the run.
        directory: of the run, the first if there are several.
    """

    name: str
    choices: str | None
    make: Callable[[Sequence[str]], Search]
    prepared: preparation.Prepared
    config: RunConfig
    directory: Path


def _tuning(search: Callable[..., Search], argv: Sequence[str]) -> _Tuning:
    """Return the search that arguments ask for, checked; nothing is compiled."""
    from metaevo.cli import several
    from metaevo.engine import preparation

    chosen = strategies.in_arguments(search, argv)
    given = config.parse(chosen, argv)
    run_config = given.pop("run")

    def made(changes: Sequence[str] = ()) -> Search:
        more = {"choices": ";".join(changes)} if changes else {}
        return config.call(chosen, given | more)

    name = program.name_of(search)
    prepared = preparation.prepare(made(), run_config)
    told = config.settings(chosen, given)
    told = preparation.settings(prepared, run_config, told)
    first = several.each(run_config)[0]
    directory = run_directory.chosen_directory(first, name, told)
    return _Tuning(name, given["choices"], made, prepared, run_config, directory)


def _chosen(
    tuning: _Tuning, should_stop: Callable[[], bool]
) -> tuple[tuple[str, ...], int]:
    """Return the static settings that are best, and the frames that it took to see it.

    Their scores are kept beside the run, so the same command continues.

    Raises:
        ConfigError: settings are given as well, or the run's directory is not free.
        LockedError: another process chooses in the same folder.
    """
    from metaevo.engine import choices, costs, preparation
    from metaevo.engine.loggers.console import ConsoleLogger
    from metaevo.evaluators.devices import choose_devices

    if tuning.choices is not None:
        raise ConfigError(f"choose=true and choices={tuning.choices}: give one of them")
    loops = tuning.prepared.search.tasks
    run_directory.check_free(tuning.directory)
    run_directory.check_writable("run.directory", tuning.directory)
    offered = choices.valid(
        tuning.make, lambda search: preparation.prepare(search, tuning.config)
    )
    if not offered:
        raise ConfigError(
            f"choose=true: {tuning.name} lists no static settings that can be used here"
        )
    folder = run_directory.choices_folder(tuning.directory)
    lifetime = sum(loop.frames_per_segment * loop.num_segments for loop in loops)
    where = f" on each of {len(loops)} environments" if len(loops) > 1 else ""
    score = choices.scorer(
        tuning.make,
        folder,
        tuning.config.seed,
        choose_devices(tuning.config),
        should_stop,
    )
    say = functools.partial(print, flush=True)
    tried = []
    folder.mkdir(parents=True, exist_ok=True)
    with (
        run_directory.lock(folder),
        contextlib.closing(ConsoleLogger(0)) as progress,
    ):
        say(
            f"choosing among {len(offered)} static settings by {choices.NUM_SEEDS} "
            f"agents each{where}, {choices.NUM_SEEDS * lifetime:,} frames; kept in "
            f"{folder}"
        )
        progress.now("choosing", 1 + len(offered))

        def counted(changes: tuple[str, ...]):
            tried.append(changes)
            scores = score(changes)
            progress.advance(1)
            return scores

        seen = costs.task_names(tuning.prepared.search)
        names = [name or f"task {i}" for i, name in enumerate(seen)]
        chosen = choices.choose(offered, counted, say, names)
    return chosen, len(tried) * choices.NUM_SEEDS * lifetime


def _generations(
    tuning: _Tuning,
    options: TuneOptions,
    spent: int,
    began: float,
    should_stop: Callable[[], bool],
) -> int:
    """Return the generations that a budget of frames or minutes allows.

    Minutes become generations before the first one, so that the run does not depend on
    the clock. A run that was started keeps the number that it was started with. Several
    searches share the minutes; each has the frames.

    Args:
        spent: frames before the search.
        began: time at which the command began.

    Raises:
        ConfigError: the budget is too small for one.
    """
    from metaevo.engine import checks, dry_run
    from metaevo.storage import history

    if run_directory.has_manifest(tuning.directory):
        return history.generations_asked(tuning.directory) or 1
    made, shapes, _ = tuning.prepared
    if options.frames is not None:
        from metaevo import population

        size = population.size(shapes.params)
        each = checks.frames_per_generation(made, size)
        if options.frames < spent + each:
            more = f", after {spent:,} of the choice" if spent else ""
            raise ConfigError(
                f"frames={options.frames}: one generation takes {each:,} frames{more}"
            )
        return (options.frames - spent) // each
    assert options.minutes is not None
    print(f"minutes={options.minutes:g}: a generation is timed", flush=True)
    times = dry_run.measure(made, tuning.config, should_stop)
    spent_seconds = time.monotonic() - began
    left = (60 * options.minutes - spent_seconds) / tuning.config.seeds
    # The programs are in the cache by now, but traced and compiled once more.
    left -= times.compiling + times.following
    each = times.generation + times.saving / tuning.config.checkpoint_every
    if left < each:
        least = options.minutes + (each - left) * tuning.config.seeds / 60
        raise ConfigError(
            f"minutes={options.minutes:g}: one generation and what follows it take "
            f"{least:.1f} minutes; {_SMALLER}"
        )
    return int(left / each)


# --- what was found -------------------------------------------------------------------


def found(
    make: Callable[..., InnerLoop],
    search: Callable[..., Search],
    argv: Sequence[str],
    result: Result,
) -> list[str]:
    """Write a preset beside the artifact, and return lines that say how to use it."""
    given = config.parse(strategies.in_arguments(search, argv), argv)
    evolved = artifacts.load(result.directory).slots
    arguments = _preset(make, given, _numbers(evolved, result))
    path = result.directory / "export" / "preset.txt"
    path.parent.mkdir(exist_ok=True)
    name = program.name_of(search)
    where = _place(make)
    content = presets.text(arguments, f"metaevo train {where or 'NAME'} preset=FILE")
    path.write_text(content, encoding="utf-8")
    lines = [
        "The numbers belong to this length of life: tune them again for a longer one.",
        f"preset: {path}",
    ]
    lines += [f"  metaevo train {where} preset={path}"] if where else []
    if code := _stable_baselines3(name, evolved, _choices(given)):
        lines += ["Stable-Baselines3:", *(f"  {line}" for line in code)]
    return lines


def _place(make: Callable[..., InnerLoop]) -> str | None:
    """Return how `metaevo train` names a loop; None for one of a notebook's cell."""
    source = Source.of(make)
    if source is None:
        return None
    there = listing.modules("inner_loops").get(source.file.stem)
    named = there is not None and there.resolve() == source.file.resolve()
    function = f":{source.function}" * (source.function != "make")
    if named and not function:
        return source.file.stem
    return shlex.quote(f"{source.file}{function}")


def _preset(
    make: Callable[..., InnerLoop], given: dict[str, Any], found: Mapping[str, str]
) -> list[str]:
    """Return the arguments of `metaevo train` with the numbers that were found."""
    search = train.as_search(make)
    kept = {key: given[key] for key in ("env", "inner", "meta")}
    lines = config.changes(search, config.defaults(search) | kept)
    lines += _choices(given)
    by_key = {"env": given["env"]}
    for line in (x for x in lines if not x.startswith("env=")):
        key, _, value = line.partition("=")
        by_key[key] = value
    return [f"{key}={value}" for key, value in {**by_key, **found}.items()]


def _choices(given: Mapping[str, Any]) -> list[str]:
    """Return the static settings under which the numbers were tuned."""
    return given["choices"].split(";") if given["choices"] else []


def _numbers(evolved: Mapping[str, Any], result: Result) -> dict[str, str]:
    """Return what evolved by key: numbers, and the artifact for schedules."""
    return {
        f"meta.{slot}": str(result.directory / "solution")
        if callable(value)
        else f"{float(value):.6g}"
        for slot, value in evolved.items()
    }


# Slot -> argument of Stable-Baselines3 2, where both mean the same.
_ACTOR_CRITIC = {
    "lr": "learning_rate",
    "gamma": "gamma",
    "gae_lambda": "gae_lambda",
    "ent_coef": "ent_coef",
    "vf_coef": "vf_coef",
    "max_grad_norm": "max_grad_norm",
}
STABLE_BASELINES3 = {
    "ppo": ("PPO", _ACTOR_CRITIC | {"clip_eps": "clip_range"}),
    "a2c": ("A2C", _ACTOR_CRITIC),
    "dqn": (
        "DQN",
        {
            "lr": "learning_rate",
            "gamma": "gamma",
            "target_rate": "tau",
            "max_grad_norm": "max_grad_norm",
        },
    ),
    "sac": ("SAC", {"critic_lr": "learning_rate", "gamma": "gamma", "tau": "tau"}),
    "td3": (
        "TD3",
        {
            "critic_lr": "learning_rate",
            "gamma": "gamma",
            "tau": "tau",
            "smoothing_noise": "target_policy_noise",
            "noise_clip": "target_noise_clip",
        },
    ),
}


def _stable_baselines3(
    name: str, evolved: Mapping[str, Any], choices: Sequence[str] = ()
) -> list[str] | None:
    """Return a call of Stable-Baselines3 with the numbers; None if it has no such."""
    if name not in STABLE_BASELINES3:
        return None
    made, arguments = STABLE_BASELINES3[name]
    numbers = {k: float(x) for k, x in evolved.items() if not callable(x)}
    shared = {k: x for k, x in numbers.items() if k in arguments}
    others = [k for k in evolved if k not in shared]
    texts = [f"{arguments[k]}={x:.4g}" for k, x in shared.items()]
    inside = ", ".join(['"MlpPolicy"', "env", *texts])
    lines = [f"{made}({inside})"]
    if others:
        lines.append(f"# without a counterpart there: {', '.join(others)}")
    if settings := [x for x in choices if not x.startswith("meta.td_loss=")]:
        lines.append(f"# tuned with {', '.join(settings)}; set the same there")
    if functions := [x for x in choices if x not in settings]:
        lines.append(f"# tuned with {', '.join(functions)}: a subclass, as in")
        lines.append("# examples/sb3_dqn.py")
    return lines
