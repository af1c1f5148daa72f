"""Checkpoints that survive kill -9, full disks and flipped bits.

A checkpoint is a folder of arrays with a manifest, see `metaevo.storage.verified`. The
newest few are kept. Loading verifies a checkpoint before it is parsed, and falls back
to the one before.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from metaevo import keys
from metaevo.errors import CheckpointError, ConfigError
from metaevo.storage import run_directory
from metaevo.storage.verified import SCHEMA as SCHEMA
from metaevo.storage.verified import check, discard, read, write
from metaevo.types import PyTree

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

    def load(
        self, template: PyTree = None
    ) -> tuple[dict[str, np.ndarray], dict] | None:
        """Read the newest checkpoint that verifies; None if there is none at all.

        Args:
            template: as of `from_arrays`; a checkpoint of another tree is not read.
                None: any tree.

        Raises:
            CheckpointError: there are checkpoints and none of them verifies.
        """
        return self._newest(lambda folder: read_tree(folder, template))

    def check(self) -> dict | None:
        """Return the manifest that belongs to what `load` reads, without the arrays.

        Raises:
            CheckpointError: there are checkpoints and none of them verifies.
        """
        return self._newest(check)

    def _newest(self, read: Callable[[Path], Any]) -> Any:
        problems = []
        for generation in self.generations():
            try:
                return read(self._path(generation))
            except CheckpointError as error:
                problems.append(str(error))
        if problems:
            raise CheckpointError("no checkpoint can be read:", *problems)
        return None

    def before(
        self, generation: int, template: PyTree
    ) -> tuple[dict[str, np.ndarray], dict] | None:
        """Read the newest checkpoint of the state before a generation, or earlier.

        Args:
            generation: the generation.
            template: as of `load`.

        Returns:
            arrays and manifest; None if none verifies, or all are of later ones.

        Raises:
            CheckpointError: the one that verifies is of another tree.
        """
        for found in self.generations():
            if found <= generation:
                with contextlib.suppress(CheckpointError):
                    check(self._path(found))
                    break
        else:
            return None
        return read_tree(self._path(found), template)

    def _path(self, generation: int) -> Path:
        return self.folder / f"generation-{generation:08d}"


def of_run(directory: str | Path) -> Store:
    """Return the checkpoints of a run directory."""
    return Store(run_directory.paths(directory).checkpoints)


# --- pytrees --------------------------------------------------------------------------


def read_tree(folder: Path, template: PyTree) -> tuple[dict[str, np.ndarray], dict]:
    """Read a folder if its manifest describes the arrays of a tree.

    Args:
        folder: the folder.
        template: as of `from_arrays`; None: any tree.

    Raises:
        CheckpointError: it is another's, or as `read`.
    """
    if template is None:
        return read(folder)
    return read(folder, accept=lambda x: check_described(template, x))


def to_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """Return a pytree's leaves by path, typed PRNG keys as their data.

    >>> sorted(to_arrays({"a": 1.0, "b": (2, 3)}))
    ["['a']", "['b'][0]", "['b'][1]"]
    """
    return {
        jax.tree_util.keystr(path): np.asarray(jax.device_get(keys.to_data(leaf)))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def from_arrays(template: PyTree, arrays: Mapping[str, np.ndarray]) -> PyTree:
    """Invert `to_arrays`.

    Args:
        template: a tree of the same structure, shapes and dtypes, or its
            `jax.eval_shape`.
        arrays: arrays by path.

    Raises:
        CheckpointError: `arrays` are not those of such a tree.
    """
    _check(template, arrays)

    def restore(path, leaf):
        x = arrays[jax.tree_util.keystr(path)]
        return keys.from_data(x, leaf) if keys.is_key(leaf) else jax.numpy.asarray(x)

    return jax.tree_util.tree_map_with_path(restore, template)


def check_described(template: PyTree, described: Mapping[str, Any]) -> None:
    """Check that arrays are those of a tree, by what a manifest says of them.

    Args:
        template: as of `from_arrays`.
        described: shape and name of the type of each array by path.

    Raises:
        CheckpointError: they are not.
    """
    _check(
        template,
        {
            path: jax.ShapeDtypeStruct(tuple(shape), np.dtype(kind))
            for path, (shape, kind) in described.items()
        },
    )


def _check(template: PyTree, arrays: Mapping[str, Any]) -> None:
    """Check that arrays, or what stands for them, are those of `template` by path.

    Raises:
        CheckpointError: they are not those of such a tree.
    """
    leaves = jax.tree_util.tree_leaves_with_path(template)
    by_path = {
        jax.tree_util.keystr(path): jax.eval_shape(keys.to_data, leaf)
        for path, leaf in leaves
    }
    expected = set(by_path)
    if expected != set(arrays):
        missing, extra = expected - set(arrays), set(arrays) - expected
        raise CheckpointError(
            "the checkpoint is of another search: "
            f"lacks {sorted(missing)[:3]}, has {sorted(extra)[:3]} too many"
        )
    for path, leaf in by_path.items():
        x = arrays[path]
        if x.dtype != leaf.dtype:
            raise CheckpointError(f"{path}: {x.dtype} instead of {leaf.dtype}")
        if x.shape != leaf.shape:
            raise CheckpointError(f"{path}: shape {x.shape} instead of {leaf.shape}")
