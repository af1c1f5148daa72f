"""`metaevo.run` and `tune`: searches from Python, with what a command would record.

`metaevo.result` gives the result of a run that another process has made. It stands here
since a search is made again as the commands do, by the same rules of trust.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from metaevo import slots
from metaevo.cli import config as keys
from metaevo.cli import program, ranges, resolve, runs, strategies, train, values
from metaevo.cli import tune as tuning
from metaevo.cli.options import CompareOptions, TuneOptions
from metaevo.config import RunConfig
from metaevo.engine import compare
from metaevo.engine import loop as engine
from metaevo.engine import result as results
from metaevo.engine.result import Again, Comparison, Result
from metaevo.errors import ConfigError
from metaevo.evaluators import surroundings
from metaevo.evaluators.devices import configure
from metaevo.storage.own_runs import Source
from metaevo.storage.run_directory import require_finished
from metaevo.types import InnerLoop, Search

__all__ = ["result", "run", "tune"]


def run(
    search: Search | Callable[..., Search] | str,
    config: RunConfig = RunConfig(),
    name: str | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    **options: Any,
) -> Result | None:
    """Run or resume a search, then compare its solution with the hand-made algorithm.

    Given a search function, the run knows its settings and where it was made. Without
    `RunConfig.directory` it gets a directory of its own for each configuration; the
    same call resumes it, and `metaevo resume`, `play`, `compare` and `distill` find
    its search again:

        from searches import ppo_value_loss
        result = metaevo.run(ppo_value_loss.search, population_size=32)
        loss = result.artifact.value_loss

    A function of a notebook's cell, or of any other session, is in no file: in its
    session `result.play()`, `compare()` and `distill()` know it, and the commands do
    not. Nor do they know a `Search` that was put together by hand, which needs a
    `RunConfig(directory=...)`. Both are resumed by the same call alone.

    Args:
        search: a search function, whose parameters all have defaults; its name, as
            `metaevo run` takes it; or a `Search`.
        config: how to run it; several `seeds` are for the command line.
        name: its name, for directories and reports; None: of a function the name of its
            file, else `search`.
        should_stop: asked several times a generation; True stops the run.
        **options: arguments of the search function. Of a `Search`: `settings`,
            `defaults`, `changes` and `source`; see `metaevo.engine.loop.run`.

    Returns:
        the result; None in a process of a distributed job that is not the first.

    Raises:
        ConfigError: something in the search, its arguments or `config` does not fit.
        InterruptedRunError: `should_stop` or `max_seconds` ended the run.
        LockedError: another process uses the directory.
        CheckpointError: the manifest is damaged, or no checkpoint can be read.
        NumericalError: every member failed in three generations in a row, or in all.
    """
    runs.refuse_while_importing("metaevo.run")
    if isinstance(search, Search):
        name = name or "search"
        ended = engine.run(search, config, name, should_stop=should_stop, **options)
        return _with_search(ended, functools.partial(_unchanged, search))
    configure()
    surroundings.check_platform()
    if isinstance(search, str):
        search = resolve.function(search, "searches")
    if not callable(search):
        raise ConfigError(_no_search(search))
    options = _flat(search, options)
    search = strategies.in_search(search, options)
    given, lines, unnamed = _arguments(search, options)
    source = Source.of(search)
    problem = f"{', '.join(unnamed)} has no name to import it by" if unnamed else None
    if source is not None and "<locals>" in source.function:
        problem = f"{search.__name__} is at the top level of no file"
    # Of a cell or a prompt nobody expects that a command in a terminal finds it.
    if source is not None and problem is not None:
        source = None
        print(
            "warning: metaevo resume, play, compare and distill cannot make this "
            f"search again, since {problem}; the same call resumes it",
            file=sys.stderr,
        )
    settings = keys.settings(search, given)
    ended = engine.run(
        keys.call(search, given),
        config,
        name or (search.__name__ if source is None else source.file.stem),
        settings.values,
        lines,
        should_stop,
        source,
        settings.defaults,
    )
    return _with_search(ended, functools.partial(_made, search, lines, unnamed))


def tune(
    loop: Callable[..., InnerLoop] | str,
    config: RunConfig = RunConfig(),
    should_stop: Callable[[], bool] = lambda: False,
    *,
    minutes: float | None = None,
    frames: int | None = None,
    choose: bool = False,
    **options: Any,
) -> Result | None:
    """Tune the numbers of an inner loop, as the command `metaevo tune` does.

        found = metaevo.tune("ppo", env="gymnax/Acrobot-v1", minutes=4)
        lr = float(found.artifact.lr)

    It writes `export/preset.txt` in the run's directory, which `metaevo train` takes.

    Args:
        loop: `(env, config, meta) -> InnerLoop`, with defaults for the last two; or its
            name, as `metaevo tune` takes it.
        config: how to run it; several `seeds` are for the command line.
        should_stop: asked several times a generation; True stops the run.
        minutes: time until the report, in place of `num_generations`.
        frames: frames of all generations, in place of `num_generations`.
        choose: choose static settings first, by 16 agents each.
        **options: `env`, `more_envs`, `population_size`, `num_generations`,
            `num_seeds`, `sigma`, `choices`, `inner`, `meta`; `strategy` and its
            arguments; `space={"lr": "log_uniform(1e-4, 1e-2)"}`, ranges.
            `metaevo tune NAME --help` describes them.

    Returns:
        the result; None in a process of a distributed job that is not the first.

    Raises:
        ConfigError: as of `run`; a budget is too small or given twice; or a slot of
            `meta` is a function that no import gives.
        InterruptedRunError: `should_stop` or `max_seconds` ended the run.
    """
    runs.refuse_while_importing("metaevo.tune")
    budget = TuneOptions(minutes, frames, choose)
    engine.check_one_seed(config)
    make = resolve.function(loop, "inner_loops") if isinstance(loop, str) else loop
    if not callable(make) or not runs.is_loop(make):
        said = (
            f"metaevo.tune: expected an inner loop's `make`, or its name; got {make!r}"
        )
        raise ConfigError(said[:400])
    made = train.as_tuning(make)
    options = _flat(made, options)
    search = strategies.in_search(made, options)
    _, lines, unnamed = _arguments(search, options)
    if unnamed:
        raise ConfigError(
            f"metaevo.tune: {', '.join(unnamed)} has no name to import it by, and a "
            "preset could not name it; put it into a module"
        )
    lines += keys.changes(search, {"run": config})
    decided = tuning.decided(made, lines, budget, should_stop)
    given = _parsed(search, decided)
    options |= {key: given[key] for key, _, _ in (x.partition("=") for x in decided)}
    name = program.name_of(made)
    ended = run(made, config, name, should_stop, **options)
    if ended is not None:
        print("\n".join(tuning.found(make, made, [*lines, *decided], ended)))
    return ended


def result(directory: str | Path, trust: bool = False) -> Result:
    """Return the result of a finished run, as what started it has returned it.

    Of a run of `metaevo.optimize` it does not play, compare or distill: the function
    that trains is known to the call alone that started it.

    Args:
        directory: run directory.
        trust: import what a run names that this user has not started here: its search,
            its environment.

    Raises:
        ConfigError: there is no finished run, or its search is not there, or not
            trusted.
        ArtifactError: the solution was altered.
        CheckpointError: other files were altered.
    """
    configure()
    again = None
    if runs.of_trials(directory):
        require_finished(directory)
    else:
        run = runs.finished(directory, trust)
        again = Again(functools.partial(runs.remade, run), _compared)
    with runs.reading(directory):
        return results.read(directory)._replace(again=again)


def _with_search(ended: Result | None, make: Callable[..., Search]) -> Result | None:
    return ended and ended._replace(again=Again(make, _compared))


def _made(
    search: Callable[..., Search],
    lines: Sequence[str],
    unnamed: Mapping[str, Any],
    changes: Sequence[str] = (),
) -> Search:
    """Make the search of a function again; `lines` and `unnamed` as of `_arguments`."""
    given = _parsed(search, [*lines, *changes])
    changed = {line.partition("=")[0] for line in changes}
    kept = {path: x for path, x in unnamed.items() if path not in changed}
    return keys.call(search, _with_unnamed(given, kept))


def _unchanged(search: Search, changes: Sequence[str] = ()) -> Search:
    """Return a search that was put together by hand.

    Raises:
        ConfigError: it is to be changed.
    """
    if changes:
        raise ConfigError(
            f"{';'.join(changes)}: a metaevo.Search has no keys; give metaevo.run a "
            "search function"
        )
    return search


def _compared(found: Sequence[Result], **options: Any) -> Comparison:
    """Compare results, the first with the others, by the options of the command."""
    on = options.pop("on", ())
    lines = keys.assignments({"out": found[0].directory / "compare", **options})
    chosen = keys.parse_options(CompareOptions, lines)
    on = (on,) if isinstance(on, str) else tuple(on)
    chosen = dataclasses.replace(chosen, on=on)
    made = {x.directory: x.again.make for x in found if x.again is not None}
    return compare.of_runs(made, chosen.out or "", **chosen.comparison)


def _no_search(given: Any) -> str:
    """Return the message about something that is no search."""
    expected = "expected a search function, the name of a search, or a metaevo.Search"
    if inspect.ismodule(given):
        name = given.__name__.rpartition(".")[2]
        made = f"; give {name}.search" if hasattr(given, "search") else ""
        return f"metaevo.run: {expected}; got the module {given.__name__}{made}"
    return f"metaevo.run: {expected}; got {given!r}"[:400]


def _arguments(
    search: Callable[..., Search], options: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
    """Return the arguments of a search function, as the command line gives them.

    Returns:
        the arguments by name; `key=value` of those that differ from the defaults; and
        slots by key whose value no `key=value` names, such as a lambda.

    Raises:
        ConfigError: it has no such parameter, or a value is of another kind.
    """
    defaults = keys.defaults(search)
    del defaults["run"]
    arguments = dict(defaults)
    for key, value in options.items():
        if key not in defaults:
            near = values.did_you_mean(values.near(key, defaults))
            raise ConfigError(
                f"no parameter is called {key!r}.{near} There are {', '.join(defaults)}"
            )
        arguments[key] = _of_kind(key, value, defaults[key])
    unnamed = {}
    for key, value in arguments.items():
        if hasattr(value, "_fields"):
            named, others = _named(value, defaults[key])
            arguments[key] = named
            unnamed |= {f"{key}.{slot}": x for slot, x in others.items()}
    given = _parsed(search, keys.changes(search, arguments))
    lines = keys.changes(search, given)
    return _with_unnamed(given, unnamed), lines, unnamed


def _flat(search: Callable, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with `{"space.lr": x}` in the place of `space={"lr": x}`."""
    given = dict(options)
    if ranges.KEY not in inspect.signature(search).parameters:
        texts = given.pop(ranges.KEY, {})
        if not isinstance(texts, Mapping):
            raise ConfigError(f"{ranges.KEY}={texts!r}: expected a range by number")
        given |= {f"{ranges.KEY}.{name}": text for name, text in texts.items()}
    return given


