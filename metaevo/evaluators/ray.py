"""Evaluates a population on the hosts of a Ray cluster, which may come and go.

One actor per host owns the host's devices and holds nothing that could be lost: the
driver has the strategy, and a task carries its members. The population is cut into the
chunks of the local evaluator, never otherwise, so whoever evaluates a chunk gives the
same bits. A host gets one task of several chunks. What a dead host had goes to others,
and a new actor takes its place in the background; what is overdue is given to idle
hosts too, and the first answer counts.

It serves searches whose members are newborn in each generation.
"""

from __future__ import annotations

import hashlib
import itertools
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from metaevo import population
from metaevo.errors import ConfigError, HostError, InterruptedRunError
from metaevo.evaluators.local import LocalEvaluator
from metaevo.evaluators.ray_hosts import Actor, Payload, Pool, Task, import_ray, pool
from metaevo.types import Evaluated, InnerState, Key, Proposal, PyTree, Search, keep

__all__ = ["HostError", "RayEvaluator", "check", "pool"]

LATE = 3.0  # times the usual duration, after which a task is given out twice
GONE = 20.0  # times the usual duration, after which its host is replaced
LEAST = 1.0  # seconds, below which nothing is late
COMPILING = 600.0  # seconds that a host's first task is taken to last
MAX_LOSSES = 5  # hosts that may die of one chunk


def check(search: Search) -> None:
    """Refuses what needs its members together, or alive.

    Raises:
        ConfigError: says what to use.
    """
    reason = None
    if any(loop.coupled for loop in search.tasks):
        reason = "its members are coupled and must run together"
    elif search.segments_per_generation is not None:
        reason = "its agents live on from generation to generation (PBT, online ES)"
    if reason:
        raise ConfigError(
            f"run.evaluator=ray cannot run this search: {reason}, and a host may be "
            "lost with them. Use run.evaluator=local, over several hosts with "
            "run.distributed=true"
        )


# --- the evaluator --------------------------------------------------------------------

# Where an answer's leaves have their members: of a call, with agents, and of `score`.
_AXES = {"__call__": (Evaluated(2, 2, 0, 1, 1), 1), "score": (1, 1)}


class RayEvaluator:
    """Evaluates proposals of one search on a pool; an `Evaluator`.

    Args:
        search: with `chunk_size` given, and newborn members.
        hosts: who does it.
        should_stop: asked several times a second; True abandons the generation.
        options: of the `LocalEvaluator`s on the hosts.

    Raises:
        ConfigError: the search cannot be evaluated so.
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
        self.made_of = _payload(search, options)
        self.usual: deque[float] = deque(maxlen=50)  # seconds per round of a host
        here = LocalEvaluator(search, jax.devices()[:1], **options)
        self.template, self.state_bytes = here.template, here.state_bytes

    def __call__(
        self, key: Key, proposal: Proposal, carried: PyTree
    ) -> tuple[Evaluated, PyTree]:
        """As `LocalEvaluator`, and the same bits."""
        del carried
        evaluated, agents = self._evaluate("__call__", key, proposal)
        if self.search.space.inherit is keep:
            evaluated = evaluated._replace(params=proposal.params)
        return evaluated, tuple(InnerState(agent, ()) for agent in agents)

    def score(
        self, key: Key, proposal: Proposal, carried: PyTree
    ) -> tuple[list[dict[str, np.ndarray]], list[PyTree]]:
        """As `LocalEvaluator.score`, of newborn members."""
        assert not carried, "agents do not live on here"
        return self._evaluate("score", key, proposal)

    def _evaluate(self, method: str, key: Key, proposal: Proposal) -> PyTree:
        size, width = population.size(proposal.params), self.search.chunk_size
        chunks = [
            np.arange(first, min(first + width, size))
            for first in range(0, size, width)
        ]
        key_data = np.asarray(jax.random.key_data(key))

        def send(actor: Actor, given: list[int]) -> Any:
            places = np.concatenate([chunks[i] for i in given])
            params = jax.tree.map(np.asarray, population.take(proposal.params, places))
            work = actor.handle.work
            return work.remote(self.made_of, method, key_data, places, params)

        answers = _Work(self, chunks, send).done()

        def join(axis, *parts):
            """Each chunk's share of the answer that it is in."""
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
    """Puts what evaluators are made of where the hosts can get it."""
    ray = import_ray()
    from ray import cloudpickle

    try:
        # The strategy stays with the driver.
        data = cloudpickle.dumps((search._replace(strategy=None), options))
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"run.evaluator=ray: this search cannot be sent to other hosts: {error}"
        ) from None
    return Payload(hashlib.sha256(data).hexdigest()[:16], [ray.put(data)])


