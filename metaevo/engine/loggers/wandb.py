"""Repeat `metrics.jsonl` in wandb; the only importer of wandb.

This logger never changes or stops a run: see `limits`. `metaevo wandb-push RUN` sends
the missing records later, from the run's files.
"""

from __future__ import annotations

import io
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from metaevo.analysis import holdout, results, verdicts
from metaevo.config import flat
from metaevo.engine.loggers import wandb_client
from metaevo.engine.loggers.limits import Limited, line
from metaevo.errors import CheckpointError, ConfigError
from metaevo.storage import own_wandb, run_directory
from metaevo.storage._files import read_json
from metaevo.storage.verified import CARD

# Limits of a call in seconds. Twice START and the others are the most that a dead
# service costs a run.
START, LOG, FINISH = 25.0, 5.0, 20.0
PUSHED = 120.0  # in place of FINISH, where sending is all that is done
DRAW = 10.0  # added for a record with a picture: the first imports matplotlib
NUM_PICTURES = 20  # in a run, at most
DRAWING_SHARE = 0.01  # of the run's time, at most
MAX_STATE = 1 << 16  # bytes of wandb.json
clock = time.monotonic


class WandbLogger:
    """Log to one wandb run per run directory, also over several processes.

    Args:
        directory: the run directory; wandb's own files go below it.
        mode: `offline`, which needs no account, or `online`.
        name: name of the search.
        config: settings as plain data, nested or not.
        tags: tags of the wandb run.
        num_generations: horizon of the run, to spread pictures over it.
        name_of_push: id of a new wandb run, which is sent in the given mode or not at
            all, and waits for the server; None: continue the run's own.

    Attributes:
        complete: no call failed until the logger was closed.

    Raises:
        ConfigError: a wandb sweep asks for other values than the command line, or the
            working directory holds settings of wandb that are not the user's.
        CheckpointError: the working directory is a run's and holds settings of wandb.
    """

    def __init__(
        self,
        directory: Path,
        mode: str,
        name: str,
        config: Mapping[str, Any],
        tags: tuple[str, ...] = (),
        num_generations: int = 1,
        name_of_push: str | None = None,
    ):
        wandb_client.check_here()
        self.directory = Path(directory).absolute()  # wandb's service is elsewhere
        # Set by `_start` on the worker; both modules' types are wandb's own affair.
        self.run: Any = None
        self.wandb: Any = None
        self._every = max(1, math.ceil(num_generations / NUM_PICTURES))
        self._began, self._drawing = clock(), 0.0
        self._environment = wandb_client.Environment()
        self._state: dict[str, Any] = {}
        self.complete = False
        self._pushes = name_of_push is not None
        if self._pushes:
            self._state = {"id": name_of_push, "generation": -1}
        self._limited = Limited(
            "wandb", "wandb is off from here on (later: metaevo wandb-push RUN)"
        )
        config = flat(config)
        _check_sweep(self._limited.call(_swept, START) or {}, config)
        options = self._limited.call(
            lambda: self._prepare(mode, name, config, tags), START
        )
        if (
            mode == "online"
            and not self._pushes
            and not self._limited.attempt(lambda: self._start("online", options), START)
        ):
            # No key, no network: the same run, offline. The service still holds the
            # run that could not be started, and would refuse another of its id.
            problem = line(self._limited.problem)
            if self.alive:
                self._limited.warn(
                    f"online is not possible ({problem}); continuing offline"
                )
            self._limited.call(lambda: self.wandb.teardown(), FINISH)
            mode = "offline"
            self._environment.set(self.directory, mode)
        if self.run is None:
            self._limited.call(lambda: self._start(mode, options), START)

    @property
    def alive(self) -> bool:
        """True while records are sent."""
        return self._limited.alive

    @property
    def folder(self) -> Path | None:
        """The folder of the wandb run; None if it has not begun."""
        return None if self.run is None else Path(self.run.dir).parent

    @property
    def _patience(self) -> float:
        """Seconds to wait for the server at the end."""
        return PUSHED if self._pushes else FINISH

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
        if not self.alive:
            return
        step = record["generation"]
        sent = self._state["generation"]
        if step <= sent:
            return
        due = step // self._every > sent // self._every

        def send():
            # Noted first: a kill in between loses this record here, but repeats none.
            self._remember(generation=step)
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

        self._limited.call(send, LOG + DRAW if due else LOG)

    def _picture(self, draw: Callable[[], bytes | None]) -> dict[str, Any]:
        """The picture `evolved`, unless drawing took more than its share of the run."""
        began = clock()
        if self._drawing > DRAWING_SHARE * (began - self._began):
            return {}
        try:
            png = draw()
            if png is None:
                return {}
            from PIL import Image

            return {"evolved": self.wandb.Image(Image.open(io.BytesIO(png)))}
        except Exception as error:
            self._limited.warn(f"no picture of what evolves ({line(error)})")
            return {}
        finally:
            self._drawing += clock() - began

    def finish(self, directory: Path) -> None:
        """Send the report's figures, the comparison and the artifact of a run."""

        def end():
            files = run_directory.artifact_files(directory)
            figures = [path for path in files if path.suffix == ".png"]
            pictures = {f"report/{p.stem}": self.wandb.Image(str(p)) for p in figures}
            if pictures:
                self.run.log(pictures, step=self._state["generation"])
            self.run.summary.update(summary(directory))
            evolved = [path for path in files if path not in figures]
            if evolved:  # nothing evolves in a training run
                self.run.log_artifact(self._artifact(directory, evolved))

        self._limited.call(end, self._patience)

    def table(self, name: str, records: Sequence[Mapping[str, Any]]) -> None:
        """Send records as a table; a key that a record lacks is empty there."""

        def cell(x):
            return json.dumps(x) if isinstance(x, list) else x

        def send():
            columns = list(dict.fromkeys(key for record in records for key in record))
            data = [[cell(record.get(x)) for x in columns] for record in records]
            made = self.wandb.Table(columns, data, allow_mixed_types=True)
            self.run.log({name: made})

        if records:
            self._limited.call(send, LOG)

    def close(self) -> None:
        """End the wandb run; wait at most `FINISH` seconds, of a push `PUSHED`."""
        if self.run is not None:
            self._limited.call(lambda: self.run.finish(), self._patience)
        self.complete, self._limited.alive = self._limited.alive, False
        self._environment.restore()

    # --- on the worker ----------------------------------------------------------------

    def _prepare(
        self, mode: str, name: str, config: Mapping[str, Any], tags: tuple[str, ...]
    ) -> dict[str, Any]:
        """Import wandb, set its folders, and return the options of its `init`."""
        (self.directory / "wandb").mkdir(exist_ok=True)
        self._environment.set(self.directory, mode)
        import wandb

        self.wandb = wandb
        self._remember()
        return {
            "project": wandb.setup().settings.project or "metaevo",
            "dir": str(self.directory),
            "id": self._state["id"],
            "name": f"{name}-{self.directory.name}",
            "group": name,
            "tags": list(tags),
            "config": wandb_client.plain(config),
            "resume": "allow",
            "settings": wandb_client.settings(wandb, START - 5, self._patience - 5),
        }

    def _artifact(self, directory: Path, files: Sequence[Path]) -> Any:
        """The solution of a run as an artifact of wandb."""
        card = run_directory.paths(directory).solution / CARD
        artifact = self.wandb.Artifact(
            f"solution-{self._state['id']}",
            "evolved",
            description=card.read_text(encoding="utf-8") if card.is_file() else None,
            metadata=_few(summary(directory)),
        )
        for path in files:
            artifact.add_file(str(path), path.name)
        return artifact

    def _start(self, mode: str, options: Mapping[str, Any]) -> None:
        run = self.wandb.init(mode=mode, **options)
        run.define_metric("*", step_metric="generation")
        self.run = run

    def _remember(self, **changes: Any) -> None:
        """Read `wandb.json`, and write it if it changes or cannot be used.

        It holds the wandb run's id and the last generation sent. The run is a new one
        unless the id is that which this user's cache holds, or WANDB_RUN_ID.

        A push writes nothing.

        Args:
            **changes: new values.
        """
        if self._pushes:
            self._state |= changes
            return
        path = self.directory / "wandb.json"
        state = self._state or _read_state(path)
        asked = os.environ.get("WANDB_RUN_ID")
        if not self._state and (
            state is None or state["id"] != (asked or own_wandb.recall(self.directory))
        ):
            name = asked or f"{time.time_ns():x}"
            state = {"id": name, "generation": -1}
            changes = state | changes
            own_wandb.remember(self.directory, name)
        if changes:
            state = (state or {}) | changes
            run_directory.write_json_atomic(path, state)
        self._state = state or {}


