"""Artifacts that were altered by accident, or made to do harm.

Importing this module installs an audit hook, which notes what a loaded artifact
executes.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.reliability_disks import altered, temporary_folder
from metaevo.errors import ArtifactError
from metaevo.storage import artifacts, verified

FORBIDDEN = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork")
FORBIDDEN += ("pickle.find_class", "socket.connect", "shutil.rmtree", "os.remove")
_events: list[str] | None = None


def _watch(event: str, _) -> None:
    if _events is not None and event in FORBIDDEN:
        _events.append(event)


def mutated_artifacts(number: int = 1000, seed: int = 0) -> dict[str, Any]:
    """Load artifacts that were altered, by accident or with a new signature."""
    rng = random.Random(seed)
    outcomes = no_outcomes()
    with temporary_folder() as folder:
        good = make_artifact(folder / "good")
        for i in range(number):
            made = folder / "made"
            shutil.copytree(good, made)
            if i % 2:
                path = made / rng.choice(("arrays.safetensors", "manifest.json"))
                hurt = altered(path.read_bytes(), rng)
                path.unlink() if hurt is None else path.write_bytes(hurt)
            else:
                signed(made, lambda manifest: _somewhere(manifest["slots"], rng))
            try_to_load(made, outcomes)
            shutil.rmtree(made)
    return {"mutated": number, **outcomes}


def hostile_artifacts() -> dict[str, Any]:
    """Load artifacts that were made to do harm."""
    outcomes = no_outcomes()
    for _, make in HOSTILE:
        with temporary_folder() as folder:
            made = make_artifact(folder / "made")
            make(made, folder)
            try_to_load(made, outcomes)
            outcomes["executed"] += (folder / "pwned").exists()
    return {"hostile": len(HOSTILE), **outcomes}


def no_outcomes() -> dict[str, Any]:
    """Return the counts of `try_to_load` before the first artifact."""
    counts = dict.fromkeys(("refused", "loaded", "crashes", "executed"), 0)
    return {**counts, "slowest_s": 0.0}


def make_artifact(path: Path) -> Path:
    """Save an artifact with a learned value loss."""
    import jax

    from metaevo import losses, spaces

    space = spaces.replace(value_loss=losses.residual_network("zero", (8, 4)))
    params = jax.tree.map(lambda x: x + 0.3, space.init(jax.random.key(0)))
    artifacts.save(path, params, space.spec, {}, {"search": "reliability"})
    return path


def try_to_load(path: Path, outcomes: dict[str, Any]) -> None:
    """Load an artifact, and count the outcome."""
    global _events
    _events = []
    began = time.process_time()  # the time of other processes does not count
    try:
        artifacts.load(path)
        outcomes["loaded"] += 1
    except ArtifactError:
        outcomes["refused"] += 1
    except BaseException as error:
        print(f"{path}: {type(error).__name__}: {error}", file=sys.stderr)
        outcomes["crashes"] += 1
    seconds = time.process_time() - began
    outcomes["slowest_s"] = max(outcomes["slowest_s"], round(seconds, 3))
    outcomes["executed"] += len(_events)
    _events = None


def signed(path: Path, change: Callable[[dict], None]) -> None:
    """Alter a manifest and sign it again, as an attacker would."""
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    manifest["digest"] = verified.digest(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


VALUES = (None, True, -1, 0, 1e308, 10**30, "", "os.system", "../x", [], [1] * 99, {})


def _somewhere(tree: dict, rng: random.Random) -> None:
    """Change a value or a key somewhere in nested plain data."""
    key = rng.choice(list(tree))
    if isinstance(tree[key], dict) and tree[key] and rng.random() < 0.8:
        _somewhere(tree[key], rng)
    elif rng.random() < 0.2:
        tree[rng.choice(("op", "x", "features", "../x"))] = tree.pop(key)
    else:
        tree[key] = rng.choice(VALUES)


def _slot(**changes: Any) -> Callable[[Path, Path], None]:
    """Return a signed change of the slot's settings."""
    return lambda made, _: signed(
        made, lambda manifest: manifest["slots"]["value_loss"].update(changes)
    )


