"""Strategies for those who keep their own loop: ask for members, tell their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaevo import fitness, population
from metaevo.engine import checks
from metaevo.engine import job as jobs
from metaevo.engine.trials.search import check_draws, check_fit, with_defaults
from metaevo.engine.trials.values import members, shortest
from metaevo.errors import ConfigError
from metaevo.types import Proposal, Space, Strategy


class Member(NamedTuple):
    """A member that is to be scored.

    Attributes:
        params: slot name -> value: a float, an evolved function of JAX, or None.
        parent: place in the last generation of the member whose agent it continues;
            None: it is newborn.
    """

    params: dict[str, Any]
    parent: int | None = None


class AskTell:
    """A strategy, asked and told in turn.

        study = metaevo.AskTell(space, snes(space, 8, sigma=0.3), {"lr": 1e-3})
        for _ in range(20):
            members = study.ask()
            study.tell([train(**member.params) for member in members])
        study.solution

    The members are those of `metaevo.optimize` with the same seed and scores.

    Args:
        space: what may evolve.
        strategy: made with `space`.
        defaults: as of `metaevo.optimize`.
        seed: of all random numbers, in [0, 2³²).

    Attributes:
        generation: number of generations told.
        state: state of the strategy, a pytree of arrays. With `generation` it is all
            that changes: put both back to continue later.

    Raises:
        ConfigError: the arguments do not fit each other.
    """

    def __init__(
        self,
        space: Space,
        strategy: Strategy,
        defaults: Mapping[str, float | None] | None = None,
        seed: int = 0,
    ):
        if not isinstance(seed, int) or not 0 <= seed < 1 << 32:
            raise ConfigError(f"seed={seed!r}: expected a whole number in [0, 2**32)")
        self._meta = with_defaults(space, defaults or {})
        check_fit(space, checks.proposal_shapes(strategy).params)
        check_draws(space, strategy)
        self._space, self._strategy = space, strategy
        self._ask, self._tell = jax.jit(strategy.ask), jax.jit(strategy.tell)
        self._keys = jobs.keys(seed)
        self._asked: tuple[Proposal, Any] | None = None
        self.generation = 0
        self.state = jax.jit(strategy.init)(self._keys.init)

    def ask(self) -> list[Member]:
        """Return the members of the next generation; the same until they are told."""
        role = jobs.roles(self._keys, self.generation)
        proposal, _ = self._asked = self._ask(role.ask, self.state)
        size = population.size(proposal.params)
        parents = [-1] * size
        if proposal.parents is not None:
            parents = np.asarray(proposal.parents).tolist()
        everyone = members(proposal.params)
        return [
            Member(
                self._slots(jax.tree.map(lambda x: x[i], everyone)),
                None if parent < 0 else parent,
            )
            for i, parent in enumerate(parents)
        ]

    def tell(self, scores: Sequence[float | None]) -> None:
        """Tell the scores of the members that `ask` returned, in their order.

        Args:
            scores: [P], higher is better. One that is None or not finite is a failure,
                and ranks below all others. Where all failed, the strategy learns
                nothing, and the next generation has other random numbers.

        Raises:
            ConfigError: nothing was asked for, or there is not one score a member.
        """
        if self._asked is None:
            raise ConfigError("tell: there are no members to score; call ask first")
        (proposal, state), size = self._asked, len(scores)
        expected = population.size(proposal.params)
        if size != expected:
            raise ConfigError(
                f"tell: {size} scores; expected one for each of {expected}"
            )
        raw = np.array([np.nan if x is None else x for x in scores], np.float32)
        clean, failed = fitness.sanitize(raw, self._strategy.mirrored)
        if not failed.all():
            key = jobs.roles(self._keys, self.generation).tell
            state = self._tell(key, state, proposal, jnp.asarray(clean))
        self.state, self._asked = state, None
        self.generation += 1

    @property
    def solution(self) -> dict[str, Any]:
        """Slot name -> value of the strategy's solution as it is now."""
        return self._slots(self._strategy.solution(self.state))

    def _slots(self, params: Any) -> dict[str, Any]:
        bound = self._space.bind(params, self._meta)._asdict()
        return {
            name: x if x is None or callable(x) else shortest(x)
            for name, x in bound.items()
        }
