"""Several searches that differ in their seed, one after another, and their comparison.

One search says what its solution is worth. Only several say what searching is worth.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from metaevo.analysis import results
from metaevo.config import RunConfig
from metaevo.engine import candidates, compare, preparation
from metaevo.engine.result import Result
from metaevo.errors import ConfigError
from metaevo.evaluators.devices import choose_devices
from metaevo.storage import run_directory
from metaevo.types import Search


def run(
    search: Search,
    config: RunConfig,
    name: str,
    run_one: Callable[[RunConfig], Result | None],
    should_stop: Callable[[], bool],
) -> None:
    """Run or resume `run.seeds` searches, and compare what they found.

    Searches that are done are not run again, so the same command continues where it
    stopped, and a larger `run.seeds` adds searches.

    Args:
        search: The search.
        config: How to run it.
        name: Name of the search.
        run_one: Runs the search with one seed.
        should_stop: Asked often; True abandons what is being done.

    Raises:
        ConfigError: `run.directory` holds a run, or nothing evolves.
        InterruptedRunError: `should_stop` or `run.max_seconds` ended the command.
    """
    preparation.prepare(search, config)
    configs = each(config)
    root = None if config.directory is None else Path(config.directory)
    limit = float("inf") if config.max_seconds is None else config.max_seconds
    deadline = time.monotonic() + limit
    found = []
    for i, one in enumerate(configs):
        left = max(deadline - time.monotonic(), 0.0)
        print(f"search {i + 1} of {config.seeds}: run.seed={one.seed}", flush=True)
        max_seconds = None if config.max_seconds is None else left
        result = run_one(dataclasses.replace(one, max_seconds=max_seconds))
        assert result is not None, "this is the only process"
        found.append(result.directory)
    for line in _compared(
        search,
        config,
        name,
        found,
        root or found[0],
        lambda: should_stop() or time.monotonic() > deadline,
    ):
        print(line)


def each(config: RunConfig) -> list[RunConfig]:
    """Return the options of each of `run.seeds` searches; itself if it is one.

    Raises:
        ConfigError: `run.directory` holds a run, and there are several.
    """
    root = config.directory
    if config.seeds == 1:
        return [config]
    if root is not None and run_directory.has_manifest(root):
        raise ConfigError(
            f"run.directory={root} holds a run; run.seeds={config.seeds} needs a "
            "directory for several"
        )
    folders = [None] * config.seeds if root is None else directories(root, config)
    return [
        dataclasses.replace(
            config, seed=config.seed + i, seeds=1, directory=folder and str(folder)
        )
        for i, folder in enumerate(folders)
    ]


def directories(root: str | Path, config: RunConfig) -> list[Path]:
    """Return where each of `run.seeds` runs goes with `run.directory=root`."""
    if config.seeds == 1:
        return [Path(root)]
    return [Path(root) / f"seed{config.seed + i}" for i in range(config.seeds)]


def _compared(
    search: Search,
    config: RunConfig,
    name: str,
    directories: list[Path],
    root: Path,
    should_stop: Callable[[], bool],
) -> list[str]:
    """Compare the runs, and return the sentences, or one that says why not."""
    if not config.held_out_seeds:
        return ["no comparison of the searches: run.held_out_seeds=0"]
    if results.breeds_policies(search) or search.coupled:
        return [
            "no comparison of the searches: what evolved cannot be trained alone; the "
            "report of each has its scores"
        ]
    try:
        candidates.tuning(search)
        tuned = True
    except ConfigError:
        tuned = False
    out = root / "compare"
    lines = compare.compare(
        {name: directories},
        lambda run, changes: search,
        out,
        choose_devices(config),
        should_stop,
        seeds=max(config.held_out_seeds, 3),
        tuned=tuned,
    )
    words = " ".join(map(str, directories))
    return [
        *lines,
        f"comparison: {out / 'index.html'}",
        f"other settings and options: metaevo compare {words} out={out} on=...",
    ]


def expanded(directory: str | Path) -> list[Path]:
    """Return the runs in a directory: itself, or those of `run.seeds` below it."""
    directory = Path(directory)
    if run_directory.has_manifest(directory):
        return [directory]
    below = [
        path.parent
        for path in directory.glob("seed*/manifest.json")
        if path.parent.name.removeprefix("seed").isdecimal()
    ]
    ordered = sorted(below, key=lambda path: int(path.name.removeprefix("seed")))
    return ordered or [directory]
