"""Standard output that never stops a run and that no text of a run steers.

A terminal may close, a pipe may lose its reader, a disk with a log on it may be full,
and an encoding may lack a character. What cannot be written is dropped. Control
characters and direction marks, which a stranger's run may hold, are written as escapes.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from metaevo.errors import printable

KEPT = "\n\t"
"""Control characters that are written as they are."""


class Unbreakable:
    """Text stream that writes to another one and drops what that one refuses.

    Args:
        name: `stdout` or `stderr`: the stream that `sys` has under this name when it
            is written to.
        stream: write to this stream instead.
        raw: write control characters as they are, for rich, which makes its own, and
            for a user's own search. Text of a run must pass `printable` before.
    """

    def __init__(self, name: str, stream: Any = None, raw: bool = False):
        self._name, self._stream, self._raw = name, stream, raw

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._target, attribute)

    def write(self, text: str) -> int:
        """Write `text`, with escapes for what is unseen and what the encoding lacks."""
        shown = text if self._raw else printable(text, KEPT)
        try:
            self._target.write(shown)
        except UnicodeEncodeError:
            encoding = getattr(self._target, "encoding", None) or "ascii"
            escaped = shown.encode(encoding, "backslashreplace").decode(encoding)
            self._safely(lambda: self._target.write(escaped))
        except (OSError, ValueError) as error:
            self._dropped(error)
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._safely(lambda: self._target.flush())

    def isatty(self) -> bool:
        """Return True if a terminal shows what is written."""
        try:
            return bool(self._target.isatty())
        except (OSError, ValueError, AttributeError):
            return False

    @property
    def _target(self) -> Any:
        # None where the process was started with the descriptor closed.
        found = self._stream or getattr(sys, self._name) or _NOWHERE
        return found._target if isinstance(found, Unbreakable) else found

    def _safely(self, action: Any) -> None:
        try:
            action()
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            self._dropped(error)

    def _dropped(self, error: Exception) -> None:
        """Let what a broken pipe left in buffers end nowhere, also at exit."""
        if isinstance(error, BrokenPipeError):
            try:
                number = self._target.fileno()
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)
            except (OSError, ValueError, AttributeError):
                return


class _Nowhere:
    encoding = "utf-8"

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


_NOWHERE = _Nowhere()


def protect(own: bool = False) -> None:
    """Make `sys.stdout` and `sys.stderr` unbreakable for the rest of the process.

    The first call counts. Python's own colors, of tracebacks say, are turned off where
    they would be escaped.

    Args:
        own: the process runs the user's own search, whose progress bars and colors are
            written as they are. What metaevo says is escaped before.
    """
    if not own:
        os.environ.setdefault("PYTHON_COLORS", "0")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, Unbreakable):
            setattr(sys, name, Unbreakable(name, stream or _NOWHERE, own))
