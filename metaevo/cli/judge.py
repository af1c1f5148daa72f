"""`metaevo judge FILE ... search=NAME`: a score for anybody's formulas."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from metaevo.cli import config, resolve
from metaevo.cli.options import JudgeOptions
from metaevo.errors import ConfigError, printable
from metaevo.storage import jsonl

FORMULAS = ".txt"


def judge(words: Sequence[str], should_stop: Callable[[], bool]) -> None:
    """Judge files, and print a line of JSON for each.

    Args:
        words: files and folders, and `key=value` of `JudgeOptions` or of the search.

    Raises:
        ConfigError: a key is wrong, there is no file, or two have one name.
    """
    fields = {f"{field.name}=" for field in dataclasses.fields(JudgeOptions)}
    own = [x for x in words if x.startswith(tuple(fields))]
    options = config.parse_options(JudgeOptions, own)
    named = [x for x in words if x not in own and Path(x).exists()]
    keys = [x for x in words if "=" in x and x not in (*own, *named)]
    paths = _files([x for x in words if x not in (*own, *keys)])

    from metaevo.config import wandb_mode
    from metaevo.engine import foreign, judging
    from metaevo.engine.loggers.wandb import WandbLogger
    from metaevo.evaluators import choose
    from metaevo.evaluators.devices import configure

    configure()
    function = resolve.function(options.search.removeprefix("searches."), "searches")
    given = config.parse(function, keys)
    run = given.pop("run")
    search = config.call(function, given)
    slot = judging.slot_of(search)
    limits = foreign.Allowance(options.seconds, options.megabytes)
    reads = ("return_std", "progress")
    candidates = [
        judging.read(path, slot, reads, options.allow_code, limits) for path in paths
    ]
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    records = []
    with choose.factory(run, should_stop) as factory:
        for record in judging.judged(
            search,
            candidates,
            options.looks,
            out / "looks",
            factory.make,
            options.seed,
            lambda text: print(printable(text), file=sys.stderr, flush=True),
        ):
            records.append({k: jsonl.plain(x) for k, x in record.items()})
            print(printable(json.dumps(records[-1])), flush=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    (out / "scores.jsonl").write_text(text, encoding="utf-8")
    if (mode := wandb_mode(run)) != "disabled":
        logger = WandbLogger(out, mode, "judge", dataclasses.asdict(options), (slot,))
        logger.table("judge", records)
        logger.close()


def _files(words: Sequence[str]) -> list[Path]:
    """The files that are named, and those of folders that are: formulas and code."""
    found: list[Path] = []
    for path in map(Path, words):
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        found += [x for x in inside if x is path or x.suffix in (FORMULAS, ".py")]
    for path in found:
        if not path.is_file():
            raise ConfigError(f"{path}: no such file")
    names = [path.name for path in found]
    if twice := sorted({x for x in names if names.count(x) > 1}):
        raise ConfigError(f"two files are named {twice[0]}; a name is its line's")
    if not found:
        raise ConfigError("name at least one file, of a formula or of Python code")
    return found
