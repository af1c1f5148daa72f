"""TensorBoard event files, `RUN/tensorboard/`; the only importer of tensorboardX.

This logger never stops a run: see `limits`. tensorboardX's `SummaryWriter` is not used.
It writes on a thread that a full disk ends, and waits for that thread for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.config import flat
from metaevo.engine.loggers import event_files
from metaevo.engine.loggers import wandb as outcome
from metaevo.engine.loggers.limits import Limited
from metaevo.errors import ConfigError
from metaevo.storage import jsonl, run_directory

LIMIT = 10.0  # seconds of a call
START = 60.0  # of the first, which may write the records of a long run


class TensorboardLogger:
    """Log the configuration, the scalars of each record, and the report's figures.

    Args:
        directory: the run directory.
        generation: generation at which the run continues. Later steps, which a
            crashed process may have left, are purged; earlier ones that it left out are
            written from the log.
        settings: settings as plain data, nested or not, shown as a table.

    Raises:
        ConfigError: tensorboardX is not installed.
    """

    def __init__(
        self, directory: Path, generation: int, settings: Mapping[str, Any] = {}
    ):
        try:
            from tensorboardX import event_file_writer, summary
            from tensorboardX.proto import event_pb2, summary_pb2
        except ImportError:
            raise ConfigError(
                "run.tensorboard=true needs tensorboardX: pip install tensorboardX"
            ) from None
        # The names of these modules are made when they are imported.
        self._summary: Any = summary
        self._events: Any = event_pb2
        self._summaries: Any = summary_pb2
        self._limited = Limited("tensorboard", "tensorboard is off from here on")
        self._writer: Any = None
        self._generation = generation

        def start():
            folder = Path(directory) / "tensorboard"
            folder.mkdir(exist_ok=True)
            # Named by the second: the suffix tells a run that continues at once.
            self._writer = event_file_writer.EventsWriter(
                str(folder / "events"), f".{generation}"
            )
            log = self._events.SessionLog
            self._write(generation, session_log=log(status=log.START))
            rows = (f"| {key} | {x} |" for key, x in flat(settings).items())
            self._texts({"configuration": "\n".join(["| | |", "|---|---|", *rows])})
            self._catch_up(Path(directory), event_files.steps(folder))

        self._limited.call(start, START)

    def _catch_up(self, directory: Path, there: Set[int]) -> None:
        """Write the records that a killed process left out, from the run's log.

        Args:
            directory: the run directory.
            there: generations that the event files hold.
        """
        missing = set(range(self._generation)) - there
        if missing:
            records = jsonl.read_generations(run_directory.paths(directory).metrics)
            for record in records[: self._generation]:
                if record["generation"] in missing:
                    self._scalars(record)

    def _scalars(self, record: Mapping[str, Any]) -> None:
        """Write the scalars of a record, of a generation or of the log."""
        numbers = {k: np.nan if x is None else x for k, x in record.items()}
        scalars = {k: float(x) for k, x in numbers.items() if np.ndim(x) == 0}
        values = [self._summary.scalar(k, x).value[0] for k, x in scalars.items()]
        self._write(record["generation"], summary=self._summaries.Summary(value=values))

    def _write(self, step: int, **content: Any) -> None:
        event = self._events.Event(wall_time=time.time(), step=step, **content)
        self._writer.write_event(event)
        self._writer.flush()

    def _texts(self, texts: Mapping[str, str]) -> None:
        """Write texts in Markdown by name, at the last generation."""
        for name, text in texts.items():
            self._write(self._generation, summary=self._summary.text(name, text))

    def log(
        self,
        record: Mapping[str, Any],
        draw: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        """Log the scalars of a record; no pictures."""
        del draw

        def write():
            self._scalars(record)
            self._generation = record["generation"]

        self._limited.call(write, LIMIT)

    def finish(self, directory: Path) -> None:
        """Log the report's figures, the numbers of the comparison and the card."""

        def end():
            from PIL import Image

            proto, values = self._summaries, []
            for path in run_directory.artifact_files(directory):
                if path.suffix == ".png":
                    width, height = Image.open(path).size
                    picture = proto.Summary.Image(
                        height=height,
                        width=width,
                        colorspace=3,
                        encoded_image_string=path.read_bytes(),
                    )
                    name = f"report/{path.stem}"
                    values.append(proto.Summary.Value(tag=name, image=picture))
            for key, x in outcome.summary(directory).items():
                if not isinstance(x, str):
                    values.append(self._summary.scalar(key, x).value[0])
            self._write(self._generation, summary=proto.Summary(value=values))
            card = run_directory.paths(directory).solution / "README.md"
            if card.is_file():
                self._texts({"card": card.read_text(encoding="utf-8")})

        self._limited.call(end, LIMIT)

    def close(self) -> None:
        """Close the event file."""
        self._limited.call(lambda: self._writer.close(), LIMIT)
        self._limited.alive = False
