"""Exceptions of metaevo, each with the exit code of the command line.

Everything else that is raised is a defect of metaevo or of a user's own code, and is
shown with its traceback.
"""

from __future__ import annotations


class MetaevoError(Exception):
    """Base of the exceptions whose message alone is enough for a user.

    Attributes:
        exit_code: exit code of a command that ends with this exception.
    """

    exit_code = 1


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


class NumericalError(MetaevoError):
    """Every member failed in three generations in a row."""

    exit_code = 5


class HostError(MetaevoError, RuntimeError):
    """The evaluation of some members fails on every host; the message names them."""

    exit_code = 7


class InterruptedRunError(MetaevoError):
    """The run was asked to stop; it continues when started again."""

    exit_code = 75
