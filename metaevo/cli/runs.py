"""Searches by name, and the searches of runs.

A run directory may come from a stranger. Without a record of this user's own run (see
`metaevo.storage.own_runs`) or `trust=true`, its manifest is data: it names a search of
the installed metaevo and values of its keys, and nothing else is imported for it.
Nothing below a run directory is ever imported.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from metaevo.cli import config, listing, resolve
from metaevo.errors import CheckpointError, ConfigError, MetaevoError
from metaevo.storage import imports, own_runs
from metaevo.storage.own_runs import Source
from metaevo.storage.run_directory import paths, read_manifest, require_finished
from metaevo.storage.verified import ZOO_PREFIX

if TYPE_CHECKING:
    from metaevo.types import Search

INSTALLED = Path(__file__).resolve().parents[2]
"""The folder of the packages metaevo, searches, inner_loops and strategies."""


class Run(NamedTuple):
    """A run, and what its search is made again from.

    Attributes:
        directory: Directory of the run.
        manifest: Its manifest.
        source: The function that makes the search.
        changes: `key=value` arguments of the search.
        trusted: Whether user code may be imported: it is this user's own run, or the
            user says so.
    """

    directory: Path
    manifest: dict[str, Any]
    source: Source
    changes: tuple[str, ...]
    trusted: bool


def opened(directory: str | Path, trust: bool = False) -> Run:
    """Return the run in `directory`; nothing is imported yet.

    Args:
        directory: Directory of the run.
        trust: Take search and settings from the manifest as if they were the user's.

    Raises:
        ConfigError: There is no run, or its search is not there or not trusted.
        CheckpointError: The manifest is damaged, or a link is in the directory.
    """
    directory = Path(directory)
    manifest = read_manifest(directory)
    name, changes = manifest["identity"]["search"], tuple(manifest["changes"])
    own = own_runs.recall(directory, manifest)
    if own is not None:
        file = own.source.file
        if not file.is_file():
            raise ConfigError(f"{directory}: its search, {file}, is gone; put it back")
        if own.file_changed:
            print(
                f"warning: {file} has changed since {directory} was last started",
                file=sys.stderr,
            )
        return Run(directory, manifest, own.source, own.changes, True)
    if of_trials(directory):
        raise ConfigError(
            f"{directory}: a run of metaevo.optimize goes on by the call that started "
            "it, which knows the function"
        )
    places = [INSTALLED / package / f"{name}.py" for package in resolve.PACKAGES]
    installed = next((path for path in places if path.is_file()), places[0])
    if trust:
        source = _named(name)
        return Run(directory, manifest, source, changes, True)
    if not name.isidentifier() or name.startswith("_") or not installed.is_file():
        raise ConfigError(
            f"{directory}: its search {name[:80]!r} is none of the installed ones, and "
            "this user has not started the run here from a file; if a notebook or a "
            "prompt did, use result.play() and .compare() there; if you trust its "
            f"author, add trust=true, which imports {_module_name(name)}"
        )
    return Run(directory, manifest, Source(installed), changes, False)


def _module_name(name: str) -> str:
    """Return the module of a search that a manifest names, quoted if it is no name."""
    name = name[:80]
    return f"searches.{name}" if name.isidentifier() else repr(name)


def of_trials(directory: str | Path) -> bool:
    """Return True if a run is one of `metaevo.optimize`."""
    return paths(directory).trial_log.exists()


def finished(directory: str | Path, trust: bool = False) -> Run:
    """Return the finished run in `directory`; see `opened`.

    Raises:
        ConfigError: As `opened`; or the run has no solution yet.
    """
    require_finished(directory)
    return opened(directory, trust)


def remade(run: Run, changes: Sequence[str] = ()) -> Search:
    """Return the search of a run, made again with further changes.

    Args:
        run: The run.
        changes: `key=value` arguments that come after those of the run.

    Raises:
        ConfigError: The search has no function to make it by, a change is wrong, or the
            run asks for an import and is not trusted.
        CheckpointError: The settings of a run that is not this user's do not fit.
    """
    from metaevo.cli import strategies

    with importing(run), as_data(run):
        search = strategies.in_arguments(function(run), [*run.changes, *changes])
        _check_imports(run, config.parse(search, run.changes))
        arguments = config.parse(search, [*run.changes, *changes])
        del arguments["run"]
        return config.call(search, arguments)


def arguments(run: Run) -> list[str]:
    """Return the `key=value` arguments with which a run continues.

    Of a run that is not trusted these are keys of the search alone, and the seed.

    Raises:
        ConfigError, CheckpointError: As `remade`.
    """
    given = [*run.changes]
    if not run.trusted:
        from metaevo.cli import strategies

        with importing(run), as_data(run):
            search = strategies.in_arguments(function(run), run.changes)
            parsed = config.parse(search, run.changes)
            _check_imports(run, parsed)
            given = config.changes(search, parsed)
            given = [x for x in given if not x.startswith("run.")]
    seed = run.manifest["identity"]["seed"]
    return [*given, f"run.seed={seed}", f"run.directory={run.directory}"]


@contextlib.contextmanager
def importing(run: Run) -> Iterator[None]:
    """Let imports find what the search of a run may import.

    Modules below the run directory are never found. For a run that is not trusted the
    current folder is not looked into, either; else it is the last.
    """
    looked_into = imports.places(run.source.root, run.directory, run.trusted)
    with imports.importing(looked_into, run.directory):
        yield


@contextlib.contextmanager
def as_data(run: Run) -> Iterator[None]:
    """Name the run if its settings make an untrusted search fail.

    Raises:
        CheckpointError: They do.
    """
    with contextlib.nullcontext() if run.trusted else reading(run.directory):
        yield


@contextlib.contextmanager
def reading(directory: str | Path) -> Iterator[None]:
    """Name the run whose files are the only input of what is done.

    Raises:
        CheckpointError: They make it fail.
        ConfigError: JAX has no device, which no file is to blame for.
    """
    try:
        yield
    except MetaevoError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in _ODD_NAMES:
            raise
        if isinstance(error, RuntimeError | AssertionError):
            from metaevo.evaluators import surroundings

            surroundings.check_platform()
        message = str(error).splitlines()[0] if str(error) else ""
        raise CheckpointError(
            f"{directory}: its files do not fit together "
            f"({type(error).__name__}: {message}); metaevo verify says which are whole"
        ) from error


_ODD_NAMES = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
"""Errors of the system that follow from a name, not from a disk."""

_importing: contextvars.ContextVar[Path | None] = contextvars.ContextVar(
    "importing", default=None
)


def refuse_while_importing(call: str) -> None:
    """Refuse to start a run from the file of a search that is being imported.

    Raises:
        ConfigError: It is called at the top level of such a file.
    """
    file = _importing.get()
    if file is not None:
        raise ConfigError(
            f"{file}: {call} at its top level would start when the file is imported; "
            'put it under `if __name__ == "__main__":`'
        )


def function(run: Run) -> Callable[..., Any]:
    """Return the function that makes the search of a run; its file is imported.

    That of an inner loop trains what its function `make` makes, or tunes its numbers.

    Raises:
        ConfigError: There is no such function, or it lies in the run directory.
    """
    source = run.source
    if imports.below(source.file, run.directory):
        raise ConfigError(
            f"{source.file} lies in the run directory {run.directory}, from which "
            "nothing is imported"
        )
    token = _importing.set(source.file)
    try:
        module = _module(source)
    finally:
        _importing.reset(token)
    made: Any = getattr(module, source.function, None)
    made = made or getattr(module, "make", None)
    if not callable(made):
        raise ConfigError(
            f"{source.file} has no function `{source.function}` to make it by"
        )
    if not is_loop(made):
        return made
    from metaevo.cli import train

    tuned = "population_size" in run.manifest["identity"]["settings"]
    return (train.as_tuning if tuned else train.as_search)(typing.cast(Any, made))


def is_loop(function: Callable[..., Any]) -> bool:
    """Return True for an inner loop's `make`, whose environment has no default."""
    parameters = inspect.signature(function).parameters.values()
    return any(p.default is inspect.Parameter.empty for p in parameters)