def _read_state(path: Path) -> dict[str, Any] | None:
    """The contents of `wandb.json`; None if there is none, or it is damaged."""
    try:
        found = read_json(path, MAX_STATE)
        return {"id": str(found["id"]), "generation": int(found["generation"])}
    except (OSError, CheckpointError, ValueError, TypeError, KeyError, OverflowError):
        return None


def summary(directory: Path) -> dict[str, float | str]:
    """Return what a finished run came to, from its files.

    Returns:
        `held_out/NAME/fitness` and `held_out/NAME/final_return`: means over held-out
        seeds, of each task; `held_out/verdict/fitness/...` and `.../final_return/...`:
        the fields of the verdicts, see `differences.Paired`;
        `agents/NAME/return`: mean over fresh episodes. Numbers that are not finite are
        left out.
    """
    held_out, facts = {}, {"measure": ""}
    folder = run_directory.paths(directory).held_out
    if folder.is_dir():
        held_out, facts = holdout.load(folder)
    compared: dict[str, list] = {"fitness": [], "final_return": []}
    for x in verdicts.verdicts(held_out, facts):
        name = "fitness" if x.measure == facts["measure"] else "final_return"
        compared[name].append(x.paired._asdict() | {"verdict": x.paired.verdict})
    scores = results.read_scores(Path(directory))
    evaluations = scores.evaluations if scores else {}
    return _numbers(
        {
            "held_out": {
                name: {
                    "fitness": _each_task(map(verdicts.average, runs.fitness)),
                    "final_return": _each_task(
                        map(verdicts.average, runs.final_return)
                    ),
                }
                for name, runs in held_out.items()
            }
            | {"verdict": {name: _each_task(x) for name, x in compared.items()}},
            "agents": {
                name: {"return": verdicts.average(x)} for name, x in evaluations.items()
            },
        }
    )


