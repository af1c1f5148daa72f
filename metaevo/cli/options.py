"""Options of the commands: the `key=value` arguments that follow a run's directory.

`--help` shows the first sentence of what the docstrings say of each.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from metaevo.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Trust:
    """The option of the commands that make the search of a run again.

    Attributes:
        trust: import what the run names: its search, its environment.
    """

    trust: bool = False


@dataclass(frozen=True)
class ResumeOptions(Trust):
    """Option of `metaevo resume` besides the keys of the search."""


@dataclass(frozen=True)
class TuneOptions:
    """Options of `metaevo tune` besides the keys of the search.

    Attributes:
        minutes: time until the report, in place of num_generations.
        frames: frames of all generations, in place of num_generations.
        choose: choose static settings first, by 16 agents each.

    Raises:
        ConfigError: a budget is not positive, or both are given.
    """

    minutes: float | None = None
    frames: int | None = None
    choose: bool = False

    def __post_init__(self) -> None:
        if self.minutes is not None and self.frames is not None:
            raise ConfigError(
                f"minutes={self.minutes:g} and frames={self.frames}: give one of them"
            )
        for name in ("minutes", "frames"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name}={value} must be positive")

    @property
    def budget(self) -> list[str]:
        """The budget as it is typed; empty if there is none."""
        named = {"minutes": self.minutes, "frames": self.frames}
        return [f"{k}={x:g}" for k, x in named.items() if x is not None]


@dataclass(frozen=True)
class PlayOptions(Trust):
    """Options of `metaevo play`.

    Attributes:
        agent: solution, hand-made, best or trained; the first there is.
        seed: index of the held-out seed whose agent is played.
        out: FILE.gif; default RUN/play/AGENT-SEED.gif.
    """

    agent: Literal["solution", "hand-made", "best", "trained"] | None = None
    seed: int = 0
    out: str | None = None


@dataclass(frozen=True)
class RerunOptions(Trust):
    """Options of `metaevo rerun`.

    Attributes:
        generation: as in metrics.jsonl, from 0.
        member: index in the population, from 0.
        segment: train this segment without jit, for breakpoint() and pdb.
        seed: index of the seed of `segment`, from 0.
    """

    generation: int = 0
    member: int = 0
    segment: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class CompareOptions(Trust):
    """Options of `metaevo compare`.

    Attributes:
        seeds: fresh seeds for each candidate. At least 3.
        tuned: tune the hand-made algorithm, as long as the searches.
        rivals: all adds simple functions, static choices, and these tuned.
        controls: random searches.
        control_seeds: fresh seeds for each random search.
        on: another setting, on='KEY=VALUE;KEY=VALUE'; repeatable.
        seed: seed of the fresh seeds.
        unequal_budgets: compare searches of different numbers of frames also.
        optimum: highest fitness that counts. The optimality gap is the mean distance
            by which runs stay below it.
        out: folder of the results; default RUN/compare.

    Raises:
        ConfigError: A number is too small.
    """

    seeds: int = 32
    tuned: bool = True
    rivals: Literal["tuned", "all"] = "tuned"
    controls: int = 20
    control_seeds: int = 8
    on: tuple[str, ...] = ()
    seed: int = 0
    unequal_budgets: bool = False
    optimum: float | None = None
    out: str | None = None

    def __post_init__(self):
        _check_least(self, seeds=3, controls=0, control_seeds=1)

    @property
    def comparison(self) -> dict[str, Any]:
        """Options of `metaevo.engine.compare.compare` by name."""
        given = asdict(self)
        return {key: x for key, x in given.items() if key not in ("out", "trust")}


@dataclass(frozen=True)
class DistillOptions(Trust):
    """Options of `metaevo distill`.

    Attributes:
        seeds: fresh seeds; two agents are trained on each.
        seed: seed of the fresh seeds.
        margin: difference tolerated, in standard deviations over seeds.

    Raises:
        ConfigError: `seeds` is less than 16, or `margin` is not above 0.
    """

    seeds: int = 32
    seed: int = 0
    margin: float = 0.75

    def __post_init__(self):
        _check_least(self, seeds=16)
        if not self.margin > 0:
            raise ConfigError(f"margin={self.margin} must be above 0")


@dataclass(frozen=True)
class RunsOptions:
    """Options of `metaevo runs`.

    Attributes:
        page: file to write as a page of HTML.
        limit: rows, the newest; 0: all.

    Raises:
        ConfigError: `limit` is negative.
    """

    page: str | None = None
    limit: int = 0

    def __post_init__(self):
        _check_least(self, limit=0)


@dataclass(frozen=True)
class WatchOptions:
    """Options of `metaevo watch`.

    Attributes:
        page: file to write; default RUN/report/watch.html
        every: seconds from one writing to the next, at least 1.

    Raises:
        ConfigError: `every` is less than 1.
    """

    page: str | None = None
    every: float = 5.0

    def __post_init__(self):
        _check_least(self, every=1)


@dataclass(frozen=True)
class TrialsOptions:
    """Options of `metaevo trials`.

    Attributes:
        limit: rows of the table, the best ones; 0: all.
        to: table or csv.

    Raises:
        ConfigError: `limit` is negative.
    """

    limit: int = 20
    to: Literal["table", "csv"] = "table"

    def __post_init__(self):
        _check_least(self, limit=0)


@dataclass(frozen=True)
class ScoresOptions:
    """Options of `metaevo scores`.

    Attributes:
        to: table, csv or json, an object a line.
        out: the file; default the terminal.
    """

    to: Literal["table", "csv", "json"] = "table"
    out: str | None = None


@dataclass(frozen=True)
class JudgeOptions:
    """Options of `metaevo judge`.

    Attributes:
        search: of the slot, its tasks and its sizes.
        looks: evaluations that count; half as many choose the rival.
        allow_code: trace Python files, each in a process of its own.
        seconds: of wall time for a Python file.
        megabytes: of memory for a Python file.
        seed: of the worlds.
        out: folder of looks and scores.jsonl.

    Raises:
        ConfigError: a number is too small.
    """

    search: str = "dqn_td_program"
    looks: int = 8
    allow_code: bool = False
    seconds: float = 60.0
    megabytes: int = 1024
    seed: int = 0
    out: str = "runs/judge"

    def __post_init__(self):
        _check_least(self, looks=2, seconds=1, megabytes=64)


@dataclass(frozen=True)
class ExportOptions:
    """Options of `metaevo export`.

    Attributes:
        to: torch, jax, numpy, stablehlo or onnx.
        slot: the one slot to write; default all.
        out: the file or a folder; default RUN/export, for the zoo here.
    """

    to: Literal["torch", "jax", "numpy", "stablehlo", "onnx"] = "torch"
    slot: str | None = None
    out: str | None = None


def _check_least(options: Any, **least: int) -> None:
    for key, minimum in least.items():
        value = getattr(options, key)
        if value < minimum:
            raise ConfigError(f"{key}={value} must be at least {minimum}")
