"""Entry points of searches and inner loops: `python -m searches.NAME key=value ...`.

Everything is checked before anything compiles. A closed terminal or pipe stops nothing:
what cannot be shown is dropped.

Exit codes: 0 done, 2 wrong input, 3 directory in use, 4 checkpoint or artifact
refused, 5 numerical failure, 6 disk, 7 failed on every host, 75 interrupted (run again
to resume); see `metaevo.errors`.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import io
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from metaevo.cli import config, presets, runs, values
from metaevo.cli.signals import STOPPING, on_signals
from metaevo.config import RunConfig
from metaevo.engine.loggers import streams
from metaevo.errors import ConfigError, InterruptedRunError, MetaevoError
from metaevo.storage.own_runs import Source

if TYPE_CHECKING:
    from metaevo.engine.result import Result
    from metaevo.types import InnerLoop, Search

FLAGS = ("-h", "--help", "--cfg", "--cfg-diff", "--dry-run", "--pilot", "--multirun")
DISK_EXIT_CODE = 6
_DISK_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS),
    *(errno.EACCES, errno.EPERM, errno.ENOENT),
)


def main(search: Callable[..., Search], argv: Sequence[str] | None = None) -> None:
    """Run a search function from the command line, and exit.

    Args:
        search: Function whose parameters, with types and defaults, are the keys.
        argv: `key=value` arguments, or `preset=NAME` for those of one of
            its inner loop's presets or of a file; None: those
            of the process.
    """
    runs.refuse_while_importing("metaevo.main")
    streams.protect(own=True)
    stop = on_signals(STOPPING)
    arguments = sys.argv[1:] if argv is None else argv

    def body() -> None:
        if "--multirun" in arguments and not {"-h", "--help"} & set(arguments):
            sys.exit(_run_each(search, arguments, stop.is_set))
        run(search, presets.expanded(arguments, search), stop.is_set)

    sys.exit(guard(body))


def train_main(
    make: Callable[..., InnerLoop], argv: Sequence[str] | None = None
) -> None:
    """Train agents of an inner loop from the command line, and exit.

    The keys are `env`, `num_seeds`, `inner.*` of the loop's `Config`, `meta.*` of its
    `Meta`, and `run.*`.

    Args:
        make: `(env, config, meta) -> InnerLoop`, with defaults for the last two.
        argv: `key=value` arguments; None: those of the process.
    """
    from metaevo.cli import train

    main(train.as_search(make), argv)


def guard(body: Callable[[], object]) -> int:
    """Run `body`, print expected ends as one line, and return the exit code."""
    from metaevo.engine.loggers.console import error as print_error
    from metaevo.engine.loggers.console import notice

    try:
        body()
        return 0
    except (InterruptedRunError, KeyboardInterrupt) as error:
        # Asked for, and so no error.
        message = str(error) or "stopped"
        notice(f"{message}; run the same command again to continue")
        return InterruptedRunError.exit_code
    except MetaevoError as error:
        print_error(str(error))
        return error.exit_code
    except (RuntimeError, AssertionError):
        from metaevo.evaluators import surroundings

        try:
            surroundings.check_platform()
        except ConfigError as error:
            print_error(str(error))
            return error.exit_code
        raise
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        print_error(
            f"disk: {error}; make room and give the same command again: a "
            "run continues after its last checkpoint"
        )
        return DISK_EXIT_CODE


def _check_flags(argv: Sequence[str]) -> None:
    """Check that no argument is a flag that is spelt in another way.

    Raises:
        ConfigError: One is; names the flag.
    """
    for arg in argv:
        plain = "--" + arg.strip("-").replace("_", "-").lower()
        near = difflib.get_close_matches(plain, FLAGS, 1, 0.85)
        if arg.startswith("-") and arg not in FLAGS and near:
            raise ConfigError(f"unknown flag {arg!r}.{values.did_you_mean(near)}")


def run(
    search: Callable[..., Search], argv: Sequence[str], should_stop: Callable[[], bool]
) -> list[Result]:
    """Do what the flags in `argv` ask for, or run the search.

    Returns:
        the result of each seed; none after a flag, or in a process of a distributed job
        that is not the first.
    """
    from metaevo.cli import strategies

    # A wandb agent adds its own settings when it starts a run of a sweep again.
    argv = [arg for arg in argv if not arg.startswith("_wandb=")]
    flags = [arg for arg in argv if arg in FLAGS]
    search = strategies.in_arguments(search, argv)
    if "-h" in flags or "--help" in flags:
        from metaevo.cli.help import help_text

        print(help_text(search))
        return []
    _check_flags(argv)
    given = config.parse(search, [arg for arg in argv if arg not in FLAGS])
    run_config = given["run"]
    from metaevo.cli import several
    from metaevo.engine import preparation
    from metaevo.evaluators import surroundings
    from metaevo.evaluators.devices import configure
    from metaevo.storage import run_directory

    shown = "--cfg" in flags or "--cfg-diff" in flags
    if not shown and run_config.directory:
        for directory in several.directories(run_config.directory, run_config):
            run_directory.check_free(directory)
        run_directory.check_writable("run.directory", run_config.directory)
    from metaevo.engine import dry_run
    from metaevo.engine import loop as engine

    dry = "--dry-run" in flags or "--pilot" in flags
    if run_config.distributed and not dry and not shown:
        from metaevo.evaluators import distributed

        distributed.join(run_config)
    else:
        configure(driver=run_config.evaluator == "ray" and not dry)
        surroundings.check_platform()
    arguments = {key: value for key, value in given.items() if key != "run"}
    settings = config.settings(search, arguments)
    made = config.call(search, arguments)
    if shown:
        preparation.prepare(made, run_config)
        diff = "--cfg-diff" in flags
        lines = config.changes(search, given) if diff else config.assignments(given)
        print("\n".join(lines))
        return []
    source = Source.of(search)
    name = name_of(search)
    if dry:
        prepared = preparation.prepare(made, run_config)
        for one in several.each(run_config):
            preparation.check_directory(prepared, one, name, settings)
        print(dry_run.plan(made, run_config, should_stop, "--pilot" in flags))
        return []
    results = []

    def run_one(one: RunConfig) -> Result | None:
        result = engine.run(
            made,
            one,
            name,
            settings.values,
            config.changes(search, given | {"run": one}),
            should_stop,
            source,
            settings.defaults,
        )
        results.extend([] if result is None else [result])
        return result

    if run_config.seeds == 1:
        run_one(run_config)
    else:
        several.run(made, run_config, name, run_one, should_stop)
    return results


def name_of(search: Callable[..., Search]) -> str:
    """Return the name of a search's runs: that of its file, if it has one."""
    source = Source.of(search)
    return getattr(search, "__name__", "search") if source is None else source.file.stem


def _run_each(
    search: Callable[..., Search], argv: Sequence[str], should_stop: Callable[[], bool]
) -> int:
    """Run each combination of several values, once all are checked.

    Returns:
        the largest exit code.
    """
    from metaevo.cli import multirun, strategies

    if any(x.startswith("run.distributed=") for x in argv):
        raise ConfigError("--multirun is for one machine: leave run.distributed out")
    each = multirun.combinations(argv, name_of(search))
    for one in each:
        words = presets.expanded(one.argv, search)
        multirun.check_lists(one, config.kinds(strategies.in_arguments(search, words)))
        with contextlib.redirect_stdout(io.StringIO()):
            run(search, [*words, "--cfg"], should_stop)

    def run_one(words: Sequence[str]) -> int:
        def body() -> None:
            run(search, presets.expanded(words, search), should_stop)

        return guard(body)

    code = multirun.run(each, run_one, should_stop)
    if not set(FLAGS) & set(argv) - {multirun.FLAG}:
        print(multirun.table(each))
    return code
