"""Recurrent replay distributed DQN: R2D2 (Kapturowski et al., 2019).

https://openreview.net/forum?id=r1lyTjAqYX. Ape-X with a recurrent network, for partial
observability: what is replayed are overlapping sequences, each with the memory that the
agent had at its start. Online and target network warm that memory up over the first
steps, from which nothing is learned. Double, dueling and of n steps, on rescaled
values (Pohlen et al., 2018, https://arxiv.org/abs/1805.11593). The network sees the
last action and reward. Differences from the paper:

* Sequences may hold the end of an episode: the memory is reset there.
* Actors act with the newest parameters, in step with the learner.
* The cell is a GRU; sizes are for small environments.
* Time limits are bootstrapped, from the memory of the episode that they end.

Network, targets, the loss and the buffer are in `_r2d2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

import metaevo
from inner_loops import _r2d2
from inner_loops._r2d2 import Agent, Experience
from metaevo import envs, exploration, losses, optimizers, rewards, spaces
from metaevo.learned import rescalings
from metaevo.learned.priorities import absolute
from metaevo.rl import networks, rollouts, training
from metaevo.slots import Slot
from metaevo.types import InnerLoop, InnerState, on_any_env

__all__ = ["TUNABLE", "Agent", "Config", "Experience", "Meta", "make"]


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and loop lengths.

    Attributes:
        total_timesteps: frames in a lifetime, warm-up included, rounded down to whole
            segments.
        learning_starts: frames of the warm-up, by random actions; at least three
            sequences of each environment.
        buffer_size: frames that the replay buffer holds, at most a lifetime's.
        num_envs: E, environments of one member: actors.
        num_steps: T, steps of them between updates. An update takes E x T frames.
        num_gradient_steps: U, minibatches of an update, drawn at once.
        batch_size: B, sequences in a minibatch.
        burn_in: steps of a sequence that warm the memory up; may be 0.
        sequence_length: steps of a sequence that are learned from.
        period: steps between the starts of sequences; divides `num_steps`.
        target_period: updates between those of the target network.
        num_segments: K, points on the learning curve.
        double, dueling: as in DQN.
        num_step_return: n, steps before the bootstrap.
        torso: before that layer: `mlp`, nothing; `cnn`, a convolution as in MinAtar.
        hidden: units of the GRU, and of the layer before it.
        features: units of each hidden layer after it.
        activation: function of these layers.
        num_eval_envs: episodes that `evaluate` averages over.
    """

    total_timesteps: int = 500_000
    learning_starts: int = 2_000
    buffer_size: int = 100_000
    num_envs: int = 16
    num_steps: int = 10
    num_gradient_steps: int = 2
    batch_size: int = 32
    burn_in: int = 10
    sequence_length: int = 20
    period: int = 10
    target_period: int = 20
    num_segments: int = 16
    double: bool = True
    dueling: bool = True
    num_step_return: int = 3
    torso: networks.Torso = "mlp"
    hidden: int = 64
    features: tuple[int, ...] = (64,)
    activation: str = "relu"
    num_eval_envs: int = 16


