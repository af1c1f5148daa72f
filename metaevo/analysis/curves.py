"""Curves of a run as arrays: its search, and training on held-out seeds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from metaevo.analysis import holdout, training_curve
from metaevo.storage import run_directory


class Curves(NamedTuple):
    """The curves of a run.

    Attributes:
        search: numbers of the G generations by name, [G] each: `generation`, `frames`,
            `fitness_mean` and the others of `metrics.jsonl`; NaN where there is none.
        frames: frames of one agent after each of K segments, [K], one a task.
        held_out: candidate -> return in training, [N, K] for N seeds, one a task; NaN
            where no episode ended. Empty without a comparison.
    """

    search: Mapping[str, np.ndarray]
    frames: tuple[np.ndarray, ...]
    held_out: Mapping[str, tuple[np.ndarray, ...]]


def read(directory: str | Path) -> Curves:
    """Return the curves of a run, which need not have finished.

    Raises:
        CheckpointError: its files were altered.
    """
    records = training_curve.records(directory)
    names = {name: None for record in records for name in record}
    columns = {name: [record.get(name) for record in records] for name in names}
    search = {
        name: np.array(column, float)
        for name, column in columns.items()
        if all(x is None or isinstance(x, int | float) for x in column)
    }
    folder = run_directory.paths(directory).held_out
    if not folder.is_dir():
        return Curves(search, (), {})
    runs, facts = holdout.load(folder)
    held_out = {
        name: tuple(task["return"] for task in one.train) for name, one in runs.items()
    }
    frames = tuple(
        size * np.arange(1, curve.shape[1] + 1)
        for size, curve in zip(
            facts["frames_per_segment"], next(iter(held_out.values())), strict=True
        )
    )
    return Curves(search, frames, held_out)
