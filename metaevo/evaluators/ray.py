"""Evaluation of a population on the hosts of a Ray cluster, which may come and go.

One actor per host owns the host's devices. It holds nothing that could not be made
again: the driver has the strategy, and a task contains its members. The population is
cut into the chunks of the local evaluator and never otherwise, so any host computes the
same bits for a chunk. A host gets one task of several chunks. The chunks of a host that
died go to others, and a new actor takes its place in the background. A task that is
overdue is also given to an idle host, and the first answer counts.

Members that live on stay where they trained, in Ray's object store; see `ray_states`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from metaevo import keys, population
from metaevo.errors import ConfigError, HostError, InterruptedRunError
from metaevo.evaluators._arrays import folded, num_bytes, on_host
from metaevo.evaluators.layout import cut, num_groups
from metaevo.evaluators.local import (
    LocalEvaluator,
    Sources,
    continued_sources,
    healthy,
)
from metaevo.evaluators.ray_hosts import Actor, Payload, Pool, Task, import_ray, pool
from metaevo.evaluators.ray_states import (
    Kept,
    Part,
    States,
    StatesLostError,
    joined,
    pack,
    packed,
    part,
    unpacked,
)
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
    """Check that the members of a search are independent.

    Raises:
        ConfigError: They are not, or Ray is not installed; the message says what to
            use instead.
    """
    if search.coupled:
        raise ConfigError(
            "run.evaluator=ray cannot run this search: its members are coupled and "
            "must run together, and a host may be lost with them. Use "
            "run.evaluator=local, over several hosts with run.distributed=true"
        )
    if search.stopping is not None:
        raise ConfigError(
            "run.evaluator=ray cannot stop members early, since at a rung all are "
            "compared; leave `halving` (Search.stopping) out, or use "
            "run.evaluator=local, over several hosts with run.distributed=true"
        )
    import_ray()


# --- the evaluator --------------------------------------------------------------------

# Member axes of an answer's leaves: of a call, with its agents, and of `score`.
_EVALUATED = Evaluated._make((2, 2, 0, 1, 1))
_AXES: dict[str, PyTree] = {
    "__call__": (_EVALUATED, 1),
    "score": (1, 1),
    "live": (_EVALUATED, 0),
}


class RayEvaluator:
    """Evaluates proposals of one search on a pool; an `Evaluator`.

    Args:
        search: Search with a `chunk_size` whose members are not coupled.
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
        seeds = min(search.seeds_at_once or search.num_seeds, search.num_seeds)
        if options.get("keep_agents"):  # as `LocalEvaluator` has it
            seeds = search.num_seeds
        search = search._replace(seeds_at_once=seeds)
        self.search, self.hosts, self.should_stop = search, hosts, should_stop
        self.programs: dict[str, Any] = {}
        self.num_devices = max(1, hosts.num_devices)
        self.payload = _payload(search, options)
        self.usual: deque[float] = deque(maxlen=50)  # seconds per round of a host
        here = LocalEvaluator(search, jax.devices()[:1], **options)
        self.template, self.state_bytes = here.template, here.state_bytes
        self._put: tuple[PyTree, States] | None = None

    def __call__(
        self,
        key: Key,
        proposal: Proposal,
        carried: PyTree,
        places: np.ndarray | None = None,
    ) -> tuple[Evaluated, PyTree]:
        """Train and score; the same bits as `LocalEvaluator`."""
        if self.search.segments_per_generation is not None:
            assert places is None, "a part of members that live on is not trained"
            return self._remade(
                self._states(carried), partial(self._live, key, proposal)
            )

        size, num_groups = population.size(proposal.params), self._num_groups

        def send(actor: Actor, ids: list[np.ndarray]) -> tuple[Any, list[Kept]]:
            lanes = np.concatenate(ids)
            there = lanes % size
            given = _params(proposal, there)
            there = there if places is None else places[there]
            groups = None if num_groups == 1 else lanes // size
            sent = self.payload, "__call__", data
            work = actor.handle.work
            return work.remote(*sent, there, given, groups), []

        data = np.asarray(keys.to_data(key))
        answers = self._answers(proposal, send, num_groups)
        evaluated, agents = _joined(_AXES["__call__"], answers)
        evaluated = _folded(evaluated, num_groups, self.search.num_seeds)
        carried = tuple(InnerState(agent, ()) for agent in agents)
        return self._with_params(evaluated, proposal), carried

    def score(
        self, key: Key, proposal: Proposal, carried: PyTree
    ) -> tuple[Sequence[Metrics], Sequence[PyTree]]:
        """Evaluate agents as they are; see `LocalEvaluator.score`."""
        data = np.asarray(keys.to_data(key))

        def newborn(actor: Actor, ids: list[np.ndarray]) -> tuple[Any, list[Kept]]:
            there = np.concatenate(ids)
            given = _params(proposal, there)
            work = actor.handle.work
            return work.remote(self.payload, "score", data, there, given), []

        def scored(states: States | None) -> PyTree:
            size = population.size(proposal.params)
            alone = Sources(np.arange(size), np.full(size, -1), np.zeros(size, bool))

            def old(actor: Actor, ids: list[np.ndarray]) -> tuple[Any, list[Kept]]:
                there = np.concatenate(ids)
                part = self._part(states, [alone] * num_tasks, ids, actor, proposal)
                given = _params(proposal, there)
                score = actor.handle.score
                return score.remote(self.payload, data, there, given, part), []

            return self._answers(proposal, newborn if states is None else old)

        num_tasks = len(self.search.tasks)
        answers = self._remade(self._states(carried), scored)
        return _joined(
            _AXES["score"], [x._replace(value=unpacked(x.value)) for x in answers]
        )

    def collected(self, carried: PyTree) -> PyTree:
        """Return the arrays of what a call carries on, and keep a copy of them."""
        if not isinstance(carried, States):
            return carried
        ray = import_ray()

        def fetched(states: States | None) -> list:
            assert states is not None
            _complete(states)
            kept = states.copy or states.chunks
            try:
                return ray.get([x for chunk in kept for x in chunk[:2]])
            except ray.exceptions.ObjectLostError as error:
                raise StatesLostError(str(error)) from None

        found = self._remade(carried, fetched)
        if not carried.copy:
            put = [ray.put(x) for x in found]
            pairs = zip(put[::2], put[1::2], strict=True)
            carried.copy = [Kept(*pair, None) for pair in pairs]
            carried.chunks = carried.chunks or carried.copy
            carried.made_by = None
        return tuple(
            InnerState(
                joined([unpacked(x[task]) for x in found[::2]]),
                joined([unpacked(x[task]) for x in found[1::2]]),
                *unpacked(common),
            )
            for task, common in enumerate(carried.common)
        )

    # --- members that live on ---

    def _states(self, carried: PyTree) -> States | None:
        """Return what a call carries on; arrays of a checkpoint become objects."""
        if isinstance(carried, States):
            return carried
        if not any(_size(x) for x in carried or ()):
            return None  # nothing lives on
        if self._put is None or self._put[0] is not carried:
            ray = import_ray()
            here = jax.tree.map(on_host, carried)
            alive = [healthy(x, _size(x)) for x in here]
            put = [
                Kept(*(ray.put(x) for x in pack(here, ids)), node=None)
                for ids in self._chunks(len(alive[0].agent))
            ]
            common = [packed((x.shared, x.clock)) for x in here]
            states = States(list(put), self._width, common, alive, put, None)
            self._put = carried, states
        return self._put[1]

    def _remade(
        self, states: States | None, use: Callable[[States | None], Found]
    ) -> Found:
        """Return what `use` makes of states, which are made again if they are lost."""
        while True:
            try:
                return use(states)
            except StatesLostError:
                self.hosts.remade += 1
            with contextlib.suppress(StatesLostError):  # in the meantime
                again = self._again(states)
                assert again is not None
                assert states is not None
                states.chunks = again.chunks

    def _again(self, states: States | None) -> States | None:
        """Train from the last copy, or from the start, up to some states."""
        past = []
        while states is not None and not states.copy:
            assert states.made_by is not None
            past.append(states.made_by)
            states = states.made_by[2]
        if states is not None:
            states.chunks = list(states.copy)
        for key, proposal, _ in reversed(past):
            _, states = self._live(key, proposal, states)
        return states

    def _live(
        self, key: Key, proposal: Proposal, states: States | None
    ) -> tuple[Evaluated, States]:
        """Train members that live on for a generation.

        Raises:
            StatesLostError: A host that had some of the states is gone.
        """
        data, follow = np.asarray(keys.to_data(key)), proposal.parents is not None
        sources: list[Sources | None] = [None] * len(self.search.tasks)
        if states is not None:
            _complete(states)
            sources = [
                continued_sources(loop, proposal.parents, alive)
                for loop, alive in zip(self.search.tasks, states.alive, strict=True)
            ]

        def send(actor: Actor, ids: list[np.ndarray]) -> tuple[Any, list[Kept]]:
            there = np.concatenate(ids)
            part = self._part(states, sources, ids, actor, proposal)
            live = actor.handle.live.options(num_returns=1 + 2 * len(ids))
            given = _params(proposal, there)
            first, *left = live.remote(self.payload, data, there, given, follow, part)
            pairs = zip(left[::2], left[1::2], strict=True)
            return first, [Kept(*pair, actor.node) for pair in pairs]

        answers = self._answers(proposal, send)
        common = answers[0].value[2]
        answers = [x._replace(value=x.value[:2]) for x in answers]
        evaluated, alive = _joined(_AXES["live"], answers)
        kept, made_by = [x.kept for x in answers], (key, proposal, states)
        found = States(kept, self._width, common, alive, [], made_by)
        if states is not None:
            states.chunks = []  # so that a host holds two generations at most
        return self._with_params(unpacked(evaluated), proposal), found

    def _part(
        self,
        states: States | None,
        sources: Sequence[Sources | None],
        ids: list[np.ndarray],
        actor: Actor,
        proposal: Proposal,
    ) -> Part:
        """Return what an actor's members continue; count what moves to it."""
        found, far = part(states, sources, ids, actor.node)
        if far.any():
            size = population.size(proposal.params)
            whole = self.template(proposal)
            agents, experience = (num_bytes([x[i] for x in whole]) for i in range(2))
            self.hosts.moved += (far[0] * agents + far[1] * experience) // size
        return found

    # --- chunks ---

    @property
    def _width(self) -> int:
        assert self.search.chunk_size is not None, "chosen before generation 0"
        return self.search.chunk_size

    @property
    def _num_groups(self) -> int:
        return num_groups(self.search)

    def _chunks(self, size: int, num_groups: int = 1) -> list[np.ndarray]:
        groups = np.repeat(np.arange(num_groups), size)
        return cut(size * num_groups, self._width, groups)

    def _answers(
        self, proposal: Proposal, send: Send, num_groups: int = 1
    ) -> list[Answer]:
        chunks = self._chunks(population.size(proposal.params), num_groups)
        return _Generation(self, chunks, send).answered()

    def _with_params(self, evaluated: Evaluated, proposal: Proposal) -> Evaluated:
        if self.search.space.inherit is keep:
            return evaluated._replace(params=proposal.params)
        return evaluated