class _Work:
    """One generation's chunks, until all are answered.

    Args:
        evaluator: whose they are.
        chunks: members of each.
        send: gives an actor some of them; returns a reference to the answer.
    """

    def __init__(self, evaluator: RayEvaluator, chunks: list[np.ndarray], send):
        self.evaluator, self.chunks, self.send = evaluator, chunks, send
        self.hosts, self.name = evaluator.hosts, evaluator.made_of.name
        self.todo = list(range(len(chunks)))  # nobody works on them
        self.alone: set[int] = set()  # failed among others: the next try is its own
        self.errors, self.losses = Counter(), Counter()
        self.answers: dict[int, tuple[PyTree, int, int]] = {}

    def done(self) -> list[tuple[PyTree, int, int]]:
        """Per chunk an answer, and where in it the chunk begins and how long it is."""
        ray = import_ray()
        while len(self.answers) < len(self.chunks):
            if self.evaluator.should_stop():
                raise InterruptedRunError
            self.hosts.look()
            self.give_out()
            busy = {a.task.reference: a for a in self.hosts.actors if a.task}
            if not busy:
                time.sleep(0.02)
                continue
            ready, _ = ray.wait(list(busy), num_returns=1, timeout=0.05)
            for reference in ready:
                self.receive(busy[reference])
        return [self.answers[i] for i in range(len(self.chunks))]

    def give_out(self) -> None:
        """Work for whoever has none: what is left, then what is late."""
        up = [actor for actor in self.hosts.actors if actor.ready is None]
        idle = [actor for actor in up if actor.task is None]
        warm = [actor for actor in idle if self.name in actor.knows]
        if any(self.name in actor.knows for actor in up):
            # Who has to compile first does so with a copy, and keeps nobody waiting.
            for actor in idle:
                if actor not in warm:
                    self.give(actor, list(range(len(self.chunks)))[: actor.num_devices])
        else:
            warm = idle
        while warm and self.alone:
            self.give(warm.pop(), [self.alone.pop()])
        if warm and self.todo:
            for actor, share in zip(warm, _shares(self.todo, warm), strict=True):
                if share:
                    self.give(actor, share)
            self.todo = []
            return
        for actor in up:
            if actor.task is None or actor.task.name != self.name:
                continue
            late = time.monotonic() - actor.task.since
            expected = self.expected(actor)
            if late > max(LEAST * GONE / LATE, GONE * expected):
                self.hosts.remove(actor)
                self.put_back(actor)
            elif warm and not actor.task.doubled and late > max(LEAST, LATE * expected):
                missing = [i for i in actor.task.chunks if i not in self.answers]
                if missing and actor.task.work is self:
                    actor.task.doubled = True
                    self.hosts.doubles += 1
                    self.give(warm.pop(), missing)

    def expected(self, actor: Actor) -> float:
        """Seconds that its task should take."""
        usual = self.evaluator.usual
        if not actor.task.timed or not usual:
            return COMPILING
        return statistics.median(usual) * _rounds(actor)

    def give(self, actor: Actor, given: list[int]) -> None:
        given = sorted(given)  # a chunk that is not full comes last
        reference = self.send(actor, given)
        timed = self.name in actor.knows
        now = time.monotonic()
        actor.task = Task(reference, given, self.name, self, now, timed)

    def receive(self, actor: Actor) -> None:
        """Takes an actor's answer, or its failure."""
        ray = import_ray()
        task = actor.task
        try:
            answer = ray.get(task.reference)
        except ray.exceptions.RayTaskError as error:
            actor.task = None
            if task.work is self:
                self.failed(task, error)
            return
        except ray.exceptions.RayError as error:
            self.hosts.losses += 1
            self.hosts.remove(actor)
            self.put_back(actor, error)
            return
        actor.task = None
        actor.knows.add(task.name)
        if task.timed and task.name == self.name:
            seconds = time.monotonic() - task.since
            self.evaluator.usual.append(seconds / _rounds(actor, task))
        if task.work is self:
            first = 0
            for i in task.chunks:
                length = len(self.chunks[i])
                # The first answer counts; all are equal to the bit.
                self.answers.setdefault(i, (answer, first, length))
                first += length

    def missing(self, task: Task) -> list[int]:
        """Chunks of a task that nobody else works on and nobody has answered."""
        others = {
            i
            for actor in self.hosts.actors
            if actor.task and actor.task is not task and actor.task.work is self
            for i in actor.task.chunks
        }
        taken = others | self.answers.keys() | set(self.todo) | self.alone
        return [i for i in task.chunks if i not in taken]

    def put_back(self, actor: Actor, error: Exception | None = None) -> None:
        """What a lost host had."""
        task, actor.task = actor.task, None
        if task is None or task.work is not self:
            return
        for i in self.missing(task):
            self.losses[i] += 1
            if self.losses[i] == MAX_LOSSES:
                raise HostError(
                    f"{self.members(i)}: {MAX_LOSSES} hosts were lost while they "
                    f"evaluated them; the last one: {error or 'it did not answer'}"
                )
            # One of them may be what kills hosts.
            if self.losses[i] > 1:
                self.alone.add(i)
            else:
                self.todo.append(i)

    def failed(self, task: Task, error: Exception) -> None:
        """An error in the search itself: tried once more, chunk by chunk."""
        for i in self.missing(task):
            self.errors[i] += 1
            if self.errors[i] > 1 and len(task.chunks) == 1:
                raise HostError(f"{self.members(i)} failed twice: {error}") from error
            self.alone.add(i)

    def members(self, i: int) -> str:
        return f"members {self.chunks[i][0]} to {self.chunks[i][-1]}"


def _rounds(actor: Actor, task: Task | None = None) -> int:
    return -(-len((task or actor.task).chunks) // actor.num_devices)


def _shares(chunks: list[int], actors: list[Actor]) -> list[list[int]]:
    """`chunks` in order, in parts by the actors' numbers of devices."""
    devices = np.cumsum([0] + [actor.num_devices for actor in actors])
    bounds = np.ceil(devices * len(chunks) / devices[-1]).astype(int)
    return [chunks[a:b] for a, b in itertools.pairwise(bounds)]
