"""Options of a run: `run.*` on the command line."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from metaevo.errors import ConfigError

WANDB_MODES = ("auto", "offline", "online", "disabled")

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class Stop(NamedTuple):
    """A condition on the record of a generation that ends a run.

    Attributes:
        metric: `fitness`, or the name of a metric as in `metrics.jsonl`; `train/` may
            be left out.
        comparison: `>=`, `<=`, `>` or `<`.
        value: what the metric is compared with.
    """

    metric: str
    comparison: str
    value: float

    @staticmethod
    def parse(text: str) -> Stop:
        """Return the condition that a text such as `return>=475` states.

        Raises:
            ConfigError: it states none.

        >>> Stop.parse("return >= 475")
        Stop(metric='return', comparison='>=', value=475.0)
        """
        parts = re.fullmatch(r"\s*([\w./-]+)\s*([<>]=?)\s*(\S+)\s*", text)
        try:
            if parts is None:
                raise ValueError
            value = float(parts[3])
        except ValueError:
            raise ConfigError(
                f"run.stop={text!r}: expected METRIC>=NUMBER, such as return>=475, "
                "with >=, <=, > or <"
            ) from None
        return Stop(parts[1], parts[2], value)

    def key(self, names: Collection[str]) -> str | None:
        """Return the name among those of a record that is meant; None without one."""
        aliases = [self.metric, f"train/{self.metric}", f"{self.metric}_mean"]
        return next((name for name in aliases if name in names), None)

    def holds(self, record: Mapping[str, Any]) -> bool:
        """Return True if the condition holds in a record; a missing value never does.

        >>> Stop.parse("fitness>2").holds({"fitness_mean": 3.0})
        True
        """
        value = record.get(self.key(record) or "")
        if value is None:
            return False
        return _COMPARISONS[self.comparison](float(value), self.value)


@dataclass(frozen=True)
class RunConfig:
    """Options of a run, as opposed to those of the search.

    Attributes:
        seed: all randomness of the run follows from it; at least 0 and below 2³².
        seeds: number of searches, with the seeds `seed`, `seed + 1`, …. They run one
            after another and are then compared as `metaevo compare` does. For the
            command line; `metaevo.run` runs one.
        directory: directory of the results; None: `runs/SEARCH/seedN-DIGEST`, one per
            configuration. With several `seeds` those of each search are in `seedN`
            below it, and the comparison in `compare`.
        devices: number of JAX devices to use; None: all.
        resume: continue the run in `directory`. If False, a directory that holds a run
            is refused. Nothing is overwritten in either case.
        held_out_seeds: number of seeds of the comparison after the last generation, at
            least 2; 0: no comparison.
        held_out_tasks: environments that the search never sees, for a comparison on
            each. It has the settings of the search's first inner loop.
        independent: also judge evolved functions in an agent that shares no code with
            the inner loops. On as many seeds, at step sizes of its own; see
            `docs/report.md`.
        checkpoint_every: number of generations from one checkpoint to the next.
        max_seconds: time limit in seconds. The run stops after the generation, or the
            step of the comparison that follows, in which it is exceeded, as if
            interrupted; None: no limit.
        stop: `METRIC>=NUMBER` (or `<=`, `>`, `<`), such as `return>=475`. The run ends,
            with its report, after the first generation in which it holds: of the mean
            over members, for `fitness` or a metric of training in the last segment.
            None: it runs to its last generation.
        wandb: `offline` (needs no account), `online`, `disabled` or `auto`. wandb
            repeats `metrics.jsonl` and never stops a run. `auto`: as WANDB_MODE says;
            without it `online` where the agent of a sweep started the run, else
            `offline`. See `docs/wandb.md`.
        tensorboard: write event files to `tensorboard/`, too.
        propose: folder from which a search of programs takes formulas while it runs,
            `*.txt`; see `docs/formulas.md`. None: none.
        start_from: path of an artifact or a finished run of the same space, at which
            the search starts; None: the start of the space.
        evaluator: `local` for this machine's devices, or `ray` for the hosts of a Ray
            cluster. With `distributed`, `local` has those of several machines; hosts of
            Ray may come and go.
        ray_address: address of the cluster, `HOST:PORT` or `auto`; None: a cluster on
            this machine.
        distributed: use the devices of all processes of a job that `mpiexec` or `srun`
            started; see `docs/cluster.md`.
        coordinator: `HOST:PORT` of the first process; for other launchers than those,
            and for Open MPI 5 on several hosts.
        num_processes: number of processes of the job; for other launchers.
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
    held_out_tasks: tuple[str, ...] = ()
    independent: bool = False
    checkpoint_every: int = 1
    max_seconds: float | None = None
    stop: str | None = None
    wandb: str = "auto"
    tensorboard: bool = False
    propose: str | None = None
    start_from: str | None = None
    evaluator: str = "local"
    ray_address: str | None = None
    distributed: bool = False
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    watchdog: float = 1800.0

    def __post_init__(self):
        for wrong, message in _checks(self):
            if wrong:
                raise ConfigError(f"run.{message}")
        if self.stop is not None:
            Stop.parse(self.stop)


