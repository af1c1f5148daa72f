"""Checkpoints that survive kill -9, full disks and flipped bits.

A checkpoint is a folder `NAME` with `arrays.safetensors` and `manifest.json`, which
holds the file's sha256, every array's name, shape and type, whatever else the caller
wants remembered, and its own digest. It is written beside its place, synced and renamed
into it, so a folder with the right name is complete. Loading verifies before it parses
anything else and falls back to the checkpoint before.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from metaevo.errors import CheckpointError
from metaevo.types import PyTree

SCHEMA = 1
MAX_JSON = 1 << 20  # bytes
_MALFORMED = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    SafetensorError,
)


def write(folder: Path, arrays: Mapping[str, np.ndarray], manifest: Mapping) -> None:
    """Writes a checkpoint atomically; `folder` appears complete or not at all."""
    folder = Path(folder)
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    data = save({name: np.asarray(x, order="C") for name, x in arrays.items()})
    manifest = {
        "schema": SCHEMA,
        "sha256": hashlib.sha256(data).hexdigest(),
        "arrays": {
            name: [list(x.shape), str(x.dtype)] for name, x in sorted(arrays.items())
        },
        **manifest,
    }
    manifest["digest"] = _digest(manifest)
    _write_synced(temporary / "arrays.safetensors", data)
    _write_synced(temporary / "manifest.json", json.dumps(manifest, indent=1).encode())
    _sync_folder(temporary)
    if folder.exists():
        shutil.rmtree(folder)
    os.rename(temporary, folder)
    _sync_folder(folder.parent)


def read(folder: Path) -> tuple[dict[str, np.ndarray], dict]:
    """Reads and verifies one checkpoint.

    Raises:
        CheckpointError: it is incomplete, altered, or of a newer schema.
    """
    folder = Path(folder)
    try:
        for name in ("manifest.json", "arrays.safetensors"):
            if (folder / name).exists() and not (folder / name).is_file():
                # A pipe would be read for ever.
                raise CheckpointError(f"{name} is not a regular file")
        if (folder / "manifest.json").stat().st_size > MAX_JSON:
            raise CheckpointError("manifest.json is larger than 1 MiB")
        manifest = json.loads((folder / "manifest.json").read_bytes())
        data = (folder / "arrays.safetensors").read_bytes()
        if manifest["digest"] != _digest(manifest):
            raise CheckpointError("manifest.json does not match its digest")
        if manifest["schema"] > SCHEMA:
            raise CheckpointError(
                f"schema {manifest['schema']} is newer than this metaevo's {SCHEMA}: "
                "update metaevo"
            )
        if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
            raise CheckpointError("arrays.safetensors does not match its sha256")
        arrays = load(data)
        shapes = {n: [list(x.shape), str(x.dtype)] for n, x in arrays.items()}
        if shapes != manifest["arrays"]:
            raise CheckpointError("the arrays are not those of manifest.json")
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    except _MALFORMED as error:
        raise CheckpointError(f"{folder}: {type(error).__name__}: {error}") from None
    return arrays, manifest


def _digest(manifest: Mapping) -> str:
    """sha256 of a manifest, its own digest aside."""
    rest = {key: x for key, x in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


class Store:
    """The checkpoints of a run, newest few kept, named by generation.

    Args:
        folder: where they live.
        keep: how many to keep.
    """

    def __init__(self, folder: Path, keep: int = 3):
        self.folder, self.keep = Path(folder), keep

    def generations(self) -> list[int]:
        """Generations with a checkpoint, newest first; none of them verified."""
        found = self.folder.glob("generation-[0-9]*")
        return sorted((int(p.name.split("-")[1]) for p in found), reverse=True)

    def save(self, generation: int, tree: PyTree, manifest: Mapping) -> None:
        """Saves `tree` as the state before `generation`; drops the oldest."""
        write(self._path(generation), to_arrays(tree), manifest)
        for old in self.generations()[self.keep :]:
            shutil.rmtree(self._path(old), ignore_errors=True)

    def load(self) -> tuple[dict[str, np.ndarray], dict] | None:
        """The newest checkpoint that verifies; None if there is none at all.

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
            raise CheckpointError(
                "no checkpoint can be read:\n  " + "\n  ".join(problems)
            )
        return None

    def _path(self, generation: int) -> Path:
        return self.folder / f"generation-{generation:08d}"


# --- pytrees --------------------------------------------------------------------------


def to_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """A pytree's leaves by path; typed PRNG keys as their data."""
    return {
        jax.tree_util.keystr(path): np.asarray(jax.device_get(_key_data(leaf)))
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
    """The inverse of `to_arrays`; also takes what version 0.1 wrote.

    Args:
        template: the tree, or `jax.eval_shape` of it.

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
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            impl = jax.random.key_impl(jax.numpy.zeros((), leaf.dtype))
            x = jax.random.wrap_key_data(x, impl=impl)
        elif x.dtype != leaf.dtype:
            raise CheckpointError(f"{path}: {x.dtype} instead of {leaf.dtype}")
        else:
            x = jax.numpy.asarray(x)
        if x.shape != leaf.shape:
            raise CheckpointError(f"{path}: shape {x.shape} instead of {leaf.shape}")
        return x

    return jax.tree_util.tree_map_with_path(restore, template)


def _key_data(leaf: Any) -> Any:
    if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf


# --- files ----------------------------------------------------------------------------


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
