"""Files of the working directory that other programs obey, and that may be planted.

A user may work in a run directory that came from a stranger. matplotlib reads
`matplotlibrc` there when it is imported, which names programs to run and files to read.
wandb's files are in `wandb_files`.
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


def check_here() -> None:
    """Check that matplotlib would obey no file of a run directory.

    A `matplotlibrc` in another working directory is the user's.

    Raises:
        CheckpointError: there is one in the working directory, which is a run's or
            below it.
    """
    try:
        here = Path.cwd()
    except OSError:  # it was deleted
        return
    folders = (here, *here.parents)
    in_a_run = any(os.path.lexists(x / "manifest.json") for x in folders)
    if in_a_run and os.path.lexists(here / MATPLOTLIB):
        raise CheckpointError(
            f"{here / MATPLOTLIB} would steer matplotlib, and lies in the directory of "
            "a run; remove it"
        )
