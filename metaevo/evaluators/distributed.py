"""One search over all processes of a jax.distributed job.

The first process, the coordinator, runs the search. It sends the others what they need
to evaluate each generation, and all evaluate it together. So only the coordinator reads
and writes files, and the processes cannot disagree about the state of the search.

A process that waits for another for longer than `run.watchdog` seconds ends with exit
code 75. The launcher then ends the job, which continues from its last checkpoint when
started again.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator

import jax
import numpy as np

from metaevo.config import RunConfig
from metaevo.errors import ConfigError, InterruptedRunError
from metaevo.evaluators import _launchers
from metaevo.evaluators._messages import (
    FOREVER,
    barrier,
    broadcast,
    receive,
    send,
    start_watching,
    watched,
    zeros_like,
)
from metaevo.evaluators.devices import configure, num_cores
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Key, Proposal, PyTree

__all__ = [
    "CoordinatorEvaluator",
    "any_of",
    "coordinator",
    "is_coordinator",
    "join",
    "run_worker",
]

_busy = threading.Event()  # set while the workers evaluate with the coordinator


def join(config: RunConfig) -> None:
    """Join the job, before JAX's backend starts, and configure the devices.

    The mpiexec of Open MPI, MPICH and Intel MPI, Slurm's srun and other launchers that
    JAX knows need no settings, but Open MPI 5 on several hosts `run.coordinator`; for
    others give `run.coordinator`, `run.num_processes` and `run.process_id`. The
    processes of a host share its cores and take one GPU each. A process that is alone
    on its host takes all GPUs.

    Args:
        config: Configuration of the run.

    Raises:
        ConfigError: There is no such job, or its processes do not find each other.
    """
    sharing = _processes_on_this_host()
    configure(max(1, num_cores() // sharing))
    # The service would replace our handler of SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    job = (config.coordinator, config.num_processes, config.process_id)
    devices = None
    if config.process_id is None and (here := _launchers.place()):
        job = (job[0] or _launchers.coordinator(here), here.size, here.rank)
        devices = [here.local_rank]
    if job[0] is not None and job[2] == 0:
        _launchers.check_free(job[0])
    try:
        jax.distributed.initialize(
            *job,
            local_device_ids=devices,
            cluster_detection_method=None if None in job else "deactivate",
            shutdown_timeout_seconds=FOREVER // 1000,
        )
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"run.distributed=true: {str(error).splitlines()[0]} Start it with mpiexec "
            "or srun, or give run.coordinator=HOST:PORT, run.num_processes and "
            "run.process_id"
        ) from None
    if sharing == 1:
        jax.config.update("jax_cuda_visible_devices", "all")


def _processes_on_this_host() -> int:
    if here := _launchers.place():
        return here.local_size
    number = os.environ.get("SLURM_NTASKS_PER_NODE", "")
    return int(number) if number.isdigit() else 1


def is_coordinator() -> bool:
    """Return True in the process that runs the search."""
    return jax.process_index() == 0


def any_of(flag: Callable[[], bool]) -> Callable[[], bool]:
    """Return a function that is True in every process if `flag` is True in one.

    All processes must call it together.
    """

    def agreed() -> bool:
        from jax.experimental import multihost_utils

        barrier()
        return bool(multihost_utils.process_allgather(np.array(flag())).any())

    return agreed


# --- the coordinator and the workers --------------------------------------------------


class CoordinatorEvaluator:
    """Evaluator of the coordinator: the workers repeat each of its calls.

    Args:
        inner: Evaluator on the devices of all processes.
    """

    def __init__(self, inner: LocalEvaluator):
        self.inner = inner
        self.programs, self.num_devices = inner.programs, inner.num_devices
        self.template, self.state_bytes = inner.template, inner.state_bytes
        self.collected = inner.collected
        self._last: PyTree = ()
        sizes = inner.search.chunk_size, inner.search.seeds_at_once
        send({"do": "begin", "sizes": sizes})

    def __call__(
        self,
        key: Key,
        proposal: Proposal,
        carried: PyTree,
        places: np.ndarray | None = None,
    ) -> tuple:
        """Train and score; see `LocalEvaluator`."""
        assert places is None, "the workers evaluate whole populations"
        evaluated, self._last = self._everywhere("__call__", key, proposal, carried)
        return evaluated, self._last

    def score(self, key: Key, proposal: Proposal, carried: PyTree) -> tuple:
        """Evaluate agents as they are; see `LocalEvaluator.score`."""
        return self._everywhere("score", key, proposal, carried)

    def _everywhere(
        self, method: str, key: Key, proposal: Proposal, carried: PyTree
    ) -> tuple:
        """Call a method of the inner evaluator in all processes."""
        sent = bool(carried) and carried is not self._last
        # The workers cannot be told of an error in what follows.
        _busy.set()
        send({"do": method, "carried": bool(carried), "sent": sent})
        with watched():
            key, proposal = broadcast((key, proposal))
            if sent:
                carried = broadcast(carried)
            try:
                result = getattr(self.inner, method)(key, proposal, carried)
            except InterruptedRunError:
                _busy.clear()
                raise
        _busy.clear()
        return result


@contextlib.contextmanager
def coordinator(config: RunConfig) -> Iterator[None]:
    """Tell the workers that the search is over when the context ends.

    Without `run.distributed` the context does nothing.
    """
    if not config.distributed:
        yield
        return
    start_watching(config.watchdog)
    try:
        yield
    except BaseException as error:
        if _busy.is_set():
            _exit_at_once(error)
        raise
    finally:
        send({"do": "end"})


def _exit_at_once(error: BaseException) -> None:
    """End this process while the others are in the middle of an evaluation.

    An orderly end would wait for the others, which wait for this process.
    """
    traceback.print_exception(error)
    sys.stderr.flush()
    interrupted = isinstance(error, KeyboardInterrupt)
    os._exit(InterruptedRunError.exit_code if interrupted else 1)


def run_worker(
    make: Callable[..., LocalEvaluator], shapes: Proposal, config: RunConfig
) -> None:
    """Evaluate what the coordinator sends, until the search is over.

    Args:
        make: Makes the search's evaluator on the devices of all processes, from its
            sizes, `Search.chunk_size` and `seeds_at_once`.
        shapes: Shapes of a proposal.
        config: Configuration of the run.
    """
    start_watching(config.watchdog)
    try:
        _work(make, shapes)
    except BaseException as error:
        _exit_at_once(error)


def _work(make: Callable[..., LocalEvaluator], shapes: Proposal) -> None:
    last: PyTree = ()
    evaluator = None
    while (message := receive())["do"] != "end":
        if message["do"] == "begin":
            evaluator = make(*message["sizes"])
            continue
        assert evaluator is not None, "the first message is `begin`"
        with watched():
            key, proposal = broadcast((jax.random.key(0), zeros_like(shapes)))
            carried = last if message["carried"] else ()
            if message["sent"]:
                carried = broadcast(zeros_like(evaluator.template(shapes)))
            # After an interruption the coordinator sends what follows.
            with contextlib.suppress(InterruptedRunError):
                result = getattr(evaluator, message["do"])(key, proposal, carried)
                if message["do"] == "__call__":
                    last = result[1]
