"""Folders of arrays with a manifest, verified before they are parsed.

Checkpoints, artifacts and the results of comparisons have this form. A folder holds
`arrays.safetensors` and `manifest.json`. The manifest holds the sha256 of the arrays,
the name, shape and type of every array, further data of the caller, and its own digest.
A folder is written under a temporary name, synced and renamed, so one with the right
name is complete. Needs numpy and safetensors alone.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import keyword
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save_file

from metaevo.errors import ArtifactError, CheckpointError, ConfigError
from metaevo.storage._files import (
    check_file,
    check_folder,
    open_read,
    parse_json,
    read_bytes,
    sync_folder,
    write_synced,
)

SCHEMA = 1
MAX_JSON = 16 << 20  # bytes
MAX_ARTIFACT = 64 << 20  # bytes of the arrays of an artifact
FILES = ("arrays.safetensors", "manifest.json")
CARD = "README.md"
ZOO = Path(__file__).parents[1] / "zoo"
ZOO_PREFIX = "zoo:"
_SLOT = re.compile(r"[a-z][a-z0-9_]{0,63}")
_UNFINISHED = re.compile(r"\.tmp\w{6}")
_MALFORMED = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    SafetensorError,
)


def write(
    folder: Path,
    arrays: Mapping[str, np.ndarray],
    manifest: Mapping,
    card: str | None = None,
) -> None:
    """Write a folder; it appears complete or not at all.

    Args:
        folder: replaced if it exists.
        arrays: arrays by name.
        manifest: further data to keep, JSON-compatible.
        card: a description for readers, written to `CARD` and never read; None: none.

    Raises:
        ConfigError: the folder that would be replaced holds other files.
        CheckpointError: the manifest is larger than `read` accepts, or `folder` is a
            link.
    """
    folder = Path(folder)
    _check_ours(folder)
    temporary = folder.with_name(f".{folder.name}.tmp")
    discard(temporary)
    temporary.mkdir(parents=True)
    manifest = {
        "schema": SCHEMA,
        "sha256": _write_arrays(temporary / "arrays.safetensors", arrays),
        "arrays": {
            name: [list(x.shape), str(x.dtype)] for name, x in sorted(arrays.items())
        },
        **manifest,
    }
    manifest["digest"] = digest(manifest)
    described = json.dumps(manifest, indent=1).encode()
    if len(described) > MAX_JSON:
        discard(temporary)
        raise CheckpointError(
            f"{folder}: its manifest.json would have {len(described) >> 20} MiB, of at "
            f"most {MAX_JSON >> 20}: {len(arrays):,} arrays are too many"
        )
    write_synced(temporary / "manifest.json", described)
    if card is not None:
        write_synced(temporary / CARD, card.encode("utf-8", "backslashreplace"))
    sync_folder(temporary)
    discard(folder)
    os.rename(temporary, folder)
    sync_folder(folder.parent)


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Write and sync arrays, and return the file's sha256.

    They go to the file directly: there may be no memory for one more copy of them.

    Raises:
        OSError: the disk is full, or another error of the file system.
    """
    try:
        save_file({name: np.asarray(x, order="C") for name, x in arrays.items()}, path)
    except SafetensorError as error:
        # It names an error of the system by its number alone.
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), path) from None
    with open(path, "rb+") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return digest


def discard(folder: Path) -> None:
    """Remove a folder that `write` made, whole or not; nothing if there is none.

    Raises:
        ConfigError: it holds other files; nothing is removed.
        CheckpointError: it is no folder, or a link to one.
    """
    _check_ours(folder)
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def _check_ours(folder: Path) -> None:
    """Check that a folder may be replaced: it holds at most the files of `write`."""
    check_folder(folder)
    names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    # safetensors writes under a name of its own first.
    ours = (*FILES, CARD)
    foreign = [x for x in names if x not in ours and not _UNFINISHED.fullmatch(x)]
    if foreign:
        raise ConfigError(
            f"{folder} holds files that are not of this run ({', '.join(foreign[:3])}) "
            "and would be replaced; move them away"
        )


def read(
    folder: Path,
    limit: int | None = None,
    accept: Callable[[Mapping[str, Any]], object] = lambda described: None,
) -> tuple[dict[str, np.ndarray], dict]:
    """Read and verify a folder.

    Args:
        folder: the folder.
        limit: largest size of the arrays in bytes; None: any.
        accept: given the shape and the type of each array by name; raises
            CheckpointError to refuse them before they are read.

    Returns:
        arrays by name, and the manifest.

    Raises:
        CheckpointError: it is incomplete, altered, too large, or of a newer schema.
    """
    folder = Path(folder)
    with _named(folder):
        manifest, size = _described(folder, limit)
        accept(manifest["arrays"])
        data = read_bytes(folder / FILES[0], size)
        if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
            raise CheckpointError(_ALTERED)
        arrays = load(data)
        shapes = {n: [list(x.shape), str(x.dtype)] for n, x in arrays.items()}
        if shapes != manifest["arrays"]:
            raise CheckpointError(_OTHERS)
    return arrays, manifest


