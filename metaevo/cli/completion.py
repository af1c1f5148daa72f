"""Completion of command lines in bash, zsh and fish.

`metaevo completion bash` prints a script. At each TAB it starts this module, which
imports neither JAX nor a user's files: what metaevo itself takes is kept in the user's
cache, and a file of the user's own is parsed. The cache is made again after a change of
metaevo's files.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Keys = dict[str, list[str]]
"""Keys of a command or a search, and the values that each takes, if they are few."""

ROOT = Path(__file__).parents[2]
LOOPS = "inner_loops"
NAMED = {"run": "searches", "train": LOOPS, "tune": LOOPS}
"""Commands whose first word is the name of a file, and the folder of the file."""

BASH = r"""
_metaevo() {
    local IFS=$'\n'
    COMPREPLY=($(COMMAND bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o default -o nospace -F _metaevo metaevo
"""
ZSH = r"""
_metaevo() {
    local -a found
    found=("${(@f)$(COMMAND zsh "$LBUFFER" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -Q -S '' -- $found; else _files; fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _metaevo metaevo
"""
FISH = r"""
complete -c metaevo -a '(COMMAND fish (commandline -cp | string collect) 2>/dev/null)'
"""
SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def script(shell: str) -> str:
    """Return the script of a shell, a key of `SHELLS`."""
    command = f"{shlex.quote(sys.executable)} -P -m metaevo.cli.completion"
    return SHELLS[shell].strip().replace("COMMAND", command)


def candidates(line: str) -> list[str]:
    """Return what may stand in the place of the last word of a command line.

    Args:
        line: up to the cursor.

    Returns:
        whole words; a word that is done ends in a space.
    """
    words = line.split()
    words += [""] if not words or line[-1].isspace() else []
    _, *before, word = words
    if not before:
        found = [f"{x} " for x in [*_commands(), "--help", "--version"]]
    elif (command := before[0]) not in _commands():
        found = []
    elif len(before) == 1 and (listed := _first_words(command)):
        found = [f"{x} " for x in [*listed, "--help"]]
    else:
        found = _of_keys(before, word)
    return sorted({x for x in found if x.startswith(word)})


def _first_words(command: str) -> Iterable[str]:
    if command in NAMED:
        return _files(NAMED[command])
    return _commands()[command].get("", [])


def _of_keys(before: list[str], word: str) -> list[str]:
    """Return keys that are not given yet, or the values of one."""
    command, *rest = before
    keys = {k: x for k, x in _commands()[command].items() if k}
    if command in NAMED and rest:
        keys |= _keys_of_file(NAMED[command], rest[0], rest[1:])
    key, equals, _ = word.partition("=")
    if equals:
        values = _environments() if key == "env" else keys.get(key, [])
        return [f"{key}={x} " for x in values]
    given = {x.partition("=")[0] for x in rest}
    flags = [f"{x} " for x in keys.pop("--", [])]
    return [f"{x}=" for x in keys if x not in given] + flags


# --- what there is --------------------------------------------------------------------


def _files(folder: str) -> dict[str, Path]:
    """Return the public files of a folder here, and of the installed one, by name."""
    found = {}
    for place in (ROOT, Path()):
        found |= {x.stem: x for x in sorted((place / folder).glob("[!_]*.py"))}
    return found


def _keys_of_file(folder: str, name: str, given: list[str]) -> Keys:
    """Return the keys of a search or an algorithm."""
    path = _files(folder).get(name) or (Path(name) if name.endswith(".py") else None)
    if path is None or not path.is_file():
        return {}
    if path.resolve().is_relative_to(ROOT):
        chosen = [x for x in given if x.startswith("strategy=")][-1:]
        return _kept([folder, name, *chosen], lambda: _imported(folder, name, chosen))
    like = _keys_of_file(LOOPS, "ppo", [])
    of_all = ("run.", "--", "env", "num_seeds" if folder == LOOPS else "run.")
    shared = {key: x for key, x in like.items() if key.startswith(of_all)}
    return {**shared, "strategy": [*_files("strategies")], **_parsed(path)}


def _parsed(path: Path) -> Keys:
    """Return the keys that a file of a user's own has; it is not imported."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return {}
    found: Keys = {}
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module == LOOPS:
            for loop in [x.name for x in node.names if x.name in _files(LOOPS)]:
                keys = _keys_of_file(LOOPS, loop, [])
                inside = ("inner.", "meta.")
                found |= {k: x for k, x in keys.items() if k.startswith(inside)}
        elif isinstance(node, ast.ClassDef) and node.name in ("Config", "Meta"):
            group = {"Config": "inner", "Meta": "meta"}[node.name]
            fields = [x.target for x in node.body if isinstance(x, ast.AnnAssign)]
            found |= {f"{group}.{ast.unparse(x)}": [] for x in fields}
        elif isinstance(node, ast.FunctionDef) and node.name == "search":
            for x in [*node.args.args, *node.args.kwonlyargs]:
                if x.arg not in ("inner", "meta"):
                    found[x.arg] = _choices(x.annotation)
    return found


def _choices(annotation: ast.expr | None) -> list[str]:
    """Return the values of `Literal[...]`, or those of a bool."""
    if annotation is None:
        return []
    text = ast.unparse(annotation)
    if text == "bool":
        return ["true", "false"]
    if "Literal[" not in text:
        return []
    constants = [x for x in ast.walk(annotation) if isinstance(x, ast.Constant)]
    return ["null" if x.value is None else str(x.value) for x in constants]


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
    base = os.environ.get("XDG_CACHE_HOME")
    folder = Path(base or Path.home() / ".cache") / "metaevo" / "completion"
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = make()
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found), encoding="utf-8")
        return found


@functools.cache
def _commands() -> dict[str, Keys]:
    """Return the keys of each command; those of "" are words that may come first."""
    return _kept(["commands"], _imported_commands)


def _imported_commands() -> dict[str, Keys]:
    import typing

    from metaevo.cli import commands, listing, new, values

    words = {"list": [*listing.KINDS], "new": [*new.TEMPLATES], "completion": [*SHELLS]}
    found = {}
    for name, command in commands.COMMANDS.items():
        kinds = typing.get_type_hints(command.options) if command.options else {}
        keys = {key: values.choices(kind) for key, kind in kinds.items()}
        found[name] = {"": words.get(name, []), **keys}
    return found


def _environments() -> list[str]:
    return _kept(["environments"], _imported_environments)


def _imported_environments() -> list[str]:
    from metaevo import envs
    from metaevo.cli import listing

    every = {x: listing.environments(x) for x in envs.SUITES}
    return [
        f"{suite}/{name}"
        for suite, names in every.items()
        if "pip install" not in names
        for name in names.split()
    ]


def _imported(folder: str, name: str, chosen: list[str]) -> Keys:
    """Return the keys of a file of metaevo's, which is imported."""
    from metaevo.cli import config, presets, program, strategies, train, values
    from metaevo.policies import ACTIVATIONS

    module: Any = importlib.import_module(f"{folder}.{name}")
    made = train.as_search(module.make) if folder == LOOPS else module.search
    kinds = config.kinds(strategies.in_arguments(made, chosen))
    found = {key: values.choices(kind) for key, kind in kinds.items()}
    found |= {x: [*ACTIVATIONS] for x in found if x.endswith(".activation")}
    return {**found, "preset": [*presets.named(made)], "--": [*program.FLAGS]}


def main() -> None:
    """Print the candidates for the line that a shell gives, one a line."""
    shell, line = sys.argv[1:3]
    found = candidates(line)
    if shell == "bash":  # which takes a word to begin behind these
        word = "" if line[-1:].isspace() else line.split()[-1]
        found = [x[max(word.rfind("="), word.rfind(":")) + 1 :] for x in found]
    elif shell == "fish":  # which adds the space itself
        found = [x.rstrip() for x in found]
    print("\n".join(found))


if __name__ == "__main__":
    main()
