"""Gumbel AlphaZero (Danihelka et al., 2022, https://openreview.net/forum?id=bERaNdoegnO).

AlphaZero with a search for few simulations: the root draws some moves without
replacement, by Gumbel noise, and halves their number as simulations are spent. The
network learns the policy that values of moves improve, and the outcome. The search is
mctx's.

Differences from the paper: as `alphazero`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import metaevo
from inner_loops import _alphazero
from metaevo import envs, slots, spaces
from metaevo.rl import planning
from metaevo.slots import Slot
from metaevo.types import InnerLoop, on_any_env


@dataclass(frozen=True)
class Config(_alphazero.Config):
    """Static settings: shapes and loop lengths.

    Attributes:
        num_considered: moves that the root looks at, at most.
    """

    num_simulations: int = 16
    num_considered: int = 16


@slots.extended
class Meta(_alphazero.Meta):
    """Slots of Gumbel AlphaZero.

    Attributes:
        q_scale: c_scale, by which the value of a move becomes a logit: (c_visit + most
            visits) c_scale q.
        q_visits: c_visit in it.
        gumbel_scale: of the noise in the root; 0 in evaluation.
    """

    q_scale: Slot = 0.1
    q_visits: Slot = 50.0
    gumbel_scale: Slot = 1.0


TUNABLE = spaces.tune(
    lr=spaces.log(),
    vf_coef=spaces.log(),
    q_scale=spaces.log(),
    q_visits=spaces.log(),
    gumbel_scale=spaces.log(),
)


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """Gumbel AlphaZero on `env`, whose actions are discrete; see `_alphazero.make`."""
    plan = partial(
        planning.gumbel,
        num_simulations=config.num_simulations,
        num_considered=config.num_considered,
    )
    return _alphazero.make(env, config, meta, plan, TUNABLE)


if __name__ == "__main__":
    metaevo.train_main(make)
