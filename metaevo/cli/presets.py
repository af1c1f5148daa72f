"""Presets: `key=value` arguments from a file, `preset=NAME` or `preset=FILE`.

    metaevo train ppo preset=minatar env=gymnax/Breakout-MinAtar

A line of a file holds one argument. Blank lines and those that begin with `#` are left
out; the first says what the preset is for. `metaevo/presets/LOOP/NAME.txt` are those of
an inner loop. docs/log/algorithms.md has their scores, and names those that were not
run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from metaevo.errors import ConfigError

KEY = "preset"
FOLDER = Path(__file__).parents[1] / "presets"


def expanded(argv: Sequence[str], search: Callable[..., Any]) -> list[str]:
    """Return arguments with those of presets in the place of `preset=...`.

    The last argument of a key counts: those behind `preset=...` change the preset's.

    Args:
        search: search function; the presets of its inner loop have names.

    Raises:
        ConfigError: there is no such preset or file, or a line of it is no `key=value`.
    """
    found: list[str] = []
    for arg in argv:
        key, equals, name = arg.partition("=")
        found += _read(name, named(search)) if key == KEY and equals else [arg]
    return found


def named(search: Callable[..., Any]) -> dict[str, Path]:
    """Return the presets of a search's inner loop, by name."""
    inner = inspect.signature(search).parameters.get("inner")
    loop = type(getattr(inner, "default", None)).__module__.rpartition(".")[2]
    return {path.stem: path for path in sorted((FOLDER / loop).glob("*.txt"))}


def every() -> dict[str, Path]:
    """Return all presets, as ALGORITHM/NAME."""
    paths = sorted(FOLDER.glob("*/*.txt"))
    return {f"{path.parent.name}/{path.stem}": path for path in paths}


def about(path: Path) -> str:
    """Return what a preset is for: the first line of its file."""
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def text(arguments: Iterable[str], about: str) -> str:
    """Return the content of a preset's file.

    Args:
        arguments: `key=value`.
        about: its first line, a comment.
    """
    return "\n".join([f"# {about}", *arguments, ""])


def _read(name: str, names: dict[str, Path]) -> list[str]:
    try:
        lines = names.get(name, Path(name)).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        known = f"; named here: {', '.join(names)}" if names else ""
        raise ConfigError(f"{KEY}={name}: {error}{known}") from None
    found = [line.strip() for line in lines]
    found = [line for line in found if line and not line.startswith("#")]
    for line in found:
        if "=" not in line or line.startswith((f"{KEY}=", "-")):
            raise ConfigError(f"{KEY}={name}: {line[:80]!r} is no key=value")
    return found
