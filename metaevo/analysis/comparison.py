"""Statistics, sentences, table and figures of a comparison of several searches."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metaevo.analysis import differences, stats, verdicts
from metaevo.analysis import scores as by_seed
from metaevo.analysis.plots import figures
from metaevo.analysis.verdicts import (
    CHOSEN,
    HAND_MADE,
    SIMPLEST,
    STATIC,
    Table,
    TableCell,
    Verdict,
    average,
)
from metaevo.fitness import final_return as FINAL_RETURN  # noqa: N812
from metaevo.storage._files import replace_file
from metaevo.text import score

AS_TRAINED, TUNED, BOTH = "as trained", "tuned hand-made", "tuned static"
RIVALS = {
    HAND_MADE: "against_hand_made",
    TUNED: "against_tuned",
    SIMPLEST: "against_best_simple",
    STATIC: "against_best_static",
    BOTH: "against_tuned_static",
}
PERCENTILE = 95  # of the random control, which a discovery must exceed


class Comparison(NamedTuple):
    """Results of training on fresh seeds; a notebook shows the sentences.

    Attributes:
        sentences: of the verdicts, among others.
        page: HTML file with tables and figures.
    """

    sentences: tuple[str, ...]
    page: Path

    def _repr_markdown_(self) -> str:
        return "\n".join(f"* {x}" for x in (*self.sentences, f"page: `{self.page}`"))


def _rows(
    scores: Table,
    compared: Sequence[Verdict],
    frames: Mapping[str, int],
    measure: str,
    optimum: float | None = None,
) -> list[dict[str, Any]]:
    """Return a row per place and candidate."""
    rows = []
    # A tuned algorithm stands beside the learned ones whose frames it had.
    learned = {x.place: frames[x.candidate] for x in scores if x.candidate in frames}
    prefixes = dict(
        zip(verdicts.measures(measure), ("", "final_return_"), strict=False)
    )
    for cell in scores:
        if cell.measure != measure:
            continue
        place, name, _ = cell
        flat = scores[cell].ravel()
        finite = flat[np.isfinite(flat)]
        final = scores[cell._replace(measure=FINAL_RETURN.name)]
        row = {
            "setting": place,
            "candidate": name,
            "searches": len(scores[cell]),
            "frames": 0 if name in CHOSEN else frames.get(name, learned[place]),
            "runs": len(flat),
            "failed": len(flat) - len(finite),
            "mean": average(flat),
            "median": float(np.median(finite)) if len(finite) else np.nan,
            "final_return": average(final),
        }
        interval = stats.grouped(scores[cell])
        if interval is not None:
            row["iqm"] = interval
        if optimum is not None and len(finite):
            row["optimality_gap"] = float(stats.optimality_gap(finite, optimum))
        theirs = scores[cell._replace(candidate=HAND_MADE)]
        theirs = theirs[np.isfinite(theirs)]
        if name != HAND_MADE and len(finite) and len(theirs):
            row["improvement"] = stats.probability_of_improvement(finite, theirs)
        row |= {
            prefixes[x.measure] + RIVALS[x.rival]: x.paired
            for x in compared
            if (x.place, x.subject) == (place, name)
        }
        rows.append(row)
    return rows


def _against_best(
    judged: Sequence[Verdict], hardest: Mapping[tuple[str, str], str]
) -> list[str]:
    """Return a sentence per learned candidate and measure, on its best rival."""
    return [
        f"{x.subject}{_where(x.place)}: {_predicate(x)}; {x.measure}; of all rivals "
        "that one was the best on other seeds"
        for x in judged
        if hardest.get((x.place, x.subject)) == x.rival
    ]


def _sentences(scores: Table, judged: Sequence[Verdict], controls: Table) -> list[str]:
    """Return a sentence per place, group and measure, and one per random control."""
    groups: dict[TableCell, list[Verdict]] = {}
    for x in judged:
        groups.setdefault(TableCell(x.place, x.subject, x.measure), []).append(x)
    lines = []
    for cell, group in groups.items():
        about = [f"the {x.rival} one" for x in group if x.paired.about_results]
        searches, seeds = scores[cell].shape
        counted = "1 search" if searches == 1 else f"{searches} searches"
        where = _where(cell.place)
        claim = ""
        if about:
            claim = (
                f"; against {' and '.join(about)} this is about these results on new "
                "seeds, no claim about searching"
            )
        lines.append(
            f"{cell.candidate}{where}: {' and '.join(map(_predicate, group))}; "
            f"{cell.measure}, {counted} x {seeds} seeds, 95 % intervals{claim}"
        )
    named = [cell.candidate for cell in controls]
    for cell, control in controls.items():
        means = np.array([average(x) for x in control])
        bar = float(np.percentile(means[np.isfinite(means)], PERCENTILE))
        # On the control's own seeds, the first of all.
        mean = average(scores[cell][:, : control.shape[1]])
        where = f" on {cell.place}" if named.count(cell.candidate) > 1 else ""
        word = "beats" if mean > bar else "does not beat"
        lines.append(
            f"{cell.candidate}{where} {word} the {PERCENTILE}th percentile of "
            f"{len(control)} random searches: {score(mean)} against {score(bar)}"
        )
    return lines


def _where(place: str) -> str:
    return "" if place == AS_TRAINED else f" on {place}"


def _predicate(verdict: Verdict) -> str:
    """Return what a group is in comparison with a rival, and by how much."""
    paired, rival = verdict.paired, f"the {verdict.rival} one"
    said = f"{differences.comparison(paired, rival)} ({paired.text}{paired.each_text})"
    if failing := differences.failure(paired, "it", rival):
        return failing + f"; where both train, {said}" * (paired.num_pairs > 1)
    return said


# --- files ----------------------------------------------------------------------------


def write(
    out: Path,
    scores: Table,
    frames: Mapping[str, int],
    measure: str,
    controls: Table,
    optimum: float | None = None,
    environments: Mapping[str, str] = {},
    hardest: Mapping[tuple[str, str], str] = {},
    notes: Sequence[str] = (),
) -> list[str]:
    """Write table.csv, scores.jsonl, sentences.txt, figures and index.html.

    Args:
        out: Folder of the files.
        scores: Scores of all candidates, the hand-made algorithm among them.
        frames: Frames of each search of a learned candidate, by its name. The
            searches that tuned the hand-made algorithm had as many.
        measure: Name of the fitness.
        controls: Fitness of what random searches came to, on the first of the seeds, in
            the cell of the learned candidate whose strategy it is.
        optimum: Highest fitness that counts, for the optimality gap.
        environments: Names of the environments of each setting, as one text, by the
            setting's name.
        hardest: Name of the best rival of a learned candidate, by the setting and it.
        notes: Sentences on what the rivals are.

    Returns:
        The sentences.
    """
    names = dict.fromkeys(cell.candidate for cell in scores)
    compared = verdicts.compared(scores, names.keys() - {HAND_MADE}, list(RIVALS))
    judged = verdicts.corrected([x for x in compared if x.subject in frames])
    rows = _rows(scores, compared, frames, measure, optimum)
    lines = [
        *_against_best(judged, hardest),
        *_sentences(scores, judged, controls),
        *notes,
    ]
    out.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(key, "")) for key in columns] for row in rows]
    figures.write_csv(out / "table.csv", columns, cells)
    kept = by_seed.json_lines(by_seed.of_table(scores))
    replace_file(out / by_seed.FILE, kept.encode())
    replace_file(out / "sentences.txt", ("\n".join(lines) + "\n").encode())
    places = dict.fromkeys(cell.place for cell in scores)
    page = figures.page(
        "compare.html",
        lines=lines,
        rows=rows,
        figures=[_profiles(out, place, scores, measure) for place in places],
        measure=measure,
        measures=verdicts.measures(measure),
        rivals={name: x for name, x in RIVALS.items() if name in names},
        num_verdicts=len(judged),
        num_seeds=next(iter(scores.values())).shape[1],
        optimum=optimum,
        environments=environments,
    )
    replace_file(out / "index.html", page.encode())
    return lines


def _profiles(out: Path, place: str, scores: Table, measure: str) -> dict[str, str]:
    """Draw the fraction of runs above each score, per candidate."""
    runs = {
        cell.candidate: np.where(np.isfinite(x), x, -np.inf).ravel()
        for cell, x in scores.items()
        if (cell.place, cell.measure) == (place, measure)
    }
    finite = np.concatenate([x[np.isfinite(x)] for x in runs.values()])
    at = np.linspace(finite.min(), finite.max(), 201)
    curves = {name: stats.performance_profile(x, at) for name, x in runs.items()}

    def draw(axes):
        for i, (name, curve) in enumerate(curves.items()):
            axes.plot(at, curve, color=figures.color(name, i), label=name)
        axes.set(xlabel=measure, ylabel="fraction of runs above", ylim=(0, 1.02))
        figures.legend_above(axes, 2)

    return figures.figure(
        out,
        f"profiles_{slug(place)}",
        f"Runs above a score, {place}",
        draw,
        (["score", *curves], np.stack([at, *curves.values()], 1)),
        "All searches and seeds of a candidate; a curve further right is better.",
    )


def _cell(x: Any) -> Any:
    """Return the text of an interval or a difference; other values as they are."""
    if isinstance(x, stats.Interval):
        return f"{x.estimate:.6g} [{x.low:.6g}, {x.high:.6g}]"
    if isinstance(x, differences.Paired):
        return f"{x.difference:+.6g} [{x.low:+.6g}, {x.high:+.6g}]"
    return x


def slug(text: str) -> str:
    """Return a file name for a text; different texts have different names.

    >>> slug("env=gymnax/Acrobot-v1")
    'env-gymnax-acrobot-v1-cd1296'
    """
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40]
    return f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
