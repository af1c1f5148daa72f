"""Trials on the hosts of a Ray cluster.

A trial is a task of Ray's. The task runs it in a process of its own on its host, as
`processes.run` does on this machine. A trial whose host is lost starts again on another
one. All hosts see the folder of the run under the same path.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from metaevo.engine.trials import processes
from metaevo.engine.trials.processes import OUTPUT, POLL, Ended, Limits, Run, Target
from metaevo.evaluators.ray_hosts import connected, import_ray

MAX_LOSSES = 5  # hosts that may be lost with one trial
PAUSE = 2.0  # seconds before it starts again, and twice as many each further time
PATIENCE = 60.0  # seconds beyond its timeout after which a trial's host is given up


@contextlib.contextmanager
def runner(address: str | None) -> Iterator[Run]:
    """Give a function that runs trials on a cluster, as `processes.run` does.

    Args:
        address: address of the cluster; None: one is started on this machine.

    Raises:
        ConfigError: Ray is not installed, or there is no such cluster.
    """
    with connected(address or "local"):
        task = import_ray().remote(_trial)
        # A host that dies is replaced here, where its folder is emptied before.
        spread = task.options(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")
        yield functools.partial(_run, spread)


def _run(
    task: Any,
    where: Target,
    trial: Mapping[str, Any] | None,
    folder: Path,
    limits: Limits,
    stopped: threading.Event,
) -> Ended | None:
    ray = import_ray()
    began = time.monotonic()
    path = [x or os.getcwd() for x in sys.path]
    for loss in range(MAX_LOSSES):
        # For up to half a minute Ray gives tasks to a host that has died.
        if loss and stopped.wait(PAUSE * 2 ** (loss - 1)):
            return None
        if loss and trial is not None:
            own = Path(trial["folder"])
            shutil.rmtree(own, ignore_errors=True)
            own.mkdir(parents=True)
            (folder / OUTPUT).unlink(missing_ok=True)
        reference = task.remote(path, where, trial, str(folder.absolute()), limits)
        if not _waited(ray, reference, folder, limits, stopped):
            ray.cancel(reference, force=True)
            if stopped.is_set():
                return None
            continue
        try:
            return Ended(*ray.get(reference))
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError:  # its host is gone
            continue
    lost = f"{MAX_LOSSES} hosts were lost with it"
    return Ended(None, lost, time.monotonic() - began)


def _waited(
    ray: Any, reference: Any, folder: Path, limits: Limits, stopped: threading.Event
) -> bool:
    """Wait for a trial; False if it was abandoned, or its host does not answer."""
    limit = float("inf") if limits.timeout is None else limits.timeout + PATIENCE
    began = None  # it may wait for a core
    while not ray.wait([reference], timeout=POLL)[0]:
        if began is None and (folder / OUTPUT).exists():
            began = time.monotonic()
        late = began is not None and time.monotonic() - began > limit
        if stopped.is_set() or late:
            return False
    return True


def _trial(
    path: Sequence[str],
    where: Target,
    trial: Mapping[str, Any] | None,
    folder: str,
    limits: Limits,
) -> tuple:
    """Run a trial where this is called: on a host."""
    sys.path += [x for x in path if x not in sys.path]
    place = Path(folder)
    if not place.is_dir():
        raise FileNotFoundError(
            f"{folder} is not on this host: give a directory that all hosts see"
        )
    found = processes.run(where, trial, place, limits, threading.Event())
    assert found is not None, "nobody abandons it here"
    return tuple(found)
