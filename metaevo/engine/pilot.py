"""Evaluate one generation twice, to say what a search of its size can tell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax

from metaevo.analysis import results, verdicts
from metaevo.engine.job import Job, initial_state
from metaevo.errors import ConfigError
from metaevo.types import Search

BETTER_HALF = math.sqrt(2 / math.pi)  # mean of a normal variable's better half
SURE = 1.96 * math.sqrt(2)  # deviations between two members, at 95 %
CHANCE = 0.05  # above which an agreement in rank is one of chance


def check(search: Search) -> None:
    """Check that a generation of a search can be evaluated twice.

    Raises:
        ConfigError: its members live on.
    """
    if search.segments_per_generation is not None:
        raise ConfigError(
            "--pilot evaluates a generation twice; members of this search live on, and "
            "cannot live twice; use --dry-run"
        )


def measure(job: Job) -> dict[str, Any]:
    """Evaluate generation 0 twice, on unlike seeds; see `verdicts.noise`."""
    keys = [jax.random.fold_in(job.keys.noise, i) for i in range(3)]
    proposal, _ = job.programs.ask(keys[0], initial_state(job).strategy)
    first, second = (
        results.scored(job.search, job.evaluator, proposal, key) for key in keys[1:]
    )
    return verdicts.noise(first, second)


def lines(found: Mapping[str, Any], num_seeds: int, held_out_seeds: int) -> list[str]:
    """Return what two evaluations of a generation say of a search's size.

    Args:
        found: of `measure`.
        num_seeds: of the search.
        held_out_seeds: of the comparison.

    >>> told = dict(rank_correlation=0.4, p_value=0.01, sd_members=3.0, sd_noise=4.0)
    >>> print(*lines(told | {"num_members": 32}, 1, 32), sep="\\n")
    signal       two evaluations of generation 0 agree in rank by 0.4 (p = 0.01)
                 of 32 members; true differences have a deviation of 3, noise one of 4
                 two members are told apart from a difference of 11 on
                 selecting the better half raises the mean by about 1.4
                 32 held-out seeds tell a difference of about 2
    """
    if found["rank_correlation"] is None:
        return [
            "signal       none to measure: of generation 0 fewer than three members "
            "have a score, or all have the same"
        ]
    members, noise = found["sd_members"], found["sd_noise"]
    told = [
        "two evaluations of generation 0 agree in rank by "
        f"{found['rank_correlation']:.2g} (p = {found['p_value']:.2g})",
        f"of {found['num_members']} members; true differences have a deviation of "
        f"{members:.2g}, noise one of {noise:.2g}",
        f"two members are told apart from a difference of {SURE * noise:.2g} on",
        f"selecting the better half raises the mean by about "
        f"{gain(members, noise):.2g}",
    ]
    if held_out_seeds:
        least = SURE * noise * (num_seeds / held_out_seeds) ** 0.5
        told += [
            f"{held_out_seeds} held-out seeds tell a difference of about {least:.2g}"
        ]
    if found["p_value"] > CHANCE:
        told += [f"too noisy to search at this size: {_remedy(found, num_seeds)}"]
    return [f"{'' if i else 'signal':<13}{x}" for i, x in enumerate(told)]


def gain(members: float, noise: float) -> float:
    """Return by how much the better half of a generation is truly better than all.

    The breeder's equation: the selection differential times the share of the variance
    that is signal.

    Args:
        members: deviation of the members' true fitness.
        noise: deviation of the noise of their scores.
    """
    spread = math.hypot(members, noise)
    return BETTER_HALF * members**2 / spread if spread else 0.0


def _remedy(found: Mapping[str, Any], num_seeds: int) -> str:
    """Say what would tell the members apart."""
    if not found["sd_members"]:
        return "no difference between members is seen; raise sigma or num_seeds"
    half = num_seeds * (found["sd_noise"] / found["sd_members"]) ** 2
    return (
        f"half of the spread is signal with num_seeds={max(math.ceil(half), num_seeds)}"
        "; or raise sigma or population_size"
    )
