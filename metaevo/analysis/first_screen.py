"""The head of a report, before its figures: the search, how to load it, the cost.

A manifest may be a stranger's: it is shown as text, and what it lacks is left out.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metaevo.learned import operations
from metaevo.portable import signatures
from metaevo.text import duration, joined_tasks

__all__ = ["cost", "joined", "loading", "measure", "searched", "seconds", "tasks"]

Record = Mapping[str, Any]


def searched(manifest: Record, num_generations: int) -> dict[str, str]:
    """Return task, algorithm, strategy and what evolved, in words by name.

    Args:
        manifest: of the run.
        num_generations: generations done.

    >>> task = {"env": {"name": "gymnax/CartPole-v1"}, "loop": ["ppo", "ppo"]}
    >>> search = {"task0": task, "population_size": 8}
    >>> searched({"identity": {"settings": {"search": search}}}, 16)
    {'task': 'gymnax/CartPole-v1', 'algorithm': 'ppo', 'agents': '8'}
    """
    made = _below(manifest, "identity", "settings", "search")
    tasks = [x for key, x in made.items() if key.startswith("task")]
    environments = [_below(x, "env").get("name") for x in tasks if x]
    loops = [_below(x).get("loop") for x in tasks]
    loops = [x[0] for x in loops if isinstance(x, list) and x and x[0] != "builtins"]
    found = {"task": _joined(environments), "algorithm": _joined(loops)}
    evolved = _below(made, "space", "slots")
    size, num_seeds = (made.get(x) for x in ("population_size", "num_seeds"))
    sizes = [str(size)] if size else []
    if evolved:
        sizes = [f"{x} members" for x in sizes]
        name = str(_below(made, "strategy").get("strategy", "")).rpartition(":")[2]
        sizes = [name] * bool(name) + sizes
        sizes += [f"{num_seeds} seeds each"] if num_seeds not in (None, 1) else []
        sizes.append(f"{num_generations} generation{'s' * (num_generations != 1)}")
    found["strategy" if evolved else "agents"] = ", ".join(sizes)
    aim = f"{', '.join(evolved)}, for the {measure(manifest)}"
    aim = ", ".join(filter(None, (aim, joined(manifest))))
    found["what evolved"] = aim if evolved else ""
    return {name: text for name, text in found.items() if text}


def measure(manifest: Record) -> str:
    """Return the name of the fitness.

    >>> measure({"identity": {}})
    'fitness'
    """
    made = _below(manifest, "identity", "settings", "search")
    return str(_below(made, "fitness").get("name", "fitness"))


def tasks(manifest: Record) -> list[str]:
    """Return the environments of a search's tasks, by number where they have no name.

    >>> made = {"task0": {"env": {"name": "grid/maze"}}, "task1": {}}
    >>> tasks({"identity": {"settings": {"search": made}}})
    ['grid/maze', 'task 1']
    """
    made = _below(manifest, "identity", "settings", "search")
    num = sum(key.startswith("task") for key in made)
    return [
        str(_below(made, f"task{i}", "env").get("name", f"task {i}"))
        for i in range(num)
    ]


def joined(manifest: Record) -> str:
    """Say how scores of several tasks become the fitness; empty for one task."""
    made = _below(manifest, "identity", "settings", "search")
    return joined_tasks(made.get("aggregate", "mean"), len(tasks(manifest)))


def _below(data: Any, *path: str) -> Mapping[str, Any]:
    """The object at a place in nested data; an empty one where there is none."""
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data if isinstance(data, Mapping) else {}


def _joined(names: Sequence[Any]) -> str:
    return ", ".join(dict.fromkeys(str(x) for x in names if x))


def loading(directory: Path, spec: Mapping[str, Mapping]) -> dict[str, str]:
    """Return code that loads a solution, by framework.

    Args:
        directory: of the run.
        spec: slot -> its operation and settings, at least one.

    Returns:
        `jax`, lines of Python; `export`, a command; `torch`, a line of Python that
        imports what the command writes.
    """
    place, file = json.dumps(str(directory), ensure_ascii=False), "evolved.py"
    lines = ["import metaevo", f"evolved = metaevo.load({place})"]
    numbers = [slot for slot, op in spec.items() if op["op"] == "number"]
    names = [slot.upper() for slot in numbers]
    if numbers:
        lines.append(", ".join(f"evolved.{slot}" for slot in numbers))
    for slot, op in spec.items():
        if slot not in numbers:
            kind = operations.get(op["op"]).slot
            lines.append(_call(slot, kind, op))
            names.append("Evolved" if kind == "optimizer" else slot)
    export = f"metaevo export {shlex.quote(str(directory))} to=torch out={file}"
    imported = f"from {Path(file).stem} import {', '.join(names)}"
    return {"jax": "\n".join(lines), "export": export, "torch": imported}


def _call(slot: str, kind: str, op: Mapping[str, Any]) -> str:
    """A call of an evolved function with its inputs by their usual names."""
    inputs, seen, _ = signatures.signature(op)
    usual = {"progress": "progress=0.5", "return_std": "return_std=target.std()"}
    known = [usual[x] for x in seen if x in usual]
    stats = ", ".join(f'"{x}": ...' for x in seen if x not in usual)
    known += [f"stats={{{stats}}}"] * bool(stats)
    if kind == "number" and not known:
        known = [usual["progress"]]
    context = [f"metaevo.Context({', '.join(known)})"] * bool(known)
    part = ".update" if kind == "optimizer" else ""
    return f"evolved.{slot}{part}({', '.join([*inputs, *context])})"


def cost(
    manifest: Record, records: Sequence[Record], events: Sequence[Record]
) -> dict[str, str]:
    """Return what a run took so far, in words by name.

    Args:
        manifest: of the run.
        records: of its log.
        events: of its history.
    """
    trained = sum(record.get("seconds") or 0.0 for record in records)
    took, frames = seconds(records, events), records[-1]["frames"] if records else 0
    machine = [str(x) for x in map(manifest.get, ("device", "processor")) if x]
    return {
        "frames": f"{frames:,}",
        "wall time": f"{duration(took)}, {duration(trained)} of it for the generations",
        "machine": ", ".join(machine),
    }


def seconds(records: Sequence[Record], events: Sequence[Record]) -> float:
    """Return the seconds that a run took in all its parts.

    A part that was killed lasts as long as its generations.

    Args:
        records: of its log.
        events: of its history.

    >>> times = [(0.0, "started", 0), (9.0, "started", 1), (15.0, "finished", 2)]
    >>> events = [dict(zip(("time", "event", "generation"), x)) for x in times]
    >>> seconds([{"seconds": 4.0}, {"seconds": 3.0}], events)
    10.0
    """
    events = [x for x in events if x["event"] != "reported"]  # after the report
    starts = [i for i, x in enumerate(events) if x["event"] == "started"]
    total = 0.0
    for i, j in zip(starts, [*starts[1:], len(events)], strict=False):
        first, last = events[i].get("generation", 0), len(records)
        if j < len(events):
            last = events[j].get("generation", 0)
        trained = sum(x.get("seconds") or 0.0 for x in records[first:last])
        total += max(events[j - 1]["time"] - events[i]["time"], trained)
    return total
