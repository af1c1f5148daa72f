"""Checkpoints that survive kill -9, full disks and flipped bits.

A checkpoint is a folder of arrays with a manifest, see `metaevo.storage.verified`. The
newest few are kept. Loading verifies a checkpoint before it is parsed, and falls back
to the one before.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from metaevo.errors import CheckpointError, ConfigError
from metaevo.evaluators import keys
from metaevo.storage.verified import SCHEMA, discard, read, write
from metaevo.types import PyTree

__all__ = ["SCHEMA", "Store", "from_arrays", "read", "to_arrays", "write"]

_NAME = re.compile(r"generation-(\d{8,})")


class Store:
    """The newest checkpoints of a run, named by generation.

    Args:
        folder: folder of the checkpoints.
        keep: number of checkpoints to keep.
    """

    def __init__(self, folder: Path, keep: int = 3):
        self.folder, self.keep = Path(folder), keep

    def generations(self) -> list[int]:
        """Return the generations with a checkpoint, newest first, not verified."""
        names = (p.name for p in self.folder.glob("generation-*"))
        found = filter(None, map(_NAME.fullmatch, names))
        return sorted((int(name[1]) for name in found), reverse=True)

    def clean(self) -> None:
        """Remove what writes left that were cut short."""
        for unfinished in self.folder.glob(".generation-*.tmp"):
            with contextlib.suppress(ConfigError):  # somebody's own files
                discard(unfinished)

    def save(self, generation: int, tree: PyTree, manifest: Mapping) -> None:
        """Save `tree` as the state before `generation`, and drop the oldest."""
        # Without the parents: a run directory that vanished is not made again.
        self.folder.mkdir(exist_ok=True)
        write(self._path(generation), to_arrays(tree), manifest)
        for old in self.generations()[self.keep :]:
            with contextlib.suppress(OSError, ConfigError):
                discard(self._path(old))

    def load(self) -> tuple[dict[str, np.ndarray], dict] | None:
        """Read the newest checkpoint that verifies; None if there is none at all.

        Raises:
            CheckpointError: there are checkpoints and none of them verifies.
        """
        problems = []
        for generation in self.generations():
            try:
                return read(self._path(generation))
            except CheckpointError as error:
                problems.append(str(error))
        if problems:
            raise CheckpointError("no checkpoint can be read:", *problems)
        return None

    def before(self, generation: int) -> tuple[dict[str, np.ndarray], dict] | None:
        """Read the newest checkpoint of the state before a generation, or earlier.

        Returns:
            arrays and manifest; None if none verifies, or all are of later ones.
        """
        for found in self.generations():
            if found <= generation:
                with contextlib.suppress(CheckpointError):
                    return read(self._path(found))
        return None

    def _path(self, generation: int) -> Path:
        return self.folder / f"generation-{generation:08d}"


# --- pytrees --------------------------------------------------------------------------


def to_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """Return a pytree's leaves by path, typed PRNG keys as their data.

    >>> sorted(to_arrays({"a": 1.0, "b": (2, 3)}))
    ["['a']", "['b'][0]", "['b'][1]"]
    """
    return {
        jax.tree_util.keystr(path): np.asarray(jax.device_get(keys.to_data(leaf)))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


RENAMED = {"own": "steps_since_birth"}
"""Fields of an inner loop's state that version 0.1 wrote under another name."""

ADDED = re.compile(r"\.agent\.stats\['(entropy|kl|clip_fraction)'\]$")
"""Paths that version 0.1 did not write (recurrent PPO) and that start at zero."""


def _of_this_version(
    arrays: Mapping[str, np.ndarray], expected: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Arrays by the paths of this version; `expected` holds its leaves by path."""
    found = {}
    for path, x in arrays.items():
        if path not in expected:
            path = re.sub(
                r"\.(\w+)", lambda name: f".{RENAMED.get(name[1], name[1])}", path
            )
        found[path] = x
    for path in expected.keys() - found.keys():
        if ADDED.search(path):
            found[path] = np.zeros(expected[path].shape, expected[path].dtype)
    return found


def from_arrays(template: PyTree, arrays: Mapping[str, np.ndarray]) -> PyTree:
    """Invert `to_arrays`; also takes arrays that version 0.1 wrote.

    Args:
        template: a tree of the same structure, shapes and dtypes, or its
            `jax.eval_shape`.
        arrays: arrays by path.

    Raises:
        CheckpointError: `arrays` are not those of such a tree.
    """
    leaves = jax.tree_util.tree_leaves_with_path(template)
    by_path = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    arrays, expected = _of_this_version(arrays, by_path), set(by_path)
    if expected != set(arrays):
        missing, extra = expected - set(arrays), set(arrays) - expected
        raise CheckpointError(
            "the checkpoint is of another search: "
            f"lacks {sorted(missing)[:3]}, has {sorted(extra)[:3]} too many"
        )

    def restore(path, leaf):
        x = arrays[jax.tree_util.keystr(path)]
        if keys.is_key(leaf):
            x = keys.from_data(x, leaf)
        elif x.dtype != leaf.dtype:
            raise CheckpointError(f"{path}: {x.dtype} instead of {leaf.dtype}")
        else:
            x = jax.numpy.asarray(x)
        if x.shape != leaf.shape:
            raise CheckpointError(f"{path}: shape {x.shape} instead of {leaf.shape}")
        return x

    return jax.tree_util.tree_map_with_path(restore, template)
