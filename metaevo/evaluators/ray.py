"""Evaluation of a population on the hosts of a Ray cluster, which may come and go.

One actor per host owns the host's devices. It holds nothing that could be lost: the
driver has the strategy, and a task contains its members. The population is cut into the
chunks of the local evaluator and never otherwise, so any host computes the same bits
for a chunk. A host gets one task of several chunks. The chunks of a host that died go
to others, and a new actor takes its place in the background. A task that is overdue is
also given to an idle host, and the first answer counts.

Only searches whose members are newborn in each generation can be evaluated so.
"""

from __future__ import annotations

import hashlib
import itertools
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from metaevo import keys, population
from metaevo.errors import ConfigError, HostError, InterruptedRunError
from metaevo.evaluators.local import LocalEvaluator
from metaevo.evaluators.ray_hosts import Actor, Payload, Pool, Task, import_ray, pool
from metaevo.types import (
    Evaluated,
    InnerState,
    Key,
    Metrics,
    Proposal,
    PyTree,
    Search,
    keep,
)

__all__ = ["HostError", "RayEvaluator", "check", "pool"]

LATE = 3.0  # times the usual duration, after which a task is assigned again
GONE = 20.0  # times the usual duration, after which its host is replaced
LEAST = 1.0  # seconds, below which no task is late
COMPILING = 600.0  # seconds that a host's first task is expected to take
MAX_LOSSES = 5  # hosts that may be lost while they evaluate one chunk


def check(search: Search) -> None:
    """Check that members are independent and newborn in each generation.

    Raises:
        ConfigError: They are not, or Ray is not installed; the message says what to
            use instead.
    """
    reason = None
    if search.coupled:
        reason = "its members are coupled and must run together"
    elif search.segments_per_generation is not None:
        reason = "its agents live on from generation to generation (PBT, online ES)"
    if reason:
        raise ConfigError(
            f"run.evaluator=ray cannot run this search: {reason}, and a host may be "
            "lost with them. Use run.evaluator=local, over several hosts with "
            "run.distributed=true"
        )
    import_ray()


# --- the evaluator --------------------------------------------------------------------

# Member axes of an answer's leaves: of a call, with its agents, and of `score`.
_AXES: dict[str, PyTree] = {
    "__call__": (Evaluated._make((2, 2, 0, 1, 1)), 1),
    "score": (1, 1),
}


class RayEvaluator:
    """Evaluates proposals of one search on a pool; an `Evaluator`.

    Args:
        search: Search with a `chunk_size` and newborn members.
        hosts: Pool of hosts.
        should_stop: Asked several times a second; True abandons the generation.
        options: Arguments of the `LocalEvaluator`s on the hosts.

    Raises:
        ConfigError: The search cannot be evaluated so.
    """

    def __init__(
        self,
        search: Search,
        hosts: Pool,
        should_stop: Callable[[], bool] = lambda: False,
        **options: Any,
    ):
        check(search)
        self.search, self.hosts, self.should_stop = search, hosts, should_stop
        self.programs: dict[str, Any] = {}
        self.num_devices = max(1, hosts.num_devices)
        self.payload = _payload(search, options)
        self.usual: deque[float] = deque(maxlen=50)  # seconds per round of a host
        here = LocalEvaluator(search, jax.devices()[:1], **options)
        self.template, self.state_bytes = here.template, here.state_bytes

    def __call__(
        self,
        key: Key,
        proposal: Proposal,
        carried: PyTree,
        places: np.ndarray | None = None,
    ) -> tuple[Evaluated, PyTree]:
        """Train and score; the same bits as `LocalEvaluator`."""
        del carried
        evaluated, agents = self._evaluate("__call__", key, proposal, places)
        if self.search.space.inherit is keep:
            evaluated = evaluated._replace(params=proposal.params)
        return evaluated, tuple(InnerState(agent, ()) for agent in agents)

    def score(
        self, key: Key, proposal: Proposal, carried: PyTree
    ) -> tuple[Sequence[Metrics], Sequence[PyTree]]:
        """Evaluate newborn members; see `LocalEvaluator.score`."""
        assert not carried, "agents do not live on here"
        return self._evaluate("score", key, proposal)

    def _evaluate(
        self,
        method: str,
        key: Key,
        proposal: Proposal,
        places: np.ndarray | None = None,
    ) -> PyTree:
        size, width = population.size(proposal.params), self.search.chunk_size
        assert width is not None, "chosen before generation 0"
        chunks = [
            np.arange(first, min(first + width, size))
            for first in range(0, size, width)
        ]
        key_data = np.asarray(keys.to_data(key))

        def send(actor: Actor, given: list[int]) -> Any:
            ids = np.concatenate([chunks[i] for i in given])
            params = jax.tree.map(np.asarray, population.take(proposal.params, ids))
            there = ids if places is None else places[ids]
            work = actor.handle.work
            return work.remote(self.payload, method, key_data, there, params)

        answers = _Generation(self, chunks, send).answered()

        def join(axis, *parts):
            """Join the chunks, each of which is a slice of an answer."""
            slices = []
            for part, (_, first, length) in zip(parts, answers, strict=True):
                slices.append(np.take(part, np.arange(first, first + length), axis))
            return np.concatenate(slices, axis)

        return jax.tree.map(
            lambda axis, *parts: jax.tree.map(partial(join, axis), *parts),
            _AXES[method],
            *(answer for answer, _, _ in answers),
        )


