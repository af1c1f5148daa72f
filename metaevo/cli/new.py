"""`metaevo new KIND NAME`: files that run, to be changed.

They are written from `templates/KIND.txt`, in which NAME stands for the name.
"""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.cli import listing, values
from metaevo.errors import ConfigError

FOLDER = Path(__file__).parent / "templates"


class Template(NamedTuple):
    """A file that can be written.

    Attributes:
        about: what it holds.
        package: folder that it goes to, from which metaevo takes it by its name; empty:
            the current folder.
        command: runs it.
    """

    about: str
    package: str
    command: str


TEMPLATES = {
    "search": Template("a search of numbers of PPO", "searches", "metaevo run NAME"),
    "env": Template("an environment", "", "metaevo train ppo env=NAME:make"),
    "loss": Template("a learned loss and its search", "searches", "metaevo run NAME"),
    "strategy": Template(
        "a strategy", "strategies", "metaevo run ppo_value_loss strategy=NAME"
    ),
    "loop": Template("an algorithm", "inner_loops", "metaevo train NAME"),
}


def text(kind: str, name: str) -> str:
    """Return the content of a new file."""
    template = (FOLDER / f"{kind}.txt").read_text(encoding="utf-8")
    return template.replace("NAME", name)


def write(kind: str, name: str) -> list[str]:
    """Write a new file below the current folder.

    Args:
        kind: a key of `TEMPLATES`.
        name: of the file, without `.py`.

    Returns:
        lines that name the file and the next commands.

    Raises:
        ConfigError: there is no such kind, the name is no name of a module or taken, or
            the file cannot be written.
    """
    if kind not in TEMPLATES:
        hint = values.nearest(kind, TEMPLATES)
        raise ConfigError(
            f"new {kind!r}: expected one of {', '.join(TEMPLATES)}.{hint}"
        )
    about, package, command = TEMPLATES[kind]
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ConfigError(
            f"new {kind} {name}: expected a name for a Python file, of letters, digits "
            f"and _, such as my_{kind}"
        )
    path = Path(package) / f"{name}.py"
    listing.import_from_here()
    if not path.exists() and (taken := _hidden(name, package)):
        raise ConfigError(
            f"new {kind} {name}: {path} would hide {taken}; take another name"
        )
    if package and listing.hidden_by(package):
        raise ConfigError(f"{path}: {listing.remedy(package)}")
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text(kind, name))
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(
            f"{path} is there already: take another name, or remove it"
        ) from None
    command = command.replace("NAME", name)
    return [f"{path}: {about}", f"try it: {command} --dry-run", f"use it: {command}"]


def _hidden(name: str, package: str) -> Any:
    """Return the place of a module that a new one would hide; None if it hides none."""
    spec = importlib.util.find_spec(name)
    own = listing.modules(package).get(name) if package else None
    return own or (spec and (spec.origin or [*(spec.submodule_search_locations or ())]))