class Answer(NamedTuple):
    """An answer for a chunk.

    Attributes:
        value: Of all chunks of the task.
        first, length: Members of the task, of which some are the chunk's.
        kept: States of the chunk; None if its members are newborn.
    """

    value: PyTree
    first: int
    length: int
    kept: Any


Found = TypeVar("Found")
Send = Callable[[Actor, list[np.ndarray]], tuple[Any, list[Kept]]]
"""Gives an actor the members of some chunks; returns references to the answer and to
their states."""


def _params(proposal: Proposal, ids: np.ndarray) -> PyTree:
    return jax.tree.map(np.asarray, population.take(proposal.params, ids))


def _size(state: InnerState) -> int:
    """Return the number of members of a state; 0 if none live on."""
    leaves = jax.tree.leaves(state[:2])
    return leaves[0].shape[1] if leaves else 0


def _complete(states: States) -> None:
    """Check that the states are not those of a former generation.

    Raises:
        StatesLostError: They are.
    """
    if not states.chunks:
        raise StatesLostError


def _joined(axes: PyTree, answers: list[Answer]) -> PyTree:
    """Join the chunks' slices of their answers."""

    def join(axis, *parts):
        slices = []
        for x, (_, first, length, _) in zip(parts, answers, strict=True):
            slices.append(np.take(x, np.arange(first, first + length), axis))
        return np.concatenate(slices, axis)

    return jax.tree.map(
        lambda axis, *parts: jax.tree.map(partial(join, axis), *parts),
        axes,
        *(answer.value for answer in answers),
    )


