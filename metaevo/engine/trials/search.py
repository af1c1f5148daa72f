"""`metaevo.optimize`: a search whose members are trained by a function of the user's.

The engine runs it as any other search. Its inner loop has slots and their defaults, and
trains nothing; an evaluator of its own gives the slots to processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import os
import tempfile
import threading
import warnings
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from metaevo import population
from metaevo.analysis import results
from metaevo.config import RunConfig
from metaevo.engine import checks, loop
from metaevo.engine.result import Result
from metaevo.engine.trials import processes
from metaevo.engine.trials.evaluator import Trainer, TrialEvaluator
from metaevo.engine.trials.log import TrialLog
from metaevo.engine.trials.processes import Limits, Target
from metaevo.engine.trials.trial import MARK, Trial
from metaevo.engine.trials.values import shortest, traced
from metaevo.errors import ConfigError, NumericalError
from metaevo.evaluators import surroundings
from metaevo.evaluators.choose import EvaluatorFactory
from metaevo.fitness import Halving
from metaevo.fitness import score as as_told
from metaevo.storage import run_directory
from metaevo.types import InnerLoop, InnerState, Search, Space, Strategy, keep

__all__ = ["optimize"]

HELD_OUT_SEEDS = 8
_HOSTS = "trials are processes; give workers=, and evaluator='ray' for a cluster"
_UNUSED = {
    "seeds": "call it once for each seed=",
    "held_out_tasks": "the function decides on the task",
    "independent": "it judges functions of inner loops",
    "devices": _HOSTS,
    "distributed": _HOSTS,
}


@dataclass(frozen=True)
class Own:
    """Settings that tell a trainer of the user's from another: the loop's `config`.

    Attributes:
        score: name of the function.
        budget: as the user gave it.
        stopping: likewise.
    """

    score: str
    budget: float | None = None
    stopping: Halving | None = None


def optimize(
    space: Space,
    strategy: Strategy,
    score: Callable[[Trial], float] | str,
    *,
    num_generations: int,
    directory: str | Path,
    defaults: Mapping[str, float | None] | None = None,
    num_seeds: int = 1,
    budget: float | None = None,
    stopping: Halving | None = None,
    workers: int = 1,
    timeout: float | None = None,
    memory: float | None = None,
    python: str | Path | None = None,
    name: str | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    **run: Any,
) -> Result:
    """Search with any function as the training of a member; or resume such a search.

    Each member is scored once for each seed, in a process of its own. The same call
    resumes the run in `directory`: trials that ended are not run again. A trial that
    raises, hangs, or does not return a finite number has failed; it ranks below all
    that did not, and the run goes on.

    Args:
        space: what may evolve, of `metaevo.spaces`.
        strategy: made with `space`. Members are newborn, as of `random_search` and
            `snes`, or live on, as of `pbt`.
        score: `trial -> number`, finite, higher is better; see `Trial`. A function at
            the top level of a file; or `module:function` or `file.py:function`, which
            is not imported here.
        num_generations: at least 1; a finished run may be asked for more.
        directory: of the run.
        defaults: slot -> hand-made number, the rival of the comparison and the start
            of `spaces.tune`. None stands for nothing, such as a trainer's own loss. A
            slot of `spaces.prior` without a default stands at the middle of its range;
            others at None.
        num_seeds: S, trials of a member in a generation; at least 1.
        budget: any finite number, handed to each trial, such as a number of steps. With
            `pbt` it is of one generation.
        stopping: stops newborn members early. A life is then `stopping.horizon` trials,
            each of the budget, which continue each other as those of `pbt` do. The
            comparison trains whole lives. None: a life is one trial.
        workers: trials that run at a time, at least 1; on all hosts together.
        timeout: seconds, > 0, after which a trial is killed; None: no limit.
        memory: bytes, > 0, that the processes of a trial may hold; None: no limit. On
            Linux.
        python: interpreter of the trials; None: this one. It needs no JAX.
        name: of the search; None: that of the function.
        should_stop: asked several times a second; True stops the run.
        **run: fields of `metaevo.RunConfig`, such as `seed` and `wandb`.
            `held_out_seeds` is 8 by default. `evaluator="ray"` runs trials on the
            hosts of a Ray cluster, each on a core, which all see `directory`.

    Returns:
        the result; `result.artifact` has the slots by name.

    Raises:
        ConfigError: an argument does not fit, or `score` cannot be imported. No trial
            was run.
        InterruptedRunError: `should_stop` or `max_seconds` ended the run.
        LockedError: another process uses the directory.
        CheckpointError: the files of the run are damaged.
        NumericalError: all trials failed in three generations in a row, or in all.
    """
    if os.environ.get(MARK):
        raise ConfigError(
            "metaevo.optimize is called where a trial imports its function's file; "
            'put it under `if __name__ == "__main__":`'
        )
    if os.name != "posix":
        raise ConfigError("metaevo.optimize needs Linux or macOS")
    surroundings.check_platform()
    if jax.default_backend() != "cpu":
        warnings.warn(
            f"the search holds memory of the {jax.default_backend()} that trials may "
            "need; start it with JAX_PLATFORMS=cpu",
            stacklevel=2,
        )
    where = processes.target(score, python)
    limits = _limits(workers, timeout, memory)
    if budget is not None:
        _number("budget", budget)
    config = _config(directory, run)
    given = space, strategy, where, score, defaults or {}
    searched = _search(*given, num_generations, num_seeds, budget, stopping)

    @contextlib.contextmanager
    def evaluators(
        config: RunConfig, should_stop: Callable[[], bool]
    ) -> Iterator[EvaluatorFactory]:
        paths = run_directory.paths(directory)
        with (
            contextlib.closing(TrialLog(paths.trial_log)) as log,
            _runner(config) as run,
        ):
            lives_on = searched.segments_per_generation is not None
            trainer = Trainer(
                where, limits, run, budget, log, paths.trials, space.spec, lives_on,
                should_stop,
            )  # fmt: skip

            def make(search, evaluate=False, keep_agents=False):
                del evaluate  # a trial is scored in any case
                return TrialEvaluator(search, trainer, keep_agents, stopping)

            def whole_lives(search, evaluate=False, keep_agents=False):
                del evaluate
                return TrialEvaluator(search, trainer, keep_agents)

            def plan(search, proposal):
                _try(where, limits)
                size = population.size(proposal.params)
                return make(search), search._replace(chunk_size=size)

            try:
                what = "trials on Ray" if config.evaluator == "ray" else "processes"
                yield EvaluatorFactory(make, whole_lives, plan, workers, "cpu", what)
            except NumericalError as error:
                failed = [x for x in log.ended.items() if x[1].score is None]
                last, ended = failed[-1]
                raise NumericalError(
                    f"{error}; the last trial that failed: {ended.problem} "
                    f"({paths.trials / last / 'output.txt'})"
                ) from None

    result = loop.run(
        searched,
        config,
        name or where.function,
        should_stop=should_stop,
        evaluators=evaluators,
    )
    assert result is not None
    return result


def _runner(config: RunConfig) -> contextlib.AbstractContextManager[processes.Run]:
    """Give what runs a trial: this machine, or the hosts of a cluster.

    Raises:
        ConfigError: there is no such cluster.
    """
    if config.evaluator != "ray":
        return contextlib.nullcontext(processes.run)
    from metaevo.engine.trials import hosts

    return hosts.runner(config.ray_address)


# --- what the engine sees -------------------------------------------------------------


def _search(
    space: Space,
    strategy: Strategy,
    where: Target,
    score: Callable | str,
    defaults: Mapping[str, float | None],
    num_generations: int,
    num_seeds: int,
    budget: float | None,
    stopping: Halving | None,
) -> Search:
    """The search that the engine runs.

    Raises:
        ConfigError: space, strategy and defaults do not fit each other.
    """
    for key, x, kind in (("space", space, Space), ("strategy", strategy, Strategy)):
        if not isinstance(x, kind):
            raise ConfigError(f"{key}={x!r}: expected a metaevo.{kind.__name__}"[:400])
    for key, x in (("num_generations", num_generations), ("num_seeds", num_seeds)):
        if not isinstance(x, int) or x < 1:
            raise ConfigError(f"{key}={x!r}: expected a whole number, at least 1")
    if space.inherit is not keep:
        raise ConfigError("space: a Lamarckian space inherits from agents of JAX")
    meta = with_defaults(space, defaults)
    proposal = checks.proposal_shapes(strategy)
    check_fit(space, proposal.params)
    check_draws(space, strategy)
    lives_on = proposal.parents is not None
    if lives_on and strategy.mirrored:
        raise ConfigError(
            f"strategy={strategy.settings.get('strategy', '?')}: its members live on "
            "in pairs, which trials cannot; expected one with newborn members, pbt or "
            "asha"
        )
    lifetime = 1
    if stopping is not None:
        _check_stopping(stopping, lives_on)
        lifetime = stopping.horizon
    if lives_on:
        # Of PBT one population lives one lifetime; ASHA knows its length.
        lifetime = strategy.settings.get("horizon", num_generations)

    def init(key, meta):
        del key, meta
        return InnerState((), ())

    def train(key, meta, state):
        del key, meta
        _ = score  # by which the engine knows the file of the function
        return state, {"return": jnp.nan, "episodes": jnp.ones(())}

    def nothing(*args):
        raise NotImplementedError("a trial has no agent of JAX")

    frames = budget if isinstance(budget, int) and budget > 0 else 1
    inner = InnerLoop(
        meta, init, train, nothing, lifetime, nothing,
        frames_per_segment=frames,
        config=Own(where.name, budget, stopping),
        outside=True,
    )  # fmt: skip
    found = Search(
        inner, space, strategy, num_generations, as_told, num_seeds,
        segments_per_generation=1 if lives_on else None,
    )  # fmt: skip
    if results.breeds_policies(found):
        raise ConfigError("space: policies that act without training are no trials")
    start = space.bind(space.init(jax.random.key(0)), meta)
    for slot, op in space.spec.items():
        if op["op"] != "number":
            traced(slot, op, getattr(start, slot))
    return found


def _check_stopping(stopping: Halving, lives_on: bool) -> None:
    """Check that a rule can stop the members of a search.

    Raises:
        ConfigError: it is none, a field is out of its range, or members live on.
    """
    if not isinstance(stopping, Halving):
        raise ConfigError(f"stopping={stopping!r}: expected a metaevo.Halving"[:400])
    try:
        stopping.check()
    except ConfigError as error:
        raise ConfigError(f"stopping: {error}") from None
    if lives_on:
        raise ConfigError(
            "stopping: it stops newborn members, and those of this strategy live on; "
            "expected a strategy such as random_search or snes"
        )


def with_defaults(space: Space, defaults: Mapping[str, float | None]) -> Any:
    """Return the slots of a space at their defaults, as a `Meta`.

    Args:
        space: names the slots.
        defaults: as of `optimize`; other slots than the space's are constants.

    Raises:
        ConfigError: a default is no finite number, or one is missing.
    """
    for key, x in defaults.items():
        if x is not None:
            _number(f"defaults[{key!r}]", x)
    values = dict.fromkeys(space.spec) | {
        key: x if x is None else float(x) for key, x in defaults.items()
    }
    try:
        made: Any = namedtuple("Meta", values, module=__name__)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"defaults={dict(defaults)!r}: {error}") from None
    missing = {x for x, op in space.spec.items() if x not in defaults and "prior" in op}
    params = space.init(jax.random.key(0))
    middle = {x: jnp.full_like(params[x], 0.5) for x in missing}
    try:
        bound = space.bind(params | middle, made(**values))
    except ConfigError as error:
        raise ConfigError(f"{error}; give it in defaults={dict(defaults)!r}") from None
    values |= {x: shortest(getattr(bound, x)) for x in missing}
    made = namedtuple("Meta", values, defaults=values.values(), module=__name__)
    return made()


def check_fit(space: Space, params: Any) -> None:
    """Check that a strategy was made for a space, of numbers.

    Args:
        params: shapes of its proposals.

    Raises:
        ConfigError: its members have other numbers, or are programs.
    """
    if space.programs is not None:
        raise ConfigError(
            f"space: {', '.join(space.spec)} evolves as programs, which only an inner "
            "loop of metaevo can train; take a learned function with numbers"
        )
    if isinstance(params, population.Rule):
        return
    expected = jax.eval_shape(space.init, jax.random.key(0))
    alike = jax.tree.structure(expected) == jax.tree.structure(params) and all(
        x.shape == y.shape[1:]
        for x, y in zip(jax.tree.leaves(expected), jax.tree.leaves(params), strict=True)
    )
    if not alike:
        raise ConfigError(
            "strategy: its members have other numbers than the space; make it with the "
            f"same one, which has {', '.join(space.spec)}"
        )


def check_draws(space: Space, strategy: Strategy) -> None:
    """Check that a strategy which draws its members from a space gets different ones.

    Raises:
        ConfigError: all would be the same.
    """
    if not strategy.from_ranges:
        return
    one, two = (space.init(jax.random.key(seed)) for seed in range(2))
    same = jax.tree.map(lambda x, y: bool((x == y).all()), one, two)
    if all(jax.tree.leaves(same)):
        name = strategy.settings.get("strategy", "this").rpartition(":")[2]
        raise ConfigError(
            f"strategy={name}: it draws members from the space, whose draws are all "
            "the same; give ranges, such as spaces.prior(lr=spaces.log_uniform(1e-4, "
            "1.0))"
        )


# --- arguments ------------------------------------------------------------------------


def _limits(workers: int, timeout: float | None, memory: float | None) -> Limits:
    if not isinstance(workers, int) or workers < 1:
        raise ConfigError(f"workers={workers!r}: expected a whole number, at least 1")
    for key, x in (("timeout", timeout), ("memory", memory)):
        if x is not None:
            _number(key, x)
            if x <= 0:
                raise ConfigError(f"{key}={x!r} must be > 0")
    if memory is not None and not processes.PROC.is_dir():
        raise ConfigError(f"memory={memory!r}: there is no /proc here to measure it")
    return Limits(workers, timeout, None if memory is None else int(memory))


def _number(key: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        raise ConfigError(f"{key}={value!r}: expected a finite number")


def _config(directory: str | Path, run: Mapping[str, Any]) -> RunConfig:
    known = {x.name for x in dataclasses.fields(RunConfig)} - {"directory"}
    for key, value in run.items():
        if key in _UNUSED:
            raise ConfigError(f"{key}={value!r} is not used here: {_UNUSED[key]}")
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"metaevo.optimize has no argument {key!r}.{hint}")
    options: dict[str, Any] = {"held_out_seeds": HELD_OUT_SEEDS, **run}
    try:
        return RunConfig(directory=str(directory), **options)
    except TypeError as error:
        raise ConfigError(f"{dict(run)!r}: {error}") from None


def _try(where: Target, limits: Limits) -> None:
    """Check that a process can import the function.

    Raises:
        ConfigError: it cannot.
    """
    with tempfile.TemporaryDirectory() as folder:
        ended = processes.run(where, None, Path(folder), limits, threading.Event())
    if ended is not None and ended.problem:
        raise ConfigError(
            f"score={where.name}: it cannot be imported by {where.python}: "
            f"{ended.problem}"
        )
