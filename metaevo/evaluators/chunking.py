"""Planning of memory: as many members train at once as fit.

The chunk size is chosen once, before generation 0, from the memory analysis of the
compiled program. It is kept in the run's manifest, because it changes the last bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from metaevo import population
from metaevo.errors import ConfigError
from metaevo.text import byte_size
from metaevo.types import Proposal

if TYPE_CHECKING:
    from metaevo.evaluators.local import LocalEvaluator

__all__ = ["available", "plan"]

SHARE = 0.9  # of the available memory, which a plan may use


def available(device: Any) -> int | None:
    """Return the bytes that are free on a JAX device.

    For a CPU these are the free bytes of the machine or of its cgroup.

    Returns:
        The bytes; None if the platform does not report them.
    """
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    found = []
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(1024 * int(line.split()[1]))
    limit = Path("/sys/fs/cgroup/memory.max")
    used = Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        found.append(int(limit.read_text()) - int(used.read_text()))
    return min(found, default=None)


def plan(evaluator: LocalEvaluator, proposal: Proposal) -> LocalEvaluator:
    """Return an evaluator whose rounds fit into memory.

    All members that live on between generations count too.

    Args:
        evaluator: Evaluator of the search.
        proposal: Proposal of the whole population, or its shapes.

    Returns:
        The evaluator, or one like it with smaller chunks.

    Raises:
        ConfigError: One member at a time does not fit, or the requested chunk does
            not, or the loop is coupled and cannot be cut. The message gives the bytes.
    """
    have = available(evaluator.devices[0])
    if have is None:
        return evaluator
    asked = evaluator.search.chunk_size is not None
    platform = evaluator.devices[0].platform
    while True:
        carried = evaluator.carried_bytes(proposal)
        needed = evaluator.memory(proposal) + carried
        if platform != "cpu":
            # Each accelerator has its own memory; the bytes are those of all devices.
            needed = -(-needed // len(evaluator.devices))
        if needed <= SHARE * have:
            return evaluator
        chunk = evaluator.chunk_size
        if evaluator.coupled or asked or chunk == 1:
            size = population.size(proposal.params)
            kept = f", {byte_size(carried)} of it members that live on" * bool(carried)
            raise ConfigError(
                f"not enough memory: {chunk} of {size} members on each of "
                f"{len(evaluator.devices)} {platform} device(s) need "
                f"{byte_size(needed)}{kept}, and {byte_size(have)} are available. "
                f"{_remedy(evaluator, asked)}"
            )
        evaluator = evaluator.with_chunk(max(1, chunk // 2))


def _remedy(evaluator: LocalEvaluator, asked: bool) -> str:
    if asked:
        return "Leave chunk_size None, or lower it."
    if evaluator.coupled:
        return "A coupled population cannot be cut: lower its size or the buffer's."
    return "Lower num_seeds, or the sizes in inner.*, such as buffer_size."
