"""`metaevo new KIND NAME`: files that run, to be changed.

They are written from `templates/KIND.txt`, in which NAME stands for the name.
"""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path
from typing import NamedTuple

from metaevo.cli import listing, values
from metaevo.errors import ConfigError

FOLDER = Path(__file__).parent / "templates"


class Template(NamedTuple):
    """A file that can be written.

    Attributes:
        about: what it holds.
        package: folder that it goes to, from which metaevo takes it by its name; None:
            the current folder.
        try_it: command line that checks it, or runs it at a small size.
        use_it: command line that runs it.
    """

    about: str
    package: str | None
    try_it: str
    use_it: str


TEMPLATES = {
    "search": Template(
        "a search of numbers of PPO",
        "searches",
        "metaevo run NAME --dry-run",
        "metaevo run NAME",
    ),
    "env": Template(
        "an environment",
        None,
        "metaevo train ppo env=NAME:make --dry-run",
        "metaevo train ppo env=NAME:make",
    ),
    "loss": Template(
        "a learned value loss, and its search",
        "searches",
        "metaevo run NAME --dry-run",
        "metaevo run NAME",
    ),
    "strategy": Template(
        "a strategy",
        "strategies",
        "metaevo run ppo_value_loss strategy=NAME --dry-run",
        "metaevo run ppo_value_loss strategy=NAME",
    ),
    "loop": Template(
        "an algorithm",
        "inner_loops",
        "metaevo train NAME --dry-run",
        "metaevo train NAME",
    ),
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
    template = TEMPLATES[kind]
    path = Path(template.package or "") / f"{name}.py"
    listing.import_from_here()
    _check(kind, name, path)
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text(kind, name))
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    try_it, use_it = (x.replace("NAME", name) for x in template[2:])
    return [f"{path}: {template.about}", f"try it: {try_it}", f"use it: {use_it}"]


def _check(kind: str, name: str, path: Path) -> None:
    """Check that a file of this name can be imported and hides no other.

    Raises:
        ConfigError: it cannot, or does.
    """
    package = TEMPLATES[kind].package
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ConfigError(
            f"new {kind} {name}: expected a name for a Python file, of letters, digits "
            f"and _, such as my_{kind}"
        )
    if path.exists():
        raise ConfigError(f"{path} is there already: take another name, or remove it")
    if package and listing.hidden_by(package):
        raise ConfigError(f"{path}: {listing.remedy(package)}")
    taken = listing.modules(package).get(name) if package else None
    if spec := importlib.util.find_spec(name):
        taken = spec.origin or next(iter(spec.submodule_search_locations or ()))
    if taken:
        raise ConfigError(
            f"new {kind} {name}: {path} would hide {taken}; take another name"
        )
