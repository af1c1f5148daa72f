"""Scores by seed of a run, an artifact or a comparison: read, and shown."""

from __future__ import annotations

import csv as csv_files
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metaevo import text
from metaevo.analysis import evidence, holdout, results, scores
from metaevo.analysis.independent import judge
from metaevo.analysis.scores import Row
from metaevo.analysis.verdicts import average
from metaevo.errors import ConfigError, printable
from metaevo.storage import artifacts, jsonl, nearby, run_directory


def read(path: str | Path) -> list[Row]:
    """Return the scores that are kept at a path.

    Args:
        path: A run's directory, an artifact, `zoo:NAME`, or the folder of a comparison
            of several runs.

    Raises:
        ConfigError: There are none; the message says what keeps them.
        ArtifactError: There is no artifact either, or it was altered.
        CheckpointError: The files were altered.
    """
    folder, rows = Path(path), []
    if nearby.is_run(folder, unreadable=True):
        rows = [*_of_run(folder)]
    elif (folder / scores.FILE).is_file():
        rows = scores.parsed(jsonl.read(folder / scores.FILE))
    elif not (folder / "sentences.txt").is_file():  # an older comparison
        found = artifacts.load(path).manifest.get("evidence")
        if isinstance(found, Mapping):
            rows = scores.of_held_out(*evidence.kept(found))
    if not rows:
        raise ConfigError(
            f"{path}: no scores by seed here. A run keeps them that ends with a "
            "comparison on held-out seeds (metaevo resume RUN run.held_out_seeds=32), "
            "and so do its artifact and metaevo compare, if this metaevo made them"
        )
    return rows


def _of_run(directory: Path) -> Iterator[Row]:
    run_directory.read_manifest(directory)
    paths = run_directory.paths(directory)
    if paths.held_out.is_dir():
        yield from scores.of_held_out(*holdout.load(paths.held_out))
    if paths.independent.is_dir():
        yield from scores.of_judged(judge.load(paths.independent))
    if (agents := results.read_scores(directory)) is not None:
        for name, x in agents.evaluations.items():
            yield Row(name, "", "return on fresh episodes", "", None, 0, x)


def table(rows: Sequence[Row]) -> str:
    """Return a table per task and measure: a line per seed, a column per candidate."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        size = "" if row.step_size is None else f"step size {row.step_size:g}"
        title = ", ".join(filter(None, [row.measure, row.task, row.agent, size]))
        groups.setdefault(printable(title), []).append(row)
    return "\n\n".join(
        "\n".join([title, *text.columns(_cells(group))])
        for title, group in groups.items()
    )


def _cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the lines of a table, of rows that differ in candidate and search."""
    longest = max(len(row.scores) for row in rows)
    columns = [["", "mean", "sd", "failed", *(f"seed {i}" for i in range(longest))]]
    for row in rows:
        number = f" {row.search}" if any(x.search for x in rows) else ""
        finite = row.scores[np.isfinite(row.scores)]
        sd = finite.std(ddof=1) if len(finite) > 1 else np.nan
        shown = [average(finite), sd, len(row.scores) - len(finite), *row.scores]
        cells = (f"{x:.6g}" if np.isfinite(x) else "-" for x in shown)
        columns.append([printable(row.candidate) + number, *cells])
    return [*itertools.zip_longest(*columns, fillvalue="")]


HEAD = (*Row._fields[:-1], "seed", "score")


def by_seed(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a dictionary per score, with keys of `HEAD`; None where a run failed."""
    return [
        dict(zip(HEAD, (*row[:-1], i, score), strict=True))
        for row in rows
        for i, score in enumerate(jsonl.plain(row.scores))
    ]


def csv(rows: Sequence[Row]) -> str:
    """Return a line of comma-separated values per score; empty where a run failed."""
    file = io.StringIO()
    writer = csv_files.DictWriter(file, HEAD, lineterminator="\n")
    writer.writeheader()
    writer.writerows(by_seed(rows))
    return printable(file.getvalue(), keep="\n")


FORMATS = {"table": table, "csv": csv, "json": scores.json_lines}
