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

from metaevo import checks
from metaevo.evaluators import processes
from metaevo.evaluators.local import LocalEvaluator
from metaevo.rundir import RunConfig
from metaevo.types import Evaluator, Proposal, Search

__all__ = ["Workers", "check", "follow", "local", "workers"]


class Workers(NamedTuple):
    """What evaluators are made of.

    Attributes:
        make: `(search, evaluate=False, keep_agents=False) -> Evaluator` of a search's
            generations; see `LocalEvaluator`.
        make_after: the same, of what follows the last generation.
        num_devices: on all hosts.
        platform: `cpu`, `gpu` or `tpu`.
        device: as the manifest calls it.
    """

    make: Callable[..., Evaluator]
    make_after: Callable[..., Evaluator]
    num_devices: int
    platform: str
    device: str


@contextlib.contextmanager
def workers(config: RunConfig, should_stop: Callable[[], bool]) -> Iterator[Workers]:
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
            yield Workers(make, make, number, platform, f"{number} x {kind}")
    elif config.distributed:
        yield _distributed(should_stop)
    else:
        yield local(checks.choose_devices(config), should_stop)


def check(config: RunConfig, search: Search) -> None:
    """Whether `run.evaluator` can evaluate a search; asked before anything starts.

    Raises:
        ConfigError: it cannot; says what can.
    """
    if config.evaluator == "ray":
        from metaevo.evaluators import ray

        ray.check(search)


def local(devices: list, should_stop: Callable[[], bool] = lambda: False) -> Workers:
    """This process's devices."""
    make = partial(LocalEvaluator, devices=devices, should_stop=should_stop)
    kind = f"{len(devices)} x {devices[0].device_kind}"
    return Workers(make, make, len(devices), jax.default_backend(), kind)


def _distributed(should_stop: Callable[[], bool]) -> Workers:
    """The devices of all processes; what follows the search is the first one's."""
    everywhere = local(jax.devices(), processes.any_of(should_stop))
    here = local(jax.local_devices(), should_stop)
    return everywhere._replace(
        make=lambda search, **options: processes.Leader(
            everywhere.make(search, **options)
        ),
        make_after=here.make,
    )


def follow(
    search: Search,
    shapes: Proposal,
    config: RunConfig,
    should_stop: Callable[[], bool],
) -> None:
    """What a process does that is not the first of its job; see `processes`."""
    make = local(jax.devices(), processes.any_of(should_stop)).make
    processes.follow(
        lambda chunk_size: make(search._replace(chunk_size=chunk_size)), shapes, config
    )
