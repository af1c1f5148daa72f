"""Names of wandb's files: which of them may be in a run directory.

A run directory may come from a stranger. wandb obeys settings in the folder `wandb` of
the working directory, and a user may work in a run's. Such a file could name another
host, and wandb would send the user's key there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SETTINGS = (("wandb", "settings"), (".wandb", "settings"))
"""wandb's settings of a working directory, as folder and file."""
HARMLESS = ("entity", "project", "mode")
"""Settings of a working directory that name no host, key or file: those that wandb's
own commands write there."""
DEFAULTS = "config-defaults.yaml"
"""wandb's configuration of a working directory."""
OLD_CONFIG = ("wandb", "config")
"""Folder for wandb's settings in a run of metaevo 0.2 and before."""

_LINKS = re.compile(
    r"wandb/(latest-run|debug\.log|debug-internal\.log)"
    r"|wandb/(offline-)?run-[^/]*/logs/debug-core\.log"
)


def may_link(parts: Sequence[str]) -> bool:
    """Return True if wandb makes a link of this name, which only wandb uses.

    Args:
        parts: names of the folders below the run directory, and of the link.

    >>> may_link(("wandb", "latest-run")), may_link(("wandb", "data", "latest-run"))
    (True, False)
    """
    return _LINKS.fullmatch("/".join(parts)) is not None


def steers(parts: Sequence[str]) -> bool:
    """Return True if wandb would obey a file, from some folder of its run directory.

    Args:
        parts: names of the folders below the run directory, and of the file.

    >>> steers(("wandb", "settings")), steers(("wandb", "config", "settings"))
    (True, True)
    >>> steers(("wandb", "offline-run-1", "files", "config.yaml"))
    False
    """
    names = tuple(x.casefold() for x in parts)  # some file systems ignore case
    return (
        names[-2:] in SETTINGS
        or names[-1:] == (DEFAULTS,)
        or (names[:2] == OLD_CONFIG and len(names) > 2)
    )
