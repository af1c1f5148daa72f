"""Rivals that were found once, with their scores: `metaevo/rivals/*.json`.

A search's own comparison has the algorithm as it is beside the solution. Its static
settings and tuned numbers cost as much as a search to find, so those of a setting that
many searches share are kept: the loop with its `Config` and numbers, the environment
and the length of life. `python -m benchmarks.kept_rivals` writes them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from metaevo.engine import identity
from metaevo.types import Search

FOLDER = Path(__file__).parents[1] / "rivals"


def setting(search: Search) -> dict[str, Any] | None:
    """Describe what a search trains by what differs from the loop's defaults.

    Returns:
        plain data; None for a search of several tasks, of tasks that are drawn, or
        without an environment.
    """
    (loop, *others), varied = search.tasks, search.vary or search.hurdles
    if others or varied or loop.env is None or loop.env.task is not None:
        return None
    described = identity.lifetime(search)["task0"]
    usual = identity.defaults(search)["task0"]
    return {
        "loop": described["loop"],
        "env": described["env"]["name"],
        **{
            part: {k: x for k, x in described[part].items() if x != usual[part].get(k)}
            for part in ("config", "meta")
            if isinstance(described[part], dict)
        },
    }


def of(search: Search) -> list[dict[str, Any]]:
    """Return the rivals that are kept for what a search trains.

    Returns:
        for each `name`; `changes`, its static `key=value`; `numbers`, params of
        `InnerLoop.tunable`, None if it has none or they were not kept; `tuned`, the
        frames that they took, 0 without any; and `scores`, measure -> one a seed, on
        seeds of its own.
    """
    own = setting(search)
    found = []
    for path in sorted(FOLDER.glob("*.json")) if own else ():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["setting"] == own:
            found += kept["rivals"]
    return found
