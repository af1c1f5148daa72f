"""`metaevo distill`: formulas of evolved functions, tested by training agents.

A closed form is fitted to each learned function of one or two inputs (`curve_fits`).
The quality of the fit does not decide: a curve may differ at inputs that no agent has,
or agree and miss an important detail. Agents are trained with the original and with the
closed forms on the same fresh seeds. The forms are kept if, on each task, their mean
stays within the original's 95 % interval and no more of the seeds fail.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from metaevo.analysis import curve_fits, holdout, stats
from metaevo.analysis.curve_fits import Fit
from metaevo.errors import ArtifactError, ConfigError
from metaevo.evaluators import choose
from metaevo.storage import artifacts, numpy_reference, run_directory
from metaevo.storage._files import read_json
from metaevo.storage.verified import MAX_JSON
from metaevo.types import Search

__all__ = ["Check", "check", "distill", "read", "within"]

FOLDER, VERDICT = "closed_form", "verdict.json"


class Check(NamedTuple):
    """The comparison on one task.

    Attributes:
        original, low, high: mean fitness with what was found, and its 95 % interval.
        closed: mean fitness with the closed forms.
        num_seeds: N.
        num_failed: how often the original, and the closed forms, failed.
    """

    original: float
    low: float
    high: float
    closed: float
    num_seeds: int
    num_failed: tuple[int, int]

    @property
    def kept(self) -> bool:
        """Within the interval, and no more failures."""
        fails_more = self.num_failed[1] > self.num_failed[0]
        return bool(self.low <= self.closed <= self.high and not fails_more)


def within(original: np.ndarray, closed: np.ndarray) -> Check:
    """Compare training with a closed form with training with the original.

    Args:
        original, closed: [N] fitness on the same seeds; not finite where a run failed.
    """
    mean = stats.paired_difference(original, np.zeros_like(original))
    failed = int((~np.isfinite(original)).sum()), int((~np.isfinite(closed)).sum())
    average = holdout.average(closed)
    return Check(mean.difference, mean.low, mean.high, average, len(original), failed)


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
    held_out = {}
    if (directory / "held_out").is_dir():
        held_out, _ = holdout.load(directory / "held_out")
    found = {}
    for slot, op in artifact.manifest["slots"].items():
        form = None
        if slot in functions:
            visited = holdout.visited(held_out)
            form = curve_fits.fit(slot, op, functions[slot], visited)
        if form is not None:
            found[slot] = form
    return found


def save(
    folder: Path, directory: Path, found: Mapping[str, Fit], facts: Mapping[str, Any]
) -> None:
    """The run's artifact with closed forms in the place of what they were fitted to."""
    artifact = artifacts.load(directory / "solution")
    params = artifacts.params(directory / "solution")
    spec = {
        name: {key: x for key, x in op.items() if key != "value"}
        for name, op in artifact.manifest["slots"].items()
    }
    values = {k: x for k, x in artifact.slots.items() if isinstance(x, float)}
    artifacts.save(
        folder,
        params | {name: form.params for name, form in found.items()},
        spec | {name: dict(form.op) for name, form in found.items()},
        values,
        {**artifact.manifest["provenance"], "closed_form": dict(facts)},
    )


def check(
    search: Search,
    directory: Path,
    found: Mapping[str, Fit],
    num_seeds: int,
    seed: int,
    devices: list,
    should_stop: Callable[[], bool] = lambda: False,
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
    return [within(a, b) for a, b in zip(*fitness, strict=True)]


def distill(
    search: Search,
    directory: Path,
    num_seeds: int,
    seed: int,
    devices: list,
    say: Callable[[str], None] = lambda line: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[str]:
    """Fit, train and keep closed forms in `DIRECTORY/closed_form`, or say why not.

    Args:
        search: the run's.
        directory: of a finished run.
        say: called once at the start with the cost.

    Returns:
        the verdict, as sentences.

    Raises:
        ConfigError: nothing that evolved has a closed form, or it cannot be trained.
    """
    holdout.require_uncoupled(search, directory)
    found = forms(directory)
    if not found:
        raise ConfigError(
            f"{directory}: nothing that evolved there has a closed form; losses of "
            "values, drifts, activations and schedules may, if they are not temporal"
        )
    frames = sum(x.num_segments * x.frames_per_segment for x in search.tasks)
    say(f"training {2 * num_seeds} agents for {frames:,} frames each")
    checks = check(search, directory, found, num_seeds, seed, devices, should_stop)
    kept = all(x.kept for x in checks)
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
    for task, plain in enumerate(facts["checks"]):
        one = Check(**plain)
        where = f" on task {task}" if len(facts["checks"]) > 1 else ""
        failed = ""
        if any(one.num_failed):
            failed = f"; {one.num_failed[0]} and {one.num_failed[1]} runs failed"
        side = "within" if one.low <= one.closed <= one.high else "outside"
        lines.append(
            f"trained with it{where}: {facts['measure']} {one.closed:.2f}, {side} "
            f"[{one.low:.2f}, {one.high:.2f}], the original's 95 % interval around "
            f"{one.original:.2f} ({one.num_seeds} seeds{failed})"
        )
    lines.append(
        f"kept: {directory / FOLDER}"
        if facts["kept"]
        else "refused: agents do not train with it as they do with the original"
    )
    return lines
