"""Verdicts on evolved functions in agents that share no code with the inner loops.

A function that was evolved in one implementation, with its network, step size and
minibatches, may be good there alone. `verdicts` trains `independent.ppo` or
`independent.dqn` with it and with the hand-made function, on the same seeds, at several
step sizes that neither was tuned to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec
from jax.tree_util import Partial

from metaevo import slots
from metaevo.analysis import differences
from metaevo.analysis.independent import dqn, ppo
from metaevo.analysis.steps import Steps
from metaevo.analysis.verdicts import (
    HAND_MADE,
    SOLUTION,
    TableCell,
    Verdict,
    compared,
    corrected,
    places,
)
from metaevo.envs import Discrete, Env
from metaevo.errors import CheckpointError, ConfigError
from metaevo.fitness import area_under_curve, final_return
from metaevo.slots import Slot
from metaevo.storage import checkpoint, verified
from metaevo.types import Key, Params, Search

AGENTS: Mapping[str, ModuleType] = {"ppo": ppo, "dqn": dqn}
"""Independent agents by name: modules with `SLOTS`, `STEP_SIZES`, and `train`."""

MEASURES = (area_under_curve.name, final_return.name)
_DEVICES = "devices"
_INDEPENDENT = 1  # role for which the key of the held-out seeds is split


class Returns(NamedTuple):
    """Returns of N seeds at L step sizes; NaN where the agent is not finite in the end.

    Attributes:
        lifetime: [L, N] mean over the learning curve, where a point at which no episode
            ended holds the one before.
        final_return: [L, N] return of the deterministic policy after training.
    """

    lifetime: np.ndarray
    final_return: np.ndarray


def agent_for(search: Search) -> tuple[str, tuple[str, ...]]:
    """Return the independent agent that judges a search, and the slots it judges.

    Numbers that evolve beside functions are not judged: the agent has its own.

    Raises:
        ConfigError: the search evolves no function, or one that no independent agent
            has, or its tasks have several algorithms or actions the agent lacks.
    """
    functions = {name for name, op in search.space.spec.items() if op["op"] != "number"}
    if not search.space.spec:
        raise ConfigError("run.independent=true: nothing evolves in a training run")
    envs = [loop.env for loop in search.tasks if loop.env is not None]
    for env in envs:
        start = f"run.independent=true: env={env.name!r} has"
        if env.action_mask is not None:
            raise ConfigError(
                f"{start} actions that are not always legal, which the independent "
                "agents would take"
            )
        if env.num_players > 1:
            raise ConfigError(
                f"{start} {env.num_players} players, and the independent agents play "
                "alone"
            )
    for name, agent in AGENTS.items():
        # `reward` is a slot of both; the algorithm's own loss tells them apart.
        fits = all(agent.SLOTS[0] in loop.meta._fields for loop in search.tasks)
        if not functions or not functions <= {*agent.SLOTS} or not fits:
            continue
        for env in envs:
            if name == "dqn" and not isinstance(env.action, Discrete):
                raise ConfigError(
                    f"run.independent=true: env={env.name!r} has continuous actions, "
                    "which the independent DQN cannot take"
                )
        return name, tuple(sorted(functions))
    can = "; ".join(f"{name}: {', '.join(x.SLOTS)}" for name, x in AGENTS.items())
    raise ConfigError(
        f"run.independent=true: this search evolves {', '.join(search.space.spec)}; "
        f"independent agents judge searches of these function slots alone ({can}), in "
        "algorithms that have the agent's loss"
    )


def scores(
    agent: str,
    env: Env,
    functions: Mapping[str, Slot],
    key: Key,
    num_seeds: int = 32,
    step_sizes: Sequence[float] | None = None,
    settings: Any = None,
    devices: Sequence[Any] | None = None,
) -> Returns:
    """Train an independent agent with `functions` in its slots.

    Args:
        agent: a name in `AGENTS`.
        env: environment.
        functions: slot -> function; slots that are left out hold the agent's own.
        key: determines the seeds; the same for all step sizes and functions.
        num_seeds: N.
        step_sizes: L; None: the agent's.
        settings: its sizes and numbers; None: its own.
        devices: JAX devices to use; None: all of this process.
    """
    module = AGENTS[agent]
    settings = settings or module.Config()
    step_sizes = tuple(step_sizes or module.STEP_SIZES)
    mesh = _mesh(devices)
    keys = jax.random.split(key, num_seeds)
    total = num_seeds * len(step_sizes)
    padded = -(-total // mesh.size) * mesh.size
    at = np.arange(padded) % total
    lr = jnp.asarray(step_sizes, jnp.float32)[at // num_seeds]
    train = partial(_train, module, env, settings, mesh)
    slot_values = {
        name: x if isinstance(x, Partial) else slots.function(x)
        for name, x in functions.items()
    }
    runs = jax.device_get(jax.jit(train)(keys[at % num_seeds], lr, slot_values))
    shape = len(step_sizes), num_seeds
    final = np.asarray(runs.final_return, np.float64)[:total].reshape(shape)
    curve = np.asarray(runs.returns, np.float64)[:total].reshape(*shape, -1)
    lifetime = np.where(np.isfinite(final), _held(curve).mean(-1), np.nan)
    return Returns(lifetime, final)


def _train(module, env, settings, mesh, keys, lr, functions):
    """Train all runs, one after another on each CPU, at once on an accelerator."""

    def part(keys, lr, functions):
        def one(at):
            key, lr = at
            here = env
            if env.task is not None:
                here = env.at(env.task(jax.random.fold_in(key, 1)))
            return module.train(key, here, lr=lr, settings=settings, **functions)

        if jax.default_backend() == "cpu":
            return jax.lax.map(one, (keys, lr))
        return jax.vmap(one)((keys, lr))

    split, whole = PartitionSpec(_DEVICES), PartitionSpec()
    return jax.shard_map(
        part, mesh=mesh, in_specs=(split, split, whole), out_specs=split,
        check_vma=False,
    )(keys, lr, functions)  # fmt: skip


def _mesh(devices: Sequence[Any] | None) -> Mesh:
    devices = list(devices or jax.local_devices())
    return jax.make_mesh(
        (len(devices),), (_DEVICES,), axis_types=(AxisType.Auto,), devices=devices
    )


def _held(curve: np.ndarray) -> np.ndarray:
    """Fill points [..., K] without episodes by the one before, the first by the next.

    >>> _held(np.array([np.nan, 2.0, np.nan, 3.0])).tolist()
    [2.0, 2.0, 2.0, 3.0]
    """
    known = np.isfinite(curve)
    before = np.maximum.accumulate(np.where(known, np.arange(curve.shape[-1]), -1), -1)
    first = known.argmax(-1)[..., None]
    return np.take_along_axis(curve, np.where(before < 0, first, before), -1)


def compare(
    agent: str,
    step_sizes: Sequence[float],
    solution: Sequence[Returns],
    hand_made: Sequence[Returns],
    tasks: Sequence[str] = ("",),
) -> tuple[Verdict, ...]:
    """Compare the returns of both in each of `MEASURES`, paired by seed.

    A verdict is on each seed's mean over the step sizes, and corrected for the number
    of verdicts. A seed on which a run failed at any step size counts as failed.

    Args:
        agent: name of the independent agent.
        step_sizes: L.
        solution: returns on each task.
        hand_made: likewise.
        tasks: their names.
    """
    returns = {
        TableCell(place, candidate, measure): x
        for candidate, runs in ((SOLUTION, solution), (HAND_MADE, hand_made))
        for place, run in zip(places({"tasks": tasks}, len(tasks)), runs, strict=True)
        for measure, x in zip(MEASURES, run, strict=True)
    }
    pooled = {cell: x.mean(0, keepdims=True) for cell, x in returns.items()}
    sizes = ", ".join(f"{lr:g}" for lr in step_sizes)
    words = f"an independent {agent.upper()} (step sizes {sizes})"

    def at_each(verdict: Verdict) -> Verdict:
        pair = (
            returns[TableCell(verdict.place, candidate, verdict.measure)]
            for candidate in (verdict.subject, verdict.rival)
        )
        at = tuple(map(differences.paired_difference, *pair))
        return verdict._replace(agent=words, at=at)

    family = map(at_each, compared(pooled, [SOLUTION]))
    return corrected([*family])


def verdicts(
    agent: str,
    env: Env,
    solution: Mapping[str, Slot],
    hand_made: Mapping[str, Slot],
    key: Key,
    num_seeds: int = 32,
    step_sizes: Sequence[float] | None = None,
    settings: Any = None,
) -> tuple[Verdict, ...]:
    """Judge evolved functions in an independent agent.

    Args:
        agent: `ppo` or `dqn`.
        env: environment.
        solution: slot -> evolved function, such as the `slots` of an artifact.
        hand_made: slot -> the function to compare with.
        key: determines the seeds.
        num_seeds: N, at least 2.
        step_sizes: of the agent; None: three of its own.
        settings: its sizes and numbers; None: its own.

    Returns:
        a comparison in the mean return over the lifetime, and one in the final return.
    """
    step_sizes = tuple(step_sizes or AGENTS[agent].STEP_SIZES)
    mine, theirs = (
        scores(agent, env, functions, key, num_seeds, step_sizes, settings)
        for functions in (solution, hand_made)
    )
    return compare(agent, step_sizes, [mine], [theirs])


# --- at the end of a run --------------------------------------------------------------


class Judged(NamedTuple):
    """Returns of the solution of a run and of the hand-made functions.

    Attributes:
        agent: name of the independent agent.
        slots: slots that hold what evolved.
        tasks: names of the environments.
        step_sizes: step sizes of the agent, L.
        solution: returns on each task.
        hand_made: likewise.
    """

    agent: str
    slots: tuple[str, ...]
    tasks: tuple[str, ...]
    step_sizes: tuple[float, ...]
    solution: tuple[Returns, ...]
    hand_made: tuple[Returns, ...]

    @property
    def num_seeds(self) -> int:
        """Number of seeds at each step size."""
        return self.solution[0].lifetime.shape[1]

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """Verdicts on the solution, on each task in each measure."""
        returns = self.solution, self.hand_made
        return compare(self.agent, self.step_sizes, *returns, self.tasks)


def judge(
    steps: Steps,
    search: Search,
    params: Params,
    key: Key,
    num_seeds: int,
    devices: Sequence[Any] | None = None,
) -> Judged:
    """Judge the solution of a search in the independent agent that has its slots.

    Args:
        steps: keeps the returns as they are made.
        search: gives tasks, space and hand-made functions.
        params: params of the solution.
        key: determines the seeds.
        num_seeds: N.
        devices: JAX devices to use; None: all of this process.

    Raises:
        ConfigError: no independent agent has these slots.
        InterruptedRunError: `steps.pause` raised it. The same call continues.
    """
    agent, names = agent_for(search)
    step_sizes = AGENTS[agent].STEP_SIZES
    facts = num_seeds, list(AGENTS[agent].Config())
    named = checkpoint.to_arrays((params, key))
    seeds = jax.random.fold_in(key, _INDEPENDENT)

    def train(env, functions, lr):
        one = scores(agent, env, functions, seeds, num_seeds, (lr,), devices=devices)
        return one._asdict()

    def returns(candidate, task, env, meta):
        functions = {name: getattr(meta, name) for name in names}
        # A step size at a time: the search can be stopped between them.
        made = [
            steps.step(
                f"independent/{candidate}{task}/{lr:g}",
                partial(train, env, functions, lr), named, lr, *facts,
            )
            for lr in step_sizes
        ]  # fmt: skip
        return Returns(*(np.concatenate([x[k] for x in made]) for k in Returns._fields))

    both = []
    for task, loop in enumerate(search.tasks):
        bound = search.space.bind(jax.tree.map(jnp.asarray, params), loop.meta)
        metas = {SOLUTION: bound, HAND_MADE: loop.meta}
        both.append([returns(x, task, loop.env, meta) for x, meta in metas.items()])
    tasks = tuple(loop.env.name for loop in search.tasks)
    return Judged(agent, names, tasks, step_sizes, *zip(*both, strict=True))


def frames(search: Search, num_seeds: int) -> int:
    """Return the frames of `judge`."""
    agent, _ = agent_for(search)
    module = AGENTS[agent]
    runs = 2 * num_seeds * len(module.STEP_SIZES) * len(search.tasks)
    return runs * module.Config().num_frames


def save(folder: Path, judged: Judged) -> None:
    """Save the scores."""
    arrays = {
        f"{candidate}/{task}/{measure}": x
        for candidate in ("solution", "hand_made")
        for task, one in enumerate(getattr(judged, candidate))
        for measure, x in one._asdict().items()
    }
    facts = {"agent": judged.agent, "slots": list(judged.slots)}
    facts |= {"step_sizes": list(judged.step_sizes), "tasks": list(judged.tasks)}
    checkpoint.write(folder, arrays, facts)


def load(folder: Path) -> Judged:
    """Invert `save`.

    Raises:
        CheckpointError: the files are missing or were altered, or are no such scores.
    """
    arrays, facts = checkpoint.read(folder, verified.MAX_ARTIFACT)
    try:
        both = [
            tuple(
                Returns(*(arrays[f"{candidate}/{task}/{x}"] for x in Returns._fields))
                for task in range(len(facts["tasks"]))
            )
            for candidate in ("solution", "hand_made")
        ]
        sizes = tuple(float(x) for x in facts["step_sizes"])
        shapes = {x.shape for side in both for one in side for x in one}
        if len(shapes) != 1 or {len(shape) for shape in shapes} != {2}:
            raise ValueError("scores of several shapes")
        if facts["agent"] not in AGENTS or next(iter(shapes))[0] != len(sizes):
            raise ValueError("no scores of an agent at each step size")
        slots, tasks = (tuple(map(str, facts[x])) for x in ("slots", "tasks"))
        return Judged(facts["agent"], slots, tasks, sizes, *both)
    except (KeyError, TypeError, ValueError) as error:
        message = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{folder} holds no scores: {message}") from None