MAX_METADATA = 100  # keys of an artifact's metadata


def _few(numbers: Mapping[str, float | str]) -> dict[str, Any]:
    """The numbers as metadata of an artifact: in groups where there are too many.

    >>> _few({f"a/{i}": 0.0 for i in range(101)}).keys()
    dict_keys(['a'])
    """
    if len(numbers) <= MAX_METADATA:
        return dict(numbers)
    groups: dict[str, Any] = {}
    for key, x in numbers.items():
        first, _, rest = key.partition("/")
        groups.setdefault(first, {})[rest] = x
    return groups


def _each_task(values: Iterable[Any]) -> Any:
    """A value for each task; that of a single task as it is."""
    values = list(values)
    return values[0] if len(values) == 1 else values


def _numbers(data: Any) -> dict[str, float | str]:
    """Flatten nested data to finite numbers and texts, by `a/b/c`.

    >>> _numbers({"x": {"y": 1}, "z": (2, float("nan"))})
    {'x/y': 1.0, 'z/0': 2.0}
    """
    leaves = {
        jax.tree_util.keystr(path, simple=True, separator="/"): x
        for path, x in jax.tree_util.tree_leaves_with_path(data)
    }
    return {
        key: x if isinstance(x, str) else float(x)
        for key, x in leaves.items()
        if isinstance(x, str) or math.isfinite(x)
    }


def _check_sweep(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Check that a sweep's values are those of the command line.

    Raises:
        ConfigError: they differ, so the sweep would record values that were not used.
    """
    for key, value in theirs.items():
        if key in ours and ours[key] != value:
            raise ConfigError(
                f"{key}: the sweep says {value}, the command line {ours[key]}; pass "
                "${args_no_hyphens} in the sweep's command"
            )


def _swept() -> dict[str, Any]:
    """Return the values that a sweep sets, from the file that its agent writes."""
    path = os.environ.get("WANDB_SWEEP_PARAM_PATH")
    if not path or not Path(path).exists():
        return {}
    import yaml

    found = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    return {
        key: entry["value"]
        for key, entry in found.items()
        if key != "wandb_version" and isinstance(entry, Mapping) and "value" in entry
    }
