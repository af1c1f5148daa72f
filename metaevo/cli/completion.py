"""Completion of command lines in bash, zsh and fish.

`metaevo completion bash` prints a script (`shells`). At each TAB it starts this module,
which imports neither JAX nor a user's files: what metaevo itself takes is kept in the
user's cache, and a file of the user's own is parsed. The cache is made again after a
change of metaevo's files.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import os
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

Keys = dict[str, list[str]]
"""Keys of a command or a search, and the values that each takes, if they are few."""

ROOT = Path(__file__).parents[2]
LOOPS = "inner_loops"
NAMED = {"run": "searches", "train": LOOPS, "tune": LOOPS}
"""Commands whose first word is the name of a file, and the folder of the file."""


def candidates(line: str) -> list[str]:
    """Return what may stand in the place of the last word of a command line.

    Args:
        line: up to the cursor.

    Returns:
        whole words; a word that is done ends in a space.
    """
    words = line.split() + ([""] if line[-1:].isspace() else [])
    before, word = words[1:-1], words[-1]
    return sorted({x for x in _fitting(before, word) if x.startswith(word)})


def _fitting(before: list[str], word: str) -> list[str]:
    commands = _kept(["commands"], _of_commands)
    if not before:
        return [f"{x} " for x in [*commands, "--help", "--version"]]
    command, *rest = before
    keys, folder = commands.get(command, {}), NAMED.get(command)
    first = [*_files(folder)] if folder else keys.get("", [])
    if first and not rest:
        return [f"{x} " for x in [*first, "--help"]]
    if folder:
        keys = keys | _keys_of_file(folder, rest[0], rest[1:])
    key, equals, _ = word.partition("=")
    if equals:
        taken = keys.get(key, [])
        if key == "env":
            taken = [*_kept(["environments"], _all_environments), *_own_environments()]
        elif key == "strategy" and key in keys:
            taken = [*taken, *_files("strategies")]
        return [f"{key}={x} " for x in taken]
    flags = [f"{x} " for x in keys.get("", []) if x.startswith("--")]
    given = {x.partition("=")[0] for x in rest}
    return [f"{x}=" for x in keys if x and x not in given] + flags


# --- what there is --------------------------------------------------------------------


def _files(folder: str) -> dict[str, Path]:
    """Return the public files of a folder here, and of the installed one, by name."""
    paths = [*(ROOT / folder).glob("[!_]*.py"), *Path(folder).glob("[!_]*.py")]
    return {x.stem: x for x in paths}


def _keys_of_file(folder: str, name: str, given: list[str]) -> Keys:
    """Return the keys of a search or an algorithm."""
    path = _files(folder).get(name, Path(name))
    if not path.is_file():
        return {}
    if path.resolve().is_relative_to(ROOT):
        chosen = [x for x in given if x.startswith("strategy=")][-1:]
        return _kept([folder, name, *chosen], lambda: _of_file(folder, name, chosen))
    like = _keys_of_file(LOOPS, "ppo", [])
    shared = {x: y for x, y in like.items() if x in ("", "env") or x[:4] == "run."}
    return {**shared, **{key: [] for key in ("strategy", *_parsed(path))}}


def _body(path: Path) -> list[ast.stmt]:
    """Return the statements of a file, which is not imported; [] if it has none."""
    try:
        return ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return []


def _own_environments() -> list[str]:
    """Return the functions of files here that make an `Env`."""
    return [
        f"{path.stem}:{made.name}"
        for path in Path().glob("[!_]*.py")
        for made in _body(path)
        if isinstance(made, ast.FunctionDef) and made.name[0] != "_"
        for node in ast.walk(made)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Env")
    ]


def _parsed(path: Path) -> list[str]:
    """Return the keys that a file of the user's own adds."""
    found = []
    for node in _body(path):
        if isinstance(node, ast.ImportFrom) and node.module == LOOPS:
            keys = [k for x in node.names for k in _keys_of_file(LOOPS, x.name, [])]
            found += [x for x in keys if x.startswith(("inner.", "meta."))]
        elif isinstance(node, ast.ClassDef) and node.name in ("Config", "Meta"):
            group = {"Config": "inner", "Meta": "meta"}[node.name]
            fields = [x.target for x in node.body if isinstance(x, ast.AnnAssign)]
            found += [f"{group}.{ast.unparse(x)}" for x in fields]
        elif isinstance(node, ast.FunctionDef) and node.name == "search":
            found += [x.arg for x in (*node.args.args, *node.args.kwonlyargs)]
    return [x for x in found if x not in ("inner", "meta")]


# --- what is imported, and kept -------------------------------------------------------


def _kept(name: list[str], make: Callable[[], Any]) -> Any:
    """Return what `make` returned since metaevo's files last changed."""
    folders = (
        "metaevo/cli",
        "metaevo/envs",
        "metaevo",
        LOOPS,
        "searches",
        "strategies",
    )
    changed = [p.stat().st_mtime_ns for x in folders for p in (ROOT / x).glob("*.py")]
    text = json.dumps([str(ROOT), max(changed), len(changed), *name])
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = base / "metaevo" / "completion" / f"{digest}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found), encoding="utf-8")
        return found


def _of_commands() -> dict[str, Keys]:
    """Return the keys of each command; those of "" are words, which come first."""
    from metaevo.cli import commands, listing, new, shells, values

    words = {
        "list": [*listing.KINDS],
        "new": [*new.TEMPLATES],
        "completion": [*shells.SCRIPTS],
    }
    found = {}
    for name, command in commands.COMMANDS.items():
        kinds = typing.get_type_hints(command.options) if command.options else {}
        keys = {key: values.choices(kind) for key, kind in kinds.items()}
        found[name] = {"": words.get(name, []), **keys}
    return found


def _of_file(folder: str, name: str, chosen: list[str]) -> Keys:
    """Return the keys of a file of metaevo's; those of "" are flags."""
    from metaevo.cli import config, presets, program, strategies, train, values
    from metaevo.policies import ACTIVATIONS

    module: Any = importlib.import_module(f"{folder}.{name}")
    made = train.as_search(module.make) if folder == LOOPS else module.search
    kinds = config.kinds(strategies.in_arguments(made, chosen))
    found = {key: values.choices(kind) for key, kind in kinds.items()}
    found |= {x: [*ACTIVATIONS] for x in found if x.endswith(".activation")}
    return {**found, "preset": [*presets.named(made)], "": [*program.FLAGS]}


def _all_environments() -> list[str]:
    from metaevo import envs
    from metaevo.cli import listing

    every = {x: listing.environments(x) for x in envs.SUITES}
    there = {x: names.split() for x, names in every.items() if "pip " not in names}
    return [f"{suite}/{name}" for suite, names in there.items() for name in names]


def main() -> None:
    """Print the candidates for the line that a shell gives, one a line."""
    shell, line = sys.argv[1:3]
    found = candidates(line)
    if shell == "bash" and not line[-1:].isspace():
        word = line.split()[-1]
        # To bash a word begins behind these.
        found = [x[max(word.rfind("="), word.rfind(":")) + 1 :] for x in found]
    if shell == "fish":  # which adds the space itself
        found = [x.rstrip() for x in found]
    print("\n".join(found))


if __name__ == "__main__":
    main()
