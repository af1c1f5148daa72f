"""Origins of a user's own learned functions: recorded when saved, compared when loaded.

The manifest of an artifact holds under `sources`, by slot, for a function that is not
metaevo's:

    slot      kind of slot, a key of `slots.SIGNATURES`
    title     its builder as users write it, such as `my_losses.tilted`
    reads     names of the scalars that it reads of its context, besides `progress`
    function  `module:function`; absent if no module can be imported for it, as in a
              notebook, or if an installed package declares it
    sha256    digest of the source file of `function`

`imported` is the only function of metaevo that imports a module because an artifact
names it. It is called for artifacts of runs that this user started here, and for
`metaevo.load(path, trust=True)`. It compares the digest before anything is executed.
"""

from __future__ import annotations

import importlib
import keyword
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metaevo import slots
from metaevo.errors import ArtifactError
from metaevo.learned import operations
from metaevo.storage import imports, own_runs
from metaevo.storage.own_runs import Source

__all__ = [
    "SourceEntry",
    "imported",
    "is_known",
    "is_name",
    "is_title",
    "of",
    "read",
    "record",
]

MAX_NAMES = 64
_TITLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}")
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}:[A-Za-z_][A-Za-z0-9_]{0,99}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class SourceEntry(NamedTuple):
    """An entry under `sources` in a manifest.

    Attributes:
        slot: kind of slot.
        title: the builder as users write it.
        reads: scalars of the context, besides `progress`.
        function: `module:function`, or None.
        sha256: digest of its source file, or None.
    """

    slot: str
    title: str
    reads: tuple[str, ...]
    function: str | None = None
    sha256: str | None = None


def record(spec: Mapping[str, Mapping]) -> dict[str, dict[str, Any]]:
    """The entries for a manifest: of the functions that are not metaevo's, by slot.

    Args:
        spec: `Space.spec`.
    """
    found = {}
    for name, op in spec.items():
        if op["op"] == "number" or op["op"].startswith(operations.STORED):
            continue
        operation = operations.get(op["op"])
        if operation.build.__module__ in operations.MODULES or operation.as_params:
            continue
        origin = SourceEntry(operation.slot, operation.title, operation.reads(op))
        if (source := of(operation)) is not None:
            origin = origin._replace(
                function=f"{source.name}:{source.function}",
                sha256=own_runs.sha256(source.file),
            )
        found[name] = {
            key: list(x) if isinstance(x, tuple) else x
            for key, x in origin._asdict().items()
            if x is not None
        }
    return found


def of(operation: operations.Operation) -> Source | None:
    """The place of an operation's builder in a user's module.

    Returns:
        the place; None if the operation is installed, has no file, or is made inside of
        a function.
    """
    if operations.own(operation.name) is None:
        return None
    source = Source.of(operation.build)
    if source is None or not source.function.isidentifier():
        return None
    return source


def read(entry: Any) -> SourceEntry:
    """An entry of a manifest, checked.

    Raises:
        ArtifactError: it is malformed.
    """
    try:
        origin = SourceEntry(**{**entry, "reads": tuple(entry["reads"])})
        sound = (
            origin.slot in slots.SIGNATURES
            and _TITLE.fullmatch(origin.title)
            and len(origin.reads) <= MAX_NAMES
            and all(is_name(name) for name in origin.reads)
            and (origin.function is None or _FUNCTION.fullmatch(origin.function))
            and (origin.function is None or _DIGEST.fullmatch(origin.sha256 or ""))
        )
    except (KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise ArtifactError("an entry of its sources is malformed")
    return origin


def is_title(text: str) -> bool:
    """True for the title of a builder: a dotted name in ASCII of at most 200."""
    return _TITLE.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """True for a name in ASCII that an argument of a function may have."""
    plain = _TITLE.fullmatch(text) is not None and text.isidentifier()
    return plain and not keyword.iskeyword(text)


def is_known(name: str, origin: SourceEntry) -> bool:
    """True if this process has imported the function that an artifact was saved with.

    Args:
        name: the operation.
        origin: its entry. One without a digest is of no known source.
    """
    operation = operations.own(name)
    source = None if operation is None else of(operation)
    if source is None or origin.function is None:
        return False
    same = source.function == origin.function.partition(":")[2]
    return same and own_runs.sha256(source.file) == origin.sha256


def imported(
    name: str, origin: SourceEntry, places: Sequence[str], apart_from: Path
) -> str | None:
    """Import the module of a function, if its file is the one that was recorded.

    Args:
        name: the operation.
        origin: its entry in the manifest.
        places: folders to look into, as `imports.places` returns them.
        apart_from: a folder from which nothing is imported.

    Returns:
        None if the operation is now known; else the reason why it is not, one line.
    """
    if origin.function is None:
        return "it was not made in a module that can be imported"
    module = origin.function.partition(":")[0]
    file = imports.source_file(module, places)
    if file is None:
        return f"there is no module {module} here"
    if imports.below(file, apart_from):
        return f"{file} lies in {apart_from}, from which nothing is imported"
    if own_runs.sha256(file) != origin.sha256:
        return f"{file} has changed since the artifact was saved"
    try:
        with imports.importing(places, apart_from):
            importlib.import_module(module)
    except ImportError as error:
        return f"{file} cannot be imported ({error})"
    if not is_known(name, origin):
        return f"{file} has no operation {name!r}"
    return None
