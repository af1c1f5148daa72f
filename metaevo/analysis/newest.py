"""The functions of a search that goes on, as files: `RUN/newest/`.

`solution/` there has what the strategy's solution is now, and `start/` what the search
began with. `metaevo watch` draws them. They are no artifacts: nothing is traced.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from metaevo.analysis.results import Solution
from metaevo.learned import operations
from metaevo.storage import artifacts, checkpoint, verified
from metaevo.types import Params, Search

__all__ = ["has_functions", "read", "write"]

Spec = Mapping[str, Mapping[str, Any]]


def has_functions(spec: Spec) -> bool:
    """Return True if more than numbers evolve, which are in the log."""
    return any(op["op"] != "number" for op in spec.values())


def write(folder: Path, search: Search, solution: Solution) -> None:
    """Write the functions of a solution."""
    (space, params), default = solution, search.tasks[0].meta
    spec = artifacts.complete(space.spec, space.bind(params, default), default)
    spec = {slot: op for slot, op in spec.items() if op["op"] != "number"}
    arrays = checkpoint.to_arrays({slot: params[slot] for slot in spec})
    checkpoint.write(folder, arrays, {"slots": spec})


def read(folder: Path) -> dict[str, tuple[Spec, Params]]:
    """Read what there is: `start`, `solution` -> operations and params by slot.

    Raises:
        CheckpointError: it was altered.
        ArtifactError: no operation of a name is known here.
    """
    found = {}
    for place in folder.glob("[a-z]*"):
        arrays, facts = checkpoint.read(place, verified.MAX_ARTIFACT)
        learned = {
            slot: operations.get(op["op"]).rebuild(op)
            for slot, op in facts["slots"].items()
        }
        shapes = {
            k: jax.eval_shape(x.init, jax.random.key(0)) for k, x in learned.items()
        }
        found[place.name] = facts["slots"], checkpoint.from_arrays(shapes, arrays)
    return found
