"""Searches and inner loops by name, by file, by module, and by entry point.

    metaevo run NAME                      searches/NAME.py here or installed, or the
                                          entry point NAME of another distribution
    metaevo run FILE.py                   its function `search`; FILE.py:FUNCTION
    metaevo run package.module:FUNCTION

Other distributions declare theirs in their own pyproject.toml:

    [project.entry-points."metaevo.searches"]
    my_search = "my_package.module:search"
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from metaevo.cli import listing, values
from metaevo.errors import ConfigError, MetaevoError
from metaevo.storage import run_directory


class Package(NamedTuple):
    """A package whose modules make runs.

    Attributes:
        kind: what one of its modules is called.
        function: the function of a module that makes a run.
        listed: the list of `metaevo list` that has them.
        command: the command that starts one.
    """

    kind: str
    function: str
    listed: str
    command: str


PACKAGES = {
    "searches": Package("search", "search", "searches", "run"),
    "inner_loops": Package("algorithm", "make", "algorithms", "train"),
}


def function(text: str, package: str) -> Callable[..., Any]:
    """Return the function that a word of the command line names; it is imported.

    Args:
        text: name, `FILE.py`, `FILE.py:FUNCTION`, or `package.module:FUNCTION`.
        package: `searches` or `inner_loops`.

    Raises:
        ConfigError: There is no such file, module or function; names the nearest.
    """
    listing.import_from_here()
    place, _, name = text.partition(":")
    name = name or PACKAGES[package].function
    modules = listing.modules(package)
    if place.endswith(".py"):
        module = from_file(Path(place), package)
    elif ":" in text:
        module = _imported(place)
    elif place in modules:
        with explained(modules[place]):
            module = importlib.import_module(f"{package}.{place}")
    elif point := points(package).get(place):
        module, name = _imported(point.module), point.attr or name
    else:
        raise ConfigError(_unknown(place, package))
    made = getattr(module, name, None)
    if not callable(made):
        hint = values.nearest(name, vars(module))
        raise ConfigError(f"{module.__file__} has no function {name!r}.{hint}")
    return made


def points(package: str) -> dict[str, metadata.EntryPoint]:
    """Return what other distributions declare, by name; nothing is imported."""
    declared = metadata.entry_points(group=f"metaevo.{package}")
    return {point.name: point for point in declared}


def file(name: str, *packages: str) -> Path:
    """Return the source file of a module, the current folder's or an installed one.

    Raises:
        ConfigError: There is none; names the nearest.
    """
    listing.import_from_here()
    for package in packages:
        if path := listing.modules(package).get(name):
            return path.absolute()
    raise ConfigError(_unknown(name, packages[0]))


def from_file(path: Path, package: str = "searches") -> ModuleType:
    """Import a file, under the name that it has in its folder's package.

    Raises:
        ConfigError: There is no such file; names the module that may be meant.
    """
    if not path.is_file():
        known = path.stem in listing.modules(package)
        hint = "." + values.did_you_mean([path.stem]) if known else ""
        raise ConfigError(f"{path}: no such file{hint}")
    folder = path.absolute().parent
    package = folder.name if folder.name in PACKAGES else package
    root = str(folder.parent if folder.name in PACKAGES else folder)
    if root not in sys.path:
        # As Python does for a program: files beside it can be imported.
        sys.path.insert(0, root)
    name = f"{package}.{path.stem}"
    module = sys.modules.get(name)
    if module is not None and Path(module.__file__ or "").resolve() == path.resolve():
        return module
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    assert spec is not None, "a file that ends in .py"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with explained(path):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _imported(name: str) -> ModuleType:
    package, dot, _ = name.rpartition(".")
    if dot:
        _imported(package)  # finding a module of it would import it
    try:
        spec = importlib.util.find_spec(name)
        file = Path(name if spec is None else spec.origin or name)
        with explained(file):
            return importlib.import_module(name)
    except (ImportError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{name}: {error}") from None


@contextlib.contextmanager
def explained(file: Path) -> Iterator[None]:
    """Say in one line why a user's file cannot be imported.

    Args:
        file: The file.

    Raises:
        ConfigError: It cannot; names the file and the line that failed.
    """
    try:
        yield
    except MetaevoError:
        raise
    except Exception as error:
        raise ConfigError(_reason(error, file)) from None


def _reason(error: Exception, file: Path) -> str:
    """Return the file and the line at which an import failed, and the error."""
    if isinstance(error, ImportError):
        package = str(error.name).partition(".")[0]
        if package in (*PACKAGES, "strategies") and listing.hidden_by(package):
            return f"{file}: {error.msg}; {listing.remedy(package)}"
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno) for frame in frames]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    folder = file.absolute().parent
    inside = [
        (name, line)
        for name, line in places
        if not name.startswith("<")
        and Path(name).absolute().is_relative_to(folder)
        and "site-packages" not in Path(name).parts
    ]
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    first = (message.splitlines() or [""])[0]
    where, line = (inside or [(str(file), None)])[-1]
    shown = f"{where}:{line}" if line else where
    return f"{shown}: {type(error).__name__}: {first}".removesuffix(": ")


def _unknown(name: str, package: str) -> str:
    """Return the message about a name that nothing has, with what may be meant."""
    kind, _, listed, _ = PACKAGES[package]
    starts = [
        f"metaevo {other.command} {name}"
        for key, other in PACKAGES.items()
        if key != package and name in listing.modules(key)
    ]
    known = [*listing.modules(package), *points(package)]
    if listing.hidden_by(package):
        hint = f" {listing.remedy(package)}."
    elif starts:
        hint = values.did_you_mean(starts)
    elif Path(f"{name}.py").is_file():
        hint = values.did_you_mean([f"{name}.py"])
    elif run_directory.has_manifest(name):
        hint = values.did_you_mean([f"metaevo resume {name}"])
    else:
        hint = values.nearest(name.lower(), known)
    return f"no {kind} {name!r}.{hint} Try: metaevo list {listed}"
