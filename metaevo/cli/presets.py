"""Presets: `key=value` arguments from a file, `preset=FILE`.

A line holds one argument. Blank lines and those that begin with `#` are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from metaevo.errors import ConfigError

KEY = "preset"


def expanded(argv: Sequence[str]) -> list[str]:
    """Return arguments with those of a preset's file in the place of `preset=FILE`.

    The last argument of a key counts: those behind `preset=FILE` change the preset's.

    Raises:
        ConfigError: there is no such file, or a line of it is no `key=value`.
    """
    found: list[str] = []
    for arg in argv:
        key, equals, path = arg.partition("=")
        found += _read(path) if key == KEY and equals else [arg]
    return found


def text(arguments: Iterable[str], about: str) -> str:
    """Return the content of a preset's file.

    Args:
        arguments: `key=value`.
        about: its first line, a comment.
    """
    return "\n".join([f"# {about}", *arguments, ""])


def _read(path: str) -> list[str]:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{KEY}={path}: {error}") from None
    found = [line.strip() for line in lines]
    found = [line for line in found if line and not line.startswith("#")]
    for line in found:
        if "=" not in line or line.startswith((f"{KEY}=", "-")):
            raise ConfigError(f"{KEY}={path}: {line[:80]!r} is no key=value")
    return found
