"""Options of a run: `run.*` on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from metaevo.errors import ConfigError

WANDB_MODES = ("offline", "online", "disabled")


@dataclass(frozen=True)
class RunConfig:
    """Options of a run, as opposed to those of the search.

    Attributes:
        seed: all randomness of the run follows from it; at least 0 and below 2³².
        seeds: number of searches, with the seeds `seed`, `seed + 1`, …, one after
            another and then compared as `metaevo compare` does. For the command line;
            `metaevo.run` runs one.
        directory: directory of the results; None: `runs/SEARCH/seedN-DIGEST`, one per
            configuration. With several `seeds` those of each search are in `seedN`
            below it, and the comparison in `compare`.
        devices: number of JAX devices to use; None: all.
        resume: continue the run in `directory`. If False, a directory that holds a run
            is refused. Nothing is overwritten in either case.
        held_out_seeds: number of seeds of the comparison after the last generation, at
            least 2; 0: no comparison.
        checkpoint_every: number of generations from one checkpoint to the next.
        max_seconds: time limit in seconds. The run stops after the generation, or the
            step of the comparison that follows, in which it is exceeded, as if
            interrupted; None: no limit.
        wandb: `offline` (needs no account), `online` or `disabled`. wandb repeats
            `metrics.jsonl` and never stops a run. See `docs/wandb.md`.
        tensorboard: write event files to `tensorboard/`, too.
        start_from: path of an artifact or a finished run of the same space, at which
            the search starts; None: the start of the space.
        evaluator: `local` for this machine's devices (with `distributed` those of
            several machines), or `ray` for the hosts of a Ray cluster, which may come
            and go.
        ray_address: address of the cluster, `HOST:PORT` or `auto`; None: a cluster on
            this machine.
        distributed: use the devices of all processes of a job that `mpiexec` or `srun`
            started; see `docs/cluster.md`.
        coordinator: `HOST:PORT` of the first process; for other launchers than those.
        num_processes: number of processes of the job; likewise.
        process_id: index of this process; likewise.
        watchdog: seconds after which a distributed process that waits for another
            gives up, with exit code 75. Compiling counts as waiting.

    Raises:
        ConfigError: a value is out of range, or options exclude each other.
    """

    seed: int = 0
    seeds: int = 1
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
        if not 0 <= self.seed < 1 << 32:
            raise ConfigError(
                f"run.seed={self.seed} must be at least 0 and below 2**32: keys have "
                "32 bits, and another seed would give the numbers of one of these"
            )
        if self.wandb not in WANDB_MODES:
            raise ConfigError(
                f"run.wandb={self.wandb!r} must be one of {', '.join(WANDB_MODES)}"
            )
        if self.seeds < 1:
            raise ConfigError(f"run.seeds={self.seeds} must be >= 1")
        if self.seeds > 1 and (self.distributed or self.evaluator == "ray"):
            raise ConfigError(
                f"run.seeds={self.seeds} is for run.evaluator=local on one machine; "
                "start a job per run.seed, then: metaevo compare RUN RUN ..."
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
    """Return nested settings with dotted keys, as on the command line.

    >>> flat({"sigma": 0.5, "inner": {"num_steps": 64}})
    {'sigma': 0.5, 'inner.num_steps': 64}
    """
    found = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found
