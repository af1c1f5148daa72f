"""AlphaZero (Silver et al., 2018, https://www.science.org/doi/10.1126/science.aar6404).

An agent plays against itself. Each move is planned by a tree search in the true
simulator, guided by a network of a policy and a value; the network learns how often the
search visited each move, and the outcome. The search is mctx's.

Differences from the paper: no replay of earlier rollouts, no symmetries of boards, a
multilayer perceptron by default, one temperature for all moves unless it is a function
of the move, such as `schedules.by_move`. A rollout
that ends in the middle of a game takes the network's value there in place of an
outcome. Games of one player scale values by those of the node, as MuZero does.
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
    """Static settings: shapes and loop lengths."""


@slots.extended
class Meta(_alphazero.Meta):
    """Slots of AlphaZero.

    Attributes:
        c_init: weight of the exploration bonus.
        c_base: visits with which the bonus grows, as log(1 + visits / c_base).
        dirichlet_alpha: concentration of the noise on the root's legal moves.
        dirichlet_fraction: share of this noise; 0 in evaluation.
        temperature: moves are drawn by visits^(1/temperature); in evaluation the most
            visited is taken. `context.stats` holds `move`, how many were made before.
    """

    c_init: Slot = 1.25
    c_base: Slot = 19652.0
    dirichlet_alpha: slots.Positive = 0.3
    dirichlet_fraction: slots.Share = 0.25
    temperature: Slot = 1.0


TUNABLE = spaces.tune(
    lr=spaces.log(),
    vf_coef=spaces.log(),
    c_init=spaces.log(),
    dirichlet_alpha=spaces.log(),
    temperature=spaces.log(),
)


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """AlphaZero on `env`, whose actions are discrete; see `_alphazero.make`."""
    plan = partial(
        planning.puct,
        num_simulations=config.num_simulations,
        # Outcomes of games are in [-1, 1].
        bounds=(-1.0, 1.0) if env.player is not None else None,
    )
    return _alphazero.make(env, config, meta, plan, TUNABLE)


if __name__ == "__main__":
    metaevo.train_main(make)