def _file(name: str, data: bytes) -> Callable[[Path, Path], None]:
    def make(made: Path, folder: Path) -> None:
        (made / name).write_bytes(data)

    return make


def _pickle(made: Path, folder: Path) -> None:
    command = f"touch {folder / 'pwned'}".encode()
    data = b"cos\nsystem\n(S'" + command + b"'\ntR."
    (made / "arrays.safetensors").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    signed(made, lambda manifest: manifest.update(sha256=digest))


def _link(name: str) -> Callable[[Path, Path], None]:
    def make(made, folder):
        (made / name).rename(folder / "elsewhere")
        (made / name).symlink_to(folder / "elsewhere")

    return make


def _pipe(name: str) -> Callable[[Path, Path], None]:
    def make(made, folder):
        (made / name).unlink()
        os.mkfifo(made / name)

    return make


def _sparse(name: str, size: int) -> Callable[[Path, Path], None]:
    return lambda made, _: os.truncate(made / name, size)


def _header(made: Path, folder: Path) -> None:
    """Write a safetensors header that claims to be 2^62 bytes long."""
    data = (1 << 62).to_bytes(8, "little") + b"{}"
    (made / "arrays.safetensors").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    signed(made, lambda manifest: manifest.update(sha256=digest))


def _extra(name: str, op: dict) -> Callable[[Path, Path], None]:
    return lambda made, _: signed(
        made, lambda manifest: manifest["slots"].update({name: op})
    )


def _many(made: Path, folder: Path) -> None:
    many = {f"slot{i}": {"op": "number", "value": 1.0} for i in range(20_000)}
    signed(made, lambda manifest: manifest["slots"].update(many))


KNOTS = {
    "op": "knots",
    "kind": "linear",
    "transform": "log",
    "scale": 1.0,
    "default": 1,
}
HOSTILE: tuple[tuple[str, Callable[[Path, Path], None]], ...] = (
    ("an operation that is a function of os", _slot(op="os.system")),
    ("an operation with a dunder", _slot(op="__import__")),
    ("a base that is code", _slot(base="__import__('os').system('touch pwned')")),
    ("layers of a billion", _slot(features=[10**9])),
    ("a billion layers' worth", _slot(features=[1] * 100_000)),
    ("negative layers", _slot(features=[-8, 4])),
    ("layers that are text", _slot(features="abc")),
    ("a scale of NaN", _slot(scale=float("nan"))),
    ("a limit of text", _slot(limit="9" * 10_000)),
    ("a million knots", _extra("lr", {**KNOTS, "num_knots": 10**6})),
    ("a trillion knots", _extra("lr", {**KNOTS, "num_knots": 10**12})),
    ("a path for a name", _extra("../../evil", {"op": "number", "value": 1.0})),
    ("a number that is code", _extra("lr", {"op": "number", "value": "exit()"})),
    ("20,000 slots", _many),
    ("a pickle for arrays", _pickle),
    ("a header of 2^62 bytes", _header),
    ("a link for arrays", _link("arrays.safetensors")),
    ("a link for the manifest", _link("manifest.json")),
    ("a pipe for arrays, which never ends", _pipe("arrays.safetensors")),
    ("a pipe for the manifest", _pipe("manifest.json")),
    ("arrays of 8 GiB", _sparse("arrays.safetensors", 8 << 30)),
    ("a manifest of 8 GiB", _sparse("manifest.json", 8 << 30)),
    ("a manifest of 100,000 brackets", _file("manifest.json", b"[" * 100_000)),
    ("a manifest that is not text", _file("manifest.json", bytes(range(256)) * 9)),
)


sys.addaudithook(_watch)