def _folded(evaluated: Evaluated, num_groups: int, num_seeds: int) -> Evaluated:
    """Return the evaluation of members of that of their lanes, see `layout`."""

    def fold(tree: PyTree, axis: int) -> PyTree:
        return folded(tree, num_groups, num_seeds, axis)

    return evaluated._replace(
        fitness=fold(evaluated.fitness, 1),
        healthy=fold(evaluated.healthy, 1),
        train=fold(evaluated.train, 0),
        evaluation=fold(evaluated.evaluation, 0),
    )


def _payload(search: Search, options: dict) -> Payload:
    """Put what evaluators are made of where the hosts can get it."""
    ray = import_ray()
    try:
        # The strategy stays with the driver. Hosts need to know of its pairs.
        if getattr(search.strategy, "mirrored", False):
            common = search.common_random_numbers
            search = search._replace(common_random_numbers=common is not False)
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
        send: Gives an actor the members of some chunks.

    Attributes:
        waiting: Chunks on which no host works.
        isolated: Chunks that failed in a task of several; each is tried alone.
        answers: Per chunk.
    """

    def __init__(self, evaluator: RayEvaluator, chunks: list[np.ndarray], send: Send):
        self.evaluator, self.chunks, self.send = evaluator, chunks, send
        self.hosts, self.name = evaluator.hosts, evaluator.payload.name
        self.waiting = list(range(len(chunks)))
        self.isolated: set[int] = set()
        self.errors, self.losses = Counter(), Counter()
        self.answers: dict[int, Answer] = {}

    def answered(self) -> list[Answer]:
        """Return the answer of each chunk.

        Raises:
            InterruptedRunError: `should_stop` returned True.
            StatesLostError: A host that had states of members is gone.
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
        reference, kept = self.send(actor, [self.chunks[i] for i in chunks])
        timed = self.name in actor.compiled
        now = time.monotonic()
        actor.task = Task(reference, kept, chunks, self.name, self, now, timed)

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
                if isinstance(error, StatesLostError):
                    raise StatesLostError from None
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
            for i, kept in itertools.zip_longest(task.chunks, task.kept):
                length = len(self.chunks[i])
                # The first answer counts; all have the same bits.
                self.answers.setdefault(i, Answer(answer, first, length, kept))
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
