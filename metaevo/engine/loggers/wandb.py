"""Repeat `metrics.jsonl` in wandb; the only importer of wandb.

This logger never changes or stops a run. Every call has a time limit. After the first
call that fails or exceeds it, one warning is printed and the logger is off for the rest
of the process. `metaevo wandb-push RUN` sends the missing records later, from the run's
files.
"""

from __future__ import annotations

import io
import json
import math
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from metaevo.config import flat
from metaevo.errors import ConfigError
from metaevo.storage import jsonl, run_directory

# Limits of a call in seconds. Their sum is the most that a dead service costs a run.
START, LOG, FINISH = 25.0, 5.0, 20.0
DRAW = 10.0  # added for a record with a picture: the first imports matplotlib
NUM_PICTURES = 20  # in a run, at most
DRAWING_SHARE = 0.01  # of the run's time, at most


class WandbLogger:
    """Log to one wandb run per run directory, also over several processes.

    Args:
        directory: the run directory; wandb's own files go below it.
        mode: `offline`, which needs no account, or `online`.
        name: name of the search.
        config: settings as plain data, nested or not.
        tags: tags of the wandb run.
        num_generations: horizon of the run, to spread pictures over it.

    Raises:
        ConfigError: a wandb sweep asks for other values than the command line.
    """

    def __init__(
        self,
        directory: Path,
        mode: str,
        name: str,
        config: Mapping[str, Any],
        tags: tuple[str, ...] = (),
        num_generations: int = 1,
    ):
        self.directory = Path(directory)
        # Set by `_start` on the worker; both modules' types are wandb's own affair.
        self.run: Any = None
        self.wandb: Any = None
        self._every = max(1, math.ceil(num_generations / NUM_PICTURES))
        self._began, self._drawing = time.monotonic(), 0.0
        self._alive = True
        self._tasks: queue.Queue = queue.Queue()
        self._state = self._remember()
        config = flat(config)
        threading.Thread(target=self._work, daemon=True).start()
        self._call(lambda: self._start(mode, name, config, tags), START)
        if self._alive and os.environ.get("WANDB_SWEEP_ID"):
            _check_sweep(dict(self.run.config), config)

    def log(
        self,
        record: Mapping[str, Any],
        draw: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        """Send the record of a generation, unless it was sent before.

        Args:
            record: a record of `metrics.jsonl` that a checkpoint covers.
            draw: makes a PNG of the solution as it is now, or returns None; called for
                some of the generations.
        """
        step = record["generation"]
        if not self._alive or step <= self._state["generation"]:
            return
        due = step // self._every > self._state["generation"] // self._every
        # Noted first: a kill in between loses this record here, but repeats none.
        self._remember(generation=step)

        def send():
            data: dict[str, Any] = {
                k: float(v) for k, v in record.items() if np.ndim(v) == 0
            }
            population = np.asarray(record["population"], float)
            population = population[np.isfinite(population)]
            if len(population):
                data["population"] = self.wandb.Histogram(population)
            if due:
                data |= self._picture(draw)
            self.run.log(data, step=step)

        self._call(send, LOG + DRAW if due else LOG)

    def _picture(self, draw: Callable[[], bytes | None]) -> dict[str, Any]:
        """The picture `evolved`, unless drawing took more than its share of the run."""
        began = time.monotonic()
        if self._drawing > DRAWING_SHARE * (began - self._began):
            return {}
        try:
            png = draw()
            if png is None:
                return {}
            from PIL import Image

            return {"evolved": self.wandb.Image(Image.open(io.BytesIO(png)))}
        except Exception as error:
            _warn(f"no picture of what evolves ({_line(error)})")
            return {}
        finally:
            self._drawing += time.monotonic() - began

    def finish(self, directory: Path) -> None:
        """Send the report's figures and the artifact of a finished run."""

        def end():
            files = run_directory.artifact_files(directory)
            figures = [path for path in files if path.suffix == ".png"]
            pictures = {f"report/{p.stem}": self.wandb.Image(str(p)) for p in figures}
            if pictures:
                self.run.log(pictures, step=self._state["generation"])
            artifact = self.wandb.Artifact(f"solution-{self._state['id']}", "evolved")
            for path in files:
                if path not in figures:
                    artifact.add_file(str(path), path.name)
            self.run.log_artifact(artifact)

        self._call(end, FINISH)

    def close(self) -> None:
        """End the wandb run; wait at most `FINISH` seconds."""
        self._call(lambda: self.run.finish(), FINISH)
        self._alive = False

    # --- within limits ----------------------------------------------------------------

    def _start(self, mode, name, config, tags) -> None:
        import wandb

        self.wandb = wandb
        os.environ.setdefault("WANDB_SILENT", "true")
        for variable, folder in (
            ("WANDB_DATA_DIR", "data"),
            ("WANDB_CACHE_DIR", "cache"),
            ("WANDB_CONFIG_DIR", "config"),
        ):
            os.environ.setdefault(variable, str(self.directory / "wandb" / folder))
        (self.directory / "wandb").mkdir(exist_ok=True)
        options = {
            "project": os.environ.get("WANDB_PROJECT", "metaevo"),
            "dir": str(self.directory),
            "id": self._state["id"],
            "name": f"{name}-{self.directory.name}",
            "group": name,
            "tags": list(tags),
            "config": dict(config),
            "resume": "allow",
            "settings": wandb.Settings(
                silent=True,
                console="off",
                init_timeout=START - 5,
                finish_timeout=FINISH - 5,
                x_disable_stats=True,
            ),
        }
        try:
            self.run = wandb.init(mode=mode, **options)
        except Exception as error:
            if mode != "online":
                raise
            # No key, no network: the same run, offline.
            _warn(f"online is not possible ({_line(error)}); continuing offline")
            self.run = wandb.init(mode="offline", **options)
        self.run.define_metric("*", step_metric="generation")

    def _call(self, task: Callable[[], None], limit: float) -> None:
        """Run `task` on the worker; turn the logger off if it fails or takes longer."""
        if not self._alive:
            return
        done = threading.Event()
        problem: list[BaseException] = []
        self._tasks.put((task, done, problem))
        if not done.wait(limit):
            self._alive = False
            _warn(f"no answer within {limit:.0f} s; {_ELSEWHERE}")
        elif problem:
            self._alive = False
            _warn(f"{_line(problem[0])}; {_ELSEWHERE}")

    def _work(self) -> None:
        while True:
            task, done, problem = self._tasks.get()
            try:
                task()
            except BaseException as error:  # wandb also raises SystemExit
                problem.append(error)
            done.set()

    def _remember(self, **changes: Any) -> dict[str, Any]:
        """Read `wandb.json`: the wandb run's id and the last generation sent.

        Args:
            **changes: new values, which are written first.
        """
        path = self.directory / "wandb.json"
        if path.exists():
            state = json.loads(path.read_text())
        else:
            name = os.environ.get("WANDB_RUN_ID") or f"{time.time_ns():x}"
            state = {"id": name, "generation": -1}
        if changes or not path.exists():
            state |= changes
            run_directory.write_json_atomic(path, state)
        self._state = state
        return state


_ELSEWHERE = "wandb is off from here on (later: metaevo wandb-push RUN)"


def _check_sweep(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Check that a sweep's values are those of the command line.

    Raises:
        ConfigError: they differ, so the sweep would record values that were not used.
    """
    for key, value in theirs.items():
        if key in ours and key in _swept() and ours[key] != value:
            raise ConfigError(
                f"{key}: the sweep says {value}, the command line {ours[key]}; pass "
                "${args_no_hyphens} in the sweep's command"
            )


def _swept() -> set[str]:
    """Return the keys that the sweep sets, from the file that its agent writes."""
    path = os.environ.get("WANDB_SWEEP_PARAM_PATH")
    if not path or not Path(path).exists():
        return set()
    import yaml

    return set(yaml.safe_load(Path(path).read_text()) or {}) - {"wandb_version"}


def push(directory: Path, mode: str = "online") -> int:
    """Send a run again from its files, from the first generation.

    Args:
        directory: the run directory.
        mode: `online` or `offline`.

    Returns:
        the number of generations sent; 0 if wandb failed.
    """
    directory = Path(directory)
    manifest = run_directory.read_manifest(directory)
    identity = manifest["identity"]
    records = jsonl.read_generations(directory / "metrics.jsonl")
    (directory / "wandb.json").unlink(missing_ok=True)
    logger = WandbLogger(directory, mode, identity["search"], identity["settings"])
    for record in records:
        logger.log({k: np.nan if v is None else v for k, v in record.items()})
    if (directory / "solution").is_dir():
        logger.finish(directory)
    sent = len(records) if logger._alive else 0
    logger.close()
    return sent


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _warn(message: str) -> None:
    warnings.warn(f"wandb: {message}", stacklevel=2)
