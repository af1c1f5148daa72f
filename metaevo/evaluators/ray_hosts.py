"""The hosts of a Ray cluster: one actor each, which owns the host's devices.

An actor holds nothing that could be lost. When it dies the pool makes another in the
background; when a host joins the cluster it gets one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from metaevo.errors import ConfigError
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Proposal, PyTree, keep

__all__ = ["Actor", "Payload", "Pool", "Task", "import_ray", "pool"]

POLL = 1.0  # seconds between two looks for new hosts
PATIENCE = 30.0  # seconds that the first hosts wait for each other


# --- a host ---------------------------------------------------------------------------


class _Host:
    """What runs on a host; an actor. It may be lost at any time."""

    def __init__(self, num_cpus: int, paths: list[str]):
        sys.path += [path for path in paths if path not in sys.path]
        from metaevo.evaluators.devices import configure

        configure(num_cpus)
        self.evaluators: dict[str, LocalEvaluator] = {}

    def about(self) -> tuple[int, int, str, str]:
        """The process, its number of devices, their platform and their kind."""
        found = jax.devices()
        return os.getpid(), len(found), jax.default_backend(), found[0].device_kind

    def work(
        self,
        made_of: Payload,
        method: str,
        key: np.ndarray,
        places: np.ndarray,
        params: PyTree,
    ) -> PyTree:
        """Evaluates whole chunks of members."""
        import ray
        from ray import cloudpickle

        if made_of.name not in self.evaluators:
            search, options = cloudpickle.loads(ray.get(made_of.where[0]))
            self.evaluators[made_of.name] = LocalEvaluator(search, **options)
        evaluator = getattr(self.evaluators[made_of.name], method)
        search = self.evaluators[made_of.name].search
        found = evaluator(jax.random.wrap_key_data(key), Proposal(params), (), places)
        if method == "__call__":
            evaluated, carried = found
            if search.space.inherit is keep:
                evaluated = evaluated._replace(params=())
            found = evaluated, tuple(state.agent for state in carried)
        return jax.tree.map(_plain, found)


class Payload(NamedTuple):
    """What an evaluator is made of: its name, and a list with a reference."""

    name: str
    where: list


def _plain(x: Any) -> np.ndarray:
    """An array that travels; keys as their data."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)


# --- the hosts ------------------------------------------------------------------------


@dataclass(eq=False)
class Actor:
    """An actor as the driver sees it.

    Attributes:
        node: where it is.
        ready: answers `about` once it is up; None: it is.
        task: what it works on, if anything.
        pid: of its process, on its host.
        knows: names of the evaluators that it has compiled.
    """

    node: str
    handle: Any
    ready: Any
    pid: int = 0
    num_devices: int = 1
    task: Task | None = None
    knows: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Task:
    """Chunks given to an actor."""

    reference: Any
    chunks: list[int]
    name: str  # of the evaluator
    work: Any  # the generation that it belongs to
    since: float
    timed: bool  # whether it says how long a round takes: nothing had to compile
    doubled: bool = False


class Pool:
    """The actors of a cluster: one per host, replaced when they die.

    Args:
        address: of the cluster; `local` starts one on this machine.
    """

    def __init__(self, address: str = "local"):
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray has its workers give way to everything else, at nice 15.
        os.environ.setdefault("RAY_worker_niceness", "0")
        ray = import_ray()
        self.ours = not ray.is_initialized()
        if self.ours:
            from metaevo.evaluators.devices import num_cores

            options = {"logging_level": logging.ERROR, "log_to_driver": False}
            if address == "local":
                options |= {"num_cpus": num_cores(), "include_dashboard": False}
            try:
                ray.init(address=address, **options)
            except Exception as error:  # Ray has no kind of its own for most
                raise ConfigError(
                    f"run.ray_address={address}: Ray: {str(error).splitlines()[0]}"
                ) from None
        self.actors: list[Actor] = []
        self.losses = self.doubles = self.replaced = 0
        self._looked = 0.0
        self.kind = ("cpu", "cpu")
        self.look()
        began = time.monotonic()
        while not self.num_devices or (
            any(actor.ready is not None for actor in self.actors)
            and time.monotonic() - began < PATIENCE
        ):
            self.look()
            time.sleep(0.02)

    @property
    def num_devices(self) -> int:
        return sum(actor.num_devices for actor in self.actors if actor.ready is None)

    def look(self) -> None:
        """Makes actors for hosts that have none, and greets those that are up."""
        ray = import_ray()
        now = time.monotonic()
        if now - self._looked > POLL or not self.actors:
            self._looked = now
            nodes = {n["NodeID"]: n["Resources"] for n in ray.nodes() if n["Alive"]}
            for lost in [a for a in self.actors if a.node not in nodes]:
                self.remove(lost)
            for node in nodes.keys() - {actor.node for actor in self.actors}:
                cpus = int(nodes[node].get("CPU", 0))
                if cpus:  # a head that only manages has none
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

    def _add(self, node: str, cpus: int, gpus: float) -> None:
        ray = import_ray()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node, soft=False)
        handle = (
            ray.remote(_Host)
            .options(
                num_cpus=cpus,
                num_gpus=gpus,
                # The driver replaces it: restarted by Ray the next calls would wait.
                max_restarts=0,
                scheduling_strategy=there,
                runtime_env={"env_vars": _environment()},
            )
            .remote(cpus, [path or os.getcwd() for path in sys.path])
        )
        self.actors.append(Actor(node, handle, handle.about.remote()))

    def remove(self, actor: Actor) -> None:
        """Forgets an actor, and ends it if it lives."""
        with contextlib.suppress(Exception):
            import_ray().kill(actor.handle)
        if actor in self.actors:
            self.actors.remove(actor)
        self.replaced += 1
        self._looked = 0.0  # its host may want another

    def close(self) -> None:
        for actor in list(self.actors):
            self.remove(actor)
        if self.ours:
            import_ray().shutdown()


@contextlib.contextmanager
def pool(address: str | None) -> Iterator[Pool]:
    """A `Pool`, closed at the end."""
    opened = Pool(address or "local")
    try:
        yield opened
    finally:
        opened.close()


def import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "run.evaluator=ray needs Ray: pip install 'metaevo[ray]'"
        ) from None
    return ray


def _environment() -> dict[str, str]:
    """What an actor needs of the driver's environment."""
    names = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME")
    return {name: os.environ[name] for name in names if name in os.environ}