def check(folder: Path) -> dict:
    """Verify a folder of any size without its arrays in memory.

    Returns:
        the manifest.

    Raises:
        CheckpointError: as `read`.
    """
    folder = Path(folder)
    with _named(folder):
        manifest, _ = _described(folder, None)
        path = folder / FILES[0]
        with open_read(path) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != manifest["sha256"]:
                raise CheckpointError(_ALTERED)
        with safe_open(path, "np") as file:
            parts = {name: file.get_slice(name) for name in sorted(file.keys())}
            held = {
                n: (x.get_shape(), _item_size(x.get_dtype())) for n, x in parts.items()
            }
        described = {
            n: (s, _item_size(kind)) for n, (s, kind) in manifest["arrays"].items()
        }
        if held != described:
            raise CheckpointError(_OTHERS)
    return manifest


def row(folder: Path, index: int) -> dict[str, np.ndarray]:
    """Read one entry of each array of a folder that was checked.

    Args:
        folder: the folder.
        index: place along the first axis, which all arrays have.

    Raises:
        CheckpointError: it cannot be read.
    """
    with _named(folder), safe_open(Path(folder) / FILES[0], "np") as file:
        return {name: file.get_slice(name)[index] for name in sorted(file.keys())}


_ALTERED = "arrays.safetensors does not match its sha256"
_OTHERS = "the arrays are not those of manifest.json"


@contextlib.contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Name the folder that cannot be read.

    Raises:
        CheckpointError: it cannot.
    """
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    except FileNotFoundError as error:
        name = Path(error.filename).name
        raise CheckpointError(
            f"{folder}: {name} is missing; copy the whole folder again"
        ) from None
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{folder}: manifest.json is damaged: {error}; copy it again"
        ) from None
    except _MALFORMED as error:
        raise CheckpointError(f"{folder}: {type(error).__name__}: {error}") from None


def _described(folder: Path, limit: int | None) -> tuple[dict, int]:
    """Read a manifest, and compare the size of the arrays with what it says.

    Returns:
        the manifest, and the size of the file of arrays.

    Raises:
        CheckpointError: the manifest is altered or of a newer schema, or the file is
            larger or smaller than it says, or larger than `limit`.
    """
    manifest = parse_json(read_bytes(folder / "manifest.json", MAX_JSON))
    if manifest["digest"] != digest(manifest):
        raise CheckpointError("manifest.json does not match its digest")
    if manifest["schema"] > SCHEMA:
        raise CheckpointError(
            f"schema {manifest['schema']} is newer than this metaevo's {SCHEMA}: "
            "update metaevo"
        )
    described = manifest["arrays"]
    if any(type(n) is not int for shape, _ in described.values() for n in shape):
        raise TypeError("a shape that is not of whole numbers")
    numbers = sum(math.prod(s) * _item_size(kind) for s, kind in described.values())
    # The header is JSON: the name of each array, its type, shape and place.
    header = 1024 + sum(
        6 * len(x) + 32 * len(s) + 256 for x, (s, _) in described.items()
    )
    path = folder / FILES[0]
    check_file(path)
    size = path.stat().st_size
    if limit is not None and size > limit:
        raise CheckpointError(f"{path} is larger than {limit >> 20} MiB")
    if not numbers <= size <= numbers + header:
        raise CheckpointError(
            f"{path.name} has {size:,} bytes, and manifest.json describes {numbers:,} "
            "bytes of arrays"
        )
    return manifest, size


def _item_size(kind: str) -> int:
    """The bytes of a number, by the name of its type.

    >>> [_item_size(x) for x in ("float32", "bool", "float8_e4m3fn")]
    [4, 1, 1]
    """
    bits = re.search(r"\d+", kind)
    return max(int(bits[0]) // 8, 1) if bits else 1


def check_slot(name: Any) -> str:
    """Check that the name of a slot is plain: callers write attributes and files by it.

    Returns:
        the name.

    Raises:
        ArtifactError: it is a keyword of Python, or anything but a lower-case letter
            and at most 63 more, digits or underscores.
    """
    plain = isinstance(name, str) and _SLOT.fullmatch(name)
    if not plain or keyword.iskeyword(name):
        raise ArtifactError(f"slot name {str(name)[:80]!r} is not a plain name")
    return name


def artifact_folder(path: str | Path) -> Path:
    """Return the folder of an artifact.

    Args:
        path: the folder, that of a run which has one, or `zoo:NAME`.

    Raises:
        ArtifactError: the run's folder is a link, or the zoo has no such artifact.
    """
    if str(path).startswith(ZOO_PREFIX):
        name = str(path).removeprefix(ZOO_PREFIX)
        if name not in zoo():
            near = difflib.get_close_matches(name, zoo(), 1)
            hint = f". Did you mean {ZOO_PREFIX}{near[0]}?" if near else ""
            known = ", ".join(f"{ZOO_PREFIX}{x}" for x in zoo())
            raise ArtifactError(f"{path}: expected one of {known}{hint}")
        return ZOO / name
    path = Path(path)
    folder = path / "solution"
    if folder.is_symlink():
        raise ArtifactError(f"{folder} is a symbolic link")
    return folder if folder.is_dir() else path


def zoo() -> list[str]:
    """Return the names of the artifacts that are installed with metaevo."""
    return sorted(path.parent.name for path in ZOO.glob("*/manifest.json"))


def digest(manifest: Mapping) -> str:
    """Return the sha256 of a manifest without its own digest."""
    rest = {key: x for key, x in manifest.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
