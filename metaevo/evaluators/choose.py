"""The choice of an evaluator, from `run.evaluator` and `run.distributed`.

local   this machine's devices, or those of all processes of a jax.distributed job
ray     the hosts of a Ray cluster, for searches whose members are not coupled
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax

from metaevo import population
from metaevo.config import RunConfig
from metaevo.evaluators import chunking, distributed
from metaevo.evaluators.devices import choose_devices
from metaevo.evaluators.layout import default_chunk_size, default_seeds
from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Evaluator, Proposal, Search

__all__ = [
    "EvaluatorFactory",
    "Evaluators",
    "check",
    "factory",
    "local_factory",
    "run_worker",
]


class EvaluatorFactory(NamedTuple):
    """Functions that make evaluators, and the devices that these use.

    Attributes:
        make: `(search, evaluate=False, keep_agents=False) -> Evaluator` for the
            generations of a search; see `LocalEvaluator`.
        make_after: The same for what follows the last generation.
        plan: `(search, proposal) -> (Evaluator, Search)`, for use before generation 0:
            the search with the number of members, and of a member's seeds, that train
            in one vmap; None each if a loop is coupled.
        num_devices: Number of devices on all hosts.
        platform: `cpu`, `gpu` or `tpu`.
        device: Description of the devices for the manifest.
    """

    make: Callable[..., Evaluator]
    make_after: Callable[..., Evaluator]
    plan: Callable[[Search, Proposal], tuple[Evaluator, Search]]
    num_devices: int
    platform: str
    device: str


Evaluators = Callable[
    [RunConfig, Callable[[], bool]], contextlib.AbstractContextManager[EvaluatorFactory]
]
"""`(config, should_stop) -> context` of a factory, such as `factory`."""


@contextlib.contextmanager
def factory(
    config: RunConfig, should_stop: Callable[[], bool]
) -> Iterator[EvaluatorFactory]:
    """Give the factory that `run.evaluator` asks for, while the context lasts.

    Args:
        config: Configuration of the run.
        should_stop: Asked often; True abandons a generation.

    Raises:
        ConfigError: There is no such evaluator here.
    """
    if config.evaluator == "ray":
        from metaevo.evaluators import ray

        with ray.pool(config.ray_address, should_stop) as hosts:
            make = partial(ray.RayEvaluator, hosts=hosts, should_stop=should_stop)
            platform, kind = hosts.kind
            num = hosts.num_devices
            plan = partial(_plan_by_devices, make, num, platform)
            yield EvaluatorFactory(make, make, plan, num, platform, f"{num} x {kind}")
    elif config.distributed:
        yield _distributed(should_stop)
    else:
        yield local_factory(choose_devices(config), should_stop)


def check(config: RunConfig, search: Search) -> None:
    """Check that `run.evaluator` can evaluate a search, before anything starts.

    Raises:
        ConfigError: It cannot; the message says what can.
    """
    if config.evaluator == "ray":
        from metaevo.evaluators import ray

        ray.check(search)


def local_factory(
    devices: list, should_stop: Callable[[], bool] = lambda: False
) -> EvaluatorFactory:
    """Return the factory of evaluators on the given JAX devices."""
    make = partial(LocalEvaluator, devices=devices, should_stop=should_stop)
    platform = jax.default_backend()
    kind = f"{len(devices)} x {devices[0].device_kind}"
    plan = partial(_plan_by_memory, make)
    return EvaluatorFactory(make, make, plan, len(devices), platform, kind)


def _plan_by_memory(
    make: Callable[..., LocalEvaluator], search: Search, proposal: Proposal
) -> tuple[Evaluator, Search]:
    """Train as many members at once as fit; the compiled programs are kept."""
    evaluator = chunking.plan(make(search), proposal)
    return evaluator, evaluator.sized


def _plan_by_devices(
    make: Callable[..., Evaluator],
    num_devices: int,
    platform: str,
    search: Search,
    proposal: Proposal,
) -> tuple[Evaluator, Search]:
    """Divide the members among the devices; the memory of other hosts is unknown."""
    if not search.coupled:
        members = population.size(proposal.params)
        size = search.chunk_size
        size = size or default_chunk_size(members, num_devices, platform)
        seeds = search.seeds_at_once
        seeds = seeds or default_seeds(search, -(-members // size), num_devices)
        search = search._replace(chunk_size=size, seeds_at_once=seeds)
    return make(search), search


def _distributed(should_stop: Callable[[], bool]) -> EvaluatorFactory:
    """Use all processes for the search, and the coordinator's devices afterwards."""
    make_everywhere = partial(
        LocalEvaluator,
        devices=jax.devices(),
        should_stop=distributed.any_of(should_stop),
    )
    everywhere = local_factory(jax.devices())
    here = local_factory(jax.local_devices(), should_stop)

    def make(search, **options):
        return distributed.CoordinatorEvaluator(make_everywhere(search, **options))

    plan = partial(_plan_by_devices, make, everywhere.num_devices, everywhere.platform)
    return everywhere._replace(make=make, make_after=here.make, plan=plan)


def run_worker(
    search: Search,
    shapes: Proposal,
    config: RunConfig,
    should_stop: Callable[[], bool],
) -> None:
    """Run a process of a distributed job that is not its coordinator.

    Args:
        search: Search of the job.
        shapes: Shapes of a proposal.
        config: Configuration of the run.
        should_stop: Asked often; True in one process stops all.
    """

    def make(chunk_size: int | None, seeds: int | None) -> LocalEvaluator:
        return LocalEvaluator(
            search._replace(chunk_size=chunk_size, seeds_at_once=seeds),
            jax.devices(),
            should_stop=distributed.any_of(should_stop),
        )

    distributed.run_worker(make, shapes, config)
