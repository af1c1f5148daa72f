"""Layout of a population on devices: chunks, rounds, and where arrays lie.

The population is cut into chunks of `chunk_size` members; a round gives each device
one chunk. A chunk's program does not depend on the number of devices, so neither do
its bits. A coupled population is never cut: each device gets an equal part.

Where members are fewer than devices their seeds are divided, too. A *lane* is then a
member on a group of `seeds` seeds. P members on G groups are G · P lanes, group by
group, and it is lanes that are cut into chunks, each within a group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from metaevo.errors import ConfigError
from metaevo.evaluators import _arrays, _messages
from metaevo.population import DEVICES
from metaevo.types import InnerState, PyTree, Search

CPU_CHUNK = 8  # members per vmap; measured flat between 4 and 16 on CPU

MEMBERS = PartitionSpec(DEVICES)
SEEDS_MEMBERS = PartitionSpec(None, DEVICES)
ALL = PartitionSpec()
STATE = InnerState(SEEDS_MEMBERS, SEEDS_MEMBERS, ALL, ALL)
"""Specs of arrays [P, ...], [S, P, ...], without a member axis, of an InnerState."""


class Round(NamedTuple):
    """Lanes that train at once, one chunk per device.

    Attributes:
        ids: [width] lanes; those that fill up a chunk, or a device, repeat others.
        real: [width] bool, False of repeated ones.
    """

    ids: np.ndarray
    real: np.ndarray


class Layout(NamedTuple):
    """Layout of a population on devices.

    Attributes:
        mesh: Devices that the population fills, in one axis.
        chunk_size: Members in one vmap.
        seeds: Seeds of a member in one vmap.
        exchange: Gives every process the whole of an array that all of them hold.
            None if the devices belong to one process.
    """

    mesh: Mesh
    chunk_size: int
    seeds: int
    exchange: Callable[[PyTree], PyTree] | None

    def rounds(self, size: int, groups: np.ndarray | None = None) -> Iterator[Round]:
        """Yield the rounds of some lanes, in order.

        Args:
            size: Number of lanes.
            groups: [size] group of seeds of each lane; None: all have the same.
        """
        chunks = cut(size, self.chunk_size, groups)
        for i in range(0, len(chunks), self.mesh.size):
            some = chunks[i : i + self.mesh.size]
            padding = self.mesh.size - len(some)
            ids = [_filled(x, self.chunk_size) for x in some]
            real = [np.arange(self.chunk_size) < len(x) for x in some]
            ids += ids[-1:] * padding
            real += [np.zeros(self.chunk_size, bool)] * padding
            yield Round(np.concatenate(ids), np.concatenate(real))

    def put(self, tree: PyTree, spec: PartitionSpec) -> PyTree:
        """Return arrays on the devices, distributed as `spec` says."""
        sharding = self._sharding(spec)
        if self.exchange is not None:
            return jax.tree.map(partial(_arrays.spread, sharding), tree)
        # On a CPU an alias of an array of the host could not be donated to a program.
        may_alias = False if jax.default_backend() == "cpu" else None
        return jax.device_put(tree, sharding, may_alias=may_alias)

    def put_members(self, tree: PyTree, ids: np.ndarray) -> PyTree:
        """Return the members `ids` of leaves [S, P, ...] on the devices.

        The leaves follow each other, so that no second copy of all exists.
        """
        return jax.tree.map(
            lambda x: self.put(_arrays.take(x, ids, 1), SEEDS_MEMBERS), tree
        )

    def put_shapes(self, shapes: PyTree, spec: PartitionSpec) -> PyTree:
        """Return shapes on the devices that `put` would give their arrays."""
        sharding = self._sharding(spec)
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes
        )

    def _sharding(self, spec: PartitionSpec) -> NamedSharding:
        # Programs return their results so; another spec would compile once more.
        return NamedSharding(self.mesh, ALL if self.mesh.size == 1 else spec)

    def gathered(self, tree: PyTree, consume: bool = False) -> PyTree:
        """Wait for `tree`; bring it to the host from CPUs or from other processes.

        Args:
            tree: Arrays on the devices.
            consume: Delete each array once the host has a copy of it.

        Indexing an array that lies on several CPU devices is a collective, and
        collectives that overlap can wait for each other forever where there are few
        cores. On an accelerator arrays stay where they are.
        """
        if self.exchange is not None:
            # Waiting inside a collective has a time limit, which compiling may exceed.
            jax.block_until_ready(tree)
            _messages.barrier()
            tree = self.exchange(tree)
        elif jax.default_backend() != "cpu":
            return jax.block_until_ready(tree)
        return jax.tree.map(partial(_arrays.on_host, consume=consume), tree)


def cut(
    size: int, chunk_size: int, groups: np.ndarray | None = None
) -> list[np.ndarray]:
    """Return the lanes of each chunk; a chunk has lanes of one group.

    Args:
        size: Number of lanes.
        chunk_size: Most lanes of a chunk.
        groups: [size] group of seeds of each lane, in order; None: all have the same.

    >>> [x.tolist() for x in cut(6, 2, np.array([0, 0, 0, 1, 1, 1]))]
    [[0, 1], [2], [3, 4], [5]]
    """
    ends = [] if groups is None else 1 + np.flatnonzero(np.diff(groups))
    return [
        lanes[first : first + chunk_size]
        for lanes in np.split(np.arange(size), ends)
        for first in range(0, len(lanes), chunk_size)
    ]


def _filled(lanes: np.ndarray, size: int) -> np.ndarray:
    """Return lanes and, up to `size`, the last of them."""
    return lanes[np.minimum(np.arange(size), len(lanes) - 1)]


def num_groups(search: Search) -> int:
    """Return into how many groups the seeds of a search with its sizes are divided."""
    return -(-search.num_seeds // (search.seeds_at_once or search.num_seeds))


def default_seeds(search: Search, num_chunks: int, num_devices: int) -> int:
    """Return the number of a member's seeds in one vmap if a search does not give it.

    Args:
        search: Search.
        num_chunks: Chunks of members.
        num_devices: Devices that are to have work.

    Returns:
        All seeds if there are as many chunks as devices, or the seeds of a member must
        train together; else so few that no device waits.
    """
    if not search.seeds_alone or num_chunks > num_devices:
        return search.num_seeds
    return -(-search.num_seeds // (num_devices // num_chunks))


def default_chunk_size(
    population_size: int, num_devices: int, platform: str | None = None
) -> int:
    """Return the number of members in one vmap if a search does not give it.

    It is at most 8 on CPU, and all of a device's members on an accelerator.

    Args:
        population_size: P.
        num_devices: Devices among which the population is divided.
        platform: `cpu`, `gpu` or `tpu`; None: that of the default backend.

    >>> default_chunk_size(64, 2, "cpu"), default_chunk_size(64, 2, "gpu")
    (8, 32)
    """
    per_device = -(-population_size // num_devices)
    platform = platform or jax.default_backend()
    return min(CPU_CHUNK, per_device) if platform == "cpu" else per_device


def choose_layout(search: Search, devices: list, size: int, part: bool) -> Layout:
    """Return the layout of a population, on as many of the devices as it fills.

    Args:
        search: Search of the population.
        devices: JAX devices that may be used, of one process or of several.
        size: P.
        part: Whether the P members are a part of a population, of which others may
            follow that are larger; then all devices are used.

    Raises:
        ConfigError: The population of a coupled loop cannot be divided so.
    """
    across = len({d.process_index for d in devices}) > 1
    if search.coupled:
        num = _coupled_devices(search, len(devices), size, across)
        chunk_size, seeds = size // num, search.num_seeds
    else:
        chunk_size = search.chunk_size or default_chunk_size(size, len(devices))
        num_chunks = -(-size // chunk_size)
        seeds = search.seeds_at_once or default_seeds(search, num_chunks, len(devices))
        seeds = min(seeds, search.num_seeds)  # a comparison has one for each member
        num_chunks *= -(-search.num_seeds // seeds)
        num = len(devices) if part or across else min(len(devices), num_chunks)
    mesh = jax.make_mesh(
        (num,), (DEVICES,), axis_types=(AxisType.Auto,), devices=devices[:num]
    )
    exchange = None
    if across:
        everywhere = NamedSharding(mesh, ALL)
        exchange = jax.jit(_arrays.identity, out_shardings=everywhere)
    return Layout(mesh, chunk_size, seeds, exchange)


def _coupled_devices(search: Search, available: int, size: int, across: bool) -> int:
    """Return the number of devices for equal parts of a coupled population."""
    num = _arrays.largest_divisor(size, available)
    if across and num < available:
        raise ConfigError(
            f"population_size={size} must be a multiple of the {available} devices of "
            "all processes: this loop is coupled, and every device takes an equal part"
        )
    if search.chunk_size not in (None, size):
        raise ConfigError(
            f"chunk_size={search.chunk_size}: a coupled loop sees its whole population "
            "and cannot be cut into chunks; leave it None"
        )
    return num
