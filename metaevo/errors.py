"""Exceptions of metaevo, each with the exit code of the command line.

Everything else that is raised is a defect of metaevo or of a user's own code, and is
shown with its traceback.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable

LONGEST = 4000  # characters of a message
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2\u180e"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Characters that steer a terminal or a reader and are not seen: control characters,
direction marks and other format characters, line separators, lone surrogates."""


def printable(text: str, keep: str = "") -> str:
    """Return text with escapes in place of characters that are not seen.

    Text of a run directory may come from a stranger. Raw, it could set the title of a
    terminal, clear it, or write over what stands there.

    Args:
        text: any text.
        keep: characters that stay as they are, such as a line break.

    >>> printable("a" + chr(27) + "[2J") == "a" + chr(92) + "x1b[2J"
    True
    """

    def escaped(found: re.Match) -> str:
        c = found[0]
        return c if c in keep else c.encode("unicode_escape").decode("ascii")

    return text if text.isprintable() else _UNSEEN.sub(escaped, text)


def raised(error: Exception, function: Callable) -> str:
    """Return what a user's function raised, and the last of its file's lines there.

    Args:
        error: what it raised; its message is cut after the first line.
        function: of the file.

    >>> raised(KeyError("x"), printable)
    "KeyError: 'x'"
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    own = None if code is None else code.co_filename
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == own]
    where = f" in line {lines[-1]} of {printable(str(own))}" if lines else ""
    text = [*printable(str(error), "\n").splitlines(), ""][0]
    return f"{type(error).__name__}{where}: {text}".removesuffix(": ")


class MetaevoError(Exception):
    """Base of the exceptions whose message alone is enough for a user.

    The message is shown with escapes for characters that are not seen, and cut where it
    is longer than `LONGEST`. Further arguments follow it, each in a line of its own.

    Attributes:
        exit_code: exit code of a command that ends with this exception.
    """

    exit_code = 1

    def __str__(self) -> str:
        parts = [str(x) for x in self.args]
        cut = sum(map(len, parts)) - LONGEST
        shown = "\n  ".join(printable(x[:LONGEST]) for x in parts)
        return f"{shown[:LONGEST]} ... ({cut} characters more)" if cut > 0 else shown


class ConfigError(MetaevoError, ValueError):
    """The user's input is wrong. The message names the key and the remedy."""

    exit_code = 2


class LockedError(MetaevoError):
    """Another process works on this run directory."""

    exit_code = 3


class CheckpointError(MetaevoError):
    """The files of a run are missing or damaged; the message names them."""

    exit_code = 4


class ArtifactError(MetaevoError):
    """An artifact is missing, altered, or not an artifact; the message says which."""

    exit_code = 4


class NotImportedError(ArtifactError):
    """A learned function of a user is not here; the message names the remedy."""


class UploadError(MetaevoError):
    """A run was not sent, or not all of it; the message says where the data are."""

    exit_code = 1


class NumericalError(MetaevoError):
    """Every member failed in three generations in a row, or in all of a run."""

    exit_code = 5


class HostError(MetaevoError, RuntimeError):
    """The evaluation of some members fails on every host; the message names them."""

    exit_code = 7


class InterruptedRunError(MetaevoError):
    """The run was asked to stop; it continues when started again."""

    exit_code = 75