def _payload(search: Search, options: dict) -> Payload:
    """Put what evaluators are made of where the hosts can get it."""
    ray = import_ray()
    try:
        # The strategy stays with the driver.
        data = ray.cloudpickle.dumps((search._replace(strategy=None), options))
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"run.evaluator=ray: this search cannot be sent to other hosts: {error}"
        ) from None
    return Payload(hashlib.sha256(data).hexdigest()[:16], [ray.put(data)])


class _Generation:
    """The chunks of one generation, until all are answered.

    Args:
        evaluator: Evaluator of the generation.
        chunks: Members of each chunk.
        send: Gives an actor some of the chunks; returns a reference to the answer.

    Attributes:
        waiting: Chunks on which no host works.
        isolated: Chunks that failed in a task of several; each is tried alone.
        answers: Per chunk an answer, and the chunk's offset and length in it.
    """

    def __init__(
        self,
        evaluator: RayEvaluator,
        chunks: list[np.ndarray],
        send: Callable[[Actor, list[int]], Any],
    ):
        self.evaluator, self.chunks, self.send = evaluator, chunks, send
        self.hosts, self.name = evaluator.hosts, evaluator.payload.name
        self.waiting = list(range(len(chunks)))
        self.isolated: set[int] = set()
        self.errors, self.losses = Counter(), Counter()
        self.answers: dict[int, tuple[PyTree, int, int]] = {}

    def answered(self) -> list[tuple[PyTree, int, int]]:
        """Return per chunk an answer, and the chunk's offset and length in it.

        Raises:
            InterruptedRunError: `should_stop` returned True.
            HostError: A chunk failed on every host.
        """
        ray = import_ray()
        while len(self.answers) < len(self.chunks):
            if self.evaluator.should_stop():
                raise InterruptedRunError
            self.hosts.poll()
            self.dispatch()
            busy = {a.task.reference: a for a in self.hosts.actors if a.task}
            if not busy:
                time.sleep(0.02)
                continue
            ready, _ = ray.wait(list(busy), num_returns=1, timeout=0.05)
            for reference in ready:
                self.receive(busy[reference])
        return [self.answers[i] for i in range(len(self.chunks))]

    def dispatch(self) -> None:
        """Assign chunks to idle actors: those that wait, then those that are late."""
        up = [actor for actor in self.hosts.actors if actor.ready is None]
        idle = [actor for actor in up if actor.task is None]
        warm = [actor for actor in idle if self.name in actor.compiled]
        if any(self.name in actor.compiled for actor in up):
            # A host that must compile gets a copy of chunks that others evaluate too.
            for actor in idle:
                if actor not in warm:
                    copies = list(range(len(self.chunks)))[: actor.num_devices]
                    self.assign(actor, copies)
        else:
            warm = idle
        while warm and self.isolated:
            self.assign(warm.pop(), [self.isolated.pop()])
        if warm and self.waiting:
            for actor, share in zip(warm, _shares(self.waiting, warm), strict=True):
                if share:
                    self.assign(actor, share)
            self.waiting = []
            return
        for actor in up:
            task = actor.task
            if task is None or task.name != self.name:
                continue
            elapsed = time.monotonic() - task.since
            expected = self.expected(task, actor.num_devices)
            if elapsed > max(LEAST * GONE / LATE, GONE * expected):
                self.hosts.remove(actor)
                self.requeue(actor)
            elif warm and not task.doubled and elapsed > max(LEAST, LATE * expected):
                missing = [i for i in task.chunks if i not in self.answers]
                if missing and task.generation is self:
                    task.doubled = True
                    self.hosts.doubles += 1
                    self.assign(warm.pop(), missing)

    def expected(self, task: Task, num_devices: int) -> float:
        """Return the seconds that a task should take."""
        usual = self.evaluator.usual
        if not task.timed or not usual:
            return COMPILING
        return statistics.median(usual) * _rounds(task, num_devices)

    def assign(self, actor: Actor, chunks: list[int]) -> None:
        """Give an idle actor a task."""
        chunks = sorted(chunks)  # a chunk that is not full must be the last one
        reference = self.send(actor, chunks)
        timed = self.name in actor.compiled
        now = time.monotonic()
        actor.task = Task(reference, chunks, self.name, self, now, timed)

    def receive(self, actor: Actor) -> None:
        """Take an actor's answer, or its failure."""
        ray = import_ray()
        task = actor.task
        assert task is not None
        try:
            answer = ray.get(task.reference)
        except ray.exceptions.RayTaskError as error:
            actor.task = None
            if task.generation is self:
                self.failed(task, error)
            return
        except ray.exceptions.RayError as error:
            self.hosts.losses += 1
            self.hosts.remove(actor)
            self.requeue(actor, error)
            return
        actor.task = None
        actor.compiled.add(task.name)
        if task.timed and task.name == self.name:
            seconds = time.monotonic() - task.since
            self.evaluator.usual.append(seconds / _rounds(task, actor.num_devices))
        if task.generation is self:
            first = 0
            for i in task.chunks:
                length = len(self.chunks[i])
                # The first answer counts; all have the same bits.
                self.answers.setdefault(i, (answer, first, length))
                first += length

    def unanswered(self, task: Task) -> list[int]:
        """Return the chunks of a task that have no answer and no other host."""
        others = {
            i
            for actor in self.hosts.actors
            if actor.task and actor.task is not task and actor.task.generation is self
            for i in actor.task.chunks
        }
        taken = others | self.answers.keys() | set(self.waiting) | self.isolated
        return [i for i in task.chunks if i not in taken]

    def requeue(self, actor: Actor, error: Exception | None = None) -> None:
        """Put the chunks of a lost host back.

        Raises:
            HostError: Too many hosts were lost with one of the chunks.
        """
        task, actor.task = actor.task, None
        if task is None or task.generation is not self:
            return
        for i in self.unanswered(task):
            self.losses[i] += 1
            if self.losses[i] == MAX_LOSSES:
                raise HostError(
                    f"{self.members(i)}: {MAX_LOSSES} hosts were lost while they "
                    f"evaluated them; the last one: {error or 'it did not answer'}"
                )
            # One of the chunks may be the reason for which hosts die.
            if self.losses[i] > 1:
                self.isolated.add(i)
            else:
                self.waiting.append(i)

    def failed(self, task: Task, error: Exception) -> None:
        """Retry the chunks of a task that raised an error, each chunk alone.

        Raises:
            HostError: A chunk failed alone and for the second time.
        """
        for i in self.unanswered(task):
            self.errors[i] += 1
            if self.errors[i] > 1 and len(task.chunks) == 1:
                raise HostError(f"{self.members(i)} failed twice: {error}") from error
            self.isolated.add(i)

    def members(self, i: int) -> str:
        """Return a name for the members of a chunk."""
        return f"members {self.chunks[i][0]} to {self.chunks[i][-1]}"


def _rounds(task: Task, num_devices: int) -> int:
    return -(-len(task.chunks) // num_devices)


def _shares(chunks: list[int], actors: list[Actor]) -> list[list[int]]:
    """Divide `chunks`, in order, by the actors' numbers of devices."""
    devices = np.cumsum([0] + [actor.num_devices for actor in actors])
    bounds = np.ceil(devices * len(chunks) / devices[-1]).astype(int)
    return [chunks[a:b] for a, b in itertools.pairwise(bounds)]
