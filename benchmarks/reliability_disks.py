"""Checkpoints on disks that are full or broken, and checkpoints that were altered."""

from __future__ import annotations

import errno
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from metaevo.errors import CheckpointError
from metaevo.storage import checkpoint, verified

STEPS = ("mkdir", "write", "fsync", "rename", "rmdir")


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Give a temporary folder, and remove it at the end."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@contextmanager
def acting(step: str, nth: int, act: Callable[[], None]) -> Iterator[list[int]]:
    """Call `act` before the nth step of a kind.

    Args:
        step: One of `STEPS`.
        nth: Index of the step, from 1; 0: `act` is never called.
        act: Function that is called. Half of a `write` is on the disk by then.

    Yields:
        A list with the number of steps so far.
    """
    count = [0]

    def counted(original):
        def call(*args, **kwargs):
            count[0] += 1
            if count[0] == nth:
                if step == "write":
                    path, data = args
                    path.write_bytes(data[: len(data) // 2])
                act()
            return original(*args, **kwargs)

        return call

    owner, name = {
        "mkdir": (Path, "mkdir"),
        "write": (verified, "write_synced"),
        "fsync": (os, "fsync"),
        "rename": (os, "rename"),
        "rmdir": (Path, "rmdir"),
    }[step]
    with mock.patch.object(owner, name, counted(getattr(owner, name))):
        yield count


_entered: list[Any] = []


def die_at(step: str, nth: int) -> None:
    """Let this process kill itself before the nth step of a kind."""
    kill = acting(step, nth, lambda: os.kill(os.getpid(), signal.SIGKILL))
    _entered.append(kill)  # otherwise the context would end when it is collected
    kill.__enter__()


def full_disks() -> dict[str, Any]:
    """Raise ENOSPC and EIO at every step of writing a checkpoint."""
    tried = lost = unsaid = 0
    for step in STEPS:
        with temporary_folder() as folder:
            store = _two_checkpoints(folder)
            with acting(step, 0, lambda: None) as count:
                store.save(3, _state(3), {"generation": 3})
        for nth in range(1, count[0] + 1):
            for number in (errno.ENOSPC, errno.EIO):
                with temporary_folder() as folder:
                    store = _two_checkpoints(folder)

                    def fail(number=number):
                        raise OSError(number, os.strerror(number))

                    said = False
                    with acting(step, nth, fail):
                        try:
                            store.save(3, _state(3), {"generation": 3})
                        except OSError as error:
                            said = error.errno == number
                    arrays, manifest = store.load() or ({}, {})
                    generation = manifest["generation"]
                    tried += 1
                    # After the last rename only old files are removed.
                    lost += not (
                        generation in (2, 3)
                        and np.array_equal(arrays["['x']"], _state(generation)["x"])
                    )
                    unsaid += generation == 2 and not said
    return {"failures": tried, "previous checkpoint lost": lost, "not said": unsaid}


def corrupt_checkpoints(number: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Alter the newest of two checkpoints, which must then not be used."""
    rng = random.Random(seed)
    used = wrong = 0
    with temporary_folder() as folder:
        store = _two_checkpoints(folder)
        newest = store.folder / "generation-00000002"
        files = {p.name: p.read_bytes() for p in newest.iterdir()}
        for _ in range(number):
            name = rng.choice(sorted(files))
            hurt = altered(files[name], rng)
            if hurt is None:
                (newest / name).unlink()
            else:
                (newest / name).write_bytes(hurt)
            try:
                arrays, manifest = store.load() or ({}, {})
                used += manifest["generation"] == 2
                wrong += not np.array_equal(arrays["['x']"], _state(1)["x"])
            except CheckpointError:
                wrong += 1
            (newest / name).write_bytes(files[name])
    return {"corrupted": number, "used": used, "previous one not used": wrong}


def altered(data: bytes, rng: random.Random) -> bytes | None:
    """Return a file's bytes after an accident, None if it is gone; never `data`."""
    kind = rng.choice(("flip", "flip", "flip", "cut", "longer", "zeros", "gone"))
    place = rng.randrange(len(data))
    if kind == "flip":
        return (
            data[:place]
            + bytes([data[place] ^ 1 << rng.randrange(8)])
            + data[place + 1 :]
        )
    if kind == "cut":
        return data[:place]
    if kind == "longer":
        return data + rng.randbytes(rng.randint(1, 64))
    if kind == "zeros":
        length = rng.randint(1, 512)
        hurt = (
            data[:place]
            + bytes(len(data[place : place + length]))
            + data[place + length :]
        )
        return hurt if hurt != data else data[:place]
    return None


def _state(generation: int) -> dict[str, np.ndarray]:
    return {"x": np.arange(200, dtype=np.float32) + generation}


def _two_checkpoints(folder: Path) -> checkpoint.Store:
    store = checkpoint.Store(folder / "checkpoints")
    for generation in (1, 2):
        store.save(generation, _state(generation), {"generation": generation})
    return store