class Meta(NamedTuple):
    """Slots of R2D2.

    Attributes:
        lr: Adam's step size.
        gamma: discount, in [0, 1].
        epsilon: share of random actions of the first environment, in [0, 1].
        epsilon_exponent: >= 0; that of environment i of E is
            epsilon^(1 + epsilon_exponent i / (E − 1)).
        exploration: `(q [A], epsilon, context) -> probabilities [A]`.
        target_rate: τ, how far the target network moves to the online one every
            `target_period` updates, in (0, 1].
        rescale: `(x, context) -> h(x) [...]`, increasing, of returns; see
            `metaevo.learned.rescalings`.
        stored_memory: factor of the stored memory with which a sequence begins, in
            [0, 1]; 1: as the agent had it, 0: none.
        priority: `(td_error, age, visits, reward, terminated, context) -> p [...]`, of
            each step of a sequence, see `metaevo.learned.priorities`.
        priority_max: η in [0, 1]: the priority of a sequence is η times the greatest
            of its steps' and 1 − η times their mean.
        priority_exponent: α >= 0: sequences are drawn in proportion to p^α.
        importance_exponent: β in [0, 1]: of the importance weights; 1 corrects in full.
        td_loss: `(td_error, q, target, context) -> [...]`, td_error = target − q, of
            rescaled values.
        reward: `(obs, action, reward, next_obs, terminated, context) -> scalar`, the
            reward that the agent learns from; `context.stats` holds `gamma`.
        optimizer: an `optimizers.Optimizer`: gives a direction.
        max_grad_norm: global norm that gradients are clipped to; None: no clip.
    """

    lr: Slot = 5e-4
    gamma: Slot = 0.99
    epsilon: Slot = 0.4
    epsilon_exponent: Slot = 7.0
    exploration: Slot = exploration.epsilon_greedy
    target_rate: Slot = 1.0
    rescale: Slot = rescalings.signed_root
    stored_memory: Slot = 1.0
    priority: Slot = absolute
    priority_max: Slot = 0.9
    priority_exponent: Slot = 0.9
    importance_exponent: Slot = 0.6
    td_loss: Slot = losses.td_square
    reward: Slot = rewards.identity
    optimizer: Slot = optimizers.adam
    max_grad_norm: Slot | None = 40.0


TUNABLE = spaces.tune(
    lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    epsilon=spaces.logit(),
    epsilon_exponent=spaces.log(),
    target_rate=spaces.logit().starting_at(0.9),
    stored_memory=spaces.logit().starting_at(0.9),
    priority_max=spaces.logit(),
    priority_exponent=spaces.log(),
    importance_exponent=spaces.logit(),
    max_grad_norm=spaces.log(),
)
"""The space that a baseline is tuned in; numbers whose default lies at the end of their
scale start beside it."""


@on_any_env
def make(env: envs.Env, config: Config = Config(), meta: Meta = Meta()) -> InnerLoop:
    """R2D2 on `env`, whose actions are discrete. An agent's carry is [hidden].

    `InnerLoop.env` is `env` with the last action and reward in its states, which `act`
    reads there. Metrics of `train`: those of `rollouts.metrics`; `importance`, the mean
    of the importance weights; and on the minibatches the mean `q`, and mean and root
    mean square of q − target, `value_error_mean` and `_rms`, all of rescaled values.

    Raises:
        ConfigError: sizes that do not fit each other, continuous actions, several
            players, or a slot of `meta` holds what cannot be used there.
    """
    parts = _r2d2.parts(env, config, "R2D2")
    num_updates = parts.sizes.lifetime.num_updates

    def init(key, meta):
        return InnerState(*parts.born(key, meta), clock=training.start_clock())

    def update(key, meta, state):
        """T steps of the environments and U gradient steps."""
        agent, experience, clock = state.agent, state.experience, state.clock
        act_key, sample_key = jax.random.split(jax.random.fold_in(key, clock.update))
        context = training.context(agent.age, num_updates)
        experience, finished = parts.collect(
            act_key, agent, experience, clock, meta, context
        )
        drawn = parts.draw(sample_key, experience, clock)
        agent, mass, info = parts.learner.improve(
            *(agent, parts.read(experience, drawn.indices)),
            *((drawn.mass, drawn.age, drawn.visits), clock, meta, context),
        )
        kept = parts.windows.update(experience.priorities, drawn.indices, mass)
        experience = experience._replace(priorities=kept)
        state = InnerState(agent, experience, (), training.tick(clock))
        return state, info | {"totals": rollouts.totals(finished)}

    return training.inner_loop(
        parts.env,
        config,
        meta,
        parts.sizes.lifetime,
        init,
        update,
        parts.act,
        initial_carry=lambda: jnp.zeros(config.hidden),
        tunable=TUNABLE,
        masks=True,
    )


if __name__ == "__main__":
    metaevo.train_main(make)
