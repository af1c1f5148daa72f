"""Exported files: an artifact in one file, for another framework."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.errors import CheckpointError, ConfigError
from metaevo.export import names, programs, source
from metaevo.export.equations import EvolvedProgram
from metaevo.storage import artifacts, verified
from metaevo.storage._files import replace_file

__all__ = ["FORMATS", "Format", "write"]


class ArtifactFunction(NamedTuple):
    """An evolved function as an artifact holds it.

    Attributes:
        slot: its slot.
        op: its operation with its settings.
        params: its parameters.
    """

    slot: str
    op: Mapping[str, Any]
    params: Any


Content = Callable[
    [Sequence[ArtifactFunction], Mapping[str, float], Sequence[str], str], bytes
]


class Format(NamedTuple):
    """A kind of exported file.

    Attributes:
        title: the framework in prose.
        suffix: of the file's name.
        content: `(functions, numbers by slot, lines of provenance, name of the module)
            -> bytes`.
        single: True if a file holds one function.
    """

    title: str
    suffix: str
    content: Content
    single: bool = False


def _source(name: str) -> Format:
    dialect = source.DIALECTS[name]

    def content(functions, numbers, provenance, stem):
        written = [_evolved(one, name) for one in functions]
        return source.module(dialect, written, numbers, provenance, stem).encode()

    return Format(dialect.title, f"_{name}.py", content)


def _evolved(one: ArtifactFunction, to: str) -> EvolvedProgram:
    """The program of a function.

    Raises:
        ConfigError: it has an operation without a translation.
    """
    try:
        return programs.evolved(*one)
    except NotImplementedError as error:
        raise ConfigError(
            f"to={to}: slot {one.slot!r} ({one.op['op']}) has no translation: it has "
            f"{error}; to=stablehlo takes any"
        ) from None


# Their packages are imported on first use: metaevo does not install them.


def _stablehlo(functions, numbers, provenance, stem) -> bytes:
    from metaevo.export import stablehlo

    return stablehlo.content(*functions[0])


def _onnx(functions, numbers, provenance, stem) -> bytes:
    from metaevo.export import onnx

    return onnx.content(_evolved(functions[0], "onnx"), provenance)


FORMATS: Mapping[str, Format] = {
    **{name: _source(name) for name in source.DIALECTS},
    "stablehlo": Format("StableHLO", ".stablehlo", _stablehlo, single=True),
    "onnx": Format("ONNX", ".onnx", _onnx, single=True),
}
"""Formats by name."""


def write(
    path: str | Path, to: str, out: str | Path | None = None, slot: str | None = None
) -> Path:
    """Write the functions of an artifact as one file.

    Args:
        path: as of `metaevo.load`.
        to: a key of `FORMATS`.
        out: the file, or a folder for it; None: in a folder `export` beside the
            artifact, and in the current folder for an artifact of the zoo.
        slot: the one slot to write; None: all, for StableHLO and ONNX the only one.

    Returns:
        the file.

    Raises:
        ArtifactError: there is no artifact at `path`.
        ConfigError: there is no such slot or format, `out` ends in another suffix than
            the format's, several slots do not fit into the format, a package is
            missing, or a function has an operation that the format lacks.
    """
    if to not in FORMATS:
        raise ConfigError(f"to={to}: expected one of {', '.join(FORMATS)}")
    artifact, params = artifacts.load(path), artifacts.params(path)
    spec = artifact.manifest["slots"]
    chosen = _chosen(spec, slot, to)
    functions = [
        ArtifactFunction(name, spec[name], params[name])
        for name in chosen
        if spec[name]["op"] != "number"
    ]
    numbers = {
        name: artifact.slots[name] for name in chosen if spec[name]["op"] == "number"
    }
    lines = artifact.describe().splitlines()
    stem = names.identifier(chosen[0]) if len(chosen) == 1 else "evolved"
    if out is None:
        folder = verified.artifact_folder(path).absolute().parent / "export"
        if folder.parent == verified.ZOO:
            folder = Path()
        out = folder / f"{stem}{FORMATS[to].suffix}"
    elif str(out).endswith(("/", os.sep)) or Path(out).is_dir():
        out = Path(out) / f"{stem}{FORMATS[to].suffix}"
    out, ending = Path(out), Path(f"x{FORMATS[to].suffix}").suffix
    content = FORMATS[to].content(functions, numbers, lines, out.stem)
    if out.suffix != ending:
        raise ConfigError(f"out={out}: expected a name that ends in {ending}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(out.resolve(), content)
    except CheckpointError:
        raise ConfigError(f"out={out}: expected a name for a regular file") from None
    except RuntimeError:  # Python before 3.13, of links that lead to themselves
        raise ConfigError(f"out={out}: a link that leads to itself") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        raise ConfigError(f"out={out}: cannot be written: {error.strerror}") from None
    return out


def _chosen(spec: Mapping[str, Any], slot: str | None, to: str) -> list[str]:
    """The slots to write.

    Raises:
        ConfigError: there is no such slot, or the format holds one function.
    """
    if slot is not None and slot not in spec:
        raise ConfigError(f"slot={slot}: expected one of {', '.join(sorted(spec))}")
    chosen = sorted(spec) if slot is None else [slot]
    if FORMATS[to].single:
        functions = [name for name in chosen if spec[name]["op"] != "number"]
        if len(functions) != 1:
            there = ", ".join(sorted(spec))
            raise ConfigError(
                f"to={to}: a file holds one function, and this artifact has "
                f"{len(functions)} (slots: {there}); "
                + ("give slot=NAME" if functions else "to=numpy takes numbers")
            )
        return functions
    return chosen
