"""Statistics, sentences, table and figures of a comparison."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from metaevo import fitness
from metaevo.analysis import differences, stats
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.plots import figures
from metaevo.analysis.verdicts import average
from metaevo.cli.options import CompareOptions
from metaevo.storage._files import replace_file

AS_TRAINED = "as trained"
HAND_MADE, TUNED = "hand-made", "tuned hand-made"
RIVALS = {HAND_MADE: "against_hand_made", TUNED: "against_tuned"}
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


class Verdict(NamedTuple):
    """Comparison of a group with a rival in one setting and one measure.

    Attributes:
        setting: setting in which both were trained.
        name: group, or the tuned rival.
        rival: `HAND_MADE` or `TUNED`.
        measure: name of the fitness, or `final return`.
        paired: group - rival.
    """

    setting: str
    name: str
    rival: str
    measure: str
    paired: differences.Paired


def measures(measure: str) -> dict[str, str]:
    """Return the fields of `Scores` by name; one if the fitness is the final return."""
    return {measure: "fitness", fitness.final_return.name: "final_return"}


def difference(a: np.ndarray, b: np.ndarray, rival: str) -> differences.Paired:
    """Return the difference between a group that was searched for and a rival.

    Args:
        a: [searches, N] scores of the group.
        b: [searches, N] scores of the rival.
        rival: name of the rival. All but the hand-made algorithm come from searches.
    """
    return differences.crossed_difference(a, b, (True, rival != HAND_MADE))


def _verdicts(found: Found, groups: Collection[str], measure: str) -> list[Verdict]:
    """Return the verdicts that stand in the sentences, corrected for their number."""
    verdicts = [
        Verdict(
            setting,
            name,
            rival,
            label,
            difference(
                getattr(scores, field), getattr(found[setting, rival], field), rival
            ),
        )
        for (setting, name), scores in found.items()
        if name in groups
        for label, field in measures(measure).items()
        for rival in (HAND_MADE, TUNED)
        if (setting, rival) in found
    ]
    corrected = differences.holm([x.paired for x in verdicts])
    return [
        x._replace(paired=paired) for x, paired in zip(verdicts, corrected, strict=True)
    ]


def _table(
    found: Found,
    frames: Mapping[str, int],
    measure: str,
    optimum: float | None = None,
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
            "frames": 0 if name == HAND_MADE else frames.get(name, learned[condition]),
            "runs": len(flat),
            "failed": len(flat) - len(finite),
            "mean": average(flat),
            "median": float(np.median(finite)) if len(finite) else np.nan,
            "final_return": average(scores.final_return.ravel()),
        }
        interval = stats.grouped(scores.fitness)
        if interval is not None:
            row["iqm"] = interval
        if optimum is not None and len(finite):
            row["optimality_gap"] = float(stats.optimality_gap(finite, optimum))
        theirs = baseline.fitness[np.isfinite(baseline.fitness)]
        if name != HAND_MADE and len(finite) and len(theirs):
            row["improvement"] = stats.probability_of_improvement(finite, theirs)
        prefixes = dict(
            zip(measures(measure).values(), ("", "final_return_"), strict=False)
        )
        for field, prefix in prefixes.items():
            for rival, key in RIVALS.items():
                if name not in (HAND_MADE, rival) and (condition, rival) in found:
                    row[prefix + key] = difference(
                        getattr(scores, field),
                        getattr(found[condition, rival], field),
                        rival,
                    )
        rows.append(row)
    return rows


def _sentences(
    found: Found,
    verdicts: Sequence[Verdict],
    controls: Mapping[str, np.ndarray],
    settings: CompareOptions,
) -> list[str]:
    """Return a sentence per setting, group and measure, and one each on the control."""
    lines = []
    places = dict.fromkeys((x.setting, x.name, x.measure) for x in verdicts)
    for setting, name, measure in places:
        parts, about = [], []
        for x in verdicts:
            if (x.setting, x.name, x.measure) != (setting, name, measure):
                continue
            rival = f"the {x.rival} one"
            part = f"{differences.comparison(x.paired, rival)} ({x.paired.text})"
            if failing := differences.failure(x.paired, "it", rival):
                trained = f"; where both train, {part}" * (x.paired.num_pairs > 1)
                part = failing + trained
            parts.append(part)
            if x.paired.num_searches == (0, 0):
                about.append(rival)
        searches, seeds = found[setting, name].fitness.shape
        counted = "1 search" if searches == 1 else f"{searches} searches"
        where = "" if setting == AS_TRAINED else f" on {setting}"
        claim = ""
        if about:
            claim = (
                f"; one search on a side: against {' and '.join(about)} this is about "
                "these results on new seeds, no claim about searching"
            )
        lines.append(
            f"{name}{where}: {' and '.join(parts)}; {measure}, {counted} x {seeds} "
            f"seeds, 95 % intervals{claim}"
        )
    for name, control in controls.items():
        bar = float(np.percentile(control[np.isfinite(control)], PERCENTILE))
        # On the control's own seeds, the first of all.
        settings_of = [place for place, other in found if other == name]
        own = found[settings_of[0], name].fitness[:, : settings.control_seeds]
        mean = average(own)
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
    environments: Mapping[str, str] = {},
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
        environments: Names of the environments of each setting, as one text, by the
            setting's name.

    Returns:
        The sentences.
    """
    rows = _table(found, frames, measure, settings.optimum)
    verdicts = _verdicts(found, frames, measure)
    lines = _sentences(found, verdicts, controls, settings)
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
        measures=measures(measure),
        num_verdicts=len(verdicts),
        settings=settings,
        environments=environments,
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
