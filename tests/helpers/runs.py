"""Read the files of a run directory."""

import base64
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

from metaevo.analysis.plots import figures
from metaevo.engine import finish, training
from metaevo.storage import jsonl, run_directory, verified


def solution_bytes(directory) -> bytes:
    """The arrays of the solution, as they lie on disk."""
    return (Path(directory) / "solution" / "arrays.safetensors").read_bytes()


def records(directory) -> list[dict]:
    """The log without the fields that depend on the wall clock."""
    timed = ("seconds", "frames_per_second")
    found = jsonl.read(Path(directory) / "metrics.jsonl")
    return [{k: v for k, v in r.items() if k not in timed} for r in found]


def write_short_reports(monkeypatch) -> None:
    """Let runs end with a page that is written in a moment."""

    def write(directory, between=lambda: None):
        between()
        (Path(directory) / "report").mkdir(exist_ok=True)
        (Path(directory) / "report" / "index.html").write_text("short")

    for module in (finish, training):
        monkeypatch.setattr(module, "report", SimpleNamespace(write=write))


_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAA"
    "AACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
_EMPTY = {"_lay_out": lambda: None, "_png": lambda: _PIXEL, "_svgs": list}
_DRAWING = {name: getattr(figures, name) for name in _EMPTY}


def undrawn(monkeypatch) -> None:
    """Let reports have empty figures: layout and rendering take seconds."""
    for name, made in _EMPTY.items():
        monkeypatch.setattr(figures, name, lambda *args, made=made: made())


def drawn(monkeypatch) -> None:
    """Let reports have figures again."""
    for name, function in _DRAWING.items():
        monkeypatch.setattr(figures, name, function)


def sign(directory, log=False) -> None:
    """Sign all manifests of a run again, as one would who altered its files.

    Args:
        log: Write the digest of the log as it is to the newest checkpoint, too.
    """
    directory = Path(directory)
    newest = max(directory.glob("checkpoints/*/manifest.json"))
    for path in directory.glob("*/**/manifest.json"):
        manifest = json.loads(path.read_text())
        if path == newest and log:
            data = (directory / "metrics.jsonl").read_bytes()
            manifest["log_bytes"] = len(data)
            manifest["log_sha256"] = hashlib.sha256(data).hexdigest()
        if "run_manifest" in manifest:
            manifest["run_manifest"] = run_directory.manifest_digest(directory)
        manifest["digest"] = verified.digest(manifest)
        path.write_text(json.dumps(manifest))