def _checks(run: RunConfig) -> Iterator[tuple[bool, str]]:
    """Yield whether an option is wrong, and its key, its value and the remedy."""
    several, ray = run.seeds > 1, run.evaluator == "ray"
    hosts = run.distributed or ray
    rank = [run.num_processes, run.process_id]
    job = [run.coordinator, *rank]
    yield (
        not 0 <= run.seed < 1 << 32,
        f"seed={run.seed} must be at least 0 and below 2**32: keys have 32 bits, and "
        "another seed would give the numbers of one of these",
    )
    for key, value, known in (
        ("wandb", run.wandb, WANDB_MODES),
        ("evaluator", run.evaluator, ("local", "ray")),
    ):
        yield value not in known, f"{key}={value} must be one of {', '.join(known)}"
    for key, least, more in (
        ("seeds", 1, ""),
        ("checkpoint_every", 1, ""),
        ("devices", 1, "; leave it out for all"),
        ("max_seconds", 0, " seconds; leave it out for no limit"),
    ):
        value = getattr(run, key)
        wrong = value is not None and not value >= least
        yield wrong, f"{key}={value} must be >= {least}{more}"
    yield not run.watchdog > 0, f"watchdog={run.watchdog} must be > 0 seconds"
    yield (
        several and run.stop is not None,
        f"seeds={run.seeds} compares searches of equal budgets, which "
        f"run.stop={run.stop} would end at different ones; leave one out",
    )
    yield (
        several and hosts,
        f"seeds={run.seeds} is for run.evaluator=local on one machine; start a job "
        "per run.seed, then: metaevo compare RUN RUN ...",
    )
    yield (
        any(x is not None for x in job)
        and (not run.distributed or (None in job and rank != [None, None])),
        "coordinator, run.num_processes and run.process_id go together (mpiexec and "
        "srun give the last two), and with run.distributed=true",
    )
    yield (
        run.distributed and ray,
        "distributed=true is for run.evaluator=local; Ray has hosts of its own: leave "
        "it out",
    )
    with_address = run.ray_address is not None
    yield with_address and not ray, "ray_address goes with run.evaluator=ray"
    yield (
        run.devices is not None and hosts,
        f"devices={run.devices}: a run on several hosts uses all of their devices; "
        "leave it out",
    )
    yield (
        run.held_out_seeds == 1 or run.held_out_seeds < 0,
        f"held_out_seeds={run.held_out_seeds}: an interval needs at least 2; 0 turns "
        "the comparison off",
    )
    yield (
        bool(run.held_out_tasks) and not run.held_out_seeds,
        "held_out_tasks are for the comparison, which run.held_out_seeds=0 turns off",
    )
    yield (
        run.independent and not run.held_out_seeds,
        "independent=true compares on held-out seeds: run.held_out_seeds=0 must be at "
        "least 2",
    )


def wandb_mode(config: RunConfig) -> str:
    """Return `offline`, `online` or `disabled`: what `run.wandb` comes to here.

    >>> wandb_mode(RunConfig(wandb="disabled"))
    'disabled'
    """
    if config.wandb != "auto":
        return config.wandb
    asked = os.environ.get("WANDB_MODE", "").lower()
    asked = {"dryrun": "offline", "run": "online"}.get(asked, asked)
    if asked in WANDB_MODES[1:]:
        return asked
    # The server of a sweep chooses the next values by what the runs report.
    return "online" if os.environ.get("WANDB_SWEEP_ID") else "offline"


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
