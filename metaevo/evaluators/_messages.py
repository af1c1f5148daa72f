"""Messages, barriers and a watchdog between the processes of a jax.distributed job.

Processes wait for each other at barriers of the job's service, which have no time
limit, before they exchange data in collectives, which have one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import keys
from metaevo._jax import distributed_client
from metaevo.errors import InterruptedRunError
from metaevo.types import PyTree

FOREVER = 1000 * 24 * 3600 * 30  # milliseconds

_turns = itertools.count()  # names messages and barriers alike in every process
_sent: list[str] = []  # messages that some process may not have read yet
_watch: dict[str, float | None] = {"since": None}  # time of the last barrier


def barrier() -> None:
    """Wait until all processes have called this function."""
    distributed_client().wait_at_barrier(f"metaevo/{next(_turns)}", FOREVER)
    # A process reads the messages before a barrier before it comes to the barrier.
    while _sent:
        distributed_client().key_value_delete(_sent.pop())
    if _watch["since"] is not None:
        _watch["since"] = time.monotonic()


def send(message: Mapping[str, Any]) -> None:
    """Send a message from the coordinator to all other processes.

    The service keeps it until the next barrier.
    """
    name = f"metaevo/message/{next(_turns)}"
    distributed_client().key_value_set(name, json.dumps(message))
    _sent.append(name)


def receive() -> dict[str, Any]:
    """Wait for the coordinator's next message."""
    name = f"metaevo/message/{next(_turns)}"
    return json.loads(distributed_client().blocking_key_value_get(name, FOREVER))


def broadcast(tree: PyTree) -> PyTree:
    """Return the coordinator's `tree` in all processes.

    The tree is sent as bytes, because a sum, which a broadcast is, turns -0 into +0.

    Args:
        tree: In the other processes a tree of the same shapes.
    """
    from jax.experimental import multihost_utils

    leaves, treedef = jax.tree.flatten(tree)
    plain = [np.asarray(keys.to_data(x)) for x in leaves]
    sent = b"".join(x.tobytes() for x in plain)
    buffer = np.frombuffer(sent + bytes(-len(sent) % 4), np.uint32)
    barrier()
    buffer = np.asarray(multihost_utils.broadcast_one_to_all(buffer)).tobytes()
    received, offset = [], 0
    for leaf, x in zip(leaves, plain, strict=True):
        part = np.frombuffer(buffer, x.dtype, x.size, offset).reshape(x.shape)
        offset += x.nbytes
        received.append(keys.from_data(part, like=leaf))
    return jax.tree.unflatten(treedef, received)


def zeros_like(shapes: PyTree) -> PyTree:
    """Return arrays of zeros, and keys, of the given shapes."""

    def zeros(x):
        return (jnp if keys.is_key(x) else np).zeros(x.shape, x.dtype)

    return jax.tree.map(zeros, shapes)


# --- the watchdog ---------------------------------------------------------------------


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Require a barrier at least every `run.watchdog` seconds inside the context."""
    _watch["since"] = time.monotonic()
    try:
        yield
    finally:
        _watch["since"] = None


def start_watching(limit: float) -> None:
    """Start a thread that ends the process if it waits for `limit` seconds."""

    def watch():
        while True:
            time.sleep(min(1.0, limit / 4))
            since = _watch["since"]
            if since is not None and time.monotonic() - since > limit:
                print(
                    f"error: process {jax.process_index()} has waited "
                    f"{time.monotonic() - since:.0f} s for the others "
                    f"(run.watchdog={limit:g}); run the same command again to continue",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(InterruptedRunError.exit_code)  # the main thread is blocked

    threading.Thread(target=watch, daemon=True).start()