def _module(source: Source) -> Any:
    """Import the file of a source, under its own name if that finds this file."""
    if source.module is not None:
        # The file is then imported by its path, which says what is wrong with it.
        with contextlib.suppress(Exception):
            module = importlib.import_module(source.module)
            if Path(module.__file__ or "").resolve() == source.file.resolve():
                return module
    return resolve.from_file(source.file)


def _named(name: str) -> Source:
    """Return the source of a search that a manifest names, for `trust=true`."""
    if name in resolve.points("searches") and name not in listing.modules("searches"):
        source = Source.of(resolve.function(name, "searches"))
        if source is not None:
            return source
    return Source(resolve.file(name, *resolve.PACKAGES))


def _check_imports(run: Run, parsed: dict[str, Any]) -> None:
    """Check that the settings of a run that is not trusted name no module or file."""
    functions = () if run.trusted else config.named_functions(parsed)
    for line in () if run.trusted else config.assignments(parsed):
        key, _, value = line.partition("=")
        if key in functions or (not key.startswith("run.") and ":" in value):
            raise ConfigError(
                f"{run.directory}: {key}={value[:80]} names a module to import, or an "
                "artifact, and this user has not started the run here; if you trust "
                "its author, add trust=true"
            )


def check_start(run: Run) -> None:
    """Check that a run that is not trusted started from nothing of this machine.

    Raises:
        ConfigError: its manifest names a path in `run.start_from`.
    """
    start = run.manifest.get("run", {}).get("start_from")
    if start is not None and not run.trusted and not str(start).startswith(ZOO_PREFIX):
        raise ConfigError(
            f"{run.directory}: run.start_from={str(start)[:80]!r} names a folder of "
            "this machine, and this user has not started the run here; if you trust "
            "its author, add trust=true"
        )
