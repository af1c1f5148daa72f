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

import jax.numpy as jnp

import metaevo
from inner_loops import _r2d2
from inner_loops._r2d2 import Agent, Experience
from metaevo import envs, spaces
from metaevo.rl import rollouts, training
from metaevo.types import InnerLoop, InnerState, on_any_env

__all__ = ["TUNABLE", "Agent", "Config", "Experience", "Meta", "make"]


@dataclass(frozen=True)
class Config(_r2d2.Config):
    """Static settings: shapes and loop lengths."""


class Meta(_r2d2.Meta):
    """Slots of R2D2."""


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
        act_key, sample_key = training.keys(key, clock)
        context = training.context(agent.age, num_updates)
        agent, experience, finished = parts.collect(
            act_key, agent, experience, clock, meta, context
        )
        drawn = parts.draw(sample_key, experience, clock)
        agent, mass, info = parts.learner(agent).improve(
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
