"""One search over all processes of a jax.distributed job.

The first process runs the search. The others wait to be told what to evaluate, and all
evaluate it together: what they need to know, the first sends. So only the first reads
and writes files, and no two can disagree about the state of the search.

Waiting is done at the job's coordinator, which may take as long as it likes, and only
then data are exchanged in a collective, which may not. Whoever waits for another for
longer than `run.watchdog` seconds ends with exit code 75; the launcher ends the job,
which continues from its last checkpoint when started again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from metaevo.errors import ConfigError, InterruptedRunError
from metaevo.types import Key, Proposal, PyTree

__all__ = ["Leader", "any_of", "first", "follow", "join", "leading", "meet"]

_FOREVER = 1000 * 24 * 3600 * 30  # milliseconds
_AGAIN = 75

_turns = itertools.count()  # every process takes the same turns
_watch: dict[str, Any] = {"since": None, "limit": float("inf")}


def join(config: Any) -> None:
    """Joins the job, before JAX's backend starts; also does `runtime.configure`.

    Open MPI's mpiexec, Slurm's srun and what else JAX knows need no settings; else
    `run.coordinator`, `run.num_processes` and `run.process_id` say who is who. The
    processes of a host share its cores, and GPUs each take one; a process that is
    alone on its host takes them all.

    Args:
        config: a `RunConfig`.

    Raises:
        ConfigError: there is no such job, or its processes do not meet.
    """
    from metaevo.evaluators.devices import configure, num_cores

    together = _processes_on_this_host()
    configure(max(1, num_cores() // together))
    # Its handler of SIGTERM would replace ours.
    jax.config.update("jax_enable_preemption_service", False)
    given = (config.coordinator, config.num_processes, config.process_id)
    try:
        jax.distributed.initialize(
            *given,
            cluster_detection_method=None if None in given else "deactivate",
            shutdown_timeout_seconds=_FOREVER // 1000,
        )
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"run.distributed=true: {str(error).splitlines()[0]} Start it with mpiexec "
            "or srun, or give run.coordinator=HOST:PORT, run.num_processes and "
            "run.process_id"
        ) from None
    if together == 1:
        jax.config.update("jax_cuda_visible_devices", "all")


def _processes_on_this_host() -> int:
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 1


def first() -> bool:
    """Whether this process runs the search."""
    return jax.process_index() == 0


# --- exchange -------------------------------------------------------------------------


def _client() -> Any:
    # The public functions wait in collectives, which give up.
    from jax._src import distributed

    return distributed.global_state.client


def meet() -> None:
    """Returns in every process when all have come here."""
    _client().wait_at_barrier(f"metaevo/{next(_turns)}", _FOREVER)
    if _watch["since"] is not None:
        _watch["since"] = time.monotonic()


def any_of(flag: Callable[[], bool]) -> Callable[[], bool]:
    """A flag that is up in every process if it is in one; all must ask."""

    def agreed() -> bool:
        from jax.experimental import multihost_utils

        meet()
        return bool(multihost_utils.process_allgather(np.array(flag())).any())

    return agreed


def _tell(message: Mapping[str, Any]) -> None:
    _client().key_value_set(f"metaevo/told/{next(_turns)}", json.dumps(message))


def _hear() -> dict[str, Any]:
    text = _client().blocking_key_value_get(f"metaevo/told/{next(_turns)}", _FOREVER)
    return json.loads(text)


def _share(tree: PyTree) -> PyTree:
    """The first process's `tree` in all; the others give one of the same shapes.

    Sent as bytes: a sum, which a broadcast is, makes +0 of -0.
    """
    from jax.experimental import multihost_utils

    leaves, treedef = jax.tree.flatten(tree)
    plain = [np.asarray(_data(x)) for x in leaves]
    sent = b"".join(x.tobytes() for x in plain)
    buffer = np.frombuffer(sent + bytes(-len(sent) % 4), np.uint32)
    meet()
    buffer = np.asarray(multihost_utils.broadcast_one_to_all(buffer)).tobytes()
    received, offset = [], 0
    for leaf, x in zip(leaves, plain, strict=True):
        part = np.frombuffer(buffer, x.dtype, x.size, offset).reshape(x.shape)
        offset += x.nbytes
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            part = jax.random.wrap_key_data(part, impl=jax.random.key_impl(leaf))
        received.append(part)
    return jax.tree.unflatten(treedef, received)


def _data(x: Any) -> Any:
    is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def _like(shapes: PyTree) -> PyTree:
    """Zeros of these shapes."""

    def zeros(x):
        if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return np.zeros(x.shape, x.dtype)
        keys = jax.random.split(jax.random.key(0), max(1, int(np.prod(x.shape))))
        return keys.reshape(x.shape)

    return jax.tree.map(zeros, shapes)


# --- the watchdog ---------------------------------------------------------------------


@contextlib.contextmanager
def _watched() -> Iterator[None]:
    """While it lasts, the processes must meet every so often."""
    _watch["since"] = time.monotonic()
    try:
        yield
    finally:
        _watch["since"] = None


def _start_watching(limit: float) -> None:
    _watch["limit"] = limit

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
                os._exit(_AGAIN)  # the main thread is stuck

    threading.Thread(target=watch, daemon=True).start()


# --- the first process, and the others ------------------------------------------------


class Leader:
    """The first process's evaluator: the others do what it does.

    Args:
        inner: evaluates on the devices of all processes.
    """

    def __init__(self, inner: Any):
        self.inner = inner
        self.programs = inner.programs
        self.template, self.state_bytes = inner.template, inner.state_bytes
        self._last: PyTree = ()
        _tell({"do": "begin", "chunk_size": inner.search.chunk_size})

    def __call__(self, key: Key, proposal: Proposal, carried: PyTree) -> tuple:
        evaluated, self._last = self._together("__call__", key, proposal, carried)
        return evaluated, self._last

    def score(self, key: Key, proposal: Proposal, carried: PyTree) -> tuple:
        return self._together("score", key, proposal, carried)

    def _together(self, what, key, proposal, carried):
        send = bool(carried) and carried is not self._last
        # An error leaves the others in the middle of it, beyond being told.
        _watch["busy"] = True
        _tell({"do": what, "carried": bool(carried), "sent": send})
        with _watched():
            key, proposal = _share((key, proposal))
            if send:
                carried = _share(carried)
            try:
                result = getattr(self.inner, what)(key, proposal, carried)
            except InterruptedRunError:
                _watch["busy"] = False
                raise
        _watch["busy"] = False
        return result


@contextlib.contextmanager
def leading(config: Any) -> Iterator[None]:
    """Tells the other processes when the search is over, however it ends."""
    if not config.distributed:
        yield
        return
    _start_watching(config.watchdog)
    try:
        yield
    except BaseException as error:
        if _watch.get("busy"):
            _give_up(error)
        raise
    finally:
        _tell({"do": "end"})


def _give_up(error: BaseException) -> None:
    """Ends a process that leaves the others in the middle of something.

    An orderly end would wait for them, and they wait for this one.
    """
    traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(_AGAIN if isinstance(error, KeyboardInterrupt) else 1)


def follow(make: Callable[[int | None], Any], shapes: Proposal, config: Any) -> None:
    """Does what the first process says, until the search is over.

    Args:
        make: the search's evaluator on the devices of all processes, from its chunk
            size.
        shapes: of a proposal.
        config: a `RunConfig`.
    """
    _start_watching(config.watchdog)
    try:
        _follow(make, shapes)
    except BaseException as error:
        _give_up(error)


def _follow(make: Callable[[int | None], Any], shapes: Proposal) -> None:
    last: PyTree = ()
    evaluator = None
    while (told := _hear())["do"] != "end":
        if told["do"] == "begin":
            evaluator = make(told["chunk_size"])
            continue
        with _watched():
            key, proposal = _share((jax.random.key(0), _like(shapes)))
            carried = last if told["carried"] else ()
            if told["sent"]:
                carried = _share(_like(evaluator.template(shapes)))
            # Interrupted, the first one says what follows.
            with contextlib.suppress(InterruptedRunError):
                result = getattr(evaluator, told["do"])(key, proposal, carried)
                if told["do"] == "__call__":
                    last = result[1]
