"""How to run a search: `run.*` on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from metaevo.errors import ConfigError

WANDB_MODES = ("offline", "online", "disabled")


@dataclass(frozen=True)
class RunConfig:
    """How to run a search, as opposed to what it is.

    Attributes:
        seed: all randomness follows from it.
        directory: where results go; None: `runs/SEARCH/seedN-CONFIG`, one per
            configuration.
        devices: how many JAX devices to use; None: all.
        resume: continue what `directory` holds. With False such a directory is
            refused; nothing is ever overwritten.
        held_out_seeds: for the comparison after the last generation; 0: none.
        checkpoint_every: generations between two checkpoints.
        max_seconds: stop after the generation in which they are over, as if
            interrupted; None: never.
        wandb: `offline` (no account needed), `online` or `disabled`; a mirror of
            `metrics.jsonl` that never stops a run. See `docs/wandb.md`.
        tensorboard: also write event files, to `tensorboard/`.
        start_from: an artifact, or a run, of the same space: the search starts there.
        evaluator: `local`, this machine's devices, with `distributed` those of several,
            or `ray`, the hosts of a Ray cluster, which may come and go.
        ray_address: of the cluster, `HOST:PORT` or `auto`; None: one on this machine.
        distributed: use the devices of all processes of a job that `mpiexec` or `srun`
            started; see `docs/cluster.md`.
        coordinator, num_processes, process_id: for other launchers: `HOST:PORT` of
            the first process, how many there are, which one this is.
        watchdog: seconds after which a distributed process that waits for another
            gives up, with exit code 75; compiling counts as waiting.

    Raises:
        ConfigError: a value that cannot be.
    """

    seed: int = 0
    directory: str | None = None
    devices: int | None = None
    resume: bool = True
    held_out_seeds: int = 32
    checkpoint_every: int = 1
    max_seconds: float | None = None
    wandb: str = "offline"
    tensorboard: bool = False
    start_from: str | None = None
    evaluator: str = "local"
    ray_address: str | None = None
    distributed: bool = False
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    watchdog: float = 1800.0

    def __post_init__(self):
        if self.wandb not in WANDB_MODES:
            raise ConfigError(
                f"run.wandb={self.wandb!r} must be one of {', '.join(WANDB_MODES)}"
            )
        if self.checkpoint_every < 1:
            raise ConfigError(
                f"run.checkpoint_every={self.checkpoint_every} must be >= 1"
            )
        given = {
            "run.coordinator": self.coordinator,
            "run.num_processes": self.num_processes,
            "run.process_id": self.process_id,
        }
        missing = [key for key, value in given.items() if value is None]
        if len(missing) < 3 and (missing or not self.distributed):
            raise ConfigError(
                f"{', '.join(given)} go together, and with run.distributed=true"
            )
        if self.evaluator not in ("local", "ray"):
            raise ConfigError(
                f"run.evaluator={self.evaluator!r} must be one of local, ray"
            )
        if self.distributed and self.evaluator == "ray":
            raise ConfigError(
                "run.distributed=true is for run.evaluator=local; Ray has hosts of its "
                "own: leave it out"
            )
        if self.ray_address is not None and self.evaluator != "ray":
            raise ConfigError("run.ray_address goes with run.evaluator=ray")
        if self.devices is not None and (self.distributed or self.evaluator == "ray"):
            raise ConfigError(
                f"run.devices={self.devices}: a run on several hosts uses all of their "
                "devices; leave it out"
            )
        if self.watchdog <= 0:
            raise ConfigError(f"run.watchdog={self.watchdog} must be > 0 seconds")
        if self.held_out_seeds == 1 or self.held_out_seeds < 0:
            raise ConfigError(
                f"run.held_out_seeds={self.held_out_seeds}: an interval needs at least "
                "2; 0 turns the comparison off"
            )


def flat(settings: Mapping, prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted keys, as on the command line."""
    found = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found
