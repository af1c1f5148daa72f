"""Comparison of solution and hand-made algorithm on seeds the search never saw."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import slots
from metaevo.analysis.steps import Steps
from metaevo.errors import CheckpointError, ConfigError
from metaevo.evaluators import memory
from metaevo.evaluators.layout import default_chunk_size
from metaevo.evaluators.local import LocalEvaluator
from metaevo.storage import checkpoint, verified
from metaevo.types import (
    Evaluator,
    FitnessFn,
    InnerLoop,
    Key,
    Params,
    Proposal,
    PyTree,
    Search,
    Space,
    Strategy,
    keep,
)


class HeldOut(NamedTuple):
    """Training runs on seeds that the search never saw: N runs of K segments.

    Attributes:
        fitness: [tasks, N] fitness.
        final_return: [tasks, N] return of the deterministic policy after training.
        train: one dict per task, [N, K] per metric. `return` is NaN where no episode
            ended.
    """

    fitness: np.ndarray
    final_return: np.ndarray
    train: tuple[Mapping[str, np.ndarray], ...]


HAND_MADE = Space(lambda key: {"nothing": jnp.zeros(())}, lambda params, meta: meta)
"""Space in which nothing evolves: every member is the hand-made algorithm."""

NOTHING = {"nothing": np.zeros((), np.float32)}
"""Params of the member of `HAND_MADE`."""

RESERVED = ("solution", "start", "hand-made", "best simple")
"""Names of the candidates that a comparison has anyway."""


def fixed(values: Mapping[str, Any]) -> Space:
    """A space in which nothing evolves and some slots have other values.

    Args:
        values: slot name -> value.
    """
    return HAND_MADE._replace(bind=lambda params, meta: slots.replace(meta, **values))


def as_hand_made(search: Search) -> Search:
    """Return a search with the loops that `InnerLoop.hand_made` names, if any."""
    if not any(loop.hand_made for loop in search.tasks):
        return search
    loops = [loop.hand_made or loop for loop in search.tasks]
    return search._replace(inner_loop=loops)


def baselines(search: Search) -> Mapping[str, Mapping[str, Any]]:
    """`InnerLoop.baselines` of a search: those that all of its loops have.

    Raises:
        ConfigError: one has a name that cannot tell it from other candidates.
    """
    first, *others = search.tasks
    found = {
        name: values
        for name, values in first.baselines.items()
        if all(name in loop.baselines for loop in others)
    }
    for name in found:
        if name in RESERVED or "/" in name or not name.strip("."):
            raise ConfigError(
                f"baselines: {name!r} cannot be a name; expected one without '/', "
                f"other than {', '.join(RESERVED)}"
            )
    return found


COUPLED = "a member of a coupled loop cannot be trained alone"


def require_uncoupled(search: Search, where: str | Path) -> None:
    """Check that members of a search can be trained alone.

    Args:
        where: the run, for the message.

    Raises:
        ConfigError: an inner loop is coupled.
    """
    if search.coupled:
        raise ConfigError(f"{where}: {COUPLED}")


def train(
    search: Search,
    space: Space,
    candidates: Mapping[str, Params],
    key: Key,
    num_seeds: int,
    make: Callable[..., Evaluator],
) -> tuple[dict[str, HeldOut], dict[str, PyTree]]:
    """Train each candidate for a whole lifetime on `num_seeds` seeds.

    The seeds are the same for every candidate and for every call with the same `key`,
    so scores can be compared in pairs.

    Args:
        search: gives the inner loops and the fitness.
        space: binds the candidates; `HAND_MADE` for the algorithm as it is.
        candidates: name -> params.
        key: determines the seeds.
        num_seeds: N.
        make: makes evaluators; see `evaluators.choose.EvaluatorFactory`.

    Returns:
        name -> runs, and name -> the trained agents of the first task, [N, ...] per
        leaf.
    """
    evaluator = make(alone(search, space), evaluate=True, keep_agents=True)
    results, agents = {}, {}
    for name, params in candidates.items():
        results[name], agents[name] = _trained(evaluator, params, key, num_seeds, None)
    return results, agents


def train_kept(
    steps: Steps,
    search: Search,
    space: Space,
    candidates: Mapping[str, Params],
    key: Key,
    num_seeds: int,
    make: Callable[..., Evaluator],
    keep_agents: Collection[str] = (),
) -> tuple[dict[str, HeldOut], dict[str, dict[str, np.ndarray]]]:
    """Train as `train` does, to the same bits, and keep the runs as they finish.

    Each candidate's seeds are cut into the rounds of the evaluator, which are kept one
    by one. A seed's random numbers depend on the key and its index, and a round's
    program on its width alone, so neither a stop nor other devices change the bits.

    Args:
        steps: keeps the runs; its digest tells one search from another. Params, space,
            key and width are compared beside it.
        keep_agents: names whose agents are kept and returned, too.

    Returns:
        name -> runs, and name -> arrays of the trained agents of the first task by
        path, [N, ...], for the names in `keep_agents`.

    Raises:
        InterruptedRunError: the evaluator or `steps.pause` raised it. The same call
            continues after the last round that was kept.
    """
    num_devices = make(alone(search, space)).num_devices
    width = search.chunk_size or default_chunk_size(num_seeds, num_devices)
    alike = alone(search._replace(chunk_size=width), space)

    @functools.cache
    def evaluator(cut: bool) -> Evaluator:
        del cut  # an evaluator evaluates whole populations, or parts
        return make(alike, evaluate=True, keep_agents=True)

    results, agents = {}, {}
    for name, params in candidates.items():
        with_agents = name in keep_agents
        given = checkpoint.to_arrays((params, key))
        facts = dict(space.spec), width, with_agents
        parts = []
        while (first := sum(len(x["fitness"].T) for x in parts)) < num_seeds:
            last = min(first + width * num_devices, num_seeds)

            def part(params=params, with_agents=with_agents, first=first, last=last):
                ids = None if last - first == num_seeds else np.arange(first, last)
                train = evaluator(cut=ids is not None)
                runs, agent = _trained(train, params, key, last - first, ids)
                named = checkpoint.to_arrays(agent) if with_agents else {}
                named = {f"{_AGENTS}{path}": x for path, x in named.items()}
                return _to_arrays(runs) | named

            parts.append(steps.step(f"{name}/seed{first}", part, given, *facts))
        joined = {}
        for path in parts[0]:
            axis = 1 if path in ("fitness", "final_return") else 0  # of the seeds
            whole = np.concatenate([x[path] for x in parts], axis)
            joined[path] = np.take(whole, np.arange(num_seeds), axis)
        results[name] = _from_arrays(joined)
        if with_agents:
            agents[name] = _below(joined, _AGENTS)
    return results, agents


def _trained(
    evaluator: Evaluator,
    params: Params,
    key: Key,
    num_seeds: int,
    places: np.ndarray | None,
) -> tuple[HeldOut, PyTree]:
    """Train one candidate on all seeds, or on those at `places` alone."""
    memory.give_back()  # what compiling for the search and the last candidate left
    proposal = Proposal(copies(params, num_seeds))
    evaluated, states = evaluator(key, proposal, None, places)
    runs = HeldOut(
        fitness=evaluated.fitness[:, 0],
        final_return=np.stack(
            [np.asarray(x["return"][0]) for x in evaluated.evaluation]
        ),
        train=tuple(
            {metric: np.asarray(x[0]) for metric, x in metrics.items()}
            for metrics in evaluated.train
        ),
    )
    return runs, jax.tree.map(lambda x: x[0], states[0].agent)


def alone(search: Search, space: Space) -> Search:
    """Return `search` with one seed per member, its own, and whole lifetimes."""
    return search._replace(
        space=space._replace(inherit=keep),
        num_seeds=1,
        hurdles=(),
        stopping=None,
        common_random_numbers=False,
        segments_per_generation=None,
        world_per_member=True,
    )


def copies(params: Params, num_copies: int) -> Params:
    """Return `params` repeated along a new leading axis of length `num_copies`."""
    return jax.tree.map(
        lambda x: jnp.broadcast_to(x, (num_copies, *np.shape(x))), params
    )


NO_STRATEGY = Strategy(
    init=lambda key: (),
    ask=lambda key, state: (Proposal(NOTHING), state),
    tell=lambda key, state, proposal, fitness: state,
    solution=lambda state: NOTHING,
)


def train_hand_made(
    loop: InnerLoop, fitness: FitnessFn, key: Key, num_seeds: int, devices: list
) -> HeldOut:
    """Train an algorithm as it is, outside any search, on `num_seeds` seeds."""
    search = Search(loop, HAND_MADE, NO_STRATEGY, 1, fitness)

    def make(search: Search, **options: Any) -> LocalEvaluator:
        return LocalEvaluator(search, devices=devices, **options)

    runs, _ = train(search, HAND_MADE, {"": NOTHING}, key, num_seeds, make)
    return runs[""]


# --- files ----------------------------------------------------------------------------


def save(folder: Path, held_out: Mapping[str, HeldOut], facts: Mapping) -> None:
    """Save runs, and `facts` about them as plain data."""
    arrays = {
        f"{name}/{path}": x
        for name, runs in held_out.items()
        for path, x in _to_arrays(runs).items()
    }
    checkpoint.write(folder, arrays, {"names": list(held_out), **facts})


def load(folder: Path) -> tuple[dict[str, HeldOut], dict]:
    """Invert `save`.

    Raises:
        CheckpointError: the files are missing or were altered, or are no such runs.
    """
    arrays, facts = checkpoint.read(folder, verified.MAX_ARTIFACT)
    held_out = {}
    try:
        if not isinstance(facts.get("measure", ""), str):
            raise ValueError("the measure is no name")
        for name in facts["names"]:
            fitness, final = arrays[f"{name}/fitness"], arrays[f"{name}/final_return"]
            if fitness.ndim != 2 or fitness.shape != final.shape:
                raise ValueError(f"{name} has no score for each task and seed")
            held_out[name] = _from_arrays(_below(arrays, f"{name}/"))
    except (KeyError, TypeError, ValueError) as error:
        message = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{folder} holds no runs: {message}") from None
    return held_out, facts


_AGENTS = "agents/"


def _to_arrays(runs: HeldOut) -> dict[str, np.ndarray]:
    """Runs as arrays by path: `fitness`, `final_return`, `train/TASK/METRIC`."""
    arrays = {"fitness": runs.fitness, "final_return": runs.final_return}
    for task, metrics in enumerate(runs.train):
        arrays |= {f"train/{task}/{metric}": x for metric, x in metrics.items()}
    return arrays


def _from_arrays(arrays: Mapping[str, np.ndarray]) -> HeldOut:
    tasks = range(len(arrays["fitness"]))
    train = tuple(_below(arrays, f"train/{task}/") for task in tasks)
    return HeldOut(arrays["fitness"], arrays["final_return"], train)


def _below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose paths begin with `prefix`, by the rest of their paths."""
    return {
        path.removeprefix(prefix): x
        for path, x in arrays.items()
        if path.startswith(prefix)
    }
