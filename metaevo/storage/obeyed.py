"""Files of a folder that other programs obey, and that may be planted in a run's.

A run directory may come from a stranger, and a user may work in it. matplotlib reads
`matplotlibrc` of the working directory when it is imported, which names programs to run
and files to read. wandb obeys settings in the folder `wandb` there: such a file could
name another host, and wandb would send the user's key to it. What lies in another
working directory is the user's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from metaevo.errors import CheckpointError

MATPLOTLIB = "matplotlibrc"
WANDB_SETTINGS = ("wandb/settings", ".wandb/settings")
"""wandb's settings of a working directory."""
WANDB_DEFAULTS = "config-defaults.yaml"
"""wandb's configuration of a working directory."""

_OBEYED = {
    "wandb": r"(.*/)?(\.?wandb/settings|config-defaults\.yaml)|wandb/config/.+",
    "matplotlib": r"(.*/)?matplotlibrc",
}
_LINKS = re.compile(
    r"wandb/(latest-run|debug\.log|debug-internal\.log)"
    r"|wandb/(offline-)?run-[^/]*/logs/debug-core\.log"
)


def program_steered_by(parts: Sequence[str]) -> str | None:
    """Return the program that would obey a file, from some folder of a run directory.

    Args:
        parts: names of the folders below the run directory, and of the file.

    >>> program_steered_by(("a", "wandb", "settings"))
    'wandb'
    >>> program_steered_by(("wandb", "config", "settings"))
    'wandb'
    >>> program_steered_by(("wandb", "offline-run-1", "files", "config.yaml"))
    """
    path = "/".join(parts).casefold()  # some file systems ignore case
    for program, names in _OBEYED.items():
        if re.fullmatch(names, path, re.DOTALL):
            return program
    return None


def may_link(parts: Sequence[str]) -> bool:
    """Return True if wandb makes a link of this name, which only wandb uses.

    Args:
        parts: names of the folders below the run directory, and of the link.

    >>> may_link(("wandb", "latest-run")), may_link(("wandb", "data", "latest-run"))
    (True, False)
    """
    return _LINKS.fullmatch("/".join(parts)) is not None


def run_here() -> Path | None:
    """Return the working directory if it is a run's or below it, else None."""
    try:
        here = Path.cwd()
    except OSError:  # it was deleted
        return None
    folders = (here, *here.parents)
    in_a_run = any(os.path.lexists(x / "manifest.json") for x in folders)
    return here if in_a_run else None


def planted(*names: str) -> Path | None:
    """Return the first of some files that is in the working directory of a run.

    Args:
        names: paths below the working directory.
    """
    here = run_here()
    paths = [here / name for name in names] if here else []
    return next((path for path in paths if os.path.lexists(path)), None)


def check_here() -> None:
    """Check that matplotlib would obey no file of a run directory.

    Raises:
        CheckpointError: there is one in the working directory, which is a run's or
            below it.
    """
    found = planted(MATPLOTLIB)
    if found is not None:
        raise CheckpointError(
            f"{found} would steer matplotlib, and lies in the directory of a run; "
            "remove it"
        )
