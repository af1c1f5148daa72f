"""The card of an artifact: what it is, how good, and where it was used.

`evidence` in an artifact's manifest is plain data, written when a run ends:

    environments  names, of the search's tasks
    measure       name of the fitness
    verdicts      sentences: the solution against the hand-made algorithm
    independent   sentences of an independent agent; may be empty
    warnings      sentences
    scores        rows {name, task, fitness, final_return, seeds}: of solution and
                  controls, means; and `by_seed`, {fitness, final_return}, lists, None
                  where a run failed; not in older artifacts
    facts         {tasks, num_searched}, by which the scores give the verdicts
    cost          {generations, frames, seconds}
    metaevo       version
    date          ISO 8601, UTC
    license       SPDX identifier, or None: who ran the search has not chosen one
    name          `zoo:NAME` of an artifact that is installed with metaevo
    command       the command that found it; likewise
    elsewhere     sentences: what it is worth in other agents and tasks; likewise
    limits        sentences: where it fails; likewise

Here it is shown: as lines for a terminal, and as Markdown, the `README.md` beside the
arrays. A file may come from a stranger: its text is shown as text alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from metaevo.portable.properties import Properties
from metaevo.text import duration

__all__ = ["lines", "markdown"]

MAX_TEXT = 500
MAX_ROWS = 100


def lines(manifest: Mapping[str, Any]) -> list[str]:
    """The evidence and the origin of an artifact in lines of text; may be empty."""
    found = _evidence(manifest)
    shown = [f"verdict: {_text(x)}" for x in _list(found.get("verdicts"))]
    shown += [f"verdict: {_text(x)}" for x in _list(found.get("independent"))]
    for key in ("elsewhere", "limits", "warnings"):
        shown += [f"{key.rstrip('s')}: {_text(x)}" for x in _list(found.get(key))]
    for name, task, *scores, seeds in _rows(found):
        place = f" on {task}" if task else ""
        pairs = zip(_measures(found), scores, strict=True)
        said = "".join(f"{x} {y}, " for x, y in pairs)
        shown.append(f"{name}{place}: {said}{seeds} seeds")
    if found and not shown:
        shown.append("no comparison on held-out seeds")
    return [*shown, *(f"{name}: {x}" for name, x in _facts(manifest, found))]


def markdown(manifest: Mapping[str, Any], properties: Mapping[str, Properties]) -> str:
    """The card in Markdown.

    Args:
        manifest: of the artifact.
        properties: slot -> properties, of functions.
    """
    found = _evidence(manifest)
    slots = manifest.get("slots", {})
    zoo = _zoo_name(found)
    title = zoo or ", ".join(sorted(slots))
    parts = [f"# {_escaped(title)}", "Evolved with metaevo.", ""]
    for name, op in sorted(slots.items()):
        known = properties.get(name)
        if known is None:
            parts.append(f"- **{_escaped(name)}**: {_number(op.get('value'))}")
            continue
        parts.append(f"- **{_escaped(name)}**: `{known.title}`")
        parts += [f"  - {_escaped(line)}" for line in known.lines()]
    sentences = [*_list(found.get("verdicts")), *_list(found.get("independent"))]
    parts += ["", "## Evidence", ""]
    parts += [f"- {_escaped(_text(x))}" for x in sentences]
    parts += [
        f"- **Warning**: {_escaped(_text(x))}" for x in _list(found.get("warnings"))
    ]
    rows = _rows(found)
    if rows:
        head = ["", "environment", *_measures(found), "held-out seeds"]
        table = [head, *rows]
        if not any(task for _, task, *_ in rows):  # a single task has no name
            table = [[name, *others] for name, _, *others in table]
        head, *rows = table
        parts += ["", _row(head), "|---" * len(head) + "|", *map(_row, rows)]
    elif not sentences:
        parts.append("It was not compared on held-out seeds.")
    for head, key in (("Elsewhere", "elsewhere"), ("Limits", "limits")):
        if sentences := _list(found.get(key)):
            parts += ["", f"## {head}", ""]
            parts += [f"- {_escaped(_text(x))}" for x in sentences]
    facts = _facts(manifest, found)
    parts += ["", "## Provenance", "", "| | |", "|---|---|"]
    parts += [_row(fact) for fact in facts]
    parts += ["", "## Use", "", "```python", "import metaevo", ""]
    parts += [f'artifact = metaevo.load("{zoo or "this folder"}")']
    parts += ["print(artifact)", "```"]
    return "\n".join(parts) + "\n"


def _facts(manifest: Mapping[str, Any], found: Mapping) -> list[tuple[str, str]]:
    """Provenance as pairs of texts."""
    provenance = manifest.get("provenance")
    provenance = provenance if isinstance(provenance, Mapping) else {}
    cost = found.get("cost")
    cost = cost if isinstance(cost, Mapping) else {}
    facts = [("search", provenance.get("search")), ("command", found.get("command"))]
    facts.append(
        ("environment", ", ".join(map(_text, _list(found.get("environments")))))
    )
    facts.append(("cost", _cost(cost)))
    facts += [(name, found.get(name)) for name in ("metaevo", "date")]
    if found:
        facts.append(("license", found.get("license") or "none chosen by its author"))
    return [(name, _text(x)) for name, x in facts if x]


def _cost(cost: Mapping[str, Any]) -> str:
    parts = []
    for name in ("generations", "frames"):
        if _is_number(cost.get(name)):
            parts.append(f"{int(cost[name]):,} {name}")
    if _is_number(cost.get("seconds")):
        parts.append(duration(float(cost["seconds"])))
    return ", ".join(parts)


# --- text of a stranger ---------------------------------------------------------------


def _evidence(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    found = manifest.get("evidence")
    return found if isinstance(found, Mapping) else {}


def _zoo_name(found: Mapping[str, Any]) -> str | None:
    name = found.get("name")
    known = isinstance(name, str) and re.fullmatch(r"zoo:\w{1,80}", name)
    return name if known else None


def _list(x: Any) -> Sequence[Any]:
    return x[:MAX_ROWS] if isinstance(x, list) else []


def _rows(found: Mapping[str, Any]) -> list[list[str]]:
    scores = ("fitness", "final_return")[: len(_measures(found))]
    keys = ("name", "task", *scores, "seeds")
    rows = [x for x in _list(found.get("scores")) if isinstance(x, Mapping)]
    return [[_cell(x.get(key)) for key in keys] for x in rows]


def _measures(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the measures: one if there is no other than the fitness."""
    measure = _text(found.get("measure", "fitness"))
    return (
        (measure,)
        if measure in ("final return", "score")
        else (measure, "final return")
    )


