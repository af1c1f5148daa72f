"""The cost of a search, from its compiled programs and one timed generation."""

from __future__ import annotations

import shutil
import time
from typing import Any

import jax

from metaevo import population
from metaevo.config import RunConfig
from metaevo.engine import checks
from metaevo.evaluators import chunking, memory
from metaevo.evaluators.devices import choose_devices
from metaevo.evaluators.local import LocalEvaluator
from metaevo.storage import checkpoint, run_directory
from metaevo.text import byte_size, duration
from metaevo.types import Search


def plan(search: Search, config: RunConfig) -> str:
    """Compile a search at its real size and time one generation; write nothing.

    Returns:
        lines of text: population, devices, frames, memory, time, disk.

    Raises:
        ConfigError: the search cannot run.
    """
    shapes = checks.check(search)
    devices = choose_devices(config)
    size = population.size(shapes.params)
    key = jax.random.key(config.seed)
    state = jax.jit(search.strategy.init)(key)
    proposal, _ = jax.jit(search.strategy.ask)(key, state)

    began = time.monotonic()
    evaluator = chunking.plan(LocalEvaluator(search, devices), proposal)
    needed = evaluator.announced or chunking.needed(evaluator, proposal)
    _, carried = evaluator(key, proposal, ())
    compiled = time.monotonic() - began
    began = time.monotonic()
    evaluator(jax.random.fold_in(key, 1), proposal, carried)
    seconds = time.monotonic() - began

    saved = sum(x.nbytes for x in checkpoint.to_arrays((state, carried)).values())
    frames = checks.frames_per_generation(search, size)
    generations = search.num_generations
    folder = run_directory.existing_parent(config.directory or ".")
    free = shutil.disk_usage(folder).free
    params = jax.eval_shape(search.space.init, key)
    numbers = sum(x.size for x in jax.tree.leaves(params))
    lines = [
        f"population   {size} members x {search.num_seeds} seeds x "
        f"{len(search.tasks)} task(s), {numbers} evolved numbers each",
        f"devices      {len(evaluator.devices)} {devices[0].platform}, "
        f"{evaluator.chunk_size} members in one vmap",
        f"frames       {frames:,} a generation, {frames * generations:,} in all",
        f"memory       {needed}{_available(devices[0])}",
        f"time         {duration(compiled)} to compile and warm up, {seconds:.1f} s a "
        f"generation ({frames / seconds:,.0f} frames/s), "
        f"{duration(seconds * generations)} for {generations}",
        f"disk         {byte_size(saved)} a checkpoint, 3 are kept; "
        f"{byte_size(free)} free",
        "nothing was started",
    ]
    return "\n".join(lines)


def _available(device: Any) -> str:
    free = memory.available(device)
    return f"; {byte_size(free)} available" if free else ""
