"""Files of the working directory that other programs obey, and that may be planted.

A user may work in a run directory that came from a stranger. matplotlib reads
`matplotlibrc` there when it is imported, which names programs to run and files to read.
wandb's files are in `wandb_files`. What lies in another working directory is the
user's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from metaevo.errors import CheckpointError

MATPLOTLIB = "matplotlibrc"


def steers(parts: Sequence[str]) -> bool:
    """Return True if matplotlib would obey a file, from its folder.

    Args:
        parts: names of the folders below the run directory, and of the file.
    """
    return parts[-1].casefold() == MATPLOTLIB  # some file systems ignore case


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
