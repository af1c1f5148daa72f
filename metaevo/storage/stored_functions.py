"""Functions of an artifact that are neither metaevo's nor an installed package's.

A user's function is known in a process that imported its module, and only with the
source file that the artifact was saved with. Else `programs` stands in for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metaevo.errors import CheckpointError, NotImportedError
from metaevo.learned import operations
from metaevo.storage import imports, own_runs, sources
from metaevo.storage._files import read_json
from metaevo.storage.sources import SourceEntry
from metaevo.storage.verified import MAX_JSON

__all__ = ["entry", "resolved"]


def resolved(
    folder: Path, manifest: Mapping[str, Any], trust: bool = False
) -> dict[str, Any]:
    """A manifest whose functions this process can build.

    The module of a user's function is imported if the artifact is that of a run which
    this user started here, or with `trust`; and only if its source file is the one
    that the artifact was saved with. Else the stored program takes its place.

    Args:
        folder: the artifact's.
        manifest: its manifest, verified.
        trust: import what the artifact names, from `sys.path` and the current folder.

    Raises:
        NotImportedError: a function is not known here and has no stored program.
        ArtifactError: the manifest is malformed.
    """
    found = {
        name: _resolved(folder, manifest, name, op, trust)
        for name, op in manifest["slots"].items()
    }
    return {**manifest, "slots": found}


def _resolved(
    folder: Path, manifest: Mapping[str, Any], slot: str, op: Mapping, trust: bool
) -> Mapping:
    """An entry of a manifest, or one of a stored program in its place."""
    kind = op["op"]
    if kind == "number" or operations.is_installed(kind):
        return op
    given = manifest.get("sources", {}).get(slot)
    if given is None:
        if operations.own(kind) is not None:  # of a manifest without sources
            return op
        raise NotImportedError(
            f"unknown operation {kind[:80]!r}: it is not metaevo's, and the artifact "
            "does not say where it is from; import the module that defines it first"
        )
    origin = sources.read(given)
    if sources.is_known(kind, origin):
        return op
    reason = "its source is not imported, for this user did not start its run here"
    places = _places(folder, trust)
    if places is not None:
        reason = sources.imported(kind, origin, places, _run_of(folder))
        if reason is None:
            return op
    try:
        made = entry(slot, op, origin, manifest)
        operations.get(made["op"]).rebuild(made)
    except (KeyError, NotImplementedError) as error:
        name = origin.function or origin.title
        what = "" if isinstance(error, KeyError) else f" ({error})"
        remedy = f"import {name.partition(':')[0]} first, or load with trust=True"
        raise NotImportedError(
            f"{folder}: its function {kind[:80]!r} is {name}, and it cannot run by a "
            f"stored program{what}; {reason}; {remedy}"
        ) from None
    return made


def _run_of(folder: Path) -> Path:
    """The run directory that an artifact is in, or the artifact's folder itself."""
    parents = folder.absolute().parents[:2]
    return next((x for x in parents if (x / "manifest.json").is_file()), folder)


def _places(folder: Path, trust: bool) -> list[str] | None:
    """Folders from which its modules are imported; None: it is not trusted."""
    run, own = _run_of(folder), None
    if run != folder:
        try:
            manifest = read_json(run / "manifest.json", MAX_JSON)
            own = own_runs.recall(run, manifest)
        except (OSError, CheckpointError, KeyError, TypeError):
            own = None
    if own is None and not trust:
        return None
    return imports.places(own and own.source.root, run, trust)


def entry(
    slot: str, op: Mapping[str, Any], origin: SourceEntry, manifest: Mapping[str, Any]
) -> dict[str, Any]:
    """The entry of a manifest that stands for a slot's function by its program.

    Args:
        slot: its name in the artifact.
        op: its entry in the manifest.
        origin: what its entry under `sources` says.
        manifest: the artifact's.

    Raises:
        KeyError: the manifest has no program of it.
    """
    described = manifest["reference"][slot]
    parts = ("value", "inputs", "step", "state", "outputs")
    arrays = {
        name.removeprefix(slot).removeprefix("/"): manifest["arrays"][name]
        for name in described["params"]
    }
    return {
        "op": f"{operations.STORED}{origin.slot}:{origin.title}",
        "program": {key: described[key] for key in parts if key in described},
        "arrays": arrays,
        "reads": list(origin.reads),
        **({"temporal": True} if op.get("temporal") else {}),
        **({"label": op["label"]} if op.get("label") else {}),
    }
