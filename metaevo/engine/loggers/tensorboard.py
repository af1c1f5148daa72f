"""TensorBoard event files, `RUN/tensorboard/`; the only importer of tensorboardX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.errors import ConfigError


class TensorboardLogger:
    """Log the scalars of each record against the generation.

    Args:
        directory: the run directory.
        generation: generation at which the run continues. Later steps, which a
            crashed process may have left, are purged.

    Raises:
        ConfigError: tensorboardX is not installed.
    """

    def __init__(self, directory: Path, generation: int):
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ConfigError(
                "run.tensorboard=true needs tensorboardX: pip install tensorboardX"
            ) from None
        folder = str(Path(directory) / "tensorboard")
        self._writer = SummaryWriter(folder, purge_step=generation)

    def log(
        self,
        record: Mapping[str, Any],
        draw: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        """Log the scalars of a record; no pictures."""
        del draw
        for name, x in record.items():
            if np.ndim(x) == 0:
                self._writer.add_scalar(name, float(x), record["generation"])
        self._writer.flush()

    def finish(self, directory: Path) -> None:
        """Do nothing: a finished run adds no scalars."""

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