def _parsed(search: Callable[..., Search], lines: Sequence[str]) -> dict[str, Any]:
    given = keys.parse(search, lines)
    del given["run"]
    return given


def _with_unnamed(
    given: Mapping[str, Any], unnamed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return arguments with the functions that no `key=value` names."""
    given = dict(given)
    for path, value in unnamed.items():
        key, _, slot = path.partition(".")
        given[key] = given[key]._replace(**{slot: value})
    return given


def _of_kind(key: str, value: Any, default: Any) -> Any:
    """Return a value as its parameter takes it: mappings change fields of a default."""
    if isinstance(value, Mapping) and dataclasses.is_dataclass(default):
        fields = {field.name for field in dataclasses.fields(default)}
        for name in value.keys() - fields:
            known = [f"{key}.{field}" for field in fields]
            listed = f"There are {', '.join(sorted(known))}"
            raise ConfigError(values.unknown(f"{key}.{name}", known, listed))
        return dataclasses.replace(typing.cast(Any, default), **value)
    if isinstance(value, Mapping) and hasattr(default, "_fields"):
        return slots.replace(default, **value)
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(value)
    structured = dataclasses.is_dataclass(default) or hasattr(default, "_fields")
    if structured and type(value) is not type(default):
        raise ConfigError(
            f"{key}={value!r}: expected {type(default).__module__}."
            f"{type(default).__name__}(...), or a mapping of what to change in "
            f"{default!r}"[:400]
        )
    return value


def _named(meta: Any, default: Any) -> tuple[Any, dict[str, Any]]:
    """Return a `Meta` with texts for its changed functions, and those without one."""
    texts, others = {}, {}
    for slot, value in zip(meta._fields, meta, strict=True):
        kept = getattr(default, slot)
        if isinstance(value, int | float | str) or value is kept:
            continue
        text = keys.import_path(value)
        texts[slot] = kept if text is None else text
        if text is None:
            others[slot] = value
    return meta._replace(**texts), others
