"""Comparison of learned and hand-made on seeds that the search never saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.analysis import stats
from metaevo.errors import ConfigError
from metaevo.evaluators.local import LocalEvaluator
from metaevo.storage import checkpoint
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
    keep,
)


class HeldOut(NamedTuple):
    """Training runs on seeds that the search never saw; N runs of K segments.

    Attributes:
        fitness: [tasks, N].
        final_return: [tasks, N], of the deterministic policy.
        train: one dict per task, [N, K] per metric; `return` is NaN where no episode
            ended.
    """

    fitness: np.ndarray
    final_return: np.ndarray
    train: tuple[Mapping[str, np.ndarray], ...]


HAND_MADE = Space(lambda key: {"nothing": jnp.zeros(())}, lambda params, meta: meta)
"""The space in which nothing evolves."""

NOTHING = {"nothing": np.zeros((), np.float32)}
"""Its one member."""


COUPLED = "a member of a coupled loop cannot be trained alone"


def require_uncoupled(search: Search, where: str | Path) -> None:
    """Checks that members of a search can be trained alone.

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
    """Trains each candidate for a whole lifetime on `num_seeds` seeds.

    The seeds are the same for every candidate, and for every call with this `key`:
    compare in pairs.

    Args:
        space: binds the candidates; `HAND_MADE` for the algorithm as it is.
        candidates: name -> params.
        make: of evaluators; see `evaluators.EvaluatorFactory`.

    Returns:
        name -> runs, and name -> the trained agents of the first task, [N, ...].
    """
    evaluator = make(alone(search, space), evaluate=True, keep_agents=True)
    results, agents = {}, {}
    for name, params in candidates.items():
        evaluated, states = evaluator(key, Proposal(copies(params, num_seeds)), None)
        results[name] = HeldOut(
            fitness=evaluated.fitness[:, 0],
            final_return=np.stack(
                [np.asarray(x["return"][0]) for x in evaluated.evaluation]
            ),
            train=tuple(
                {metric: np.asarray(x[0]) for metric, x in metrics.items()}
                for metrics in evaluated.train
            ),
        )
        agents[name] = jax.tree.map(lambda x: x[0], states[0].agent)
    return results, agents


def alone(search: Search, space: Space) -> Search:
    """One member per seed, each with worlds of its own, living its life at once."""
    return search._replace(
        space=space._replace(inherit=keep),
        num_seeds=1,
        common_random_numbers=False,
        segments_per_generation=None,
    )


def copies(params: Params, num_copies: int) -> Params:
    """`params` with a leading axis."""
    return jax.tree.map(
        lambda x: jnp.broadcast_to(x, (num_copies, *np.shape(x))), params
    )


def train_hand_made(
    loop: InnerLoop, fitness: FitnessFn, key: Key, num_seeds: int, devices: list
) -> HeldOut:
    """Trains an algorithm as it is, outside any search, on `num_seeds` seeds."""
    search = Search(loop, HAND_MADE, None, 1, fitness)
    candidates = {"hand-made": NOTHING}
    make = partial(LocalEvaluator, devices=devices)
    runs, _ = train(search, HAND_MADE, candidates, key, num_seeds, make)
    return runs["hand-made"]


# --- what follows from them -----------------------------------------------------------


def verdicts(held_out: Mapping[str, HeldOut]) -> tuple[stats.Paired, ...]:
    """Solution against hand-made, paired by seed, per task; () if there are no runs."""
    if not held_out:
        return ()
    pairs = zip(
        held_out["solution"].fitness, held_out["hand-made"].fitness, strict=True
    )
    return tuple(stats.paired_difference(a, b) for a, b in pairs)


def average(scores: np.ndarray) -> float:
    """Mean of the scores that are finite; NaN if none is."""
    finite = scores[np.isfinite(scores)]
    return float(finite.mean()) if len(finite) else float("nan")


def noise(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """What two evaluations [P] of one population on different seeds say of noise.

    Returns:
        `rank_correlation` (Spearman; 1 is no noise, 0 nothing but noise),
        `sd_members`, the spread of the members' true fitness, and `sd_noise`, of the
        noise of one evaluation; both from the variance components.
    """
    from scipy.stats import spearmanr

    both = np.isfinite(first) & np.isfinite(second)
    first, second = first[both], second[both]
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return {"rank_correlation": None, "sd_members": None, "sd_noise": None}
    # What both evaluations share is no noise; half the mean squared difference is.
    centred = first - first.mean(), second - second.mean()
    covariance = float((centred[0] * centred[1]).sum() / (len(first) - 1))
    variance = float(np.var(centred[0] - centred[1], ddof=1) / 2)
    return {
        "rank_correlation": float(spearmanr(first, second).statistic),
        "sd_members": max(covariance, 0.0) ** 0.5,
        "sd_noise": variance**0.5,
    }


def visited(held_out: Mapping[str, HeldOut]) -> tuple[float, float] | None:
    """Where value − target lay while the solution trained: mean ± 2 sd."""
    solution = held_out.get("solution")
    if solution is None or "value_error_mean" not in solution.train[0]:
        return None
    train = solution.train[0]
    middle = average(train["value_error_mean"])
    square = average(train["value_error_rms"] ** 2)
    sd = max(square - middle**2, 0.0) ** 0.5
    return middle - 2 * sd, middle + 2 * sd


# --- files ----------------------------------------------------------------------------


def save(folder: Path, held_out: Mapping[str, HeldOut], facts: Mapping) -> None:
    """Saves runs, and `facts` about them as plain data."""
    arrays = {}
    for name, runs in held_out.items():
        arrays[f"{name}/fitness"] = runs.fitness
        arrays[f"{name}/final_return"] = runs.final_return
        for task, metrics in enumerate(runs.train):
            for metric, x in metrics.items():
                arrays[f"{name}/train/{task}/{metric}"] = x
    checkpoint.write(folder, arrays, {"names": list(held_out), **facts})


def load(folder: Path) -> tuple[dict[str, HeldOut], dict]:
    """The inverse of `save`.

    Raises:
        checkpoint.CheckpointError: there are none, or they were altered.
    """
    arrays, facts = checkpoint.read(folder)
    held_out = {}
    for name in facts["names"]:
        fitness = arrays[f"{name}/fitness"]
        train = []
        for task in range(len(fitness)):
            prefix = f"{name}/train/{task}/"
            train.append(
                {k.removeprefix(prefix): x for k, x in arrays.items() if prefix in k}
            )
        held_out[name] = HeldOut(fitness, arrays[f"{name}/final_return"], tuple(train))
    return held_out, facts
