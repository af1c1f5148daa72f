"""Checkpoints that survive kill -9, full disks and flipped bits.

A checkpoint is a folder with `arrays.safetensors` and `manifest.json`. The manifest
holds the sha256 of the arrays, the name, shape and type of every array, further data of
the caller, and its own digest. A checkpoint is written under a temporary name, synced
and renamed, so a folder with the right name is complete. Loading verifies a checkpoint
before it is parsed, and falls back to the one before.
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
from safetensors.numpy import load, save_file

from metaevo.errors import CheckpointError
from metaevo.evaluators import keys
from metaevo.storage._files import sync_folder, write_synced
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
    """Write a checkpoint; `folder` appears complete or not at all.

    Args:
        folder: replaced if it exists.
        arrays: arrays by name.
        manifest: further data to keep, JSON-compatible.
    """
    folder = Path(folder)
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    path = temporary / "arrays.safetensors"
    # From the arrays to the file: there may be no memory for one more copy.
    save_file({name: np.asarray(x, order="C") for name, x in arrays.items()}, path)
    with open(path, "rb+") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    manifest = {
        "schema": SCHEMA,
        "sha256": digest,
        "arrays": {
            name: [list(x.shape), str(x.dtype)] for name, x in sorted(arrays.items())
        },
        **manifest,
    }
    manifest["digest"] = _digest(manifest)
    write_synced(temporary / "manifest.json", json.dumps(manifest, indent=1).encode())
    sync_folder(temporary)
    if folder.exists():
        shutil.rmtree(folder)
    os.rename(temporary, folder)
    sync_folder(folder.parent)


def read(folder: Path) -> tuple[dict[str, np.ndarray], dict]:
    """Read and verify one checkpoint.

    Returns:
        arrays by name, and the manifest.

    Raises:
        CheckpointError: it is incomplete, altered, or of a newer schema.
    """
    folder = Path(folder)
    try:
        for name in ("manifest.json", "arrays.safetensors"):
            if (folder / name).exists() and not (folder / name).is_file():
                # Reading a pipe would never end.
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
    """Return the sha256 of a manifest without its own digest."""
    rest = {key: x for key, x in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


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
        found = self.folder.glob("generation-[0-9]*")
        return sorted((int(p.name.split("-")[1]) for p in found), reverse=True)

    def save(self, generation: int, tree: PyTree, manifest: Mapping) -> None:
        """Save `tree` as the state before `generation`, and drop the oldest."""
        write(self._path(generation), to_arrays(tree), manifest)
        for old in self.generations()[self.keep :]:
            shutil.rmtree(self._path(old), ignore_errors=True)

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
            raise CheckpointError(
                "no checkpoint can be read:\n  " + "\n  ".join(problems)
            )
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
