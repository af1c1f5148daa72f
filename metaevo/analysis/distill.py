"""`metaevo distill`: formulas of evolved functions, tested by training agents.

A closed form is fitted to each learned function of one or two inputs (`curve_fits`).
The quality of the fit does not decide: a curve may differ at inputs that no agent has,
or agree and miss an important detail. Agents are trained with the original and with the
closed forms on the same fresh seeds. The forms are kept if, on each task, they are
shown to be equivalent: the difference is surely smaller than a margin, in either
direction (two one-sided tests, Schuirmann, 1987), and no more of the seeds fail. Few or
noisy seeds therefore refuse a form; they never keep it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from metaevo import text
from metaevo.analysis import curve_fits, differences, holdout, verdicts
from metaevo.analysis.curve_fits import Fit
from metaevo.errors import ArtifactError, ConfigError
from metaevo.evaluators import choose
from metaevo.portable import properties
from metaevo.storage import artifacts, numpy_reference, run_directory
from metaevo.storage._files import read_json
from metaevo.storage.verified import MAX_JSON
from metaevo.types import Search

FOLDER, VERDICT = "closed_form", "verdict.json"


MARGIN = 0.75
"""Difference that is tolerated, in standard deviations of the original's fitness over
seeds: the least one, in quarters, that 32 seeds show mostly of an identical form even
if its training runs have nothing in common but the seed."""

MIN_PAIRS = 16
"""Least number of pairs: with fewer even an identical form is often refused."""


class Check(NamedTuple):
    """The comparison on one task.

    Attributes:
        original: mean fitness with what was found.
        closed: mean fitness with the closed forms, on the same seeds.
        difference: mean paired difference, closed - original.
        low: lower end of its 90 % interval: two one-sided tests at 5 %.
        high: upper end.
        margin: difference that is tolerated, in the units of the fitness.
        num_pairs: number of seeds on which both trained.
        num_seeds: N.
        num_failed: how often the original, and the closed forms, failed.
    """

    original: float
    closed: float
    difference: float
    low: float
    high: float
    margin: float
    num_pairs: int
    num_seeds: int
    num_failed: tuple[int, int]

    @property
    def refused_for(self) -> str | None:
        """The reason for which the forms are refused; None if they are kept."""
        if self.num_failed[1] > self.num_failed[0]:
            return "agents fail with it on more seeds than with the original"
        if self.num_pairs < MIN_PAIRS:
            return f"fewer than {MIN_PAIRS} pairs of runs trained"
        if self.margin == 0:
            return "all runs of the original score the same, so there is no margin"
        if not (-self.margin < self.low and self.high < self.margin):
            return "agents are not shown to train with it as with the original"
        return None


def equivalence(original: np.ndarray, closed: np.ndarray, margin: float) -> Check:
    """Compare training with a closed form with training with the original.

    Args:
        original: [N] fitness; not finite where a run failed.
        closed: [N] fitness on the same seeds; likewise.
        margin: difference that is tolerated, in standard deviations of the original's
            fitness over seeds.
    """
    confidence = 0.9
    paired = differences.paired_difference(closed, original, confidence)
    both = np.isfinite(original) & np.isfinite(closed)
    sd = float(original[both].std(ddof=1)) if paired.num_pairs > 1 else 0.0
    if sd <= paired.resolution:
        sd = 0.0
    low, high = paired.low, paired.high
    if high - low <= paired.resolution:
        # The same runs on every seed that was tried are not the same on all seeds.
        reach = float(np.ptp(np.concatenate([original[both], closed[both]])))
        low, high = differences.interval_of_equals(
            paired.difference, reach, paired.num_pairs, confidence
        )
    return Check(
        verdicts.average(original[both]),
        verdicts.average(closed[both]),
        paired.difference,
        low,
        high,
        margin * sd,
        paired.num_pairs,
        len(original),
        (paired.num_failed[1], paired.num_failed[0]),
    )


def forms(directory: Path) -> dict[str, Fit]:
    """The closed form of each slot of a finished run that has one.

    Raises:
        ArtifactError: the solution was altered.
    """
    artifact = artifacts.load(directory / "solution")
    try:
        functions = numpy_reference.load(directory / "solution").slots
    except ValueError as error:
        raise ArtifactError(str(error)) from None
    held_out, facts = {}, {}
    if (directory / "held_out").is_dir():
        held_out, facts = holdout.load(directory / "held_out")
    spec = artifact.manifest["slots"]
    visited = verdicts.visited(held_out, spec, facts)
    fits = {
        slot: curve_fits.fit(slot, op, functions[slot], visited.get(slot))
        for slot, op in spec.items()
        if slot in functions
    }
    return {slot: form for slot, form in fits.items() if form is not None}


def save(
    folder: Path, directory: Path, found: Mapping[str, Fit], facts: Mapping[str, Any]
) -> None:
    """The run's artifact with closed forms in the place of what they were fitted to.

    A form has the range of the original if it has the same unit.
    """
    artifact = artifacts.load(directory / "solution")
    params = artifacts.params(directory / "solution")
    spec = {
        name: {key: x for key, x in op.items() if key != "value"}
        for name, op in artifact.manifest["slots"].items()
    }
    visited = {
        name: one.visited
        for name, one in artifact.properties.items()
        if one.visited is not None
        and (name not in found or properties.unit(found[name].op) == one.unit)
    }
    artifacts.save(
        folder,
        params | {name: form.params for name, form in found.items()},
        spec | {name: dict(form.op) for name, form in found.items()},
        {k: x for k, x in artifact.slots.items() if isinstance(x, float)},
        {**artifact.manifest["provenance"], "closed_form": dict(facts)},
        visited,
    )


def check(
    search: Search,
    directory: Path,
    found: Mapping[str, Fit],
    num_seeds: int,
    seed: int,
    devices: list,
    should_stop: Callable[[], bool],
    margin: float,
) -> list[Check]:
    """Agents trained with both on the same fresh seeds: one check a task."""
    key = jax.random.fold_in(jax.random.key(seed), 0xF0)
    make = choose.local_factory(devices, should_stop).make_after
    fitness = []
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder) / "closed", directory, found, {})
        for artifact in (directory / "solution", Path(folder) / "closed"):
            space, params = artifacts.as_space(artifact)
            runs, _ = holdout.train(search, space, {"it": params}, key, num_seeds, make)
            fitness.append(runs["it"].fitness)
    return [equivalence(a, b, margin) for a, b in zip(*fitness, strict=True)]


def distill(
    search: Search,
    directory: Path,
    num_seeds: int,
    seed: int,
    devices: list,
    say: Callable[[str], None] = lambda line: None,
    should_stop: Callable[[], bool] = lambda: False,
    margin: float = MARGIN,
) -> list[str]:
    """Fit, train and keep closed forms in `DIRECTORY/closed_form`, or say why not.

    Args:
        search: the run's.
        directory: of a finished run.
        num_seeds: N, at least 16.
        seed: determines the seeds.
        devices: JAX devices on which agents are trained.
        say: called once at the start with the cost.
        should_stop: asked often; True abandons it.
        margin: difference that is tolerated; see `equivalence`.

    Returns:
        the verdict, as sentences.

    Raises:
        ConfigError: nothing that evolved has a closed form, or it cannot be trained, or
            there are too few seeds.
    """
    if num_seeds < MIN_PAIRS:
        raise ConfigError(f"seeds={num_seeds} must be at least {MIN_PAIRS}")
    holdout.require_uncoupled(search, directory)
    found = forms(directory)
    if not found:
        raise ConfigError(
            f"{directory}: nothing that evolved there has a closed form; losses of "
            "values, drifts, activations and schedules may, if they are not temporal"
        )
    frames = sum(x.num_segments * x.frames_per_segment for x in search.tasks)
    say(f"training {2 * num_seeds} agents for {frames:,} frames each")
    checks = check(
        search, directory, found, num_seeds, seed, devices, should_stop, margin
    )
    kept = all(x.refused_for is None for x in checks)
    facts = {
        "kept": kept,
        "seed": seed,
        "measure": search.fitness.name,
        "forms": {k: {"formula": f.formula, "r2": f.r2} for k, f in found.items()},
        "checks": [x._asdict() for x in checks],
    }
    shutil.rmtree(directory / FOLDER, ignore_errors=True)
    if kept:
        save(directory / FOLDER, directory, found, facts)
    (directory / FOLDER).mkdir(exist_ok=True)
    run_directory.write_json_atomic(directory / FOLDER / VERDICT, facts)
    return sentences(directory)


def read(directory: Path) -> dict[str, Any] | None:
    """The verdict of `distill` on a run; None if there is none."""
    path = directory / FOLDER / VERDICT
    return read_json(path, MAX_JSON) if path.exists() else None


def sentences(directory: Path) -> list[str]:
    """The verdict of `distill` as sentences; empty if there is none."""
    facts = read(directory)
    if facts is None:
        return []
    lines = [
        f"{slot}: {form['formula']}  (R² {form['r2']:.4f})"
        for slot, form in facts["forms"].items()
    ]
    reasons = []
    for task, plain in enumerate(facts["checks"]):
        one = Check(**plain)
        where = f" on task {task}" if len(facts["checks"]) > 1 else ""
        failed = ""
        if any(one.num_failed):
            failed = f"; {one.num_failed[0]} and {one.num_failed[1]} runs failed"
        difference = text.with_interval(one.difference, one.low, one.high, "+")
        lines.append(
            f"trained with it{where}: {facts['measure']} {text.score(one.closed)} "
            f"against {text.score(one.original)}, difference {difference}, tolerated "
            f"±{text.score(one.margin)} (90 % interval, {one.num_pairs} paired "
            f"seeds{failed})"
        )
        if one.refused_for is not None:
            reasons.append(one.refused_for)
    lines.append(
        f"kept: {directory / FOLDER}" if facts["kept"] else f"refused: {reasons[0]}"
    )
    return lines
