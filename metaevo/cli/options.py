"""Options of the commands: the `key=value` arguments that follow a run's directory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from metaevo.errors import ConfigError


def _option(default: Any, text: str) -> Any:
    """Return a field with a default and a line of help."""
    return dataclasses.field(default=default, metadata={"help": text})


TRUST = "import what the run names: its search, its environment"


@dataclass(frozen=True)
class ResumeOptions:
    """Option of `metaevo resume` besides the keys of the search."""

    trust: bool = _option(False, TRUST)


@dataclass(frozen=True)
class PlayOptions:
    """Options of `metaevo play`."""

    agent: Literal["solution", "hand-made", "best", "trained"] | None = _option(
        None, "solution, hand-made, best or trained; the first there is"
    )
    seed: int = _option(0, "index of the held-out seed whose agent is played")
    out: str | None = _option(None, "FILE.gif; default RUN/play/AGENT-SEED.gif")
    trust: bool = _option(False, TRUST)


@dataclass(frozen=True)
class RerunOptions:
    """Options of `metaevo rerun`."""

    generation: int = _option(0, "as in metrics.jsonl, from 0")
    member: int = _option(0, "index in the population, from 0")
    segment: int | None = _option(
        None, "train this segment without jit, for breakpoint() and pdb"
    )
    seed: int = _option(0, "index of the seed of `segment`, from 0")
    trust: bool = _option(False, TRUST)


@dataclass(frozen=True)
class CompareOptions:
    """Options of `metaevo compare`.

    Attributes:
        seeds: N, fresh seeds on which each candidate is trained, at least 3.
        tuned: Tune the hand-made algorithm, which costs as much as the searches did.
        controls: Number of random searches.
        control_seeds: Fresh seeds on which each random search's result is trained.
        on: Other settings, each `key=value` or several joined by `;`.
        seed: Seed of the fresh seeds.
        unequal_budgets: Compare searches that trained for different numbers of frames.
        optimum: Highest fitness that counts. The optimality gap is the mean distance
            by which runs stay below it.
        out: Folder of the results; None: `compare` in the first run's directory.
        trust: Import the searches and environments that runs of others name.

    Raises:
        ConfigError: A number is too small.
    """

    seeds: int = _option(32, "fresh seeds for each candidate")
    tuned: bool = _option(True, "tune the hand-made algorithm, as long as the searches")
    controls: int = _option(20, "random searches")
    control_seeds: int = _option(8, "fresh seeds for each random search")
    on: tuple[str, ...] = _option(
        (), "another setting, on='KEY=VALUE;KEY=VALUE'; repeatable"
    )
    seed: int = _option(0, "seed of the fresh seeds")
    unequal_budgets: bool = _option(
        False, "compare searches of different numbers of frames, too"
    )
    optimum: float | None = _option(None, "highest fitness that counts")
    out: str | None = _option(None, "folder of the results; default RUN/compare")
    trust: bool = _option(False, TRUST)

    def __post_init__(self):
        _check_least(self, seeds=3, controls=0, control_seeds=1)


@dataclass(frozen=True)
class DistillOptions:
    """Options of `metaevo distill`.

    Raises:
        ConfigError: `seeds` is less than 16, or `margin` is not above 0.
    """

    seeds: int = _option(32, "fresh seeds; two agents are trained on each")
    seed: int = _option(0, "seed of the fresh seeds")
    trust: bool = _option(False, TRUST)
    margin: float = _option(
        0.75, "difference tolerated, in standard deviations over seeds"
    )

    def __post_init__(self):
        _check_least(self, seeds=16)
        if not self.margin > 0:
            raise ConfigError(f"margin={self.margin} must be above 0")


@dataclass(frozen=True)
class ExportOptions:
    """Options of `metaevo export`."""

    to: Literal["torch", "jax", "numpy", "stablehlo", "onnx"] = _option(
        "torch", "torch, jax, numpy, stablehlo or onnx"
    )
    slot: str | None = _option(None, "the one slot to write; default all")
    out: str | None = _option(None, "the file; default RUN/export/SLOT_FORMAT.py")


def _check_least(options: Any, **least: int) -> None:
    for key, minimum in least.items():
        value = getattr(options, key)
        if value < minimum:
            raise ConfigError(f"{key}={value} must be at least {minimum}")
