"""R2D2 from demonstrations: R2D3 (Gulcehre et al., 2020).

https://arxiv.org/abs/1909.01387. Each sequence of a minibatch is a demonstration's with
the probability `demo_ratio`, else one of the agent's own; both buffers are prioritized,
and there is no loss of imitation. Differences from the paper:

* Demonstrations start without a memory, which the burn-in fills, as no agent had one.
* Importance weights correct for priorities within a buffer, the ratio stays.
* Those of R2D2; what both share is in `_r2d2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

import metaevo
from inner_loops import _r2d2
from inner_loops._r2d2 import Agent, Experience
from metaevo import envs, exploration, losses, optimizers, rewards, spaces
from metaevo.learned import rescalings
from metaevo.learned.priorities import absolute
from metaevo.rl import demonstrations, networks, rollouts, training
from metaevo.rl.priorities import Drawn, Priorities
from metaevo.rl.recurrent_q import Sequences
from metaevo.rl.rollouts import Transition
from metaevo.slots import Slot, value
from metaevo.types import InnerLoop, InnerState, on_any_env

__all__ = ["TUNABLE", "Agent", "Config", "Experience", "Meta", "make"]


@dataclass(frozen=True)
class Config:
    """Static settings: shapes and loop lengths; those of R2D2, and one more.

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
        num_demonstrations: episodes that the environment's script plays, see
            `demonstrations.SCRIPTS`.
    """

    total_timesteps: int = 200_000
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
    num_demonstrations: int = 50


class Meta(NamedTuple):
    """Slots of R2D3: those of R2D2, and one more.

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
        demo_ratio: in [0, 1], the expected share of demonstrations in a minibatch.
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
    demo_ratio: Slot = 0.25


TUNABLE = spaces.tune(
    lr=spaces.log(),
    gamma=spaces.one_minus_log(),
    epsilon=spaces.logit(),
    epsilon_exponent=spaces.log(),
    priority_exponent=spaces.log(),
    importance_exponent=spaces.logit(),
    max_grad_norm=spaces.log(),
    demo_ratio=spaces.logit(),
)
"""The space that a baseline is tuned in."""


@on_any_env
def make(
    env: envs.Env,
    config: Config = Config(),
    meta: Meta = Meta(),
    given: Transition | None = None,
) -> InnerLoop:
    """R2D3 on `env`, whose actions are discrete; see `r2d2.make`.

    Args:
        given: demonstrations in place of those of the environment's script: whole
            episodes, one after another, [N, ...], as of `demonstrations.record`.

    Raises:
        ConfigError: as for R2D2; or there is no script for `env`, or it draws a task
            for each lifetime.
    """
    parts = _r2d2.parts(env, config, "R2D3")
    num_updates = parts.sizes.lifetime.num_updates
    steps = given
    if steps is None:
        played = demonstrations.script(env)
        steps = demonstrations.record(env, played, config.num_demonstrations)
    demos = demonstrations.sequences(
        steps, parts.sizes.window, config.period, config.hidden
    )
    shape = config.num_gradient_steps, config.batch_size

    def init(key, meta):
        agent, experience = parts.born(key, meta)
        context = training.context(agent.age, num_updates)
        sequences = demos.read(jnp.arange(demos.number))
        seen = parts.learner.first_seen(agent.params, sequences, meta, context)
        mass, _ = parts.learner.first_mass(seen, agent.return_std, meta, context)
        experience = experience._replace(demonstrations=demos.start(mass))
        return InnerState(agent, experience, clock=training.start_clock())

    def update(key, meta, state):
        """T steps of the environments and U gradient steps."""
        agent, experience, clock = state.agent, state.experience, state.clock
        act_key, own_key = jax.random.split(jax.random.fold_in(key, clock.update))
        demo_key, choice_key = jax.random.split(jax.random.fold_in(own_key, 1))
        context = training.context(agent.age, num_updates)
        experience, finished = parts.collect(
            act_key, agent, experience, clock, meta, context
        )
        own = parts.draw(own_key, experience, clock)
        theirs = demos.draw(demo_key, experience.demonstrations, shape)
        ratio = value(meta.demo_ratio, context)
        chosen = jax.random.bernoulli(choice_key, ratio, shape)
        drawn = jax.tree.map(
            partial(jnp.where, chosen),
            _relative(theirs, experience.demonstrations),
            _relative(own, experience.priorities),
        )
        sequences = _mixed(
            chosen, demos.read(theirs.indices), parts.read(experience, own.indices)
        )
        agent, mass, info = parts.learner.improve(
            agent, sequences, drawn, clock, meta, context
        )
        experience = experience._replace(
            priorities=parts.windows.update(
                experience.priorities, own.indices, mass, ~chosen
            ),
            demonstrations=demos.update(
                experience.demonstrations, theirs.indices, mass, chosen
            ),
        )
        state = InnerState(agent, experience, (), training.tick(clock))
        return state, info | {
            "demonstrations": chosen.mean(),
            "totals": rollouts.totals(finished),
        }

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
        parts=given,
    )


def _mixed(chosen: jax.Array, theirs: Sequences, own: Sequences) -> Sequences:
    """Sequences of two sources: `theirs` where `chosen` [U, B], else `own`.

    Leaves of steps are [W, U, B, ...], those of starts [U, B, ...].
    """

    def pick(x, y):
        return jnp.where(chosen.reshape(*chosen.shape, *[1] * (x.ndim - 2)), x, y)

    return Sequences(
        jax.tree.map(jax.vmap(pick), theirs.steps, own.steps),
        jax.tree.map(pick, theirs.start, own.start),
    )


def _relative(drawn: Drawn, kept: Priorities) -> tuple[jax.Array, ...]:
    """Mass over the mean of those that can be drawn; age and visits as they are."""
    leaves, top = kept.levels[0], kept.levels[-1]
    share = drawn.mass * (leaves > 0).sum() / top.sum()
    return share, drawn.age, drawn.visits


if __name__ == "__main__":
    metaevo.train_main(make)
