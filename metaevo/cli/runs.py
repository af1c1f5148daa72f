"""Searches by name, and the searches of runs.

A run directory may come from a stranger. Without a record of this user's own run (see
`metaevo.storage.own_runs`) or `trust=true`, its manifest is data: it names a search of
the installed metaevo and values of its keys, and nothing else is imported for it.
Nothing below a run directory is ever imported.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.cli import config, listing, train
from metaevo.errors import CheckpointError, ConfigError, MetaevoError
from metaevo.storage import own_runs
from metaevo.storage.run_directory import read_manifest, require_finished
from metaevo.types import Search

PACKAGES = {
    "searches": ("search", "searches"),
    "inner_loops": ("algorithm", "algorithms"),
}
"""Packages whose modules make runs: what one of theirs is called, and its list."""

INSTALLED = Path(__file__).resolve().parents[2]
"""The folder of the packages metaevo, searches, inner_loops and strategies."""


class Run(NamedTuple):
    """A run, and what its search is made again from.

    Attributes:
        directory: Directory of the run.
        manifest: Its manifest.
        file: Source file of the search.
        changes: `key=value` arguments of the search.
        trusted: Whether user code may be imported: it is this user's own run, or the
            user says so.
    """

    directory: Path
    manifest: dict[str, Any]
    file: Path
    changes: tuple[str, ...]
    trusted: bool


def known(name: str, package: str) -> str:
    """Return `name` if there is such a module in `searches` or `inner_loops`.

    Raises:
        ConfigError: There is none; the message names the nearest one.
    """
    _file(name, package)
    return name


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
        if not own.file.is_file():
            raise ConfigError(
                f"{directory}: its search, {own.file}, is gone; put it back"
            )
        if own.file_changed:
            print(
                f"warning: {own.file} has changed since {directory} was last started",
                file=sys.stderr,
            )
        return Run(directory, manifest, own.file, own.changes, True)
    places = [INSTALLED / package / f"{name}.py" for package in PACKAGES]
    installed = next((path for path in places if path.is_file()), places[0])
    if trust:
        return Run(directory, manifest, _file(name, *PACKAGES), changes, True)
    if not name.isidentifier() or name.startswith("_") or not installed.is_file():
        raise ConfigError(
            f"{directory}: its search {name[:80]!r} is none of the installed ones, and "
            "this user has not started the run here; if you trust its author, add "
            f"trust=true, which imports searches.{name[:80]}"
        )
    return Run(directory, manifest, installed, changes, False)


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
    with importing(run), as_data(run):
        search = _function(run)
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
        with importing(run), as_data(run):
            search = _function(run)
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
    current folder is not looked into, either.
    """
    here = Path.cwd().resolve()
    folder = run.file.parent
    places = [str(folder.parent if folder.name in PACKAGES else folder)]
    if run.trusted:
        places += ["", *sys.path]
    else:
        inside = (p for p in sys.path if p and Path(p).resolve() != here)
        places += [p for p in inside if not _below(p, run.directory)]
    finder = _NothingBelow(run.directory)
    before = sys.path[:]
    sys.path[:] = places
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.path[:] = before
        sys.meta_path.remove(finder)


class _NothingBelow:
    """Finder of modules that refuses those below a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin and _below(spec.origin, self.folder):
            raise ImportError(
                f"{name} lies in the run directory {self.folder}, from which nothing "
                "is imported"
            )


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
    """
    try:
        yield
    except (MetaevoError, OSError):
        raise
    except Exception as error:
        message = str(error).splitlines()[0] if str(error) else ""
        raise CheckpointError(
            f"{directory}: its files do not fit together "
            f"({type(error).__name__}: {message}); metaevo verify says which are whole"
        ) from error


def _file(name: str, *packages: str) -> Path:
    """The source file of a module, the current folder's or an installed one."""
    listing.import_from_here()
    files = {path.stem: path for p in reversed(packages) for path in listing.modules(p)}
    if name not in files:
        near = difflib.get_close_matches(name, files, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        kind, listed = PACKAGES[packages[0]]
        raise ConfigError(f"no {kind} {name!r}.{hint} Try: metaevo list {listed}")
    return files[name].absolute()


def _function(run: Run) -> Any:
    """The function `search` of a run's source file, which is imported.

    That of an inner loop trains what its function `make` makes.
    """
    if _below(run.file, run.directory):
        raise ConfigError(
            f"{run.file} lies in the run directory {run.directory}, from which nothing "
            "is imported"
        )
    package = run.file.parent.name
    name = f"{package if package in PACKAGES else 'searches'}.{run.file.stem}"
    module = sys.modules.get(name)
    if module is None or Path(module.__file__ or "").resolve() != run.file.resolve():
        spec = importlib.util.spec_from_file_location(name, run.file)
        assert spec is not None, "a file that ends in .py"
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    search = getattr(module, "search", None)
    if search is None and hasattr(module, "make"):
        return train.as_search(module.make)
    if search is None:
        raise ConfigError(f"{run.file} has no function `search` to make it by")
    return search


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


def _below(path: str | Path, folder: str | Path) -> bool:
    real = os.path.realpath(path)
    return Path(real).is_relative_to(os.path.realpath(folder))
