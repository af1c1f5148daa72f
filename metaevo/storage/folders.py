"""Absolute paths in text: they name the folders of this machine, and so its user."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PATH = re.compile(
    r"""
    (?<![\w.)\]}/\\])                  # not in a word, a relative path or a URL
    (?: (?:file:/*)?~\w*[/\\]+         # a home folder
      | (?:file:/*)?[A-Za-z]:[/\\]+    # a drive
      | file:/+
      | (?<!:)[/\\]{2}(?=[^\s/\\]+[/\\])  # a server
      | /(?=[^\s/\\]+[ \w().-]*[/\\])  # a folder and what is in it
      | (?<!\s)/(?=\w)                 # an entry of the root
    )
    (?: [^\s=,"'/\\]                   # folders; there may be spaces in their names
        (?:[^=,"'\n/\\]*[^\s=,"'/\\])?
        [/\\]+
    )*
    """,
    re.VERBOSE,
)
"""An absolute path up to its last name."""


def without(data: Any) -> Any:
    """Return plain data in which absolute paths are cut to their last names.

    Args:
        data: text, or mappings, lists and tuples that hold it, as keys too.

    >>> without({"key=/home/me/x": ["C:/Users/Jane Doe/y.npz", "env=a/b", "http://a/b"]})
    {'key=.../x': ['.../y.npz', 'env=a/b', 'http://a/b']}
    """
    if isinstance(data, Mapping):
        return {without(key): without(x) for key, x in data.items()}
    if isinstance(data, list | tuple):
        return [without(x) for x in data]
    if not isinstance(data, str):
        return data
    for home in _homes():
        data = re.sub(rf"(?<!\w){re.escape(home)}(?![\w.-])", "~", data)
    return _PATH.sub(".../", data)


def _homes() -> set[str]:
    """The user's home folder as text may spell it."""
    home = os.path.abspath(os.path.expanduser("~"))
    places = {home, os.path.realpath(home)}
    places |= {Path(x).as_uri().removeprefix("file://") for x in places}
    places |= {x.replace("\\", other) for x in places for other in ("/", "\\\\")}
    return {x for x in places if len(Path(x).parts) > 1}
