"""Statistics, sentences, table and figures of a comparison."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metaevo.analysis import holdout, stats
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.plots import figures
from metaevo.cli.options import CompareOptions
from metaevo.storage._files import replace_file

AS_TRAINED = "as trained"
HAND_MADE, TUNED = "hand-made", "tuned hand-made"
PERCENTILE = 95  # of the random control, which a discovery must exceed


class Scores(NamedTuple):
    """Scores of a candidate in one setting on one task.

    Attributes:
        fitness: [searches, N], on the same N seeds for all candidates.
        final_return: [searches, N], likewise.
    """

    fitness: np.ndarray
    final_return: np.ndarray


Found = Mapping[tuple[str, str], Scores]
"""Scores by setting and candidate."""


def scores(trained: Sequence[HeldOut], task: int) -> Scores:
    """Return the scores of a candidate on one task, from the runs of each search."""
    return Scores(
        np.stack([x.fitness[task] for x in trained]),
        np.stack([x.final_return[task] for x in trained]),
    )


# --- statistics -----------------------------------------------------------------------


def difference(a: Scores, b: Scores) -> stats.Paired:
    """Return the mean paired difference in fitness, over searches and seeds.

    The interval is the wider one of that over seeds (searches averaged) and that over
    searches (seeds averaged), because the result must hold on other seeds and in
    another search.
    """
    over_seeds = stats.paired_difference(a.fitness.mean(0), b.fitness.mean(0))
    searches = len(a.fitness)
    if searches == 1:
        return over_seeds
    theirs = np.full(searches, np.nanmean(b.fitness))
    over_searches = stats.paired_difference(np.nanmean(a.fitness, 1), theirs)
    widest = max(over_seeds, over_searches, key=lambda x: x.high - x.low)
    return widest._replace(num_failed=over_seeds.num_failed)


def _table(
    found: Found, frames: Mapping[str, int], optimum: float | None = None
) -> list[dict[str, Any]]:
    """Return a row per setting and candidate."""
    rows = []
    # A tuned algorithm stands beside the learned ones whose frames it had.
    learned = {place: frames[name] for place, name in found if name in frames}
    for (condition, name), scores in found.items():
        flat = scores.fitness.ravel()
        finite = flat[np.isfinite(flat)]
        baseline = found[condition, HAND_MADE]
        row = {
            "setting": condition,
            "candidate": name,
            "searches": len(scores.fitness),
            "frames": 0 if name == HAND_MADE else learned.get(condition, 0),
            "runs": len(flat),
            "failed": len(flat) - len(finite),
            "mean": holdout.average(flat),
            "median": float(np.median(finite)) if len(finite) else np.nan,
            "final_return": holdout.average(scores.final_return.ravel()),
        }
        if len(finite) >= 3:
            row["iqm"] = stats.bootstrap(finite, stats.iqm)
        if optimum is not None and len(finite):
            row["optimality_gap"] = float(stats.optimality_gap(finite, optimum))
        if name != HAND_MADE and len(finite):
            row["improvement"] = stats.probability_of_improvement(
                finite, baseline.fitness[np.isfinite(baseline.fitness)]
            )
            row["against_hand_made"] = difference(scores, baseline)
            if name != TUNED and (condition, TUNED) in found:
                row["against_tuned"] = difference(scores, found[condition, TUNED])
        rows.append(row)
    return rows


def _sentences(
    found: Found,
    groups: Sequence[str],
    measure: str,
    controls: Mapping[str, np.ndarray],
    settings: CompareOptions,
) -> list[str]:
    """Return a sentence per setting and group, and one per group on the control."""
    lines = []
    for (condition, name), scores in found.items():
        if name not in groups:
            continue
        parts = []
        for rival in (HAND_MADE, TUNED):
            if (condition, rival) in found:
                paired = difference(scores, found[condition, rival])
                parts.append(
                    f"{paired.words} the {rival} one ({paired.difference:+.2f} "
                    f"[{paired.low:+.2f}, {paired.high:+.2f}])"
                )
        where = "" if condition == AS_TRAINED else f" on {condition}"
        lines.append(
            f"{name}{where}: {' and '.join(parts)}; {measure}, {len(scores.fitness)} "
            f"searches x {scores.fitness.shape[1]} seeds, 95 % intervals"
        )
    for name, control in controls.items():
        bar = float(np.percentile(control[np.isfinite(control)], PERCENTILE))
        # On the control's own seeds, the first of all.
        places = [place for place, other in found if other == name]
        own = found[places[0], name].fitness[:, : settings.control_seeds]
        mean = holdout.average(own)
        word = "beats" if mean > bar else "does not beat"
        lines.append(
            f"{name} {word} the {PERCENTILE}th percentile of {len(control)} random "
            f"searches: {mean:.2f} against {bar:.2f}"
        )
    return lines


# --- files ----------------------------------------------------------------------------


def write(
    out: Path,
    found: Found,
    frames: Mapping[str, int],
    measure: str,
    controls: Mapping[str, np.ndarray],
    settings: CompareOptions,
) -> list[str]:
    """Write table.csv, sentences.txt, figures and index.html.

    Args:
        out: Folder of the files.
        found: Scores by setting and candidate.
        frames: Frames of each search of a learned candidate, by its name. The
            searches that tuned the hand-made algorithm had as many.
        measure: Name of the fitness.
        controls: Mean fitness of each random search, [searches], by the name of the
            learned candidate; empty if none were run.
        settings: Options of the command.

    Returns:
        The sentences.
    """
    rows = _table(found, frames, settings.optimum)
    lines = _sentences(found, list(frames), measure, controls, settings)
    out.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    figures.write_csv(
        out / "table.csv",
        columns,
        [
            ["" if key not in row else _cell(row[key]) for key in columns]
            for row in rows
        ],
    )
    replace_file(out / "sentences.txt", ("\n".join(lines) + "\n").encode())
    places = list(dict.fromkeys(condition for condition, _ in found))
    drawn = [_profiles(out, place, found, measure) for place in places]
    page = figures.page(
        "compare.html",
        lines=lines,
        rows=rows,
        figures=drawn,
        measure=measure,
        settings=settings,
    )
    replace_file(out / "index.html", page.encode())
    return lines


def _profiles(out: Path, place: str, found: Found, measure: str) -> dict[str, str]:
    """Draw the fraction of runs above each score, per candidate."""
    mine = {
        name: x.fitness.ravel() for (where, name), x in found.items() if where == place
    }
    everything = np.concatenate([x[np.isfinite(x)] for x in mine.values()])
    at = np.linspace(everything.min(), everything.max(), 201)
    curves = {
        name: stats.performance_profile(np.nan_to_num(x, nan=-np.inf), at)
        for name, x in mine.items()
    }

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
    if isinstance(x, stats.Paired):
        return f"{x.difference:+.6g} [{x.low:+.6g}, {x.high:+.6g}]"
    return x


def slug(text: str) -> str:
    """Return a file name for a text; different texts have different names.

    >>> slug("env=gymnax/Acrobot-v1")
    'env-gymnax-acrobot-v1-cd1296'
    """
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40]
    return f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
