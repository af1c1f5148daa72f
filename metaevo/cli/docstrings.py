"""Descriptions of parameters and fields, read from docstrings.

A section `Args:` or `Attributes:` has entries `name: text`. An entry may describe
several names, `first, second: text`, and give a type, `name (int): text`.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

SECTIONS = ("Args", "Arguments", "Parameters", "Attributes")
_ENTRY = re.compile(r"(\w+(?:, *\w+)*)(?: *\([^)]*\))?: *(.*)")
# A full stop ends a sentence, unless it belongs to one of these abbreviations.
_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!\bal)(?<!\bcf)(?<!\bvs)\.(?=\s|$)")


def descriptions(documented: Any) -> dict[str, str]:
    """Return the description of each name that a function or class documents.

    The entries of a class hold for the classes that inherit from it.

    >>> class Sizes:
    ...     '''Sizes.
    ...
    ...     Attributes:
    ...         width, height: in meters,
    ...             at least 1. Rounded.
    ...     '''
    >>> descriptions(Sizes)["height"]
    'in meters, at least 1. Rounded.'
    """
    found: dict[str, str] = {}
    classes = reversed(documented.__mro__) if isinstance(documented, type) else ()
    for owner in classes or (documented,):
        found |= entries(vars(owner).get("__doc__") if classes else owner.__doc__)
    return found


def entries(text: str | None) -> dict[str, str]:
    """Return the entries of the sections of a docstring, name -> text in one line.

    >>> entries("Search.\\n\\nArgs:\\n    size (int): of it.\\n\\nReturns:\\n    No.")
    {'size': 'of it.'}
    """
    found: dict[str, list[str]] = {}
    inside, margin, names = False, None, []
    for line in inspect.cleandoc(text or "").splitlines():
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            continue
        if indent == 0:
            inside, margin = line.strip().rstrip(":") in SECTIONS, None
            inside = inside and line.rstrip().endswith(":")
            continue
        if not inside:
            continue
        margin = indent if margin is None else margin
        entry = _ENTRY.match(line.strip()) if indent <= margin else None
        if entry:
            names = [name.strip() for name in entry[1].split(",")]
            found |= {name: [entry[2]] for name in names}
        elif indent > margin:
            for name in names:
                found[name].append(line.strip())
        else:
            names = []
    return {name: " ".join(filter(None, lines)) for name, lines in found.items()}


def prose(documented: Any) -> str:
    """Return a docstring up to its first section; empty without one."""
    text = inspect.cleandoc(getattr(documented, "__doc__", None) or "")
    return re.split(r"(?m)^[A-Z][a-z]+:\n\s", text, maxsplit=1)[0].strip()


def summary(documented: Any) -> str:
    """Return the first sentence of a docstring; empty without one.

    Docstrings that `dataclass` and `NamedTuple` make of the fields do not count.
    """
    text, name = prose(documented), getattr(documented, "__name__", "")
    return "" if text.startswith(f"{name}(") else sentence(text.split("\n\n")[0])


def sentence(text: str) -> str:
    """Return the first sentence, in one line and without its full stop.

    >>> sentence("of 1.5 times (Lu et al. 2022),\\n  or none. Another one.")
    'of 1.5 times (Lu et al. 2022), or none'
    """
    return _END.split(" ".join(text.split()), maxsplit=1)[0]


def wrapped(text: str, width: int, **options: Any) -> list[str]:
    """Return `textwrap.wrap`, by which a short text in backticks stays in one line."""
    held = re.sub(r"`[^`]{,40}`", lambda x: x[0].replace(" ", "\xa0"), text)
    options = {"break_on_hyphens": False, "break_long_words": False} | options
    lines = textwrap.wrap(held, width, **options)
    return [line.replace("\xa0", " ") for line in lines]


def document(text: str, width: int) -> list[str]:
    """Return a docstring in lines of at most `width`, where that needs no layout."""
    if max(map(len, text.splitlines())) <= width:
        return text.splitlines()
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        lines += [""] if lines else []
        for item in re.split(r"\n(?=[*-] )", paragraph):
            bullet = item.startswith(("* ", "- "))
            rest = item.splitlines()[1:]
            if any(line.startswith("   " if bullet else " ") for line in rest):
                lines += item.splitlines()
                continue
            indent = "  " if bullet else ""
            lines += wrapped(" ".join(item.split()), width, subsequent_indent=indent)
    return lines
