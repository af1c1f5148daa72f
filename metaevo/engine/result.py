"""The result of a search: what evolved, its evidence, and what can be done with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from metaevo.analysis import (
    curves,
    distill,
    holdout,
    lineage,
    report,
    score_tables,
    verdicts,
)
from metaevo.analysis.comparison import Comparison
from metaevo.analysis.curves import Curves
from metaevo.analysis.holdout import HeldOut
from metaevo.analysis.independent import judge
from metaevo.analysis.verdicts import Verdict
from metaevo.engine import play
from metaevo.engine.play import Recording
from metaevo.errors import ArtifactError, ConfigError
from metaevo.storage import artifacts, checkpoint, jsonl, run_directory
from metaevo.storage.artifacts import Artifact
from metaevo.types import Params, Search


class Again(NamedTuple):
    """The search of a result, to train and to play once more.

    Attributes:
        make: makes its search again, with further `key=value` changes.
        compare: `(results, **options)`, compares the first with the others. To tune
            their rivals it runs searches, whose results are of this module.
    """

    make: Callable[[Sequence[str]], Search]
    compare: Callable[..., Comparison]


class Result(NamedTuple):
    """The result of a search.

    Attributes:
        directory: run directory, with metrics, checkpoints, `solution/` and `report/`.
        solution: the strategy's solution, not the luckiest member.
        held_out: training runs on held-out seeds by name: `solution`, `hand-made` and
            `start`; empty if they were not made.
        verdicts: solution against hand-made, a `verdicts.Verdict` for each task in
            the fitness, and in the final return unless they are the same; empty if
            they were not compared.
        independent: verdicts in an independent agent; empty without `run.independent`.
        again: for `play`, `compare` and `distill`; None where the search is not known,
            as after `metaevo.optimize`.
    """

    directory: Path
    solution: Params
    held_out: Mapping[str, HeldOut]
    verdicts: tuple[Verdict, ...]
    independent: tuple[Verdict, ...] = ()
    again: Again | None = None

    @property
    def artifact(self) -> Artifact:
        """The artifact, read from `directory`: `result.artifact.value_loss`.

        Raises:
            ArtifactError: it is not there, as after `metaevo.train`, or was altered.
        """
        return artifacts.load(self.directory)

    @property
    def report(self) -> Path:
        """The report, an HTML file."""
        return run_directory.paths(self.directory).report / "index.html"

    @property
    def figures(self) -> dict[str, Path]:
        """Figures of the report by name: PNG files, each with a CSV beside it."""
        return {path.stem: path for path in sorted(self.report.parent.glob("*.png"))}

    @property
    def agent(self) -> Path | None:
        """Folder of the fittest agent of the last generation, as its trial left it.

        None unless agents live on in folders, as in `metaevo.optimize` with PBT.
        """
        arrays, _ = checkpoint.of_run(self.directory).load() or ({}, {})
        names = [x for path, x in arrays.items() if path.endswith("agent['trial']")]
        if not names:
            return None
        name = names[0][0, lineage.fittest(self.metrics[-1])]
        return run_directory.paths(self.directory).trials / bytes(name).hex() / "files"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Records of the generations, as in `metrics.jsonl`."""
        return jsonl.read_generations(run_directory.paths(self.directory).metrics)

    @property
    def scores(self) -> list[dict[str, Any]]:
        """Scores by seed, one a row, as `metaevo scores` shows them.

        A row has `candidate`, `task`, `measure`, `agent`, `step_size`, `search`, `seed`
        and `score`, NaN where the run failed; `pandas.DataFrame` takes the list.

        Raises:
            ConfigError: there are none, as without a comparison.
        """
        return score_tables.by_seed(score_tables.read(self.directory))

    @property
    def curves(self) -> Curves:
        """The search's curves by generation, and learning curves on held-out seeds."""
        return curves.read(self.directory)

    def play(
        self, agent: str | None = None, seed: int = 0, out: str | Path | None = None
    ) -> Recording:
        """Play a trained agent for one episode, as a GIF that a notebook shows.

        Args:
            agent: `solution`, trained with what evolved; `hand-made`; or `best`, of a
                population whose agents live on. None: the first that the run kept.
            seed: index of the held-out seed whose agent plays.
            out: FILE.gif; None: `DIRECTORY/play/AGENT-SEED.gif`.

        Raises:
            ConfigError: no such agent was kept, the environment cannot be drawn, or the
                search is not known.
            CheckpointError: the agents were altered, or are of another search.
        """
        make = self._known("play").make
        return play.play(lambda: make(()), self.directory, agent, seed, out)

    def compare(self, *others: Result, **options: Any) -> Comparison:
        """Compare what this search and others found on fresh seeds.

        With the hand-made algorithm, the tuned one and random searches. Results that
        differ in their seed alone count as one candidate. A comparison that was stopped
        continues when it is asked for again.

        Args:
            *others: results of other searches in the same setting.
            **options: those of `metaevo compare`, such as `seeds=16`, `tuned=False`,
                `on=["env=gymnax/Acrobot-v1"]` or `out="folder"`; see
                `metaevo.engine.compare.compare`.

        Raises:
            ConfigError: the results cannot be compared, an option is wrong, or a search
                is not known.
        """
        for other in others:
            other._known("compare")
        return self._known("compare").compare([self, *others], **options)

    def distill(
        self, seeds: int = 32, seed: int = 0, margin: float = distill.MARGIN
    ) -> Comparison:
        """Fit formulas to what evolved, and test them on fresh seeds.

        Args:
            seeds: fresh seeds, at least 16; two agents are trained on each.
            seed: seed of the fresh seeds.
            margin: difference tolerated, in standard deviations over seeds.

        Raises:
            ConfigError: nothing that evolved has a closed form, there are too few
                seeds, or the search is not known.
        """
        search, at = self._known("distill").make(()), self.directory
        given = seeds, seed, jax.devices(), print
        lines = distill.distill(search, at, *given, margin=margin)
        return Comparison(tuple(lines), report.write(at))

    def export(
        self,
        to: str = "torch",
        out: str | Path | None = None,
        slot: str | None = None,
    ) -> Path:
        """Write what evolved as one file for another framework.

        Args:
            to: `torch`, `jax`, `numpy`, `stablehlo` or `onnx`.
            out: the file; None: in `DIRECTORY/export`.
            slot: the one slot to write; None: all.

        Returns:
            the file.

        Raises:
            ConfigError: there is no such slot or format, or what evolved does not fit
                into it.
            ArtifactError: nothing evolved here.
        """
        from metaevo.export import files

        return files.write(self.directory, to, out, slot)

    def _known(self, what: str) -> Again:
        """Return what makes the search again.

        Raises:
            ConfigError: it is not known.
        """
        if self.again is None:
            raise ConfigError(
                f"{what}: the search of {self.directory} is not known here; expected a "
                "result of metaevo.run or metaevo.result"
            )
        return self.again

    def _repr_markdown_(self) -> str:
        """The card of the artifact and the place of the report, for a notebook."""
        lines = [f"Report: `{self.report}`"]
        with contextlib.suppress(ArtifactError):
            lines.append(self.artifact._repr_markdown_())
        return "\n\n".join(lines)


def read(directory: str | Path) -> Result:
    """Return the result of a finished run from its files.

    Raises:
        ArtifactError: the solution is not there, or was altered.
        CheckpointError: the runs on held-out seeds were altered.
    """
    paths = run_directory.paths(directory)
    held_out, facts, judged = {}, {}, ()
    if paths.held_out.is_dir():
        held_out, facts = holdout.load(paths.held_out)
    if paths.independent.is_dir():
        judged = judge.load(paths.independent).verdicts
    found = verdicts.every(held_out, facts)
    params = artifacts.params(paths.solution)
    return Result(Path(directory), params, held_out, found, judged)