def _cell(x: Any) -> str:
    return _number(x) if _is_number(x) or x is None else _text(x)


def _is_number(x: Any) -> bool:
    # Finite, and of a size that can be written.
    return isinstance(x, int | float) and not isinstance(x, bool) and -1e18 < x < 1e18


def _number(x: Any) -> str:
    if not _is_number(x):
        return "-"
    return str(x) if isinstance(x, int) else f"{x:.4g}"


def _text(x: Any) -> str:
    """One line of printable text, cut if it is long."""
    if isinstance(x, int) and not _is_number(x):
        return "-"
    text = str(x)
    shown = "".join(c if c.isprintable() else " " for c in text[:MAX_TEXT])
    return shown if len(text) <= MAX_TEXT else f"{shown}..."


def _escaped(text: str) -> str:
    """Text without a meaning in Markdown or HTML."""
    text = re.sub(r"([\\`*_\[\]|#~$!@])", r"\\\1", text.strip())
    # Marks that begin a list, a heading or a rule, and links without brackets.
    text = re.sub(r"^(\d*)([-+=.)])(?=[-+=\s]|$)", r"\1\\\2", text)
    text = text.replace("://", r"\://")
    text = re.sub(r"(www)\.", r"\1\.", text, flags=re.IGNORECASE)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"
