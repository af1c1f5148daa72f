"""Let examples in docstrings stand as blocks of code on the site.

An extension of griffe, which reads the docstrings; `mkdocs.yml` names it. Markdown
takes `>>>` for quotes.
"""

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^[ \t]*>>> .*\n(?:[ \t]*\S.*\n?)*)+", re.M)


def fenced(text: str) -> str:
    r"""Return a docstring with fences around its examples.

    >>> fenced("One.\n\n>>> 1 + 1\n2\n")
    'One.\n\n```pycon\n>>> 1 + 1\n2\n```\n'
    """
    return _EXAMPLE.sub(lambda x: f"```pycon\n{x[0].rstrip()}\n```\n", text)


class DoctestBlocks(griffe.Extension):
    """Fences the examples of each docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
