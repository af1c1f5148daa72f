"""Where generations are evaluated: chosen here and nowhere else.

local   this machine's devices, or those of all processes of a jax.distributed job
ray     the hosts of a Ray cluster, for searches whose members are newborn
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
from metaevo.evaluators.local import LocalEvaluator, default_chunk_size
from metaevo.types import Evaluator, Proposal, Search

__all__ = ["EvaluatorFactory", "check", "follow", "local", "workers"]


class EvaluatorFactory(NamedTuple):
    """What evaluators are made of.

    Attributes:
        make: `(search, evaluate=False, keep_agents=False) -> Evaluator` of a search's
            generations; see `LocalEvaluator`.
        make_after: the same, of what follows the last generation.
        plan: `(search, proposal) -> (Evaluator, chunk size)`, before generation 0: how
            many members train at once; None where a loop is coupled.
        num_devices: on all hosts.
        platform: `cpu`, `gpu` or `tpu`.
        device: as the manifest calls it.
    """

    make: Callable[..., Evaluator]
    make_after: Callable[..., Evaluator]
    plan: Callable[[Search, Proposal], tuple[Evaluator, int | None]]
    num_devices: int
    platform: str
    device: str


@contextlib.contextmanager
def workers(
    config: RunConfig, should_stop: Callable[[], bool]
) -> Iterator[EvaluatorFactory]:
    """What `run.evaluator` asks for, while the context lasts.

    Raises:
        ConfigError: it cannot be had.
    """
    if config.evaluator == "ray":
        from metaevo.evaluators import ray

        with ray.pool(config.ray_address) as hosts:
            make = partial(ray.RayEvaluator, hosts=hosts, should_stop=should_stop)
            platform, kind = hosts.kind
            number = hosts.num_devices
            plan = partial(_by_devices, make, number, platform)
            yield EvaluatorFactory(
                make, make, plan, number, platform, f"{number} x {kind}"
            )
    elif config.distributed:
        yield _distributed(should_stop)
    else:
        yield local(choose_devices(config), should_stop)


def check(config: RunConfig, search: Search) -> None:
    """Whether `run.evaluator` can evaluate a search; asked before anything starts.

    Raises:
        ConfigError: it cannot; says what can.
    """
    if config.evaluator == "ray":
        from metaevo.evaluators import ray

        ray.check(search)


def local(
    devices: list, should_stop: Callable[[], bool] = lambda: False
) -> EvaluatorFactory:
    """This process's devices."""
    make = partial(LocalEvaluator, devices=devices, should_stop=should_stop)
    platform = jax.default_backend()
    kind = f"{len(devices)} x {devices[0].device_kind}"
    plan = partial(_by_memory, make)
    return EvaluatorFactory(make, make, plan, len(devices), platform, kind)


def _by_memory(make, search, proposal):
    """As many members at once as fit; what was compiled to find out is kept."""
    evaluator = chunking.plan(make(search), proposal)
    return evaluator, None if evaluator.coupled else evaluator.chunk_size


def _by_devices(make, num_devices, platform, search, proposal):
    """A part for each device; of other hosts' memory nothing is known here."""
    size = search.chunk_size
    if size is None and not any(loop.coupled for loop in search.tasks):
        members = population.size(proposal.params)
        size = default_chunk_size(members, num_devices, platform)
    return make(search._replace(chunk_size=size)), size


def _distributed(should_stop: Callable[[], bool]) -> EvaluatorFactory:
    """The devices of all processes; what follows the search is the first one's."""
    everywhere = local(jax.devices(), distributed.any_of(should_stop))
    here = local(jax.local_devices(), should_stop)

    def make(search, **options):
        return distributed.Leader(everywhere.make(search, **options))

    plan = partial(_by_devices, make, everywhere.num_devices, everywhere.platform)
    return everywhere._replace(make=make, make_after=here.make, plan=plan)


def follow(
    search: Search,
    shapes: Proposal,
    config: RunConfig,
    should_stop: Callable[[], bool],
) -> None:
    """What a process does that is not the first of its job; see `processes`."""
    make = local(jax.devices(), distributed.any_of(should_stop)).make
    distributed.follow(
        lambda chunk_size: make(search._replace(chunk_size=chunk_size)), shapes, config
    )
