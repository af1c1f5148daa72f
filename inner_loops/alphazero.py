"""AlphaZero (Silver et al., 2018, https://www.science.org/doi/10.1126/science.aar6404).

An agent plays against itself. Each move is planned by a tree search in the true
simulator, guided by a network of a policy and a value; the network learns how often the
search visited each move, and the outcome. The search is mctx's.

Differences from the paper: no replay of earlier rollouts, no symmetries of boards, a
multilayer perceptron by default, one temperature for all moves of a game. A rollout
that ends in the middle of a game takes the network's value there in place of an
outcome. Games of one player scale values by those of the node, as MuZero does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import metaevo
from inner_loops import _alphazero
from metaevo import envs, exploration, losses, optimizers, spaces
from metaevo.rl import networks, planning
from metaevo.slots import Slot
from metaevo.types import InnerLoop, on_any_env


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and loop lengths.

    Attributes:
        total_timesteps: moves in a lifetime, rounded down to whole segments.
        num_envs: E, games of one member.
        num_steps: T, moves of a rollout. An update takes E x T moves.
        num_epochs: passes over a rollout.
        num_minibatches: gradient steps in a pass.
        num_segments: K, points on the learning curve.
        num_simulations: simulations of a search, in training and evaluation.
        anneal_lr: whether the learning rate falls linearly to 0 over the lifetime.
        torso: before the hidden layers: `mlp`, nothing; `cnn`, a convolution as in
            MinAtar.
        features: units of each hidden layer, which policy and value share.
        activation: function of these layers.
        opponent: whom `evaluate` plays: `random`; `rollouts-N`, a tree search of N
            simulations that plays on at random; `minimax`, perfect play, in
            tic-tac-toe alone.
        num_eval_envs: games, or episodes, that `evaluate` averages over.
    """

    total_timesteps: int = 200_000
    num_envs: int = 128
    num_steps: int = 16
    num_epochs: int = 4
    num_minibatches: int = 8
    num_segments: int = 16
    num_simulations: int = 32
    anneal_lr: bool = True
    torso: networks.Torso = "mlp"
    features: tuple[int, ...] = (128, 128)
    activation: str = "relu"
    opponent: str = "random"
    num_eval_envs: int = 128


class Meta(NamedTuple):
    """Slots of AlphaZero.

    Attributes:
        lr: Adam's step size, before annealing.
        gamma: discount, in [0, 1].
        value_mix: λ of the value target: 1 is the outcome, 0 the search's value of the
            next position.
        vf_coef: weight of the value loss.
        l2: weight of half the sum of squares of all parameters.
        max_grad_norm: global norm that gradients are clipped to.
        c_init, c_base: constants of the exploration bonus.
        dirichlet_alpha, dirichlet_fraction: noise on the root's policy, and its share;
            0 in evaluation.
        temperature: moves are drawn by visits^(1/temperature); in evaluation the most
            visited is taken.
        q_transform: `(q, context) -> q`, increasing, from [0, 1] to [0, 1]: what the
            search does with values of moves, which it scales to their range.
        value_loss: `(value, target, old_value, context) -> [...]`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
    """

    lr: Slot = 3e-3
    gamma: Slot = 1.0
    value_mix: Slot = 1.0
    vf_coef: Slot = 1.0
    l2: Slot = 1e-5
    max_grad_norm: Slot = 1.0
    c_init: Slot = 1.25
    c_base: Slot = 19652.0
    dirichlet_alpha: Slot = 0.3
    dirichlet_fraction: Slot = 0.25
    temperature: Slot = 1.0
    q_transform: Slot = exploration.unchanged
    value_loss: Slot = losses.square
    optimizer: Slot = optimizers.adam


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
    plan = partial(planning.puct, num_simulations=config.num_simulations)
    return _alphazero.make(env, config, meta, plan, TUNABLE)


if __name__ == "__main__":
    metaevo.train_main(make)
