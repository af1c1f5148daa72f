"""Comparison of learned and hand-made on seeds that the search never saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo.evaluators.local import LocalEvaluator
from metaevo.types import Key, Params, Proposal, Search, Space, keep


class HeldOut(NamedTuple):
    """Training runs on seeds that the search never saw; N runs of K segments.

    Attributes:
        fitness: [tasks, N].
        final_return: [tasks, N], of the deterministic policy.
        curves: [tasks, N, K] training return, NaN where no episode ended.
    """

    fitness: np.ndarray
    final_return: np.ndarray
    curves: np.ndarray


HAND_MADE = Space(lambda key: {"nothing": jnp.zeros(())}, lambda params, meta: meta)
"""The space in which nothing evolves."""


def train(
    search: Search,
    space: Space,
    candidates: Mapping[str, Params],
    key: Key,
    num_seeds: int,
    devices: list,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, HeldOut]:
    """Trains each candidate for a whole lifetime on `num_seeds` seeds.

    The seeds are the same for every candidate, and for every call with this `key`:
    compare in pairs.

    Args:
        space: binds the candidates; `HAND_MADE` for the algorithm as it is.
        candidates: name -> params.

    Returns:
        name -> runs.
    """
    # One member per seed, each with worlds of its own.
    alone = search._replace(
        space=space._replace(inherit=keep),
        num_seeds=1,
        common_random_numbers=False,
        segments_per_generation=None,
    )
    evaluator = LocalEvaluator(alone, devices, True, should_stop)
    results = {}
    for name, params in candidates.items():
        copies = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (num_seeds, *np.shape(x))), params
        )
        evaluated, _ = evaluator(key, Proposal(copies), None)
        results[name] = HeldOut(
            fitness=evaluated.fitness[:, 0],
            final_return=np.stack(
                [np.asarray(m["evaluation/return"][0]) for m in evaluated.metrics]
            ),
            curves=np.stack([np.asarray(curve[0]) for curve in evaluated.curves]),
        )
    return results
