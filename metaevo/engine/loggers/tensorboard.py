"""TensorBoard event files, `RUN/tensorboard/`; the only importer of tensorboardX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.errors import ConfigError


class TensorboardLogger:
    """Scalars of each record against generation.

    Args:
        directory: of the run.
        generation: where it continues: later steps of an earlier try are purged.

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
        self, record: Mapping[str, Any], draw: Callable[[], bytes | None] | None = None
    ) -> None:
        del draw  # scalars only
        for name, x in record.items():
            if np.ndim(x) == 0:
                self._writer.add_scalar(name, float(x), record["generation"])
        self._writer.flush()

    def finish(self, directory: Path) -> None:
        """A finished run has nothing to add."""

    def close(self) -> None:
        self._writer.close()
