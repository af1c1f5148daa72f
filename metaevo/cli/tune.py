"""`metaevo tune NAME key=value ...`: the numbers of an algorithm on an environment.

The search is one like any other, over `InnerLoop.tunable` from the algorithm's own
numbers: it has a run directory, a log, a report and a verdict against these numbers on
seeds that it did not see.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metaevo.cli import config, docstrings, presets, program, strategies, train
from metaevo.cli.options import TuneOptions
from metaevo.cli.signals import on_signals
from metaevo.engine.loggers import streams
from metaevo.engine.result import Result
from metaevo.errors import ConfigError
from metaevo.storage import artifacts, run_directory
from metaevo.types import InnerLoop, Search


def main(make: Callable[..., InnerLoop], argv: Sequence[str]) -> None:
    """Tune the numbers of an inner loop from the command line, and exit.

    Args:
        make: as of `metaevo.train_main`.
        argv: `key=value` arguments, and those of `TuneOptions`.
    """
    streams.protect(own=True)
    stop = on_signals()
    sys.exit(program.guard(lambda: _tune(make, argv, stop.is_set)))


def _tune(
    make: Callable[..., InnerLoop], argv: Sequence[str], should_stop: Callable
) -> None:
    fields = {f"{field.name}=" for field in dataclasses.fields(TuneOptions)}
    own = [arg for arg in argv if arg.startswith(tuple(fields))]
    options = config.parse_options(TuneOptions, own)
    search = train.as_tuning(make)
    arguments = presets.expanded([arg for arg in argv if arg not in own], search)
    if options.given and not set(arguments) & set(program.FLAGS):
        asked = _generations(search, arguments, options, should_stop)
        arguments.append(f"num_generations={asked}")
    for result in program.run(search, arguments, should_stop):
        print("\n".join(_found(make, search, arguments, result)))
    if {"-h", "--help"} & set(arguments):
        print("\n".join(_budgets()))


# --- how long -------------------------------------------------------------------------


def _budgets() -> list[str]:
    """Return the help of `TuneOptions`."""
    described = docstrings.descriptions(TuneOptions)
    return ["", "Budget", *(f"  {x + '=null':27}{y}" for x, y in described.items())]


def _generations(
    search: Callable[..., Search],
    argv: Sequence[str],
    options: TuneOptions,
    should_stop: Callable[[], bool],
) -> int:
    """Return the generations that a budget of frames or minutes allows.

    Minutes become generations before the first one, so that the run does not depend on
    the clock. A run that was started keeps the number that it was started with. Several
    searches share the minutes; each has the frames.

    Raises:
        ConfigError: the budget is too small for one, or several machines are asked for.
    """
    began = time.monotonic()
    chosen = strategies.in_arguments(search, argv)
    given = config.parse(chosen, argv)
    run_config = given.pop("run")
    if run_config.distributed or run_config.evaluator == "ray":
        raise ConfigError(
            f"{' '.join(options.given)}: a budget is for one machine; give "
            "num_generations=N on several"
        )
    from metaevo.cli import several
    from metaevo.engine import checks, dry_run, preparation
    from metaevo.evaluators import surroundings
    from metaevo.evaluators.devices import configure
    from metaevo.storage import history

    configure()
    surroundings.check_platform()
    name = search.__module__.rpartition(".")[2]
    prepared = preparation.prepare(config.call(chosen, given), run_config)
    told = config.settings(chosen, given)
    told = preparation.settings(prepared, run_config, told)
    first = several.each(run_config)[0]
    directory = run_directory.chosen_directory(first, name, told)
    if run_directory.has_manifest(directory):
        return history.generations_asked(directory) or 1
    made, shapes, _ = prepared
    if options.frames is not None:
        from metaevo import population

        size = population.size(shapes.params)
        each = checks.frames_per_generation(made, size)
        if options.frames < each:
            raise ConfigError(
                f"frames={options.frames}: one generation takes {each:,} frames"
            )
        return options.frames // each
    assert options.minutes is not None
    print(f"minutes={options.minutes:g}: a generation is timed", flush=True)
    times = dry_run.measure(made, run_config, should_stop)
    budget = 60 * options.minutes / run_config.seeds
    left = budget - (time.monotonic() - began)
    # The programs are in the cache by now, but traced and compiled once more.
    left -= times.compiling + times.following
    each = times.generation + times.saving / run_config.checkpoint_every
    if left < each:
        least = (budget - left + each) * run_config.seeds / 60
        raise ConfigError(
            f"minutes={options.minutes:g}: one generation and what follows it take "
            f"{least:.1f} minutes; smaller are population_size, num_seeds, "
            "inner.total_timesteps and run.held_out_seeds"
        )
    return int(left / each)


# --- what was found -------------------------------------------------------------------


def _found(
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
    name = search.__module__.rpartition(".")[2]
    content = presets.text(arguments, f"metaevo train {name} preset=FILE")
    path.write_text(content, encoding="utf-8")
    lines = [f"preset: {path}", f"  metaevo train {name} preset={path}"]
    if code := _stable_baselines3(name, evolved):
        lines += ["Stable-Baselines3:", *(f"  {line}" for line in code)]
    return lines


def _preset(
    make: Callable[..., InnerLoop], given: dict[str, Any], found: Mapping[str, str]
) -> list[str]:
    """Return the arguments of `metaevo train` with the numbers that were found."""
    search = train.as_search(make)
    kept = {key: given[key] for key in ("env", "inner", "meta")}
    lines = config.changes(search, config.defaults(search) | kept)
    rest = [x for x in lines if x.partition("=")[0] not in (*found, "env")]
    return [
        f"env={given['env']}",
        *rest,
        *(f"{key}={value}" for key, value in found.items()),
    ]


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


def _stable_baselines3(name: str, evolved: Mapping[str, Any]) -> list[str] | None:
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
    return lines
