"""TensorBoard event files, `RUN/tensorboard/`; the only importer of tensorboardX.

This logger never stops a run: see `limits`. tensorboardX's `SummaryWriter` is not used.
It writes on a thread that a full disk ends, and waits for that thread for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.engine.loggers.limits import Limited
from metaevo.errors import ConfigError

LIMIT = 10.0  # seconds of a call


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
            from tensorboardX import event_file_writer
        except ImportError:
            raise ConfigError(
                "run.tensorboard=true needs tensorboardX: pip install tensorboardX"
            ) from None
        self._limited = Limited("tensorboard", "tensorboard is off from here on")
        self._writer: Any = None

        def start():
            from tensorboardX.proto import event_pb2

            proto: Any = event_pb2  # its names are made when it is imported
            folder = Path(directory) / "tensorboard"
            folder.mkdir(exist_ok=True)
            # Named by the second: the suffix tells a run that continues at once.
            self._writer = event_file_writer.EventsWriter(
                str(folder / "events"), f".{generation}"
            )
            began = proto.SessionLog(status=proto.SessionLog.START)
            self._write(generation, session_log=began)

        self._limited.call(start, LIMIT)

    def _write(self, step: int, **content: Any) -> None:
        from tensorboardX.proto import event_pb2

        proto: Any = event_pb2
        event = proto.Event(wall_time=time.time(), step=step, **content)
        self._writer.write_event(event)
        self._writer.flush()

    def log(
        self,
        record: Mapping[str, Any],
        draw: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        """Log the scalars of a record; no pictures."""
        del draw

        def write():
            from tensorboardX import summary
            from tensorboardX.proto import summary_pb2

            proto: Any = summary_pb2
            scalars = {k: float(x) for k, x in record.items() if np.ndim(x) == 0}
            values = [summary.scalar(k, x).value[0] for k, x in scalars.items()]
            self._write(record["generation"], summary=proto.Summary(value=values))

        self._limited.call(write, LIMIT)

    def finish(self, directory: Path) -> None:
        """Do nothing: a finished run adds no scalars."""

    def close(self) -> None:
        """Close the event file."""
        self._limited.call(lambda: self._writer.close(), LIMIT)
        self._limited.alive = False
