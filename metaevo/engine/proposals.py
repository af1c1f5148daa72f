"""Formulas that others write while a search of programs runs: `run.propose=DIR`.

Before each generation new files `DIR/*.txt` enter the population, in the order of their
names. `proposed.jsonl` in the run directory says which entered when, before the
generation runs: a run that is resumed takes the same ones at the same generations. What
came of each is a line of `DIR/tried.jsonl`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from metaevo.engine.job import Job, Progress
from metaevo.errors import CheckpointError, ConfigError
from metaevo.learned.language import MAX_TEXT
from metaevo.storage import jsonl, run_directory
from metaevo.types import Search

TRIED = "tried.jsonl"


class Proposed(NamedTuple):
    """A formula that enters a generation.

    Attributes:
        name: of its file.
        text: the formula.
        place: of its member in the population; None if it is none.
        error: why it is none.
    """

    name: str
    text: str
    place: int | None = None
    error: str | None = None


def check(search: Search, folder: str) -> None:
    """Check that a search can take formulas from a folder.

    Raises:
        ConfigError: there is no such folder, or the search takes none.
    """
    if not Path(folder).is_dir():
        raise ConfigError(f"run.propose={folder}: no such folder")
    if search.space.programs is None or search.strategy.adopt is None:
        raise ConfigError(
            f"run.propose={folder}: only a search of programs takes formulas, such as "
            "searches.dqn_td_program"
        )


def accept(job: Job, progress: Progress) -> tuple[Progress, list[Proposed]]:
    """Take what enters the next generation.

    Returns:
        the progress, with formulas in the strategy's state; and these.
    """
    programs, adopt = job.search.space.programs, job.search.strategy.adopt
    if programs is None or adopt is None:
        return progress, []
    strategy, entered = progress.state.strategy, []
    for name, text in _entering(job, progress.generation):
        one = Proposed(name, text)
        try:
            params = programs.read(text)
            strategy, place = adopt(strategy, params)
            entered.append(one._replace(place=place))
        except ConfigError as error:
            entered.append(one._replace(error=str(error)))
    return progress._replace(state=progress.state._replace(strategy=strategy)), entered


def answer(job: Job, entered: list[Proposed], record: Mapping[str, Any]) -> None:
    """Write what came of formulas to `DIR/tried.jsonl`, if there is a folder.

    Args:
        record: of the generation that they entered.
    """
    if not entered or job.config.propose is None:
        return
    scores, lines = record["population"], []
    for one in entered:
        score = None if one.place is None else scores[one.place]
        line = {"name": one.name, "formula": one.text, "error": one.error}
        line |= {"generation": record["generation"], "score": score}
        line |= {"start": scores[0], "best": record["fitness_best"]}
        lines.append(json.dumps({k: jsonl.plain(x) for k, x in line.items()}))
    with (Path(job.config.propose) / TRIED).open("a", encoding="utf-8") as file:
        file.write("\n".join([*lines, ""]))


def _entering(job: Job, generation: int) -> list[tuple[str, str]]:
    """Names and texts of the formulas of a generation; new ones are noted first."""
    path = run_directory.paths(job.directory).proposed
    noted = jsonl.read(path) if path.exists() else []
    try:
        now = [(x["name"], x["text"]) for x in noted if x["generation"] == generation]
        later = any(x["generation"] > generation for x in noted)
        known = {x["name"] for x in noted}
    except (KeyError, TypeError):
        raise CheckpointError(f"{path} holds a line that is no formula's") from None
    if now or later or job.config.propose is None:
        return now
    found = []
    for file in sorted(Path(job.config.propose).glob("*.txt")):
        # A name that is there while its text is not is taken next time.
        if file.name in known or not file.is_file() or not file.stat().st_size:
            continue
        with file.open(encoding="utf-8", errors="replace") as opened:
            found.append((file.name, opened.read(MAX_TEXT + 1).strip()))
    found = found[: job.search.strategy.most_adopted]
    if found:
        with path.open("a", encoding="utf-8") as log:
            for name, text in found:
                line = {"generation": generation, "name": name, "text": text}
                log.write(json.dumps(line) + "\n")
            log.flush()
            os.fsync(log.fileno())
    return found
