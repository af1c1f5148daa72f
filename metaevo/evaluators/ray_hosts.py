"""Hosts of a Ray cluster: one actor each, which owns the host's devices.

An actor holds nothing that could be lost. When it dies, the pool makes another one in
the background. A host that joins the cluster gets one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import keys
from metaevo.errors import ConfigError, InterruptedRunError
from metaevo.evaluators import surroundings
from metaevo.evaluators.local import LocalEvaluator, healthy
from metaevo.evaluators.ray_states import Kept, Part, StatesLostError, pack, packed
from metaevo.types import Evaluated, Key, Proposal, PyTree, Search, keep

__all__ = ["Actor", "Payload", "Pool", "Task", "connected", "import_ray", "pool"]

POLL = 1.0  # seconds between two polls for new hosts
PATIENCE = 30.0  # seconds for which the first host waits for the others
SILENCE = 10.0  # seconds without any host, after which a line says so


# --- a host ---------------------------------------------------------------------------


class _Host:
    """Actor that runs on a host. It may be lost at any time."""

    def __init__(self, num_cpus: int, paths: list[str], settings: dict[str, Any]):
        sys.path += [path for path in paths if path not in sys.path]
        from metaevo.evaluators import surroundings
        from metaevo.evaluators.devices import configure

        surroundings.adopt(settings)
        configure(num_cpus)
        self.evaluators: dict[str, LocalEvaluator] = {}

    def about(self) -> tuple[int, int, str, str]:
        """Return the process, its number of devices, their platform and their kind."""
        found = jax.devices()
        return os.getpid(), len(found), jax.default_backend(), found[0].device_kind

    def work(
        self,
        payload: Payload,
        method: str,
        key: np.ndarray,
        places: np.ndarray,
        params: PyTree,
        groups: np.ndarray | None = None,
    ) -> PyTree:
        """Evaluate whole chunks of members.

        Args:
            payload: Search and options of the evaluator.
            method: Name of the evaluator's method.
            key: Data of the generation's key.
            places: Places of the members in the population.
            params: Their params.
            groups: Groups of seeds on which each is trained; None: on all.
        """
        evaluator = self._evaluator(payload)
        call = getattr(evaluator, method)
        some = {} if groups is None else {"groups": groups}
        found = call(_key(key), Proposal(params), (), places, **some)
        if method == "__call__":
            evaluated, carried = found
            found = (
                _without_params(evaluator.search, evaluated),
                tuple(state.agent for state in carried),
            )
        return jax.tree.map(lambda x: np.asarray(keys.to_data(x)), found)

    def live(
        self,
        payload: Payload,
        key: np.ndarray,
        places: np.ndarray,
        params: PyTree,
        follow: bool,
        part: Part,
    ) -> list[PyTree]:
        """Train whole chunks of members that live on.

        Args:
            follow: Whether members follow parents.
            part: What they continue.

        Returns:
            The evaluation, per task the members whose numbers are all finite, and what
            they share; then, of each chunk, its agents and their experience.

        Raises:
            StatesLostError: A host that had some of it is gone.
        """
        evaluator = self._evaluator(payload)
        old = _fetched(part)
        size = len(places)
        parents: Any = np.zeros(size, np.int32) if follow else None
        evaluated, carried = evaluator(
            _key(key), Proposal(params, parents), old, places, part.sources
        )
        evaluated = _without_params(evaluator.search, evaluated)
        alive = [healthy(state, size) for state in carried]
        common = [packed((state.shared, state.clock)) for state in carried]
        found: list[PyTree] = [(packed(evaluated), alive, common)]
        ends = np.cumsum(part.widths)
        for width, end in zip(part.widths, ends, strict=True):
            found += pack(carried, np.arange(end - width, end))
        return found

    def score(
        self,
        payload: Payload,
        key: np.ndarray,
        places: np.ndarray,
        params: PyTree,
        part: Part,
    ) -> PyTree:
        """Evaluate agents that live on as they are; see `LocalEvaluator.score`."""
        evaluator = self._evaluator(payload)
        proposal = Proposal(params, jnp.zeros(len(places), jnp.int32))
        return packed(evaluator.score(_key(key), proposal, _fetched(part), places))

    def _evaluator(self, payload: Payload) -> LocalEvaluator:
        ray = import_ray()
        if payload.name not in self.evaluators:
            search, options = ray.cloudpickle.loads(ray.get(payload.where[0]))
            self.evaluators[payload.name] = LocalEvaluator(search, **options)
        return self.evaluators[payload.name]


def _key(data: np.ndarray) -> Key:
    return keys.from_data(data, like=jax.random.key(0))


def _without_params(search: Search, evaluated: Evaluated) -> Evaluated:
    """Leave params out that the driver has."""
    kept = search.space.inherit is keep
    return evaluated._replace(params=()) if kept else evaluated


def _fetched(part: Part) -> tuple:
    """Return the states of a part.

    Raises:
        StatesLostError: A host that had some of them is gone.
    """
    ray = import_ray()
    try:
        return part.fetched(ray.get)
    except (ray.exceptions.ObjectLostError, ray.exceptions.ActorDiedError) as error:
        raise StatesLostError(str(error)) from None


class Payload(NamedTuple):
    """Search and options of an evaluator.

    Attributes:
        name: Digest of both.
        where: A list with a reference to them. In a list Ray does not fetch it.
    """

    name: str
    where: list


# --- the hosts ------------------------------------------------------------------------


@dataclass(eq=False)
class Actor:
    """An actor as the driver sees it.

    Attributes:
        node: Name of its host.
        handle: Ray's handle.
        ready: Reference to the answer of `about`; None once the actor is up.
        pid: Process on its host.
        num_devices: Devices of its host.
        task: Task that it works on; None: it is idle.
        compiled: Names of the evaluators whose programs it has compiled.
    """

    node: str
    handle: Any
    ready: Any
    pid: int = 0
    num_devices: int = 1
    task: Task | None = None
    compiled: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Task:
    """Chunks that an actor evaluates.

    Attributes:
        reference: Reference to the answer.
        kept: References to the states of each chunk; empty if members are newborn.
        chunks: Indices of the chunks in their generation.
        name: Name of the evaluator.
        generation: Generation to which the chunks belong.
        since: Time of the assignment, in seconds.
        timed: Whether its duration says how long a round takes, because nothing had
            to be compiled.
        doubled: Whether its chunks were assigned to another host too.
    """

    reference: Any
    kept: list[Kept]
    chunks: list[int]
    name: str
    generation: Any
    since: float
    timed: bool
    doubled: bool = False


class Pool:
    """The actors of a cluster: one per host, replaced when they die.

    Args:
        address: Address of the cluster; `local` starts one on this machine.
        should_stop: Asked while no host has come.

    Attributes:
        actors: Actors of all hosts.
        kind: Platform and kind of the devices.
        losses: Hosts that were lost with a task.
        doubles: Tasks that were assigned twice.
        replaced: Actors that were removed.
        moved: Bytes of members that live on, sent from one host to another.
        remade: Times that members were trained again, since a host with them was lost.

    Raises:
        ConfigError: There is no such cluster, or Ray is not installed.
        InterruptedRunError: `should_stop` returned True.
    """

    def __init__(
        self,
        address: str = "local",
        should_stop: Callable[[], bool] = lambda: False,
    ):
        self._connection = contextlib.ExitStack()
        self._connection.enter_context(connected(address))
        self.actors: list[Actor] = []
        self.losses = self.doubles = self.replaced = 0
        self.moved = self.remade = 0
        self._polled = 0.0
        self.kind = ("cpu", "cpu")
        self._last_up, self._told = time.monotonic(), False
        try:
            self._wait(should_stop)
        except BaseException:
            self.close()
            raise

    def _wait(self, should_stop: Callable[[], bool]) -> None:
        """Wait for a first host, and for a while for those that start with it."""
        self.poll()
        began = time.monotonic()
        while not self.num_devices or (
            any(actor.ready is not None for actor in self.actors)
            and time.monotonic() - began < PATIENCE
        ):
            if should_stop():
                raise InterruptedRunError("stopped before a host of the cluster came")
            self.poll()
            time.sleep(0.02)

    @property
    def num_devices(self) -> int:
        """Devices of all hosts that are up."""
        return sum(actor.num_devices for actor in self.actors if actor.ready is None)

    def poll(self) -> None:
        """Make actors for hosts that have none, and note those that are up.

        If no host has been up for `SILENCE` seconds, a line on the terminal says so.
        """
        ray = import_ray()
        now = time.monotonic()
        if now - self._polled > POLL or not self.actors:
            self._polled = now
            nodes = {n["NodeID"]: n["Resources"] for n in ray.nodes() if n["Alive"]}
            for lost in [a for a in self.actors if a.node not in nodes]:
                self.remove(lost)
            for node in nodes.keys() - {actor.node for actor in self.actors}:
                cpus = int(nodes[node].get("CPU", 0))
                if cpus:  # a head that only manages the cluster has none
                    self._add(node, cpus, nodes[node].get("GPU", 0))
        waiting = [actor for actor in self.actors if actor.ready is not None]
        for actor in waiting:
            if not ray.wait([actor.ready], timeout=0)[0]:
                continue
            try:
                actor.pid, number, platform, kind = ray.get(actor.ready)
            except ray.exceptions.RayError as error:
                if isinstance(error, ray.exceptions.RayTaskError):
                    raise
                self.remove(actor)
                continue
            actor.ready, actor.num_devices = None, number
            self.kind = (platform, kind)
        if self.num_devices:
            self._last_up, self._told = now, False
        elif now - self._last_up > SILENCE and not self._told:
            self._told = True
            with contextlib.suppress(OSError):  # a closed terminal
                print("no host of the Ray cluster is up; waiting for one", flush=True)

    def _add(self, node: str, cpus: int, gpus: float) -> None:
        ray = import_ray()
        from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
            NodeAffinitySchedulingStrategy,
        )

        there = NodeAffinitySchedulingStrategy(node, soft=False)
        handle = (
            ray.remote(_Host)
            .options(
                num_cpus=cpus,
                num_gpus=gpus,
                # The driver replaces it; with a restart by Ray, calls would wait.
                max_restarts=0,
                scheduling_strategy=there,
                runtime_env={"env_vars": _environment()},
            )
            .remote(
                cpus,
                [path or os.getcwd() for path in sys.path],
                surroundings.settings(),
            )
        )
        self.actors.append(Actor(node, handle, handle.about.remote()))

    def remove(self, actor: Actor) -> None:
        """Forget an actor, and end it if it lives."""
        with contextlib.suppress(Exception):
            import_ray().kill(actor.handle)
        if actor in self.actors:
            self.actors.remove(actor)
        self.replaced += 1
        self._polled = 0.0  # its host may need another one

    def close(self) -> None:
        for actor in list(self.actors):
            self.remove(actor)
        self._connection.close()


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a cluster, unless this process is connected to one.

    Args:
        address: Address of the cluster; `local` starts one on this machine.

    Raises:
        ConfigError: There is no such cluster, or Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray starts its workers at nice 15, behind all other processes.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray = import_ray()
    if ray.is_initialized():
        yield
        return
    from metaevo.evaluators.devices import num_cores

    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == "local":
        options |= {"num_cpus": num_cores(), "include_dashboard": False}
    try:
        ray.init(address=address, **options)
    except Exception as error:  # Ray raises many kinds, most of them not its own
        raise ConfigError(
            f"run.ray_address={address}: Ray: {str(error).splitlines()[0]}"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def pool(
    address: str | None, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[Pool]:
    """Give a `Pool`, and close it at the end.

    Args:
        address: Address of the cluster; None: start one on this machine.
        should_stop: Asked while no host has come.
    """
    opened = Pool(address or "local", should_stop)
    try:
        yield opened
    finally:
        opened.close()


def import_ray() -> Any:
    """Return the module `ray`.

    Raises:
        ConfigError: Ray is not installed.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "run.evaluator=ray needs Ray: pip install 'metaevo[ray]'"
        ) from None
    return ray


def _environment() -> dict[str, str]:
    """Return the part of the driver's environment that an actor needs."""
    names = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME")
    return {name: os.environ[name] for name in names if name in os.environ}
